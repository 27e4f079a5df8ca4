"""What three or more steps share: tables, params, towers, fingerprints, tracking, progress."""

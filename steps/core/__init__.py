"""What every step shares: tables, params, towers, losses, fingerprints, tracking, progress."""

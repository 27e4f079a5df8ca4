"""What every part of the project shares: errors, files, names, settings."""

"""Training losses, sorted by what they compare."""

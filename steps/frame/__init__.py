"""How a stage starts and ends."""

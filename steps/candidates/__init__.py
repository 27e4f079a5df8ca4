"""Stage `candidates`: what can be found for training queries before any teacher is trained."""

"""Tables of teachers by what they are trained on: what is mined and trained, how it is scored, and what is compared."""

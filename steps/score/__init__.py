"""Stage `score`: how well another teacher finds that texts and documents go together."""

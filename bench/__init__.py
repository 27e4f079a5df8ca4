"""Side-by-side measurements; each command writes bench/results/<name>.json."""

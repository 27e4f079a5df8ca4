"""Tasks of a scheduled run: what `python -m pipeline.task` does, and where its tasks meet."""

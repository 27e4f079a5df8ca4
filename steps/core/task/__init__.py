"""Tasks of a scheduled run: what `python -m steps.core.task` does, and where its tasks meet."""

"""Running things: the whole pipeline, recipes, scheduled tasks, images and lineage. No step depends on it."""

"""Stage `index`: the teacher's document embeddings become searchable, exactly and approximately."""

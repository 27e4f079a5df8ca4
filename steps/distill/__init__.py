"""Stage `distill`: small query encoders learn the teacher's query embeddings; documents stay as they are."""

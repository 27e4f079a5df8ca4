"""Stage `embed`: the teacher reads every document and every alignment text, once."""

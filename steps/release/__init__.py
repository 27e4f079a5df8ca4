"""Stage `release`: one query encoder and the index it may query become one folder that proves itself."""

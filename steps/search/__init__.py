"""Search with a released student and its index."""

"""Ask a released student and its index a question."""

"""Keyword search: BM25, and its fusion with the dense search."""

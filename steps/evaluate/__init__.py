"""Measure BM25, the teacher and every student: quality, what was kept of it, speed; and audit for leaks."""

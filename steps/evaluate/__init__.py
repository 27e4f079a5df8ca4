"""Measure BM25, the teacher and every student: quality, retention, speed; and audit for leaks."""

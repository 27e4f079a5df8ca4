"""A teacher behind an API."""

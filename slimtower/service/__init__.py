"""The service: releases over HTTP, a page to search with, and a log of searches that the pipeline reads."""

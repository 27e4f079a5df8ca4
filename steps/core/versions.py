"""Which libraries a result was computed by: what a cache or a checkpoint must not outlive, as its code."""

from importlib.metadata import version


def library_versions() -> tuple[str, ...]:
    """Of torch, transformers and sentence-transformers, which need not be imported for that."""
    return version("torch"), version("transformers"), version("sentence_transformers")

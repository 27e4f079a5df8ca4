"""Which libraries a result was computed by: what a cache or a checkpoint must not outlive, as its code."""

import sentence_transformers
import torch
import transformers


def library_versions() -> tuple[str, ...]:
    return torch.__version__, transformers.__version__, sentence_transformers.__version__

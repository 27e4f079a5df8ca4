"""Knobs of a teacher that is a cross encoder, for tests."""

from typing import Any

CROSS: dict[str, Any] = {
    "kind": "cross_encoder",
    "base": "set by the test",
    "pooling": "cls",
    "scale": 1.0,
    "reconstruction_weight": 0.0,
    "batch_size": 16,
    "learning_rate": 1e-3,
    "max_length": 32,
    "checkpoint_steps": 2,
    "dev_queries": 5,
    "dev_documents": 40,
    "precision": "fp32",
    "seed": 3,
}
POOLED: dict[str, Any] = {"pooling": "segments", "scale": 0.1, "reconstruction_weight": 0.5}
DUAL = CROSS | POOLED

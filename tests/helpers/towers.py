"""Towers made from another."""

from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer

from steps.core.towers import load_tower


def other_weights(source: Path, target: Path, seed: int) -> None:
    """The same network with other random weights, and its embeddings of any length."""
    tower = load_tower(source)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in tower.parameters():
            weight.add_(0.3 * weight.std() * torch.randn(weight.shape, generator=generator))
    bare = SentenceTransformer(modules=[tower[0], tower[1]], device="cpu", similarity_fn_name="dot")
    bare.save_pretrained(str(target), create_model_card=False)

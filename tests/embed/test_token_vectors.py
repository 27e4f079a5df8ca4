"""Vectors of a teacher's tokens: as one pass makes them, each made once, and kept shard by shard."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer
from teach_fakes import write_tower

from slimtower.common.fingerprints import fingerprint
from steps.embed.token_vectors import token_vectors
from steps.encoders.towers import load_tower

BATCH, SHARD = 4, 9  # of 33 tokens: shards of two batches, and a last one of one token


class Killed(Exception):
    """Raised where the process would end."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_tower(tmp_path / "model")


def made(folder: Path, dies_at: int = 0, batch_size: int = BATCH, precision: Any = "fp32") -> tuple[np.ndarray, int]:
    """The vectors, and how many batches were read for them."""
    tower, batches = load_tower(folder), []

    def counted(*_: object) -> None:
        batches.append(1)
        if len(batches) == dies_at:
            raise Killed

    tower.register_forward_pre_hook(counted)
    found = token_vectors(tower, fingerprint(folder).id, precision=precision, batch_size=batch_size, shard_texts=SHARD)
    return found, len(batches)


def in_one_pass(folder: Path) -> np.ndarray:
    tower: SentenceTransformer = load_tower(folder)
    first, last = tower.tokenizer.cls_token_id, tower.tokenizer.sep_token_id
    rows = []
    for ids in torch.arange(len(tower.tokenizer)).split(BATCH):
        batch = torch.stack([torch.full_like(ids, first), ids, torch.full_like(ids, last)], dim=1)
        with torch.inference_mode():
            features = {"input_ids": batch, "attention_mask": torch.ones_like(batch)}
            rows.append(tower(features)["sentence_embedding"].numpy())
    return np.concatenate(rows)


def shards(cache: Path) -> list[Path]:
    return sorted(cache.glob("tokens/*/shard-*"))


@pytest.mark.medium
def test_they_are_those_of_one_pass_and_are_made_once(folder: Path, own_cache: Path) -> None:
    expected = in_one_pass(folder)
    first, read = made(folder)
    assert first.dtype == np.float32 and first.tobytes() == expected.tobytes()
    assert read == -(-len(expected) // BATCH) and len(shards(own_cache)) == -(-len(expected) // (2 * BATCH))
    again, read = made(folder)
    assert read == 0 and again.tobytes() == expected.tobytes()


@pytest.mark.medium
def test_a_killed_run_repeats_one_shard_and_leaves_the_same_bytes(folder: Path, own_cache: Path) -> None:
    expected = in_one_pass(folder)
    with pytest.raises(Killed):
        made(folder, dies_at=6)  # in the second half of the third shard
    assert len(shards(own_cache)) == 2
    found, read = made(folder)
    assert read == -(-len(expected) // BATCH) - 4 and found.tobytes() == expected.tobytes()


@pytest.mark.medium
def test_another_teacher_precision_batch_or_library_has_its_own(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(folder)
    other = load_tower(folder)
    other.prompts["query"] = "sum "
    other.save_pretrained(str(tmp_path / "other"), create_model_card=False)
    assert made(tmp_path / "other")[1] and made(folder, precision="bf16")[1] and made(folder, batch_size=8)[1]
    assert not made(folder)[1]
    for library in (torch, transformers, sentence_transformers):
        with monkeypatch.context() as patch:
            patch.setattr(library, "__version__", "99.0.0")
            assert made(folder)[1]

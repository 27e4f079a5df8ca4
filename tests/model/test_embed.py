"""A killed `embed` goes on where it was, and gives what an undisturbed one gives."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import stages
from stages import run_embed, write_ingest
from tokenizers.normalizers import BertNormalizer

from steps.core.texts import document_text
from steps.core.towers import load_tower
from steps.embed import run as stage

SCRIPT = """
import sys
from pathlib import Path
import steps.embed.run as stage
from stages import run_embed

encode = stage.encode

def slow(tower, texts, *words, **named):
    import time
    time.sleep(0.3)
    return encode(tower, texts, *words, **named)

stage.encode = slow
run_embed(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def shards(cache: Path) -> int:
    return len(list(cache.glob("vectors/*/shard-*/vectors.npy")))


def test_a_killed_embed_repeats_at_most_one_shard(
    tiny_tower: Path, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([".", "tests/model"])}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path), str(tiny_tower)], env=environment)
    deadline = time.monotonic() + 120
    while shards(own_cache) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = shards(own_cache)
    assert kept >= 3
    assert not (tmp_path / "data/embed").exists()

    encoded: list[int] = []
    encode = stage.encode

    def counted(tower: object, texts: list[str], *words: object, **named: object) -> np.ndarray:
        encoded.append(len(texts))
        return encode(tower, texts, *words, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(stage, "encode", counted)
    run_embed(tmp_path, tiny_tower)
    assert len(encoded) == shards(own_cache) - kept  # not one shard twice
    resumed = np.load(tmp_path / "data/embed/alignment.npy")

    monkeypatch.setenv("SLIMTOWER_CACHE", str(tmp_path / "another-cache"))
    run_embed(tmp_path / "again", tiny_tower)
    np.testing.assert_array_equal(resumed, np.load(tmp_path / "again/data/embed/alignment.npy"))


def test_documents_are_in_corpus_order_and_tokens_have_their_row(tiny_tower: Path, tmp_path: Path) -> None:
    run_embed(tmp_path, tiny_tower)
    tower = load_tower(tiny_tower)
    corpus = stage.read_table(write_ingest(tmp_path / "data/ingest"), "corpus").to_pylist()
    texts = [document_text(row["title"], row["content"]) for row in corpus]
    np.testing.assert_allclose(
        np.load(tmp_path / "data/embed/documents.npy"), tower.encode_document(texts, batch_size=1), atol=1e-5
    )
    tokens = np.load(tmp_path / "data/embed/tokens.npy")
    row = tower.tokenizer.convert_tokens_to_ids("axis")
    np.testing.assert_allclose(tokens[row], tower.encode("axis"), atol=1e-5)
    assert tokens.shape == (len(tower.tokenizer), 32)


@pytest.mark.parametrize("lowercase", [True, False])
def test_only_a_teacher_that_tells_case_apart_gets_queries_in_another_case(
    tiny_tower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lowercase: bool
) -> None:
    tower = load_tower(tiny_tower)
    tower.tokenizer.backend_tokenizer.normalizer = BertNormalizer(lowercase=lowercase)
    monkeypatch.setattr(stage, "load_tower", lambda _: tower)
    monkeypatch.setattr(
        stages, "EMBED", stages.EMBED.model_copy(update={"parts": ["perturbed_queries"], "case_share": 1})
    )
    run_embed(tmp_path, tiny_tower)
    asked = {row["query_id"]: row["text"] for row in stage.read_table(tmp_path / "data/ingest", "queries").to_pylist()}
    made = stage.read_table(tmp_path / "data/embed", "alignment_texts").to_pylist()
    assert made
    assert all((row["text"].lower() == asked[row["source_id"]].lower()) != lowercase for row in made)

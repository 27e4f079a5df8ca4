"""Documents that are alignment texts too are read once, if the teacher reads both alike, and give the same vectors."""

from pathlib import Path

import numpy as np
import pytest
import stages
from recorder import Recorder
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Router
from stages import corpus_texts, run_embed

from steps.core.corpus import CorpusRows
from steps.core.tables import read_table
from steps.embed import alignment_texts
from steps.embed import run as stage
from steps.embed.read_once import rows_read_alike
from steps.encoders.towers import load_tower

pytestmark = pytest.mark.medium
PARTS = {"parts": ["train_queries", "documents", "titles"], "least_texts": 0}


def arrays(root: Path) -> dict[str, np.ndarray]:
    return {path.stem: np.load(path) for path in sorted((root / "data/embed").glob("*.npy"))}


def alike(root: Path, tower: SentenceTransformer) -> tuple[list[int], list[int]]:
    texts = read_table(root / "data/embed", "alignment_texts")
    doc_ids = (doc_id for (doc_id,) in CorpusRows(root / "data/ingest", ["doc_id"]))
    rows, doc_rows = rows_read_alike(tower, texts, doc_ids, corpus_texts(root))
    return rows.tolist(), doc_rows.tolist()


def test_the_vectors_are_those_of_texts_that_were_read_again(
    tiny_tower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "EMBED", stages.EMBED.model_copy(update=PARTS))
    once, twice = Recorder(), Recorder()
    monkeypatch.setattr(stages, "NullRun", lambda: once)
    run_embed(tmp_path / "once", tiny_tower)
    monkeypatch.setenv("SLIMTOWER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(stages, "NullRun", lambda: twice)
    monkeypatch.setattr(stage, "rows_read_alike", lambda *_: (np.empty(0, dtype=np.int64),) * 2)
    run_embed(tmp_path / "twice", tiny_tower)
    first, second = arrays(tmp_path / "once"), arrays(tmp_path / "twice")
    assert first.keys() == second.keys() and "lengths" in first
    for name, array in second.items():
        assert first[name].dtype == array.dtype
        np.testing.assert_allclose(first[name].astype(float), array.astype(float), atol=1e-3, err_msg=name)
    saved = twice.last["embedded.alignment"] - once.last["embedded.alignment"]
    rows, _ = alike(tmp_path / "once", load_tower(tiny_tower))
    assert saved == len(rows) > 10


def test_only_texts_of_which_the_tower_reads_the_same_tokens_count(
    tiny_tower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "EMBED", stages.EMBED.model_copy(update=PARTS))
    monkeypatch.setattr(alignment_texts, "MAX_WORDS", 5)
    run_embed(tmp_path, tiny_tower)
    documents, table = corpus_texts(tmp_path), read_table(tmp_path / "data/embed", "alignment_texts").to_pylist()
    tower = load_tower(tiny_tower)
    counts = []
    for limit in (128, 4):  # of tokens, two of which stand around a text
        tower.max_seq_length = limit
        rows, doc_rows = alike(tmp_path, tower)
        ids = tower.tokenizer(documents, truncation=True, max_length=limit)["input_ids"]
        for row, doc_row in zip(rows, doc_rows, strict=True):
            read = tower.tokenizer(table[row]["text"], truncation=True, max_length=limit)["input_ids"]
            assert table[row]["part"] == "documents" and read == ids[doc_row]
        counts.append(len(rows))
    parts = [row["part"] for row in table].count("documents")
    assert counts[0] < counts[1] == parts, "cut at five words they differ, unless no more than two tokens are read"


def test_prompts_and_towers_of_their_own_read_differently(
    tiny_tower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "EMBED", stages.EMBED.model_copy(update=PARTS))
    run_embed(tmp_path, tiny_tower)
    tower = load_tower(tiny_tower)
    every, _ = alike(tmp_path, tower)
    tower.prompts = {"query": "text: ", "document": "text: "}
    assert every and alike(tmp_path, tower)[0] == every
    tower.prompts = {"query": "query: ", "document": "passage: "}
    assert alike(tmp_path, tower) == ([], [])
    tower = load_tower(tiny_tower)
    router = Router.for_query_document([tower[0]], [tower[0]])  # type: ignore[list-item]
    assert alike(tmp_path, SentenceTransformer(modules=[router, *list(tower)[1:]], device="cpu")) == ([], [])

"""The corpus a batch at a time: the same documents and identity, whatever their number."""

import hashlib
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest

from slimtower.common.files import sha256_text
from steps.core import corpus
from steps.core.tables import table_from_rows, write_table
from steps.index.inputs import read_documents

ROWS = [
    {"doc_id": f"{name}/{number}", "dataset": name, "title": f"T{number}", "topic": "", "content": f"text {number}"}
    for number in range(50)
    for name in ("one", "two")[: 1 + number % 2]
]


def digest(rows: list[dict[str, str]]) -> str:
    """By another road: each document behind the lengths of its first fields, hashed, sorted, hashed again."""
    digests = []
    for row in rows:
        fields = [row[name] for name in ("doc_id", "title", "topic", "content")]
        lengths = [str(len(field)) for field in fields[:3]]
        digests.append(hashlib.sha256(" ".join([*lengths, "".join(fields)]).encode()).digest())
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()


@pytest.fixture
def ingest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(corpus, "_DOCUMENTS", 7)
    write_table(tmp_path, "corpus", table_from_rows("corpus", ROWS))
    return tmp_path


def test_documents_are_told_by_data_set(ingest: Path) -> None:
    by_dataset = read_documents(ingest)
    assert list(by_dataset) == ["one", "two"]
    for name, documents in by_dataset.items():
        expected = [row for row in ROWS if row["dataset"] == name]
        assert [ROWS[row] for row in documents.rows] == expected
        assert documents.doc_ids.to_pylist() == [row["doc_id"] for row in expected]
        assert documents.text_shas.to_pylist() == [sha256_text(f"{row['title']}. {row['content']}") for row in expected]
        assert documents.digest == digest(expected)


def test_the_digest_knows_every_field_and_no_order() -> None:
    fields = [(row["doc_id"], row["title"], row["topic"], row["content"]) for row in ROWS]
    assert corpus.corpus_digest(fields) == corpus.corpus_digest(reversed(fields)) == digest(ROWS)
    seen = {corpus.corpus_digest(fields), corpus.corpus_digest(fields[1:]), corpus.corpus_digest([])}
    for field in range(4):
        changed = list(fields[3])
        changed[field] += "."
        seen.add(corpus.corpus_digest([*fields[:3], tuple(changed), *fields[4:]]))  # type: ignore[list-item]
    assert len(seen) == 7
    assert corpus.document_digest("a", "bc", "", "") != corpus.document_digest("ab", "c", "", "")


def test_texts_and_rows_can_be_read_again(ingest: Path) -> None:
    texts, rows = corpus.CorpusTexts(ingest), corpus.CorpusRows(ingest, ["content", "doc_id"])
    assert len(texts) == len(rows) == len(ROWS)
    for _ in range(2):
        assert list(texts) == [f"{row['title']}. {row['content']}" for row in ROWS]
        assert list(rows) == [(row["content"], row["doc_id"]) for row in ROWS]


@pytest.mark.medium
def test_texts_larger_than_memory_pass_through_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "_DOCUMENTS", 512)
    texts = [sha256_text(str(number)) * 20 for number in range(30_000)]
    size = sum(map(len, texts))
    rows = [
        {"doc_id": f"d{number}", "dataset": "one", "title": "", "topic": "", "content": text}
        for number, text in enumerate(texts)
    ]
    write_table(tmp_path, "corpus", table_from_rows("corpus", rows))
    del rows, texts
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    peak_arrow = 0
    for _ in corpus.corpus_batches(tmp_path, ["content"]):
        peak_arrow = max(peak_arrow, pa.total_allocated_bytes() - before)
    read_documents(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 30e6
    assert peak_arrow < size / 4 and peak < size / 4, (peak_arrow, peak)

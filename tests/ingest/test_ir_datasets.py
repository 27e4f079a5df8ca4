"""A data set of ir_datasets, registered in memory: parts become splits, rows of any kind become documents."""

import os
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace as Row
from typing import Any
from unittest.mock import Mock

import pytest
from toy_source import read_toy

from slimtower.common.errors import TransientError, UserError
from steps.ingest.kinds.ir_datasets import IrDatasetsSource
from steps.ingest.rejects import Rejects
from steps.ingest.source import SourceData

# The package makes its folders when it is imported: not in the home of who runs the tests.
os.environ.setdefault("IR_DATASETS_HOME", str(Path(tempfile.gettempdir()) / "slimtower-tests-ir-datasets"))
ir_datasets = pytest.importorskip("ir_datasets", reason="the extra ir_datasets is not installed")
from ir_datasets.formats import BaseDocs, BaseQrels, BaseQueries, GenericDoc, GenericQrel, GenericQuery  # noqa: E402


def part(base: type, rows_iter: str, *rows: Any) -> Any:
    """A part of a data set that has these rows."""
    return type("Part", (base,), {rows_iter: lambda self: iter(rows)})()


Docs = partial(part, BaseDocs, "docs_iter")
Queries = partial(part, BaseQueries, "queries_iter")
Qrels = partial(part, BaseQrels, "qrels_iter")
DOCS = Docs(*(GenericDoc(f"d{n}", f"text {n}") for n in range(40)))


def queries_of(numbers: range) -> Any:
    return Queries(*(GenericQuery(f"q{n}", f"question {n}") for n in numbers))


def qrels_of(numbers: range) -> Any:
    return Qrels(*(GenericQrel(f"q{n}", f"d{n}", 1) for n in numbers))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An empty registry in place of the package's own."""
    empty = ir_datasets.util.Registry()
    monkeypatch.setattr(ir_datasets, "registry", empty)
    return empty


def register(registry: Any, dataset_id: str, *parts: Any) -> None:
    registry.register(dataset_id, ir_datasets.Dataset(*parts))


def read_dataset(dataset_id: str = "toy", *, ratio: float = 0.0) -> tuple[SourceData, Rejects]:
    return read_toy(IrDatasetsSource(kind="ir_datasets", name="mine", id=dataset_id), ratio=ratio)


def ids(data: SourceData, split: str) -> set[str]:
    return {query.query_id for query in data.queries if query.split == split}


def test_the_parts_are_the_splits(registry: Any) -> None:
    register(registry, "toy", DOCS, queries_of(range(40)))
    register(registry, "toy/train", DOCS, queries_of(range(22)), qrels_of(range(20)))
    register(registry, "toy/validation", DOCS, queries_of(range(22, 27)), qrels_of(range(22, 26)))
    register(registry, "toy/test", DOCS, queries_of(range(30, 40)), qrels_of(range(30, 40)))
    data, rejects = read_dataset()
    assert len(data.documents) == 40 and data.documents[2] == ("mine/d2", "mine", "", "", "text 2")
    assert ids(data, "train") == {f"mine/q{n}" for n in range(20)}
    assert ids(data, "dev") == {f"mine/q{n}" for n in range(22, 26)}
    assert ids(data, "test") == {f"mine/q{n}" for n in range(30, 40)}
    assert ids(data, "unlabelled") == {"mine/q20", "mine/q21"}
    assert data.facts["queries_left_out"] == {"unjudged_in_evaluation_part": 1}
    assert data.facts["parts"] == {"test": "toy/test", "dev": "toy/validation", "train": "toy/train"}
    assert {(row.query_id, row.doc_id, row.grade, row.split) for row in data.judgements if row.split == "dev"} == {
        (f"mine/q{n}", f"mine/d{n}", 1, "dev") for n in range(22, 26)
    }
    assert not rejects.rows


def test_dev_is_test_where_test_has_no_judgements(registry: Any) -> None:
    register(registry, "toy", DOCS)
    register(registry, "toy/train", DOCS, queries_of(range(20)), qrels_of(range(20)))
    register(registry, "toy/dev", DOCS, queries_of(range(20, 30)), qrels_of(range(20, 30)))
    register(registry, "toy/test", DOCS, queries_of(range(30, 40)))
    data, _ = read_dataset()
    assert ids(data, "test") == {f"mine/q{n}" for n in range(20, 30)}
    assert len(ids(data, "dev")) == 4 and len(ids(data, "train")) == 16
    assert not ids(data, "unlabelled")


def test_parts_that_share_their_queries_are_told_apart_by_their_judgements(registry: Any) -> None:
    everything = queries_of(range(40))
    register(registry, "toy", DOCS, everything)
    register(registry, "toy/train", DOCS, everything, qrels_of(range(21)))
    register(registry, "toy/dev", DOCS, everything, qrels_of(range(25, 30)))
    register(registry, "toy/test", DOCS, everything, qrels_of(range(20, 25)))
    data, rejects = read_dataset()
    assert ids(data, "train") == {f"mine/q{n}" for n in range(20)}
    assert "mine/q20" in ids(data, "test")
    assert not ids(data, "unlabelled")
    assert [(row.source, row.line, row.reason) for row in rejects.rows] == [
        ("mine/train/qrels", 21, "query_in_two_splits")
    ]


def test_rows_of_other_kinds(registry: Any) -> None:
    docs = Docs(
        Row(doc_id="a", title="A title", abstract="and an abstract", default_text=lambda: "A title and an abstract"),
        Row(doc_id="w", url="https://x", title="Page", body="its body"),
    )
    queries = Queries(Row(query_id="q", title="asked", narrative="in full", default_text=lambda: "what is asked"))
    register(registry, "toy", docs, queries, Qrels(GenericQrel("q", "a", 2), GenericQrel("q", "w", 0)))
    data, _ = read_dataset()
    assert [tuple(document) for document in data.documents] == [
        ("mine/a", "mine", "A title", "", "and an abstract"),
        ("mine/w", "mine", "Page", "", "its body"),
    ]
    assert [(query.text, query.split) for query in data.queries] == [("what is asked", "test")]
    assert [(row.doc_id, row.grade) for row in data.judgements] == [("mine/a", 2), ("mine/w", 0)]
    assert data.facts["judgements_not_relevant"] == 1


def test_bad_rows_are_rejected_with_reason_and_row(registry: Any) -> None:
    docs = Docs(GenericDoc("a", "text"), GenericDoc("b", " "), GenericDoc("a", "again"), GenericDoc("two words", "x"))
    queries = Queries(GenericQuery("q", "asked"), GenericQuery("m", "?!"))
    qrels = Qrels(*(GenericQrel(*row) for row in (("q", "a", 1), ("q", "z", 1), ("l", "a", 1), ("q", "a", 1))))
    register(registry, "toy", docs, queries, qrels)
    _, rejects = read_dataset(ratio=0.9)
    assert [(row.source, row.line, row.reason) for row in rejects.rows] == [
        ("mine/docs", 2, "empty_text"), ("mine/docs", 3, "duplicate_id"), ("mine/docs", 4, "bad_id"),
        ("mine/test/queries", 2, "empty_text"), ("mine/test/qrels", 2, "unknown_document"),
        ("mine/test/qrels", 3, "unknown_query"), ("mine/test/qrels", 4, "duplicate_judgement"),
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"toy: docs: 3 of 4 rows cannot be used"):
        read_dataset(ratio=0.5)


def test_a_file_that_only_a_person_can_fetch_and_a_failed_download_say_so(registry: Any) -> None:
    docs = Docs()
    docs.docs_iter = Mock(side_effect=FileNotFoundError("put disks45.tar here"))
    register(registry, "toy", docs, queries_of(range(3)), qrels_of(range(3)))
    with pytest.raises(UserError, match=r"ingest\.sources\[0\]\.id: toy: put disks45\.tar here; put the file there"):
        read_dataset()
    docs.docs_iter.side_effect = RuntimeError("All download sources failed")
    with pytest.raises(TransientError, match="All download sources failed"):
        read_dataset()

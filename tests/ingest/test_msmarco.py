"""An MS MARCO folder: dev becomes test where test has no judgements, nothing of an evaluation file trains."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from toy_source import read_toy

from steps.ingest.kinds.ms_marco import MsMarcoSource
from steps.ingest.rejects import Rejects
from steps.ingest.source import SourceData


def tsv(*rows: tuple[Any, ...]) -> bytes:
    return "".join("\t".join(map(str, row)) + "\n" for row in rows).encode()


def judged(numbers: range) -> bytes:
    return tsv(*((n, 0, n, 1) for n in numbers))


def questions(numbers: range) -> bytes:
    return tsv(*((n, f"question {n}") for n in numbers))


Maker = Callable[..., Path]


@pytest.fixture
def msmarco(tmp_path: Path) -> Maker:
    """Write a sound folder: 40 passages, 20 judged train queries of 25, 10 judged dev queries, 5 of eval."""

    def make(replaced: dict[str, bytes | None] | None = None) -> Path:
        files: dict[str, bytes | None] = {
            "collection.tsv": tsv(*((n, f"passage {n}") for n in range(40))),
            "queries.train.tsv": questions(range(25)),
            "queries.dev.tsv": questions(range(30, 40)),
            "queries.eval.tsv": questions(range(50, 55)),
            "qrels.train.tsv": judged(range(20)),
            "qrels.dev.tsv": judged(range(30, 40)),
        }
        for name, content in (files | (replaced or {})).items():
            if content is not None:
                (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return tmp_path

    return make


def read(folder: Path, *, seed: int = 3, ratio: float = 0.5) -> tuple[SourceData, Rejects]:
    return read_toy(MsMarcoSource(kind="ms_marco", name="ms", path=str(folder)), seed=seed, ratio=ratio)


def ids(data: SourceData, split: str) -> set[str]:
    return {query.query_id for query in data.queries if query.split == split}


def reasons(rejects: Rejects) -> list[tuple[str, int, str]]:
    return [(row.source, row.line, row.reason) for row in rejects.rows]


def test_dev_is_test_and_train_gives_dev_where_test_has_no_judgements(msmarco: Maker) -> None:
    data, rejects = read(msmarco(), ratio=0.0)
    assert ids(data, "test") == {f"ms/{n}" for n in range(30, 40)}
    assert len(ids(data, "dev")) == 4 and len(ids(data, "train")) == 16
    assert ids(data, "dev") | ids(data, "train") == {f"ms/{n}" for n in range(20)}
    assert ids(data, "unlabelled") == {f"ms/{n}" for n in range(20, 25)}  # train queries without judgement
    assert data.facts["queries_left_out"] == {"unjudged_in_evaluation_file": 5}
    assert data.facts["test_judgements"] == "qrels.dev.tsv"
    assert len(data.documents) == 40
    assert data.documents[7] == ("ms/7", "ms", "", "", "passage 7")
    by_query = {query.query_id: query.split for query in data.queries}
    assert all(row.split == by_query[row.query_id] for row in data.judgements)
    assert not rejects.rows
    assert len({frozenset(ids(read(msmarco(), seed=seed)[0], "dev")) for seed in range(5)}) > 1


def test_given_test_judgements_leave_dev_and_train_as_they_are(msmarco: Maker) -> None:
    data, _ = read(
        msmarco({"queries.test.tsv": questions(range(60, 63)), "qrels.test.tsv": b"60 Q0 1 2\n61\t0\t2\t1\n"})
    )
    assert ids(data, "test") == {"ms/60", "ms/61"}
    assert ids(data, "dev") == {f"ms/{n}" for n in range(30, 40)}
    assert ids(data, "train") == {f"ms/{n}" for n in range(20)}
    assert data.facts["queries_left_out"] == {"unjudged_in_evaluation_file": 6}
    assert {(row.query_id, row.doc_id, row.grade) for row in data.judgements if row.split == "test"} == {
        ("ms/60", "ms/1", 2),
        ("ms/61", "ms/2", 1),
    }


def test_documents_and_the_official_names_of_the_document_task(msmarco: Maker) -> None:
    folder = msmarco(
        {
            "collection.tsv": None,
            "msmarco-docs.tsv.gz": tsv(*((f"D{n}", f"https://x/{n}", f"title {n}", f"body {n}") for n in range(3))),
            "queries.train.tsv": None,
            "queries.dev.tsv": None,
            "queries.eval.tsv": None,
            "qrels.train.tsv": None,
            "qrels.dev.tsv": None,
            "msmarco-doctrain-queries.tsv.gz": questions(range(2)),
            "msmarco-doctrain-qrels.tsv.gz": b"0 0 D0 1\n1 0 D1 1\n",
            "msmarco-docdev-queries.tsv": questions(range(2, 3)),
            "msmarco-docdev-qrels.tsv": b"2 0 D2 1\n",
        }
    )
    data, rejects = read(folder, ratio=0.0)
    assert data.documents[1] == ("ms/D1", "ms", "title 1", "", "body 1")
    assert (ids(data, "train"), ids(data, "test")) == ({"ms/0", "ms/1"}, {"ms/2"})
    assert not rejects.rows


def test_the_small_dev_judgements_serve_and_the_other_dev_queries_stay_out_of_training(msmarco: Maker) -> None:
    data, _ = read(msmarco({"qrels.dev.tsv": None, "qrels.dev.small.tsv": judged(range(30, 33))}))
    assert ids(data, "test") == {"ms/30", "ms/31", "ms/32"}
    assert data.facts["queries_left_out"] == {"unjudged_in_evaluation_file": 5 + 7}


def test_one_file_of_queries(msmarco: Maker) -> None:
    no = {f"queries.{split}.tsv": None for split in ("train", "dev", "eval")}
    data, _ = read(msmarco({**no, "queries.tsv.gz": questions(range(45))}))
    assert ids(data, "test") == {f"ms/{n}" for n in range(30, 40)}
    assert ids(data, "unlabelled") == {f"ms/{n}" for n in (*range(20, 30), *range(40, 45))}


def test_bad_rows_are_rejected_with_reason_and_line(msmarco: Maker) -> None:
    collection = tsv(*((n, f"passage {n}") for n in range(40)), (41,), (42, ""), (3, "x"), (43, "a", "b"), ("a b", "x"))
    queries = tsv((0, "question 0"), (1, "?!"), (0, "again"), ("", "x")) + b"4\t\xff\n"
    dev = tsv((30, "question 30"), (31, "question 31"), (32, "question 32"), (33, "question 33"))
    qrels = tsv((30, 0, 30, 1), (31, 0, 31), (32, 0, 32, "high"), (33, 0, 99, 1), (30, 0, 30, 1), (99, 0, 1, 1))
    files = {"collection.tsv": collection, "queries.train.tsv": queries, "queries.dev.tsv": dev, "qrels.dev.tsv": qrels}
    data, rejects = read(msmarco({**files, "qrels.train.tsv": judged(range(1))}), ratio=0.9)
    assert reasons(rejects) == [
        ("ms/collection.tsv", 41, "missing_field"), ("ms/collection.tsv", 42, "empty_text"),
        ("ms/collection.tsv", 43, "duplicate_id"), ("ms/collection.tsv", 44, "too_many_columns"),
        ("ms/collection.tsv", 45, "bad_id"), ("ms/queries.train.tsv", 2, "empty_text"),
        ("ms/queries.train.tsv", 3, "duplicate_id"), ("ms/queries.train.tsv", 4, "bad_id"),
        ("ms/queries.train.tsv", 5, "invalid_utf8"), ("ms/qrels.dev.tsv", 2, "missing_field"),
        ("ms/qrels.dev.tsv", 3, "bad_grade"), ("ms/qrels.dev.tsv", 4, "unknown_document"),
        ("ms/qrels.dev.tsv", 5, "duplicate_judgement"), ("ms/qrels.dev.tsv", 6, "unknown_query"),
    ]  # fmt: skip
    assert ids(data, "test") == {"ms/30"}
    # Those that only broken rows name are the evaluation's all the same: neither unlabelled nor train.
    assert {query.query_id for query in data.queries} == {"ms/0", "ms/30"}


def test_a_query_of_an_evaluation_file_never_trains(msmarco: Maker) -> None:
    train = judged(range(20)) + tsv((30, 0, 1, 1), (50, 0, 1, 1))  # 30 is judged in dev, 50 is of the eval file
    data, rejects = read(msmarco({"qrels.train.tsv": train}), ratio=0.0)
    assert reasons(rejects) == [
        ("ms/qrels.train.tsv", 21, "query_in_two_splits"),
        ("ms/qrels.train.tsv", 22, "query_in_two_splits"),
    ]
    assert {row.split for row in data.judgements if row.query_id == "ms/30"} == {"test"}
    assert "ms/50" not in {query.query_id for query in data.queries}


def test_a_query_of_two_files_stays_with_the_evaluation(msmarco: Maker) -> None:
    data, rejects = read(msmarco({"queries.train.tsv": questions(range(25)) + questions(range(50, 51))}), ratio=0.0)
    assert reasons(rejects) == [("ms/queries.train.tsv", 26, "query_in_two_splits")]
    assert "ms/50" not in {query.query_id for query in data.queries}

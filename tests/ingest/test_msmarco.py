"""An MS MARCO folder: dev is test where test has no judgements, what is evaluated never trains, nor do its triplets."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ingest_logs import ingest, params, rows_of
from ingest_logs import reasons as rejected
from toy_source import read_toy

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.ingest.kinds import ms_marco
from steps.ingest.kinds.ms_marco import MsMarcoSource
from steps.ingest.listing import by_key, list_sources
from steps.ingest.locations import reading_only
from steps.ingest.params import IngestParams
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


def read_folder(folder: Path, *, seed: int = 3, ratio: float = 0.5) -> tuple[SourceData, Rejects]:
    return read_toy(MsMarcoSource(kind="ms_marco", name="ms", path=str(folder)), seed=seed, ratio=ratio)


def ids(data: SourceData, split: str) -> set[str]:
    return {query.query_id for query in data.queries if query.split == split}


def reasons(rejects: Rejects) -> list[tuple[str, int, str]]:
    return [(row.source, row.line, row.reason) for row in rejects.rows]


def test_dev_is_test_and_train_gives_dev_where_test_has_no_judgements(msmarco: Maker) -> None:
    data, rejects = read_folder(msmarco(), ratio=0.0)
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
    assert len({frozenset(ids(read_folder(msmarco(), seed=seed)[0], "dev")) for seed in range(5)}) > 1


def test_given_test_judgements_leave_dev_and_train_as_they_are(msmarco: Maker) -> None:
    data, _ = read_folder(
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
    names = ("collection", "queries.train", "queries.dev", "queries.eval", "qrels.train", "qrels.dev")
    folder = msmarco(
        {f"{name}.tsv": None for name in names}
        | {
            "msmarco-docs.tsv.gz": tsv(*((f"D{n}", f"https://x/{n}", f"title {n}", f"body {n}") for n in range(3))),
            "msmarco-doctrain-queries.tsv.gz": questions(range(2)),
            "msmarco-doctrain-qrels.tsv.gz": b"0 0 D0 1\n1 0 D1 1\n",
            "msmarco-docdev-queries.tsv": questions(range(2, 3)),
            "msmarco-docdev-qrels.tsv": b"2 0 D2 1\n",
        }
    )
    data, rejects = read_folder(folder, ratio=0.0)
    assert data.documents[1] == ("ms/D1", "ms", "title 1", "", "body 1")
    assert (ids(data, "train"), ids(data, "test")) == ({"ms/0", "ms/1"}, {"ms/2"})
    assert not rejects.rows


def test_the_small_dev_judgements_serve_and_the_other_dev_queries_stay_out_of_training(msmarco: Maker) -> None:
    data, _ = read_folder(msmarco({"qrels.dev.tsv": None, "qrels.dev.small.tsv": judged(range(30, 33))}))
    assert ids(data, "test") == {"ms/30", "ms/31", "ms/32"}
    assert data.facts["queries_left_out"] == {"unjudged_in_evaluation_file": 5 + 7}


def test_one_file_of_queries(msmarco: Maker) -> None:
    no = {f"queries.{split}.tsv": None for split in ("train", "dev", "eval")}
    data, _ = read_folder(msmarco({**no, "queries.tsv.gz": questions(range(45))}))
    assert ids(data, "test") == {f"ms/{n}" for n in range(30, 40)}
    assert ids(data, "unlabelled") == {f"ms/{n}" for n in (*range(20, 30), *range(40, 45))}


def test_bad_rows_are_rejected_with_reason_and_line(msmarco: Maker) -> None:
    collection = tsv(*((n, f"passage {n}") for n in range(40)), (41,), (42, ""), (3, "x"), (43, "a", "b"), ("a b", "x"))
    queries = tsv((0, "question 0"), (1, "?!"), (0, "again"), ("", "x")) + b"4\t\xff\n"
    dev = tsv((30, "question 30"), (31, "question 31"), (32, "question 32"), (33, "question 33"))
    qrels = tsv((30, 0, 30, 1), (31, 0, 31), (32, 0, 32, "high"), (33, 0, 99, 1), (30, 0, 30, 1), (99, 0, 1, 1))
    files = {"collection.tsv": collection, "queries.train.tsv": queries, "queries.dev.tsv": dev, "qrels.dev.tsv": qrels}
    data, rejects = read_folder(msmarco({**files, "qrels.train.tsv": judged(range(1))}), ratio=0.9)
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
    train_queries = questions(range(25)) + questions(range(50, 51))
    data, rejects = read_folder(msmarco({"qrels.train.tsv": train, "queries.train.tsv": train_queries}), ratio=0.0)
    assert reasons(rejects) == [
        ("ms/queries.train.tsv", 26, "query_in_two_splits"),
        ("ms/qrels.train.tsv", 21, "query_in_two_splits"),
        ("ms/qrels.train.tsv", 22, "query_in_two_splits"),
    ]
    assert {row.split for row in data.judgements if row.query_id == "ms/30"} == {"test"}
    assert "ms/50" not in {query.query_id for query in data.queries}


NAME = "qidpidtriples.train.small.tsv"


def source(folder: Path, triplets: str = NAME, **changes: Any) -> dict[str, Any]:
    return {"name": "ms", "kind": "ms_marco", "path": str(folder), "triplets": triplets} | changes


def triplets_of(checked: IngestParams) -> list[tuple[int, ...]]:
    """The numbers of what ingest writes, in order."""
    out = ingest(Path(checked.sources[0].path), checked)
    rows = rows_of(out, "given_triplets", "query_id", "positive_id", "negative_id")
    assert rows == sorted(rows)
    return sorted(tuple(int(text.removeprefix("ms/")) for text in row) for row in rows)


def train_ids(out: Path) -> list[int]:
    pairs = rows_of(out, "queries", "query_id", "split")
    return sorted(int(query.removeprefix("ms/")) for query, split in pairs if split == "train")


def test_triplets_of_train_queries_are_kept_once_and_others_are_counted(
    msmarco: Maker, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(n, n, m) for m in (39, 38) for n in (*range(25), 30)]
    folder = msmarco({f"{NAME}.gz": tsv(*rows, *rows[:3])})
    triplets = triplets_of(params(source(folder, f"{NAME}.gz"), max_reject_ratio=0.0))
    train = train_ids(folder / "out")
    assert len(train) == 16
    assert triplets == [(n, n, m) for n in train for m in (38, 39)]
    report = read_json(folder / "out/report.json")
    entry = report["datasets"]["ms"]
    assert (report["given_triplets"], entry["given_triplets"], entry["given_triplets_rows"]) == (32, 32, 55)
    left_out = entry["given_triplets_not_train"]
    assert (left_out["unlabelled"], left_out["test"], set(left_out)) == (10, 2, {"dev", "unlabelled", "test"})
    assert "32 given triplets" in capsys.readouterr().out
    assert not rejected(folder / "out")


def test_bad_triplets_are_rejected_with_reason_and_line(msmarco: Maker) -> None:
    bad = tsv((0, 0), (0, 0, 1, 1), (99, 0, 1), (0, 99, 1), (0, 0, 99), (0, 0, 0)) + b"\xff\t0\t1\n"
    folder = msmarco({NAME: bad + tsv(*((n, n, 39) for n in range(20)))})
    assert triplets_of(params(source(folder))) == [(n, n, 39) for n in train_ids(folder / "out")]
    assert rejected(folder / "out") == [
        *((f"ms/{NAME}", line, reason) for line, reason in (
            (1, "missing_field"), (2, "too_many_columns"), (3, "unknown_query"), (4, "unknown_document"),
            (5, "unknown_document"), (6, "same_document"), (7, "invalid_utf8"),
        ))
    ]  # fmt: skip
    with pytest.raises(UserError, match=rf"{NAME}: 7 of 27 rows cannot be used, over ingest\.max_reject_ratio"):
        ingest(folder, params(source(folder), max_reject_ratio=0.2))


def test_queries_that_spell_an_evaluation_query_lose_their_triplets(msmarco: Maker) -> None:
    folder = msmarco({NAME: tsv(*((n, n, 39) for n in range(20)))})
    triplets_of(params(source(folder)))
    spelled = train_ids(folder / "out")[0]
    (folder / "queries.dev.tsv").write_bytes(tsv((30, f"Question, {spelled}")) + questions(range(31, 40)))
    query_ids = [query for query, *_ in triplets_of(params(source(folder)))]
    assert spelled not in query_ids and query_ids == train_ids(folder / "out")
    entry = read_json(folder / "out/report.json")["datasets"]["ms"]
    assert (entry["given_triplets"], entry["given_triplets_of_left_out_queries"]) == (15, 1)


def test_a_sample_is_seeded_and_the_same_in_any_order(msmarco: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(n, n, m) for n in range(20) for m in range(20, 40)]
    folder = msmarco({NAME: tsv(*rows)})
    chosen = triplets_of(params(source(folder, max_triplets=100)))
    assert len(chosen) == 100
    assert triplets_of(params(source(folder, max_triplets=100), seed=4)) != chosen
    monkeypatch.setattr(ms_marco, "_ROWS_AT_ONCE", 150)  # drawn many times over
    (folder / NAME).write_bytes(tsv(*rows[::-1], *rows))
    assert triplets_of(params(source(folder, max_triplets=100))) == chosen
    assert len(triplets_of(params(source(folder, max_triplets=5000)))) == 16 * 20  # fewer are there


def test_each_triplet_is_drawn_equally_often() -> None:
    rows = np.array([(n, m, m + 1) for n in range(20) for m in range(10)], dtype=np.int32)
    counts = np.zeros(len(rows))
    for seed in range(400):
        chosen = {tuple(row) for row in ms_marco._sample(rows.ravel(), 50, seed)}  # type: ignore[arg-type]
        counts += [tuple(row) in chosen for row in rows]
    expected, variance = 400 / 4, 400 * 1 / 4 * 3 / 4
    assert counts.sum() == 400 * 50
    assert 0.7 < ((counts - expected) ** 2 / variance).mean() < 1.3  # chi-square over 199: sd 0.1


def test_the_file_of_triplets_lies_in_the_folder_or_elsewhere_and_is_listed(
    msmarco: Maker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = tsv(*((n, n, 39) for n in range(20)))
    folder, outside_file = msmarco({NAME: content}), tmp_path_factory.mktemp("elsewhere") / "other.tsv"
    outside_file.write_bytes(content)
    for triplets, name in ((NAME, NAME), (str(outside_file), "other.tsv")):
        checked = params(source(folder, triplets))
        keyed = by_key(checked, list_sources(checked))
        assert [row["path"] for row in keyed["ingest.sources[0].triplets"]] == [name]
        names = ["qrels.dev", "qrels.train", "queries.dev", "queries.eval", "queries.train"]
        paths = [row["path"] for row in keyed["ingest.sources[0].path"]]
        assert paths == ["collection.tsv", *(f"{name}.tsv" for name in names)]
        with reading_only(keyed):
            assert len(triplets_of(checked)) == 16
    outside_file.write_bytes(b"0\t0\t1\n")
    with reading_only(keyed), pytest.raises(UserError, match=r"other\.tsv changed since the run began"):
        ingest(folder, checked)


@pytest.mark.parametrize("content", [None, b"\n", tsv((30, 30, 1)), tsv((99, 0, 1))])
def test_a_file_that_gives_no_triplet_names_the_key(msmarco: Maker, content: bytes | None) -> None:
    folder = msmarco({NAME: content})
    with pytest.raises(UserError, match=r"ingest\.sources\[0\]\.triplets"):
        ingest(folder, params(source(folder)))

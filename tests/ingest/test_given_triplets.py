"""MS MARCO's triplets: those of train queries only, each once, a sample that does not depend on the order of rows."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ingest_logs import ingest, params, reasons, rows_of

from slimtower.common.errors import UserError
from steps.ingest.kinds import ms_marco
from steps.ingest.listing import by_key, list_sources
from steps.ingest.locations import reading_only
from steps.ingest.params import IngestParams

NAME = "qidpidtriples.train.small.tsv"
Triplet = tuple[Any, Any, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """60 passages; queries 0 to 19 are judged train queries, 4 of which become dev, 20 to 24 unlabelled, 30 is test."""
    found = tmp_path / "ms"
    found.mkdir()
    files = {
        "collection.tsv": [(n, f"passage {n}") for n in range(60)],
        "queries.train.tsv": [(n, f"question {n}") for n in range(25)],
        "queries.dev.tsv": [(30, "question 30")],
        "qrels.train.tsv": [(n, 0, n, 1) for n in range(20)],
        "qrels.dev.tsv": [(30, 0, 30, 1)],
    }
    for name, rows in files.items():
        (found / name).write_bytes(tsv(rows))
    return found


def tsv(rows: list[Any]) -> bytes:
    return "".join("\t".join(map(str, row)) + "\n" for row in rows).encode()


def source(folder: Path, triplets: str = NAME, **changes: Any) -> dict[str, Any]:
    return {"name": "ms", "kind": "ms_marco", "path": str(folder), "triplets": triplets} | changes


def read(tmp_path: Path, checked: IngestParams) -> list[tuple[int, int, int]]:
    rows = rows_of(ingest(tmp_path, checked), "given_triplets", "query_id", "positive_id", "negative_id")
    assert rows == sorted(rows)
    return sorted(tuple(int(text.removeprefix("ms/")) for text in row) for row in rows)  # type: ignore[misc]


def train_ids(out: Path) -> list[int]:
    pairs = rows_of(out, "queries", "query_id", "split")
    return sorted(int(query.removeprefix("ms/")) for query, split in pairs if split == "train")


def test_triplets_of_train_queries_are_kept_once_and_others_are_counted(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(n, n, m) for m in (59, 40) for n in (*range(25), 30)]
    (folder / f"{NAME}.gz").write_bytes(gzip.compress(tsv([*rows, *rows[:3]])))
    checked = params(source(folder, f"{NAME}.gz"), max_reject_ratio=0.0)
    found = read(tmp_path, checked)
    train = train_ids(tmp_path / "out")
    assert len(train) == 16
    assert found == sorted((n, n, m) for n in train for m in (40, 59))
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    entry = report["datasets"]["ms"]
    assert (report["given_triplets"], entry["given_triplets"], entry["given_triplets_rows"]) == (32, 32, 55)
    left_out = entry["given_triplets_not_train"]
    assert (left_out["unlabelled"], left_out["test"], set(left_out)) == (10, 2, {"dev", "unlabelled", "test"})
    assert "32 given triplets" in capsys.readouterr().out
    assert not reasons(tmp_path / "out")


def test_bad_rows_are_rejected_with_reason_and_line(folder: Path, tmp_path: Path) -> None:
    rows: list[Any] = [(0, 0), (0, 0, 1, 1), (99, 0, 1), (0, 99, 1), (0, 0, 99), (0, 0, 0)]
    content = tsv(rows) + b"\xff\t0\t1\n" + tsv([(n, n, 40) for n in range(20)])
    (folder / NAME).write_bytes(content)
    found = read(tmp_path, params(source(folder)))
    assert reasons(tmp_path / "out") == [
        (f"ms/{NAME}", line, reason)
        for line, reason in enumerate(
            (
                "missing_field",
                "too_many_columns",
                "unknown_query",
                "unknown_document",
                "unknown_document",
                "same_document",
                "invalid_utf8",
            ),
            start=1,
        )
    ]
    assert found == [(n, n, 40) for n in train_ids(tmp_path / "out")]
    with pytest.raises(UserError, match=rf"{NAME}: 7 of 27 rows cannot be used, over ingest\.max_reject_ratio"):
        ingest(tmp_path, params(source(folder), max_reject_ratio=0.2))


def test_queries_that_spell_an_evaluation_query_lose_their_triplets(folder: Path, tmp_path: Path) -> None:
    (folder / NAME).write_bytes(tsv([(n, n, 40) for n in range(20)]))
    before = set(read(tmp_path, params(source(folder))))
    spelled = train_ids(tmp_path / "out")[0]
    (folder / "queries.dev.tsv").write_bytes(tsv([(30, f"Question, {spelled}")]))
    after = set(read(tmp_path, params(source(folder))))
    entry = json.loads((tmp_path / "out" / "report.json").read_text())["datasets"]["ms"]
    assert not {query for query, _, _ in after} & {spelled} and after <= before | {(n, n, 40) for n in range(20)}
    assert {query for query, _, _ in after} == set(train_ids(tmp_path / "out"))
    assert (entry["given_triplets"], entry["given_triplets_of_left_out_queries"]) == (15, 1)


def test_a_sample_is_seeded_uniform_and_the_same_in_any_order(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[Triplet] = [(n, n, m) for n in range(20) for m in range(20, 60)]
    (folder / NAME).write_bytes(tsv(rows))
    chosen = read(tmp_path, params(source(folder, max_triplets=100)))
    assert len(chosen) == 100
    monkeypatch.setattr(ms_marco, "_ROWS_AT_ONCE", 150)  # drawn many times over
    (folder / NAME).write_bytes(tsv([*rows[::-1], *rows]))
    assert read(tmp_path, params(source(folder, max_triplets=100))) == chosen
    assert len(read(tmp_path, params(source(folder, max_triplets=5000)))) == 16 * 40  # fewer are there
    drawn = [read(tmp_path, params(source(folder, max_triplets=100), seed=seed)) for seed in range(3)]
    assert len({tuple(each) for each in drawn}) == 3


def test_each_triplet_is_drawn_equally_often() -> None:
    rows = np.array([(n, m, m + 1) for n in range(20) for m in range(10)], dtype=np.int32)
    counts = np.zeros(len(rows))
    for seed in range(400):
        chosen = {tuple(row) for row in ms_marco._sample(rows.ravel(), 50, seed)}  # type: ignore[arg-type]
        counts += [tuple(row) in chosen for row in rows]
    expected, variance = 400 / 4, 400 * 1 / 4 * 3 / 4
    assert counts.sum() == 400 * 50
    assert 0.7 < ((counts - expected) ** 2 / variance).mean() < 1.3  # chi-square over 199: sd 0.1


def test_the_file_lies_in_the_folder_or_elsewhere_and_is_listed(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.tsv"
    for place in (other, folder / NAME):
        place.write_bytes(tsv([(n, n, 40) for n in range(20)]))
    for triplets, name in ((NAME, NAME), (str(other), "other.tsv")):
        checked = params(source(folder, triplets))
        keyed = by_key(checked, list_sources(checked))
        assert [row["path"] for row in keyed["ingest.sources[0].triplets"]] == [name]
        queries_and_qrels = [f"{kind}.{split}.tsv" for kind in ("qrels", "queries") for split in ("dev", "train")]
        assert [row["path"] for row in keyed["ingest.sources[0].path"]] == ["collection.tsv", *queries_and_qrels]
        with reading_only(keyed):
            assert len(read(tmp_path, checked)) == 16
    other.write_bytes(b"0\t0\t1\n")
    with reading_only(keyed), pytest.raises(UserError, match=r"other\.tsv changed since the run began"):
        ingest(tmp_path, checked)


@pytest.mark.parametrize("content", [None, b"\n", tsv([(30, 30, 1)]), tsv([(99, 0, 1)])])
def test_a_file_that_gives_nothing_names_the_key(folder: Path, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (folder / NAME).write_bytes(content)
    with pytest.raises(UserError, match=r"ingest\.sources\[0\]\.triplets"):
        ingest(tmp_path, params(source(folder)))

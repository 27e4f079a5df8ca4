"""Which files of the sources are listed in sources.json, and read by their rows; an object store's as local ones."""

from pathlib import Path
from typing import Any

import pytest
from ingest_logs import click_log, corpus, ingest, params, rows_of, shown, texts_by_split, write

from slimtower.common.errors import UserError
from slimtower.common.files import sha256_file
from steps.ingest import locations
from steps.ingest.listing import by_key, list_sources
from steps.ingest.locations import Located, one_file, reading_only
from steps.ingest.times import ALWAYS, Window


def test_listing_names_files_by_digest_and_not_by_place(tmp_path: Path) -> None:
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    for name in ("corpus.jsonl.gz", "queries.jsonl", "qrels/test.tsv", "notes.txt"):
        (folder / name).write_text(name)
    more = tmp_path / "more.tsv"
    more.write_text("a query\n")
    source = {"name": "toy", "kind": "beir", "path": str(folder)}
    listed = list_sources(params(source, unlabelled_queries=str(more)))
    assert [(row["source"], row["path"]) for row in listed] == [
        ("toy", "corpus.jsonl.gz"),
        ("toy", "qrels/test.tsv"),
        ("toy", "queries.jsonl"),
        ("unlabelled_queries", "more.tsv"),
    ]
    assert listed[3]["sha256"] == sha256_file(more) and listed[3]["bytes"] == 8
    folder.rename(tmp_path / "moved")
    moved = list_sources(params(source | {"path": str(tmp_path / "moved")}, unlabelled_queries=str(more)))
    assert moved == listed


def test_the_listing_names_every_file_of_the_window_once(tmp_path: Path) -> None:
    days = [f"{index}/dt=2026-01-0{day}/part.jsonl" for index in ("queries", "events") for day in (3, 4, 5)]
    for name in (*days, "queries/q.jsonl", "queries/_SUCCESS", "events/e.jsonl", "scores.csv", "terms.tsv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    places = {"queries": "queries", "events": "events", "relevance": "scores.csv"}
    source = {"name": "shop", "kind": "ubi", "corpus": str(corpus(tmp_path)), "test_from": "2026-01-06"}
    source |= {field: str(tmp_path / place) for field, place in places.items()}
    listed = list_sources(params(source, term_scores=str(tmp_path / "terms.tsv"), until="2026-01-04"))
    assert [(row["source"], row["path"]) for row in listed] == [
        ("shop", "corpus/corpus.jsonl"),
        ("shop", "queries/dt=2026-01-03/part.jsonl"),
        ("shop", "queries/q.jsonl"),
        ("shop", "events/dt=2026-01-03/part.jsonl"),
        ("shop", "events/dt=2026-01-04/part.jsonl"),  # clicks of the day after on searches inside
        ("shop", "events/e.jsonl"),
        ("shop", "relevance/scores.csv"),
        ("term_scores", "terms.tsv"),
    ]
    assert all(row["bytes"] and len(row["sha256"]) == 64 for row in listed)


def test_rows_of_sources_json_go_to_the_places_that_they_came_from(tmp_path: Path) -> None:
    for name in (
        "toy/corpus.jsonl",
        "toy/queries.jsonl",
        "toy/qrels/test.tsv",
        "scores/a.csv",
        "terms.tsv",
        "more.tsv",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    source = {
        "name": "term_scores", "kind": "beir", "path": str(tmp_path / "toy"), "relevance": str(tmp_path / "scores"),
    }  # fmt: skip
    checked = params(source, unlabelled_queries=str(tmp_path / "more.tsv"), term_scores=str(tmp_path / "terms.tsv"))
    keyed = by_key(checked, list_sources(checked))
    assert {key: [row["path"] for row in rows] for key, rows in keyed.items()} == {
        "ingest.sources[0].path": ["corpus.jsonl", "qrels/test.tsv", "queries.jsonl"],
        "ingest.sources[0].relevance": ["a.csv"],
        "ingest.unlabelled_queries": ["more.tsv"],
        "ingest.term_scores": ["terms.tsv"],
    }
    with reading_only(keyed):
        assert one_file(str(tmp_path / "more.tsv"), "ingest.unlabelled_queries") == tmp_path / "more.tsv"
        (tmp_path / "more.tsv").write_text("changed")
        with pytest.raises(UserError, match=r"more\.tsv changed since the run began"):
            one_file(str(tmp_path / "more.tsv"), "ingest.unlabelled_queries")
    no_files = params({"name": "beir", "kind": "ir_datasets", "id": "beir/scifact"})
    assert by_key(no_files, list_sources(no_files)) == {}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose files `locate` gives for s3:// under names of their own."""
    folder, real = tmp_path / "cache", locations.locate

    def locate(location: str, *, key: str, window: Window = ALWAYS, patterns: Any = ()) -> list[Located]:
        if location != "s3://bucket/beir":
            return real(location, key=key, window=window, patterns=patterns)
        names = sorted(path.name for path in folder.iterdir())
        return [Located(name.replace("+", "/"), folder / name) for name in names]

    monkeypatch.setattr(locations, "locate", locate)
    return folder


def test_a_beir_folder_of_an_object_store_is_read_as_a_folder(tmp_path: Path, store: Path) -> None:
    write(store / "corpus.jsonl.gz", [{"_id": "d0", "text": "text"}])
    write(store / "queries.jsonl", [{"_id": "q0", "text": "question"}])
    (store / "qrels+test.tsv").write_text("q0\td0\t1\n")
    out = ingest(tmp_path, params({"name": "far", "kind": "beir", "path": "s3://bucket/beir"}))
    assert texts_by_split(out) == {"test": ["question"]}
    assert rows_of(out, "qrels", "query_id", "doc_id") == [("far/q0", "far/d0")]


def test_a_single_file_of_an_object_store_must_be_one(tmp_path: Path, store: Path) -> None:
    source = click_log(tmp_path, [shown("a", 0), shown("b", 6, clicked=True)])
    write(store / "terms.tsv", [{"term": "hat", "score": 2}])
    checked = params(source, term_scores="s3://bucket/beir")
    assert rows_of(ingest(tmp_path, checked), "term_scores", "term", "score") == [("hat", 2.0)]
    write(store / "more.tsv", [{"term": "hat", "score": 2}])
    with pytest.raises(UserError, match=r"ingest\.term_scores: s3://bucket/beir holds 2 files"):
        ingest(tmp_path, checked)

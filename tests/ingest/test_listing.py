"""Which files of the sources are listed in sources.json, and read by their rows; an object store's as local ones."""

from pathlib import Path

import pytest
from beir_folders import sound_folder
from faulty_s3 import FaultyS3
from ingest_logs import corpus, ingest, params, rows_of

from slimtower.common.errors import UserError
from slimtower.common.files import sha256_file
from steps.core.tables import read_table
from steps.ingest.listing import by_key, list_sources
from steps.ingest.locations import one_file, reading_only


def test_the_listing_names_every_file_of_the_window_once(tmp_path: Path) -> None:
    days = [f"{index}/dt=2026-01-0{day}/part.jsonl" for index in ("queries", "events") for day in (3, 4, 5)]
    for name in (*days, "queries/q.jsonl", "queries/_SUCCESS", "events/e.jsonl", "scores.csv", "terms.tsv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    locations = {"queries": "queries", "events": "events", "relevance": "scores.csv"}
    source = {"name": "shop", "kind": "ubi", "corpus": str(corpus(tmp_path)), "test_from": "2026-01-06"}
    source |= {field: str(tmp_path / path) for field, path in locations.items()}
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
    names = ["corpus.jsonl", "queries.jsonl", "qrels/test.tsv", "notes.txt"]
    for name in [*(f"toy/{name}" for name in names), "scores/a.csv", "terms.tsv", "more.tsv"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    locations = {"path": str(tmp_path / "toy"), "relevance": str(tmp_path / "scores")}
    files = {"unlabelled_queries": str(tmp_path / "more.tsv"), "term_scores": str(tmp_path / "terms.tsv")}
    checked = params({"name": "term_scores", "kind": "beir"} | locations, **files)
    listed = list_sources(checked)
    keyed = by_key(checked, listed)
    assert {key: [row["path"] for row in rows] for key, rows in keyed.items()} == {
        "ingest.sources[0].path": ["corpus.jsonl", "qrels/test.tsv", "queries.jsonl"],
        "ingest.sources[0].relevance": ["a.csv"],
        "ingest.unlabelled_queries": ["more.tsv"],
        "ingest.term_scores": ["terms.tsv"],
    }
    [row] = keyed["ingest.unlabelled_queries"]
    assert row["sha256"] == sha256_file(tmp_path / "more.tsv") and row["bytes"] == 8
    moved = locations | {"path": str((tmp_path / "toy").rename(tmp_path / "moved"))}
    assert list_sources(params({"name": "term_scores", "kind": "beir"} | moved, **files)) == listed
    with reading_only(keyed):
        assert one_file(str(tmp_path / "more.tsv"), "ingest.unlabelled_queries") == tmp_path / "more.tsv"
        (tmp_path / "more.tsv").write_text("changed")
        with pytest.raises(UserError, match=r"more\.tsv changed since the run began"):
            one_file(str(tmp_path / "more.tsv"), "ingest.unlabelled_queries")
    no_files = params({"name": "beir", "kind": "ir_datasets", "id": "beir/scifact"})
    assert by_key(no_files, list_sources(no_files)) == {}


def test_files_of_an_object_store_are_read_as_local_ones(tmp_path: Path, s3_server: FaultyS3) -> None:
    beir = sound_folder(tmp_path / "beir")
    for path in beir.rglob("*.*"):
        s3_server.objects[f"bucket/beir/{path.relative_to(beir)}"] = path.read_bytes()
    s3_server.objects["bucket/terms/terms.tsv"] = b"hat\t2\n"
    source = {"name": "far", "kind": "beir", "path": "s3://bucket/beir"}
    checked = params(source, term_scores="s3://bucket/terms")
    far = ingest(tmp_path, checked)
    assert rows_of(far, "term_scores", "term", "score") == [("hat", 2.0)]
    near = ingest(tmp_path / "near", params(source | {"path": str(beir)}))
    for name in ("queries", "qrels", "corpus"):
        assert read_table(far, name) == read_table(near, name)
    s3_server.objects["bucket/terms/more.tsv"] = b""
    with pytest.raises(UserError, match=r"ingest\.term_scores: s3://bucket/terms holds 2 files"):
        ingest(tmp_path, checked)

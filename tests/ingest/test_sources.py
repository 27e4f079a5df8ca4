"""Sources of an object store as local files, and kinds that the stage passes on."""

from pathlib import Path
from typing import Any

import pytest
from ingest_logs import click_log, ingest, params, rows_of, shown, texts_by_split, write

from slimtower.common.errors import UserError
from steps.ingest import locations, splits
from steps.ingest.listing import list_sources
from steps.ingest.locations import Located
from steps.ingest.report import data_digest
from steps.ingest.source_data import Judgement, Query
from steps.ingest.times import ALWAYS, Window


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


def test_a_data_sets_digest_is_of_its_rows_in_any_order() -> None:
    queries = [Query(f"q{at}", "api", "a text", "test", "file", at) for at in range(2)]
    judgements = [Judgement(query.query_id, "api", "d", 1, "test") for query in queries]
    entry = {"corpus_digest": "c", "sessions": {"clicks": 1}}
    digest = data_digest(entry, queries, judgements)
    assert digest == data_digest(entry, queries[::-1], judgements[::-1])
    others = [
        data_digest(entry | {"corpus_digest": "d"}, queries, judgements),
        data_digest(entry | {"sessions": {"clicks": 2}}, queries, judgements),
        data_digest(entry, [queries[0], queries[1]._replace(text="another")], judgements),
        data_digest(entry, queries, [judgements[0], judgements[1]._replace(grade=2)]),
    ]
    assert len({digest, *others}) == 5


def test_ms_marco_is_passed_on_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "marco"
    files = {
        "collection.tsv": "1\tfirst passage\n2\tsecond passage\n",
        "queries.train.tsv": "10\ta train query\n11\tanother train query\n",
        "queries.dev.tsv": "20\ta dev query\n",
        "qrels.train.tsv": "10 0 1 1\n11 0 2 1\n",
        "qrels.dev.tsv": "20 0 2 1\n",
    }
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    monkeypatch.setattr(splits, "DEV_FRACTION", 0.5)
    checked = params({"name": "marco", "kind": "ms_marco", "path": str(folder)})
    found = texts_by_split(ingest(tmp_path, checked))
    assert found["test"] == ["a dev query"]
    assert len(found["train"]) == len(found["dev"]) == 1
    assert sorted(row["path"] for row in list_sources(checked)) == sorted(files)

"""Corpora in disguise: what a change does to documents, queries and judgements."""

from pathlib import Path

import pytest

from bench.disguise import Corpus, disguised, read_beir, read_ingested, write
from slimtower.common.errors import UserError
from steps.core.tables import table_from_rows, write_table

CORPUS = Corpus(
    [
        (f"d{number}", f"Title {number}", f"The Flow (Laminar). It is shown, that {number} holds.")
        for number in range(40)
    ],
    {f"q{number}": f"Does {number} hold?" for number in range(20)} | {"u": "Unjudged one"},
    {
        "train": [(f"q{number}", f"d{number}", 1) for number in range(10)],
        "test": [(f"q{number}", f"d{document}", 1) for number in range(10, 20) for document in (number, number + 1)],
    },
)


def judged(corpus: Corpus) -> set[str]:
    return {query for rows in corpus.judgements.values() for query, *_ in rows}


def test_a_sample_has_its_size_and_no_query_that_lost_a_judged_document() -> None:
    small = disguised(CORPUS, ["docs=12"])
    names = {name for name, *_ in small.documents}
    assert len(small.documents) == 12
    assert {document for rows in small.judgements.values() for _, document, _ in rows} <= names
    judged_documents = {query: {d for q, d, _ in CORPUS.judgements["test"] if q == query} for query in judged(small)}
    assert all(document_ids <= names for document_ids in judged_documents.values())
    assert set(small.queries) == judged(small) | {"u"} and judged(small)
    assert disguised(CORPUS, ["docs=12"]) == small


def test_documents_and_queries_change_as_named() -> None:
    changed = disguised(CORPUS, ["lower"])
    assert changed.documents[3] == ("d3", "title 3", "the flow (laminar) . it is shown , that 3 holds .")
    assert changed.queries["q3"] == "does 3 hold?"
    assert disguised(CORPUS, ["untitled", "first_sentence"]).documents[0] == ("d0", "", "The Flow (Laminar).")


def test_joined_documents_take_their_judgements_along() -> None:
    changed = disguised(CORPUS, ["joined=25"])
    assert len(changed.documents) == 14 and all(len(text.split()) >= 25 for _, _, text in changed.documents[:-1])
    assert changed.documents[0][2].count("The Flow") == 3
    assert ("q11", "d9", 1) in changed.judgements["test"]  # d11 lies in d9, d12 begins the next
    assert ("q11", "d12", 1) in changed.judgements["test"]
    assert sum(query == "q12" for query, *_ in changed.judgements["test"]) == 1  # both of its documents became one


def test_without_queries_only_those_that_measure_are_left() -> None:
    changed = disguised(CORPUS, ["no_queries"])
    assert changed.judgements == {"dev": CORPUS.judgements["train"], "test": CORPUS.judgements["test"]}
    assert set(changed.queries) == judged(changed)
    assert disguised(changed, ["no_queries"]).judgements == changed.judgements  # dev queries stay


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    write(CORPUS, tmp_path / "beir")
    assert read_beir(tmp_path / "beir") == CORPUS


def test_what_ingest_left_is_a_corpus_too(tmp_path: Path) -> None:
    document = {"doc_id": "d", "dataset": "api", "title": "t", "topic": "", "content": "text"}
    query_rows = [{"query_id": name, "dataset": "api", "text": f"{name}?", "split": name} for name in ("train", "test")]
    rows = [{"query_id": "test", "dataset": "api", "doc_id": "d", "grade": 2, "split": "test"}]
    tables = {"corpus": [document], "queries": query_rows, "qrels": rows}
    tables["unlabelled_queries"] = [{"query_id": "u", "dataset": "api", "text": "u?"}]
    for name, content in tables.items():
        write_table(tmp_path, name, table_from_rows(name, content))
    queries = {"train": "train?", "test": "test?", "u": "u?"}
    assert read_ingested(tmp_path) == Corpus([("d", "t", "text")], queries, {"test": [("test", "d", 2)]})
    with pytest.raises(UserError, match="STAGES=ingest"):
        read_ingested(tmp_path / "nothing")

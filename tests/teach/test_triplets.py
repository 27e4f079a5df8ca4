"""Which triplets train: weights, limits, and what never may."""

from pathlib import Path

import pytest
from teach_fakes import documents, queries, table, triplets

from steps.core.document_texts import DocumentTemplate
from steps.core.errors import UserError
from steps.core.judged import JudgedSet
from steps.teach.dev_comparison import dev_tasks
from steps.teach.training_triplets import TripletChoice, choose_triplets


def choose(mined: list, asked: list | None = None, limit: int = 1000, corpus: list | None = None) -> TripletChoice:
    return choose_triplets(
        table("triplets", mined),
        table("queries", asked or queries()),
        table("corpus", corpus or documents()),
        limit,
        5,
        Path("ingest"),
    )


def test_texts_are_query_and_whole_documents() -> None:
    first = choose(triplets()).chosen[0]
    assert first.query == "how to add fields"
    assert first.positive == "sum columns. to sum all columns at once"
    assert first.negative == "sum vectors. to sum all vectors at once"


def test_a_query_that_reads_like_an_evaluation_query_never_trains() -> None:
    asked = queries()
    asked[1]["text"] = "How to ADD records?!"  # query 0, a dev query, but for case and punctuation
    choice = choose(triplets(), asked)
    assert choice.left_out["evaluation_query"] == 1
    assert all("records?!" not in triplet.query for triplet in choice.chosen)


def test_a_query_of_another_split_never_trains() -> None:
    mined = triplets()
    mined[0]["query_id"] = "d/q8"
    choice = choose(mined)
    assert choice.left_out["not_a_train_query"] == 1
    assert len(choice.chosen) == len(mined) - 1


def test_a_negative_that_reads_like_its_positive_is_left_out() -> None:
    corpus = documents()
    corpus[2] |= {"title": corpus[1]["title"].upper(), "content": corpus[1]["content"] + "!"}
    assert choose(triplets(), corpus=corpus).left_out["negative_reads_like_positive"] == 1


def test_an_unknown_id_is_named_with_its_fix() -> None:
    mined = triplets()
    mined[3]["negative_id"] = "d/nowhere"
    with pytest.raises(UserError, match=r"negative_id 'd/nowhere'.*run ingest and mine again"):
        choose(mined)


def test_documents_read_as_the_template_of_the_corpus_says() -> None:
    rows = [row | {"topic": f"topic{at}"} for at, row in enumerate(documents())]
    corpus = table("corpus", rows).replace_schema_metadata(DocumentTemplate("{topic}: {content}").metadata)
    chosen = choose_triplets(table("triplets", triplets()), table("queries", queries()), corpus, 1000, 5, Path("in"))
    texts = {f"{row['topic']}: {row['content']}".strip(" ") for row in rows}
    assert {text for triplet in chosen.chosen for text in (triplet.positive, triplet.negative)} <= texts
    judged = [JudgedSet(rows[0]["dataset"], "dev", ["q"], ["text"], {"q": {rows[0]["doc_id"]: 1}})]
    [task] = dev_tasks(judged, corpus, 5, 3, seed=1)
    assert set(task.documents.values()) <= texts and len(task.documents) == 4

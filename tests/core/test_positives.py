"""Known positives of alignment texts."""

from steps.core.positives import positives_of
from steps.core.tables import table_from_rows


def test_positives_are_those_of_training_queries_that_the_corpus_holds() -> None:
    parts = ["train_queries", "titles", "train_queries", "train_queries", "generated_queries"]
    sources = ["q1", "q1", "q2", "q3", "q1"]  # a title or a generated query of the same name is no training query
    rows = [{"part": part, "source_id": source, "text": "t"} for part, source in zip(parts, sources, strict=True)]
    pairs = [("q1", "d3"), ("q1", "d0"), ("q1", "d3"), ("q2", "gone"), ("q9", "d1")]
    questions = {query: f"question {query}" for query in ("q1", "q2", "q3")}
    positives = positives_of(table_from_rows("alignment_texts", rows), questions, pairs, ["d0", "d1", "d2", "d3"])
    assert {row: rows_of_text.tolist() for row, rows_of_text in positives.items()} == {0: [0, 3]}


def test_a_text_has_the_positives_of_all_queries_that_ask_it() -> None:
    rows = [{"part": "train_queries", "source_id": source, "text": "t"} for source in ("q1", "q4")]
    questions = {"q1": "What is gout?", "q2": "what is  gout", "q3": "What is GOUT", "q4": "What is flu?"}
    pairs = [("q2", "d2"), ("q1", "d3"), ("q3", "d0"), ("q4", "d1")]
    positives = positives_of(table_from_rows("alignment_texts", rows), questions, pairs, ["d0", "d1", "d2", "d3"])
    assert {row: rows_of_text.tolist() for row, rows_of_text in positives.items()} == {0: [0, 2, 3], 1: [1]}

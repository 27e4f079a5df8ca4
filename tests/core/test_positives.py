"""Known positives of alignment texts."""

from pathlib import Path

from rows import write_rows

from steps.core.positives import positive_rows, positives_of
from steps.core.tables import table_from_rows
from steps.core.texts import first_words


def test_positives_are_those_of_training_queries_that_the_corpus_holds() -> None:
    parts = ["train_queries", "titles", "train_queries", "train_queries", "generated_queries"]
    sources = ["q1", "q1", "q2", "q3", "q1"]  # a title or a generated query of the same name is no training query
    rows = [{"part": part, "source_id": source, "text": "t"} for part, source in zip(parts, sources, strict=True)]
    pairs = [("q1", "d3"), ("q1", "d0"), ("q1", "d3"), ("q2", "gone"), ("q9", "d1")]
    questions = {query: f"question {query}" for query in ("q1", "q2", "q3")}
    positives = positives_of(table_from_rows("alignment_texts", rows), questions, pairs, ["d0", "d1", "d2", "d3"])
    assert {row: rows_of_text.tolist() for row, rows_of_text in positives.items()} == {0: [0, 3]}


def test_positives_of_a_stage_are_read_for_its_own_texts_alone(tmp_path: Path) -> None:
    """Also of a query that is longer than what is embedded of it."""
    long = " ".join(["what is gout and how is it treated"] * 20)
    queries = [("q1", "one", long, "train"), ("q2", "one", f"{long}?", "train"), ("q3", "one", "flu", "train"),
               ("q4", "one", "flu", "test"), ("q5", "one", "not aligned on", "train")]  # fmt: skip
    write_rows(tmp_path, "queries", queries)
    write_rows(tmp_path, "corpus", [(f"d{number}", "one", "", "", "text") for number in range(4)])
    write_rows(tmp_path, "qrels", [("q2", "one", "d1", 1, "train"), ("q4", "one", "d2", 1, "test")])
    write_rows(tmp_path, "triplets", [("q1", "d3", "d0", "judged", "", 1.0), ("q5", "d0", "d1", "judged", "", 1.0),
                                      ("q3", "d2", "d0", "one_hop", "", 1.0)])  # fmt: skip
    rows = [{"part": "train_queries", "source_id": source, "text": text}
            for source, text in (("q1", first_words(long, 96)), ("q3", "flu"))]  # fmt: skip
    texts = table_from_rows("alignment_texts", rows)
    every = positive_rows(tmp_path, tmp_path, texts)
    assert {row: documents.tolist() for row, documents in every.items()} == {0: [1, 3], 1: [2]}
    judged = positive_rows(tmp_path, tmp_path, texts, ["judged"])
    assert {row: documents.tolist() for row, documents in judged.items()} == {0: [1, 3]}
    assert [*positive_rows(tmp_path, tmp_path, texts, [])] == [0], "judged alone"


def test_a_text_has_the_positives_of_all_queries_that_ask_it() -> None:
    rows = [{"part": "train_queries", "source_id": source, "text": "t"} for source in ("q1", "q4")]
    questions = {"q1": "What is gout?", "q2": "what is  gout", "q3": "What is GOUT", "q4": "What is flu?"}
    pairs = [("q2", "d2"), ("q1", "d3"), ("q3", "d0"), ("q4", "d1")]
    positives = positives_of(table_from_rows("alignment_texts", rows), questions, pairs, ["d0", "d1", "d2", "d3"])
    assert {row: rows_of_text.tolist() for row, rows_of_text in positives.items()} == {0: [0, 2, 3], 1: [1]}

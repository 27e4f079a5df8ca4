"""Alignment texts: every part in turn, each text once, and never an evaluation query."""

from typing import Any

from steps.core.params.embed import EmbedParams
from steps.core.tables import SCHEMAS, table_from_rows
from steps.embed.alignment_texts import AlignmentTexts, Sources, build

PARAMS: dict[str, Any] = {
    "parts": ["train_queries", "generated_queries", "titles", "sentences", "pool"],
    "max_words": 6,
    "max_part_texts": 0,
    "precision": "fp32",
    "batch_size": 8,
    "shard_texts": 8,
    "seed": 3,
}


def query(query_id: str, text: str, split: str) -> dict[str, str]:
    return {"query_id": query_id, "dataset": "one", "text": text, "split": split}


def texts_of(queries: list[dict[str, str]], *corpus: tuple[str, str], **changes: Any) -> AlignmentTexts:
    sources = Sources(
        corpus=[(f"one/d{i}", title, content) for i, (title, content) in enumerate(corpus)],
        queries=table_from_rows("queries", queries),
        generated=SCHEMAS["generated_queries"].empty_table(),
    )
    return build(sources, EmbedParams.model_validate(PARAMS | changes))


def pairs(found: AlignmentTexts) -> list[tuple[str, str]]:
    return [(row["part"], row["text"]) for row in found.table.to_pylist()]


def test_evaluation_queries_are_removed_from_every_part_and_counted() -> None:
    found = texts_of(
        [query("t", "What is (are) Glaucoma ?", "test"), query("v", "dev query", "dev"),
         query("a", "what is are glaucoma", "train"), query("b", "kept query", "train"),
         query("p", "DEV query!", "pool")],
        ("What is (are) Glaucoma", "What is are glaucoma? Another sentence."),
    )  # fmt: skip
    assert pairs(found) == [("train_queries", "kept query"), ("sentences", "Another sentence.")]
    assert {part: tally["evaluation_query"] for part, tally in found.counts.items()} == {
        "train_queries": 1, "generated_queries": 0, "titles": 1, "sentences": 1, "pool": 1,
    }  # fmt: skip


def test_a_text_belongs_to_the_first_part_that_has_it() -> None:
    queries = [query("a", "Cumulative sum", "train"), query("p", "cumulative, SUM", "pool")]
    found = texts_of(queries, ("cumulative sum", ""))
    assert pairs(found) == [("train_queries", "Cumulative sum")]
    assert found.counts["titles"]["repeated"] == found.counts["pool"]["repeated"] == 1


def test_a_cut_text_is_compared_after_the_cut() -> None:
    evaluation = query("t", "one two three four five six", "test")
    found = texts_of([evaluation], ("", "one two three four five six seven eight"))
    assert pairs(found) == []
    assert found.counts["sentences"]["evaluation_query"] == 1


def test_a_long_evaluation_query_cannot_return_as_its_own_first_words() -> None:
    evaluation = query("t", "one two three four five six seven eight", "test")
    found = texts_of([evaluation], ("", "One two three four five six seven eight"), ("one two three four five six", ""))
    assert pairs(found) == []
    assert found.counts["sentences"]["evaluation_query"] == found.counts["titles"]["evaluation_query"] == 1


def test_texts_without_a_word_are_left_out() -> None:
    assert texts_of([query("a", "?!", "train")]).counts["train_queries"]["empty"] == 1


def test_a_large_part_is_sampled_the_same_way_each_time() -> None:
    queries = [query(f"q{i}", f"query number {i}", "pool") for i in range(100)]
    first, second = (texts_of(queries, max_part_texts=10) for _ in range(2))
    assert pairs(first) == pairs(second)
    assert first.counts["pool"]["kept"] == 10
    assert pairs(first) != pairs(texts_of(queries, max_part_texts=10, seed=4))


def test_a_sample_of_sentences_is_read_again_as_it_was_counted() -> None:
    corpus = [("", " ".join(f"Sentence {n} of {document}. Common one." for n in range(4))) for document in range(20)]
    every = pairs(texts_of([], *corpus))
    found = texts_of([], *corpus, max_part_texts=15)
    assert len(every) == 81 and found.counts["sentences"] == {
        "kept": 15, "evaluation_query": 0, "repeated": 79, "empty": 0}  # fmt: skip
    assert [pair for pair in every if pair in pairs(found)] == pairs(found)
    for row in found.table.to_pylist():
        document = row["text"].removesuffix(".").rpartition(" ")[2]
        assert row["source_id"] == ("one/d0" if document == "one" else f"one/d{document}")

"""What is shown of a search: queries that are answered, and the part of a document that fits."""

from pathlib import Path

import pytest

from slimtower.serving import display
from slimtower.serving.display import answered_examples, snippet
from slimtower.serving.release import load_release


@pytest.mark.medium
def test_an_example_is_offered_where_the_release_answers_it(released: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = load_release(released / "models/release/2l")
    assert [answered_examples(release, dataset) for dataset in release.datasets] == [[], []]  # of other data
    hits = [hit.id.removeprefix("one/") for hit in release.query("sum", 10, "one")]
    answers = {"sum": frozenset({hits[2]}), " sum ": frozenset({"absent"}), "sum.": frozenset({hits[9]})}
    monkeypatch.setattr(display, "ANSWERS", answers)
    assert answered_examples(release, "one") == ["sum"]  # the first three are what people look at


@pytest.mark.parametrize(
    ("content", "query", "expected"),
    [
        ("of\n  a   few words ", "", "of a few words"),
        ("word " * 100, "", " ".join(["word"] * 43) + " …"),
        ("字" * 300, "字", "字" * 218 + " …"),
        ("One thing. Draws a histogram of x. More.", "draw a histogram", "… Draws a histogram of x. More."),
        ("Draws it. Histograms are drawn.\n\nIt resizes images.", "resize an image", "… It resizes images."),
        ("Of the and. A word.", "of the and", "Of the and. A word."),  # words that tell nothing
        ("First. Sums. Sums.", "sum", "… Sums. Sums."),
        ("Costs (a+b) [c]. Price of $5.", "price ($5)", "… Price of $5."),
        ("Nothing here.", "absent words", "Nothing here."),
        ("", "word", ""),
    ],
)
def test_a_snippet_begins_with_the_sentence_that_has_most_words_of_the_query(
    content: str, query: str, expected: str
) -> None:
    assert snippet(content, query, 220) == expected


@pytest.mark.parametrize("query", ["", "word", "absent", "other words " * 500])
@pytest.mark.parametrize("length", [40, 220])
def test_a_snippet_is_never_longer_than_asked_for(query: str, length: int) -> None:
    for content in ("word " * 500, "first sentence. " + "word " * 500, "x" * 3000, "a. " * 900 + "word"):
        assert len(snippet(content, query, length)) <= length

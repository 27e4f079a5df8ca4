"""Spans make up for missing texts: as many as are asked for where documents allow it, none where there are enough."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from alignment import pairs, query, texts_of

from steps.core.texts import fold
from steps.embed.alignment_texts import AlignmentTexts

ABSTRACTS = Path("tests/helpers/abstracts.txt").read_text(encoding="utf-8").splitlines()
CHINESE = ("边界层在前缘附近是层流的，随后逐渐变为湍流", "机翼的升力随着迎角增大而增加直到失速为止")


def filled(*texts: str, fewest: int, queries: Sequence[dict[str, str]] = (), **changes: Any) -> AlignmentTexts:
    """Sentences of untitled documents, and spans up to `least` texts."""
    corpus = [("", text) for text in texts]
    return texts_of([*queries], *corpus, **({"parts": ["sentences"], "max_words": 96, "least_texts": fewest} | changes))


def spans_of(texts: AlignmentTexts) -> list[tuple[int, str]]:
    """Number of the document, and text, of every span."""
    rows = [row for row in texts.table.to_pylist() if row["part"] == "spans"]
    return [(int(row["source_id"].removeprefix("one/d")), row["text"]) for row in rows]


def test_thirty_abstracts_give_as_many_texts_as_are_asked_for() -> None:
    alignment = filled(*ABSTRACTS, fewest=5000)
    assert alignment.summary() == "5,000 texts: 4,851 spans, 149 sentences"
    assert alignment.counts["spans"]["kept"] == 4851 and alignment.counts["spans"]["repeated"] < 1000
    texts = [text for _, text in pairs(alignment)]
    assert len({fold(text) for text in texts}) == 5000
    sizes = Counter(document for document, _ in spans_of(alignment))
    assert len(sizes) == 30 and max(sizes.values()) < 1.2 * min(sizes.values())  # every document gives its share
    lengths = Counter(len(span.split()) for _, span in spans_of(alignment))
    short = sum(count for length, count in lengths.items() if length <= 12)
    assert set(range(2, 31)) < set(lengths) and 0.7 < short / 4851 < 0.9
    assert 0.03 < sum(count for length, count in lengths.items() if length > 30) / 4851 < 0.07


def test_spans_are_windows_of_their_document_or_two_of_them_joined() -> None:
    windows = joined = 0
    for document, span in spans_of(filled(*ABSTRACTS, fewest=2000)):
        text, words = f" {ABSTRACTS[document]} ", span.split()
        if f" {span} " in text:
            windows += 1
        else:
            half = len(words) // 2
            assert all(f" {' '.join(part)} " in text for part in (words[:half], words[half:]))
            joined += 1
    assert 0.1 < joined / (windows + joined) < 0.3


def test_nothing_changes_where_there_are_enough_texts() -> None:
    parts = ["sentences", "spans"]
    enough = filled(*ABSTRACTS, fewest=0, parts=parts)
    count = enough.table.num_rows
    assert filled(*ABSTRACTS, fewest=count, parts=parts).table.equals(enough.table)
    assert filled(*ABSTRACTS, fewest=0).counts.keys() == filled(*ABSTRACTS, fewest=149).counts.keys() == {"sentences"}
    more = filled(*ABSTRACTS, fewest=count + 7, parts=parts)
    assert more.table.num_rows == count + 7 and more.table.slice(0, count).equals(enough.table)
    assert more.counts["spans"]["kept"] == enough.counts["spans"]["kept"] + 7


def test_documents_too_short_to_give_more_end_the_search() -> None:
    texts = filled("three short words", "a", "", "?", fewest=5000)
    assert {text for _, text in spans_of(texts)} == {"three short", "short words"}
    assert texts.counts["sentences"]["kept"] == 2  # the document of three words, and that of one
    assert filled("", "?", fewest=50).summary() == filled(fewest=50).summary() == "no texts"


@pytest.mark.medium
def test_short_documents_do_not_end_the_search_in_long_ones() -> None:
    alone = filled(*ABSTRACTS, fewest=3000)
    mixed = filled(*ABSTRACTS, *(f"part number {number}" for number in range(300)), fewest=3000)
    assert alone.table.num_rows == mixed.table.num_rows == 3000


def test_of_many_documents_a_sample_gives_spans() -> None:
    texts = filled(*(f"a{i} b{i} c{i} d{i} e{i} f{i}" for i in range(900)), fewest=1000)
    assert texts.table.num_rows == 1000  # a sentence each, and spans of no more documents than are missing
    assert len({document for document, _ in spans_of(texts)}) < 200


def test_no_piece_of_a_joined_span_is_an_evaluation_query() -> None:
    document = "one two three four five six seven eight"

    def spans_beside(queries: Sequence[dict[str, str]]) -> set[str]:
        """Spans of two pieces, the first of which is `two three`."""
        texts = {text for _, text in spans_of(filled(document, fewest=400, queries=queries))}
        return {text for text in texts if re.fullmatch(r"two three( \w+){2,3}", text) and text not in document}

    assert spans_beside([]) and not spans_beside([query("t", "two three", "test")])


def test_evaluation_queries_are_no_spans() -> None:
    queries = [query("t", "Two three!", "test"), query("v", "three FOUR", "dev")]
    result = filled("one two three four", fewest=50, queries=queries)
    texts = {text for _, text in pairs(result)}
    assert "one two" in texts and not texts & {"two three", "three four"}
    assert result.counts["spans"]["evaluation_query"] > 0


def test_spans_are_as_long_as_queries_where_there_are_some() -> None:
    for split in ("train", ""):  # training queries and unlabelled ones
        queries = [query(f"q{i}", f"three word {i}", split) for i in range(40)]
        lengths = Counter(len(span.split()) for _, span in spans_of(filled(*ABSTRACTS, fewest=1500, queries=queries)))
        assert lengths[3] > 900 and all(length == 3 or length > 12 for length in lengths)


@pytest.mark.medium
def test_scripts_without_spaces_give_spans_of_their_characters() -> None:
    spans = spans_of(filled(*CHINESE, fewest=300))
    assert len(spans) > 250
    for document, span in spans:
        parts = span.split(" ")
        assert len(parts) in (1, 2) and all(part in CHINESE[document] for part in parts)
        assert 2 <= len(span.replace(" ", "")) <= 30
    queries = [query(f"q{i}", f"机翼的升力{i}", "train") for i in range(9)]  # five characters and a number
    lengths = Counter(
        len(re.sub(r"\s", "", span)) for _, span in spans_of(filled(*CHINESE, fewest=60, queries=queries))
    )
    assert lengths.most_common(1)[0][0] == 6

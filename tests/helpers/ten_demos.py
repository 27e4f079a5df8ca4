"""A click log and a corpus ten times as large as the demo's, made up: seeded, with words by Zipf's law."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from whole_run import write_lines

DOCUMENTS, QUERIES, IMPRESSIONS = 60_000, 57_000, 1_980_000  # the demo has 6,000, 5,749 and 197,450
SHOWN = 10  # documents a search
FIRST, DAY = 1_767_225_600, 86_400  # 2026-01-01
TEST_FROM = "2026-01-24"  # the demo's share of test queries: a fifth of the thirty days
_VOWELS, _CONSONANTS = "aeiou", "bdfgklmnprstvz"


def write_ten_demos(folder: Path) -> Path:
    """A folder for recipes/click_log.yaml. A query is four to eight words of its document, which is clicked most."""
    draw = np.random.default_rng(22)
    words = _vocabulary()
    texts = _texts(words, draw)
    rows = [
        {"doc_id": f"d{number}", "title": " ".join(text[:3]), "content": f"{' '.join(text)}."}
        for number, text in enumerate(texts)
    ]
    write_lines(folder / "corpus.jsonl", rows)
    query_texts = []
    for number in range(QUERIES):
        text = texts[number]
        begin = int(draw.integers(0, len(text) - 8))
        query_texts.append(" ".join(text[begin : begin + int(draw.integers(4, 9))]))
    searches = IMPRESSIONS // SHOWN
    query = np.repeat(np.arange(searches) % QUERIES, SHOWN)
    rank = np.tile(np.arange(1, SHOWN + 1), searches)
    random_documents = draw.integers(0, DOCUMENTS, len(query))
    own_rank = np.repeat(draw.integers(1, SHOWN + 1, searches), SHOWN)  # of the query's own document
    is_own = rank == own_rank
    day = query * 30 // QUERIES
    log = pa.table(
        {
            "query": pa.array(query_texts).take(pa.array(query)),
            "doc_id": pa.array([f"d{number}" for number in range(DOCUMENTS)]).take(
                pa.array(np.where(is_own, query, random_documents))
            ),
            "rank": rank,
            "clicked": draw.random(len(query)) < np.where(is_own, 0.7, 0.05) / np.sqrt(rank),
            "timestamp": FIRST + day * DAY + np.repeat(np.arange(searches) % 86_000, SHOWN),
        }
    )
    (folder / "impressions").mkdir()
    pq.write_table(log, folder / "impressions/log.parquet")
    return folder


def _vocabulary() -> np.ndarray:
    """As many made-up words as four letters and two give."""
    pairs = [consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS]
    return np.array([first + second + last for first in pairs for second in pairs for last in ("", "n", "r", "st")])


def _texts(words: np.ndarray, draw: np.random.Generator) -> list[list[str]]:
    """As many words a document as in the demo: 15 to 120."""
    cumulative = np.cumsum(1 / np.arange(1, len(words) + 1) ** 0.8)
    lengths = draw.integers(15, 121, DOCUMENTS)
    word_rows = np.searchsorted(cumulative, draw.random(int(lengths.sum())) * cumulative[-1])
    ends = np.cumsum(lengths)
    return [
        _sentences(words[word_rows[stop - length : stop]].tolist()) for stop, length in zip(ends, lengths, strict=True)
    ]


def _sentences(text: list[str]) -> list[str]:
    """A full stop behind every twelfth word."""
    return [f"{word}." if number % 12 == 0 else word for number, word in enumerate(text, start=1)]

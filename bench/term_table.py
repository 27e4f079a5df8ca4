"""python -m bench.term_table [data/ingest]: general-English term scores for the planner `table`.

Writes bench/data/term_scores_en.tsv, lines `term<TAB>score` without a header: the idf of each word over the documents
of the embedded corpus (docstrings), for the words of at least 20 documents. It is the English of programmers: words of
any text (of, what, should) score low, but a word that docstrings seldom use (why, who) is not there, and what the table
lacks counts as much as its highest.
"""

import math
import sys
from collections import Counter
from pathlib import Path

from steps.core.errors import guarded
from steps.core.files import staged_file
from steps.core.tables import read_table
from steps.core.texts import words

TABLE = Path(__file__).with_name("data") / "term_scores_en.tsv"
MIN_DOCUMENTS = 20


def idf(contents: list[str]) -> dict[str, float]:
    """ln(1 + (N - df + 1/2) / (df + 1/2)) of each word of at least MIN_DOCUMENTS documents, in alphabetical order."""
    frequency = Counter(word for content in contents for word in set(words(content)))
    return {
        word: math.log(1 + (len(contents) - count + 0.5) / (count + 0.5))
        for word, count in sorted(frequency.items())
        if count >= MIN_DOCUMENTS
    }


def read_table_file() -> dict[str, float]:
    """The committed table: term -> score."""
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return {term: float(score) for term, score in (line.split("\t") for line in lines)}


def main() -> None:
    """Write the table."""
    corpus = read_table(Path(sys.argv[1] if len(sys.argv) > 1 else "data/ingest"), "corpus")
    scores = idf(corpus["content"].to_pylist())
    with staged_file(TABLE) as staging:
        staging.write_text("".join(f"{word}\t{score:.4f}\n" for word, score in scores.items()), encoding="utf-8")
    print(f"wrote {TABLE}: {len(scores)} words of {corpus.num_rows} documents")


if __name__ == "__main__":
    guarded(main)

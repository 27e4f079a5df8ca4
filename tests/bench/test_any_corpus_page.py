"""The table of many corpora: what stands in a row, and the page as it is generated."""

from pathlib import Path
from typing import Any

import pytest

from bench.any_corpus import Corpora
from bench.any_corpus_page import PAGE, table, with_table, written
from steps.core.errors import UserError

ROOT = Path(__file__).parents[2]
ASKED = Corpora.model_validate(
    {
        "students": {
            "static": {"mean": 0.9, "worst": 0.9, "minutes": 1},
            "2l": {"mean": 0.9, "worst": 0.9, "minutes": 1},
        },
        "seeds": [1],
        "corpora": {"a": {"title": "A corpus", "source": "a"}, "b": {"title": "Another", "source": "b"}},
    }
)


def line(kept: float, sd: float | None = None, p: float | None = None) -> dict[str, Any]:
    row: dict[str, Any] = {"retention": {"test": {"mean": kept, "sd": sd}}}
    return row if p is None else row | {"against": {"p": p}}


def test_the_page_has_the_table_that_is_generated() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert with_table(page, written()) == page, "run `python -m bench.any_corpus_page`"


def test_a_row_has_spread_and_star_and_is_empty_where_nothing_was_measured() -> None:
    summary = {"static": {"mean": 0.97, "worst": 0.95, "longest_seconds": 31.4}}
    after = {
        "summary": summary,
        "corpora": {"a": {"students": {"static": line(0.981, 0.004, 0.01), "2l": line(0.993, None, 0.3)}}},
    }
    before = {"summary": {}, "corpora": {"a": {"students": {"static": line(0.962)}}}}
    rows = table(ASKED, after, before).splitlines()
    assert rows[0] == "| corpus | `static` | before | `2l` | before |"
    assert rows[2] == "| A corpus | 98.1 % ± 0.4\\* | 96.2 % | 99.3 % |  |"
    assert rows[3] == "| Another |  |  |  |  |"
    assert rows[4:] == [
        "| **mean** | 97.0 % |  |  |  |",
        "| **worst** | 95.0 % |  |  |  |",
        "| **longest training** | 31 s |  |  |  |",
    ]


def test_a_page_without_a_place_is_named() -> None:
    with pytest.raises(UserError, match="has no place for the table"):
        with_table("# Page", "table")

"""The table of published peers: two tracks, ours where a run is recorded, and the page as it is generated."""

from pathlib import Path

import pytest

from bench.page_tables import with_table
from bench.peers import EXPECTED, MODULE, PAGE, table
from bench.tables.expected import read_expected
from slimtower.common.errors import UserError

ROOT = Path(__file__).parents[2]


@pytest.mark.medium
def test_the_page_has_the_table_that_is_generated() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert with_table(page, MODULE, table(read_expected(EXPECTED).beside), PAGE) == page, "run `python -m bench.peers`"


def test_a_page_without_a_place_is_named() -> None:
    with pytest.raises(UserError, match="has no place for the table"):
        with_table("# Page", MODULE, "table", PAGE)

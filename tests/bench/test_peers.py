"""The table of published peers: two tracks, ours where a run is recorded, and the page as it is generated."""

from pathlib import Path

import pytest

from bench.page_tables import with_table
from bench.peers import EXPECTED, MODULE, PAGE, table
from bench.tables.expected import read_expected
from slimtower.common.errors import UserError
from slimtower.common.files import write_json

ROOT = Path(__file__).parents[2]


@pytest.mark.medium
def test_the_page_has_the_table_that_is_generated() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert with_table(page, MODULE, table(read_expected(EXPECTED).beside), PAGE) == page, "run `python -m bench.peers`"


@pytest.mark.medium
def test_published_figures_stand_in_the_track_without_the_corpora(tmp_path: Path) -> None:
    own, general = table(read_expected(EXPECTED).beside, tmp_path).split("**Not trained on it**")
    assert "slimtower" not in own + general, "nothing is recorded there"
    for figure in ("81.4 %", "90.5 %", "97.7 %", "89.2 %", "92.5 %"):
        assert figure in general and figure not in own


@pytest.mark.medium
def test_a_recorded_run_stands_in_its_track_best_student_first(tmp_path: Path) -> None:
    metrics = {
        "retention": {"static": {"ratio_of_means": 0.9}, "2l": {"ratio_of_means": 0.95}},
        "latency": {"static": {"p50_ms": 0.026}, "2l": {"p50_ms": 2.0}},
    }
    write_json(tmp_path / "nanobeir_general.json", {"metrics": metrics})
    own, general = table(read_expected(EXPECTED).beside, tmp_path).split("**Not trained on it**")
    assert "slimtower" not in own
    assert general.index("| slimtower `2l` | NanoBEIR | 95.0 % | 2 ms |") < general.index(
        "slimtower `static` | NanoBEIR | 90.0 %"
    )


def test_a_page_without_a_place_is_named() -> None:
    with pytest.raises(UserError, match="has no place for the table"):
        with_table("# Page", MODULE, "table", PAGE)

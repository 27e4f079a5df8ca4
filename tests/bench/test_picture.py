"""The README's picture is drawn from the demo's recorded figures."""

import re
from pathlib import Path

import pytest

from bench.picture import EXPORT, IMAGES, RESULTS, SCHEMES, picture
from slimtower.common.files import read_json

PROJECT = Path(__file__).parents[2]


@pytest.mark.medium
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_picture_is_of_the_recorded_figures(scheme: str) -> None:
    redrawn = picture(read_json(PROJECT / RESULTS)["metrics"], read_json(PROJECT / EXPORT), scheme)
    committed = (PROJECT / IMAGES / f"frontier-{scheme}.svg").read_text(encoding="utf-8")
    # Labels, not paths: letters are as wide as the machine's fonts make them.
    labels = [re.findall(r"<text[^>]*>([^<]*)</text>", text) for text in (redrawn, committed)]
    assert labels[0] == labels[1] and {"no transformer", "teacher + BM25", "teacher in int8"} <= {*labels[0]}, (
        "run `python -m bench.picture`"
    )

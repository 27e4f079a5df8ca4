"""The README's picture is drawn from the demo's recorded figures."""

import re
from pathlib import Path

import pytest

from bench.picture import IMAGES, RESULTS, SCHEMES, picture
from steps.core.files import read_json

PROJECT = Path(__file__).parents[2]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_picture_is_of_the_recorded_figures(scheme: str) -> None:
    drawn = picture(read_json(PROJECT / RESULTS)["metrics"], scheme)
    kept = (PROJECT / IMAGES / f"frontier-{scheme}.svg").read_text(encoding="utf-8")
    # Labels, not paths: letters are as wide as the machine's fonts make them.
    labels = [re.findall(r"<text[^>]*>([^<]*)</text>", text) for text in (drawn, kept)]
    assert labels[0] == labels[1] and any("static" in label for label in labels[0]), "run `python -m bench.picture`"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_picture_stands_by_itself(scheme: str) -> None:
    drawn = picture(read_json(PROJECT / RESULTS)["metrics"], scheme)
    assert "var(" not in drawn and drawn.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert SCHEMES[scheme]["ink"] in drawn

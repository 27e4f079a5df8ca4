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
    drawn = picture(read_json(PROJECT / RESULTS)["metrics"], read_json(PROJECT / EXPORT), scheme)
    kept = (PROJECT / IMAGES / f"frontier-{scheme}.svg").read_text(encoding="utf-8")
    # Labels, not paths: letters are as wide as the machine's fonts make them.
    labels = [re.findall(r"<text[^>]*>([^<]*)</text>", text) for text in (drawn, kept)]
    assert labels[0] == labels[1] and {"no transformer", "teacher + BM25", "teacher in int8"} <= {*labels[0]}, (
        "run `python -m bench.picture`"
    )


@pytest.mark.medium
def test_the_title_follows_the_figures_and_letters_are_read_on_a_phone() -> None:
    metrics, export = read_json(PROJECT / RESULTS)["metrics"], read_json(PROJECT / EXPORT)
    drawn = picture(metrics, export, "light")
    for name in metrics["retention"]:
        times = metrics["latency"]["teacher"]["p50_ms"] / metrics["latency"][name]["p50_ms"]
        assert f"{float(f'{times:.2g}'):g}" in drawn.split(" times faster queries")[0].rpartition(">")[2].split()
    for latency in metrics["latency"].values():
        latency["p50_ms"] = 3.0
    assert "times faster" not in picture(metrics, export, "light")
    width = float(re.findall(r'viewBox="0 0 ([\d.]+)', drawn)[0])
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", drawn)]
    assert sizes and min(sizes) * 358 / width >= 10.9, "pixels on a page that is 390 wide"

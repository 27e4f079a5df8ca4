"""python -m bench.picture: the demo's frontier as docs/images/frontier-{light,dark}.svg.

From bench/results/demo.json, and the teacher in int8 from bench/results/teacher_export.json.
"""

import re
from pathlib import Path
from typing import Any

from slimtower.common.errors import guarded
from slimtower.common.files import read_json
from steps.evaluate.drawing import Mark, draw_frontier
from steps.evaluate.frontier import kept_of_teacher, message, panels
from steps.evaluate.systems import BM25

RESULTS = Path("bench/results/demo.json")
EXPORT = Path("bench/results/teacher_export.json")
IMAGES = Path("docs/images")
SCHEMES = {  # the report's colours
    "light": {"ink": "#1d232b", "muted": "#5c646f", "line": "#e3e1da", "student": "#0f766e", "teacher": "#b45309"},
    "dark": {"ink": "#e8eaed", "muted": "#9aa3af", "line": "#2d333d", "student": "#4fc3b5", "teacher": "#f0a35a"},
}
_INCHES = 4.9  # so narrow that a phone shows letters of a readable size
_PIXELS = 640  # its width where there is room
_INT8 = "teacher, ONNX int8"


def picture(metrics: dict[str, Any], export: dict[str, Any], scheme: str) -> str:
    """A file's text: the teacher, the teacher in int8, the students, and all with BM25, against the time of a query."""
    title = "\n".join(message(metrics))
    plain = metrics | {"choice": metrics["choice"] | {"student": None}}  # a ring would need a legend
    bm25 = kept_of_teacher(metrics, BM25) or 0.0
    picture = draw_frontier(panels(plain, [_int8(export)]), bm25, _INCHES, title)
    return as_file(picture, scheme)


def as_file(svg: str, scheme: str) -> str:
    """An SVG element of the report as a file of its own, in the colours of a scheme."""
    for name, colour in SCHEMES[scheme].items():
        svg = svg.replace(f"var(--{name})", colour)
    svg = svg.replace("var(--card)", "none")
    # As an image of its own it needs a name space, and a size.
    _, _, width, height = (float(value) for value in re.findall(r'viewBox="([^"]*)"', svg)[0].split())
    size = f'width="{_PIXELS}" height="{_PIXELS * height / width:.0f}"'
    return svg.replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" {size} ', 1)


def _int8(export: dict[str, Any]) -> Mark:
    [retention] = [row["retention"][_INT8] for row in export["datasets"].values()]
    p50_ms = export["systems"][_INT8]["p50_ms"]
    return Mark(
        "teacher in int8", p50_ms, retention["ratio"], retention["ci95_low"], retention["ci95_high"], teacher=True
    )


def main() -> None:
    metrics, export = read_json(RESULTS)["metrics"], read_json(EXPORT)
    IMAGES.mkdir(parents=True, exist_ok=True)
    for scheme in SCHEMES:
        path = IMAGES / f"frontier-{scheme}.svg"
        path.write_text(picture(metrics, export, scheme), encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    guarded(main)

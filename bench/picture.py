"""python -m bench.picture: the demo's frontier, bench/results/demo.json, as docs/images/frontier-{light,dark}.svg."""

from pathlib import Path
from typing import Any

from steps.core.errors import guarded
from steps.core.files import read_json
from steps.evaluate.frontier import Point, draw_frontier

RESULTS = Path("bench/results/demo.json")
IMAGES = Path("docs/images")
SCHEMES = {  # the report's colours
    "light": {"ink": "#1d232b", "muted": "#636b76", "line": "#e3e1da", "student": "#0f766e", "teacher": "#b45309"},
    "dark": {"ink": "#e8eaed", "muted": "#9aa3af", "line": "#2d333d", "student": "#4fc3b5", "teacher": "#f0a35a"},
}


def picture(metrics: dict[str, Any], scheme: str) -> str:
    """A file's text: the teacher, its students and BM25, retention against the time of one query."""
    points = [_point(metrics, model) for model in metrics["latency"]]
    bm25 = [models["bm25"]["nDCG@10"] / models["teacher"]["nDCG@10"] for models in metrics["datasets"].values()]
    return as_file(
        draw_frontier(sorted(points, key=lambda point: point.p50_ms), sum(bm25) / len(bm25), None, 0.0), scheme
    )


def as_file(drawn: str, scheme: str) -> str:
    """An SVG element of the report as a file of its own, in the colours of a scheme."""
    for name, colour in SCHEMES[scheme].items():
        drawn = drawn.replace(f"var(--{name})", colour)
    drawn = drawn.replace("var(--card)", "none")
    # As an image of its own it needs a name space.
    return drawn.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)


def _point(metrics: dict[str, Any], model: str) -> Point:
    kept = metrics["retention"].get(model, {"mean_of_ratios": 1.0, "ci95_low": 1.0, "ci95_high": 1.0})
    ndcg = [models[model]["nDCG@10"] for models in metrics["datasets"].values()]
    return Point(
        model,
        metrics["latency"][model]["p50_ms"],
        kept["mean_of_ratios"],
        kept["ci95_low"],
        kept["ci95_high"],
        sum(ndcg) / len(ndcg),
    )


def main() -> None:
    """Draw both."""
    metrics = read_json(RESULTS)["metrics"]
    IMAGES.mkdir(parents=True, exist_ok=True)
    for scheme in SCHEMES:
        path = IMAGES / f"frontier-{scheme}.svg"
        path.write_text(picture(metrics, scheme), encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    guarded(main)

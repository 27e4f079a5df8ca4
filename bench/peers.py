"""python -m bench.peers: published encoders beside ours, bench/expected.yaml, as a table of bench/results/README.md."""

from pathlib import Path

from bench.page_tables import with_table
from bench.record import RESULTS
from bench.tables.expected import Beside, Peer, read_expected
from slimtower.common.errors import guarded
from slimtower.common.files import read_json

EXPECTED = Path("bench/expected.yaml")
PAGE, MODULE = Path("bench/results/README.md"), "bench.peers"
_HEAD = ["| encoder | sets | retention | one query | |", "|---|---|---|---|---|"]
_TRACKS = {True: "Trained on the text of the corpora that are searched", False: "Not trained on it"}


def measured(comparison: Beside, results: Path) -> list[Peer]:
    """Our students of the recorded runs that are there, best first."""
    peers = []
    for ours in comparison.ours:
        path = results / f"{ours.results}.json"
        if not path.is_file():
            continue
        metrics = read_json(path)["metrics"]
        retention = {student: row["ratio_of_means"] for student, row in metrics["retention"].items()}
        for student in sorted(retention, key=lambda name: -retention[name]):
            peers.append(
                Peer(
                    system=f"slimtower `{student}`",
                    sets=ours.sets,
                    retention=retention[student],
                    p50_ms=metrics["latency"][student]["p50_ms"],
                    corpus_text=ours.corpus_text,
                    source=f"[{path.name}]({path.name})",
                )
            )
    return peers


def table(comparison: Beside, results: Path = RESULTS) -> str:
    """Markdown: a table a track, ours first."""
    every = [*measured(comparison, results), *comparison.peers]
    parts = []
    for corpus_text, title in _TRACKS.items():
        rows = [_row(peer) for peer in every if peer.corpus_text == corpus_text]
        parts.append("\n".join([f"**{title}**", "", *_HEAD, *rows]))
    return "\n\n".join(parts) + "\n"


def _row(peer: Peer) -> str:
    time = "" if peer.p50_ms is None else f"{peer.p50_ms:.3g} ms" if peer.p50_ms >= 1 else f"{peer.p50_ms:.2g} ms"
    return f"| {peer.system} | {peer.sets} | {100 * peer.retention:.1f} % | {time} | {peer.source} |"


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(with_table(page, MODULE, table(read_expected(EXPECTED).beside), PAGE), encoding="utf-8")
    print(f"wrote the table of peers into {PAGE}")


if __name__ == "__main__":
    guarded(main)

"""python -m bench.stale: records whose code has changed since, and what measures them again.

A record keeps digests of the code that it measures (`records` in bench/expected.yaml). Prints each record whose code
changed since, or came from a tree with uncommitted changes, with the minutes it took, and writes the table in
bench/results/README.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.page_tables import with_table
from bench.recorded_code import RESULTS, RecordEntry, code_digests, entry_of, origins, record_name
from bench.tables.expected import EXPECTED, read_expected
from slimtower.common.errors import guarded
from slimtower.common.files import read_json

PAGE = RESULTS / "README.md"


@dataclass(frozen=True)
class Stale:
    """A record that says nothing sure of today's code. `changed` names what differs, `minutes` is None if untold."""

    name: str
    commits: list[str]
    changed: list[str]
    uncommitted: bool
    minutes: float | None
    command: str


def stale_records(records: Mapping[str, RecordEntry], root: Path = Path()) -> list[Stale]:
    """Those of bench/results, by name; UserError for one of which `records` does not say what it measures."""
    stale = []
    for path in sorted(RESULTS.rglob("*.json")):
        name, record = record_name(path), read_json(path)
        entry = entry_of(name, records)
        today = code_digests(entry.code, root)
        parts = list(origins(record))
        commits = [commit.strip() for part in parts for commit in part["git_commit"].split(",")]
        then = [part["code_digests"] for part in parts] or [{}]
        changed = [module for module, digest in today.items() if any(code.get(module) != digest for code in then)]
        uncommitted = any(commit.endswith("+dirty") for commit in commits)
        if changed or uncommitted:
            hashes = sorted({commit.removesuffix("+dirty")[:8] for commit in commits})
            stale.append(Stale(name, hashes, changed, uncommitted, _seconds(record) / 60 or None, entry.command))
    return stale


def _seconds(value: Any) -> float:
    """Those that a record names: its own `seconds`, else those of each seed of its rows."""
    if isinstance(value, list):
        return sum(map(_seconds, value))
    if not isinstance(value, dict):
        return 0.0
    for key in ("seconds", "stage_seconds", "training_seconds"):
        if isinstance(own := value.get(key), int | float):
            return float(own) * (1 if key == "seconds" else len(value.get("seeds") or [0]))
        if isinstance(own, dict) and all(isinstance(item, int | float) for item in own.values()):
            return float(sum(own.values()))
    return sum(_seconds(item) for key, item in value.items() if key != "files")  # of which there is a sum


def page_table(stale: list[Stale]) -> str:
    """The table of the page."""
    rows = [
        f"| {each.name} | {', '.join(f'`{commit}`' for commit in each.commits) or 'unknown'} | {reason(each, 3)} |"
        f" {'-' if each.minutes is None else f'{each.minutes:.0f}'} |"
        for each in stale
    ]
    return "\n".join(["| file | measured at | what has changed since | minutes |", "|---|---|---|---|", *rows]) + "\n"


def reason(stale: Stale, shown: int) -> str:
    """Why a record is stale, with so many names of what changed."""
    names = [name.removeprefix("steps.") for name in stale.changed]
    more = [f"{len(names) - shown} more"] if len(names) > shown else []
    return ", ".join([*names[:shown], *more, *(["uncommitted code"] if stale.uncommitted else [])])


def main() -> None:
    stale = stale_records(read_expected(EXPECTED).records)
    for each in stale:
        minutes = "minutes unknown" if each.minutes is None else f"{each.minutes:.0f} minutes"
        print(f"{each.name} ({minutes}): {reason(each, len(each.changed))}\n    {each.command}")
    total = sum(each.minutes or 0 for each in stale)
    print(f"{len(stale)} of {len(list(RESULTS.rglob('*.json')))} records; {total:.0f} minutes that are known")
    PAGE.write_text(
        with_table(PAGE.read_text(encoding="utf-8"), "bench.stale", page_table(stale), PAGE), encoding="utf-8"
    )


if __name__ == "__main__":
    guarded(main)

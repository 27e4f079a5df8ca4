"""python -m bench.any_corpus_page: what students keep of many corpora, as a table of docs/distillation.md."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.any_corpus import RESULTS, Corpora, read_corpora
from steps.core.errors import UserError, guarded
from steps.core.files import read_json

PAGE = Path("docs/distillation.md")
LABELS = ("after", "before")
CHANCE = 0.05
_PLACE = re.compile(r"(<!-- python -m bench\.any_corpus_page -->\n).*?(<!-- end -->)", re.S)


def table(asked: Corpora, after: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Markdown: a row a corpus, of each student today's retention and that of the earlier passes; then the summary."""
    students = list(asked.students)
    lines = [
        "| corpus | " + " | ".join(f"`{student}` | before" for student in students) + " |",
        "|---|" + "---|---|" * len(students),
    ]
    for name, corpus in asked.corpora.items():
        rows = [label["corpora"].get(name, {}).get("students", {}) for label in (after, before)]
        lines.append(
            f"| {corpus.title} | "
            + " | ".join(f"{_now(rows[0].get(s))} | {_then(rows[1].get(s))}" for s in students)
            + " |"
        )
    for title, key, unit in (
        ("**mean**", "mean", 1),
        ("**worst**", "worst", 1),
        ("**longest training**", "longest_seconds", 0),
    ):
        cells = [_figure(label["summary"].get(student), key, unit) for student in students for label in (after, before)]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _now(row: Mapping[str, Any] | None) -> str:
    """Retention on test, its spread over seeds, and a star where it differs from before beyond chance."""
    if row is None:
        return ""
    kept = row["retention"]["test"]
    spread = "" if kept["sd"] is None else f" ± {100 * kept['sd']:.1f}"
    return f"{_then(row)}{spread}" + ("\\*" if row.get("against", {}).get("p", 1.0) < CHANCE else "")


def _then(row: Mapping[str, Any] | None) -> str:
    return "" if row is None else f"{100 * row['retention']['test']['mean']:.1f} %"


def _figure(row: Mapping[str, Any] | None, key: str, share: int) -> str:
    if row is None:
        return ""
    return f"{100 * row[key]:.1f} %" if share else f"{row[key]:.0f} s"


def with_table(page: str, written: str) -> str:
    """The page's text with the table in its place; UserError where it has none."""
    if not _PLACE.search(page):
        raise UserError(f"{PAGE}: has no place for the table, <!-- python -m bench.any_corpus_page --> to <!-- end -->")
    return _PLACE.sub(lambda match: match[1] + written + match[2], page)


def written(results: Path = RESULTS) -> str:
    """The table of the recorded labels."""
    after, before = (read_json(results / f"{label}.json") for label in LABELS)
    return table(read_corpora(), after, before)


def main() -> None:
    """Write the table into the page."""
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), written()), encoding="utf-8")
    print(f"wrote the table of corpora into {PAGE}")


if __name__ == "__main__":
    guarded(main)

"""python -m bench.any_corpus_page: what students keep of many corpora, and lose for what cause."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import correlation, fmean
from typing import Any

import numpy as np

from bench.any_corpus import RESULTS, Corpora, read_corpora
from bench.page_tables import with_table
from slimtower.common.errors import guarded
from slimtower.common.files import read_json
from steps.evaluate.comparing import holm

PAGE, MODULE = Path("bench/results/README.md"), "bench.any_corpus_page"
UNLIKE = f"{MODULE}, unlike corpora"  # the place of the second table
LOST_WHERE = f"{MODULE}, what is lost where"  # and of the third
LABELS = ("after", "before")
KINDS = {"": "kinds", "documents": "kinds_documents", "before": "kinds_before"}  # title of a column, label
HALVES = ("choosing", "reporting")
SPLITS = ("dev", "test")
ALONE = ""  # in place of a corpus: each data set has a student to itself
STUDENTS = (("`static`", "static", "causes"), ("the same, before", "static", "causes_before"), ("`2l`", "2l", "kinds"))
CAUSES = (  # what was changed, ending of the label, corpus
    ("as it is", "", "choosing"),
    ("four times the steps", "_longer", "choosing"),
    ("a student for each", "", ALONE),
    ("2,000 real queries of each among the texts", "", "choosing_queries"),
    ("30,000 words as tokens of their own", "_words", "choosing"),
)
CHANCE = 0.05
Label = Mapping[str, Mapping[str, Any]]  # corpus -> student -> its figures


def table(corpora: Corpora, after: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Markdown: a row a corpus, of each student today's retention and that of the earlier passes; then mean and worst
    of each student over the corpora that have both, and the minutes of all their trainings, one of each seed's mean.
    Corpora of which nothing is recorded are left out.

    A star marks a difference that chance does not explain, Holm over all comparisons of the table.
    """
    students = list(corpora.students)
    lines = [
        "| corpus | " + " | ".join(f"`{student}` | before" for student in students) + " |",
        "|---|" + "---|---|" * len(students),
    ]
    labels = [{name: row["students"] for name, row in label["corpora"].items()} for label in (after, before)]
    starred = _beyond_chance(labels[0])
    for name, corpus in corpora.corpora.items():
        today, then = (label.get(name, {}) for label in labels)
        if today or then:
            cells = [
                f"{_cell(today.get(student), (name, student) in starred)} | {_retention(then.get(student))}"
                for student in students
            ]
            lines.append(f"| {corpus.title} | " + " | ".join(cells) + " |")
    for title, figure in (("mean", fmean), ("worst", min)):
        shares = [
            figure([row["retention"]["test"]["mean"] for row in _shared(label, labels, student)] or [math.nan])
            for student in students
            for label in labels
        ]
        lines.append(
            f"| **{title} of those with both** | " + " | ".join(f"{100 * share:.1f} %" for share in shares) + " |"
        )
    took = [
        sum(row["training_seconds"] for row in _shared(label, labels, student)) / 60
        for student in students
        for label in labels
    ]
    lines.append("| **minutes of training, together** | " + " | ".join(f"{minutes:.0f}" for minutes in took) + " |")
    return "\n".join(lines) + "\n"


def kinds(corpora: Corpora, labels: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown: what one student over all data sets of a half keeps of each on test; a column a student and label."""
    cells = [(label, half) for label in labels.values() for half in HALVES]
    students = [student for student in corpora.students if any(_row(label, half, student) for label, half in cells)]
    columns = [(student, label) for student in students for label in labels.values()]
    titles = [title or f"`{student}`" for student in students for title in labels]
    lines = ["| one student over | " + " | ".join(titles) + " |", "|---|" + "---|" * len(columns)]
    for half in HALVES:
        rows = [_row(label, half, student) for student, label in columns]
        for name in corpora.corpora[half].source:
            shares = [f"{100 * row['retention']['test']['by_set'][name]:.1f} %" if row else "" for row in rows]
            lines.append(f"| {corpora.corpora[name].title} | " + " | ".join(shares) + " |")
        lines.append(f"| **{half} half, mean** | " + " | ".join(_cell(row, starred=False) for row in rows) + " |")
        took = [f"{row['training_seconds'] / 60:.1f}" if row else "" for row in rows]
        lines.append("| minutes of training | " + " | ".join(took) + " |")
    return "\n".join(lines) + "\n"


def _row(label: Mapping[str, Any], corpus: str, student: str) -> Mapping[str, Any] | None:
    row: Mapping[str, Any] | None = label["corpora"].get(corpus, {}).get("students", {}).get(student)
    return row


def causes(corpora: Corpora, labels: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown: what is kept of each data set of the choosing half if one thing changes; dev and test count alike.

    Each row is a student and a change of CAUSES. Rows without figures in the labels, by name, are left out.
    """
    names = corpora.corpora["choosing"].source
    lines = [f"| student | changed | mean | {' | '.join(names)} |", "|---" * (3 + len(names)) + "|"]
    for title, student, label in STUDENTS:
        for change, ending, corpus in CAUSES:
            recorded = labels.get(label + ending, {"corpora": {}})
            rows = [row for name in names if (row := _row(recorded, corpus or name, student))]
            if len(rows) == len(names):
                seeds = np.mean([row["retention"][split]["values"] for row in rows for split in SPLITS], axis=0)
                spread = f" ± {100 * np.std(seeds, ddof=1):.1f}" if len(seeds) > 1 else ""
                shares = [_of_set(row, name) for row, name in zip(rows, names, strict=True)]
                cells = " | ".join(f"{100 * share:.1f} %" for share in shares)
                lines.append(f"| {title} | {change} | {100 * np.mean(seeds):.1f} %{spread} | {cells} |")
    return "\n".join(lines) + "\n"


def _of_set(row: Mapping[str, Any], name: str) -> float:
    """What is kept of a data set's dev and test queries, in a corpus of that one or of several."""
    retained = [row["retention"][split] for split in SPLITS]
    return fmean(split["by_set"][name] if "by_set" in split else split["mean"] for split in retained)


def foretold(labels: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown: how well `distill` foretells a student's retention without judgements; a row a kind of training."""
    lines = [
        "| training | students | kept | error of what was foretold | error of 100 % | correlation |",
        "|---|---|---|---|---|---|",
    ]
    for title, label in labels.items():
        rows = [row for line in label["corpora"].values() for row in line["students"].values()]
        rows = [row for row in rows if "expected_retention" in row]
        pairs = [(row["expected_retention"], row["retention"]["test"]["mean"]) for row in rows]
        forecasts, retentions = zip(*pairs, strict=True)
        off = math.sqrt(fmean((forecast - retained) ** 2 for forecast, retained in pairs))
        baseline_error = math.sqrt(fmean((1 - retained) ** 2 for retained in retentions))
        lines.append(
            f"| {title} | {len(pairs)} | {100 * min(retentions):.0f} to {100 * max(retentions):.0f} % |"
            f" {100 * off:.1f} points | {100 * baseline_error:.1f} | {correlation(forecasts, retentions):.2f} |"
        )
    return "\n".join(lines) + "\n"


def commits(label: Mapping[str, Any]) -> str:
    """Commits at which a label's figures were recorded, for defaults may have changed since."""
    rows = [row for line in label["corpora"].values() for row in line["students"].values()]
    hashes = {part["git_commit"][:8] for row in rows for part in (row, *row.get("joined", ()))}
    return ", ".join(f"`{commit}`" for commit in sorted(hashes))


def _shared(label: Label, labels: Sequence[Label], student: str) -> list[Mapping[str, Any]]:
    return [
        row[student] for name, row in label.items() if all(student in students.get(name, {}) for students in labels)
    ]


def _beyond_chance(label: Label) -> set[tuple[str, str]]:
    """Corpora and students whose queries differ from before."""
    p_values = {
        (name, student): row["against"]["p"]
        for name, rows in label.items()
        for student, row in rows.items()
        if "against" in row
    }
    return {key for key, p in zip(p_values, holm(list(p_values.values())), strict=True) if p < CHANCE}


def _cell(row: Mapping[str, Any] | None, starred: bool) -> str:
    """Retention on test, and its spread over seeds."""
    if row is None:
        return ""
    retention = row["retention"]["test"]
    spread = "" if retention["sd"] is None else f" ± {100 * retention['sd']:.1f}"
    return f"{_retention(row)}{spread}" + ("\\*" if starred else "")


def _retention(row: Mapping[str, Any] | None) -> str:
    return "" if row is None else f"{100 * row['retention']['test']['mean']:.1f} %"


def written(results: Path = RESULTS) -> str:
    """Both tables of the recorded labels, and the commits of the first one's figures."""
    after, before, short = (read_json(results / f"{label}.json") for label in (*LABELS, "short"))
    forecasts = foretold({"as by default": after, "the earlier passes": before, "far too short": short})
    at = f"The figures were recorded at the commits {commits(after)}; *before* at {commits(before)}."
    tried = table(read_corpora(), after, before)
    return f"{tried}\n{at}\n\nHow well `distill` foretells it without judgements:\n\n{forecasts}"


def written_of_kinds(results: Path = RESULTS) -> str:
    """The table of unlike corpora, and the commits of its figures."""
    labels = {title: read_json(results / f"{label}.json") for title, label in KINDS.items()}
    at = "; ".join(f"*{title or 'today'}* at {commits(label)}" for title, label in labels.items())
    return f"{kinds(read_corpora(), labels)}\nRecorded {at}.\n"


def written_of_causes(results: Path = RESULTS) -> str:
    """The table of causes, and the commits of its figures."""
    labels = {path.stem: read_json(path) for path in sorted([*results.glob("causes*.json"), results / "kinds.json"])}
    at = ", ".join(sorted(set().union(*(commits(label).split(", ") for label in labels.values()))))
    return f"{causes(read_corpora(), labels)}\nRecorded at {at}.\n"


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for marker, text in ((MODULE, written()), (UNLIKE, written_of_kinds()), (LOST_WHERE, written_of_causes())):
        page = with_table(page, marker, text, PAGE)
    PAGE.write_text(page, encoding="utf-8")
    print(f"wrote the tables of corpora into {PAGE}")


if __name__ == "__main__":
    guarded(main)

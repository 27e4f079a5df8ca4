"""All stages of a run in this process, from a recipe's params, on data that a test writes.

A stage sees what dvc.yaml names as its dependencies and nothing else, as a task in a clone of its own does.
"""

import contextlib
import inspect
import json
import math
import os
import shutil
import statistics
import string
import subprocess
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from dvc.repo import Repo
from stages import run_stage
from task_project import commit

from pipeline.data_check import check_data
from pipeline.params import Params, check_params
from pipeline.plain_copy import plain_copy
from pipeline.recipe import laid_over, overlay
from pipeline.task.stage import other_teachers
from slimtower.common.settings import read_mapping
from steps.tracking.runs import NullRun

STUDENT = {"start": {"layers": [-1]}, "epochs": 2.0, "batch_size": 32}
SMALL: dict[str, Any] = {
    "ingest": {"max_reject_ratio": 0.0},
    "teach": {"teacher": {"dense": {"max_document_length": 64, "dev_documents": 20, "precision": "fp32"}}},
    "generate": {"max_queries": 20, "small": {"epochs": 0.1}},
    "embed": {"precision": "fp32", "least_texts": 200},
    "distill": {
        "students": ["static", "1l"],
        "precision": "fp32",
        "student": {"static": {"epochs": 2.0, "batch_size": 64}, "1l": STUDENT},
    },
    "evaluate": {"latency_queries": 10, "analyses": ["geometry", "proposition", "space", "semantic_ids", "effort"]},
}


def texts() -> list[tuple[str, str, str]]:
    """(name, summary line, the rest) of about a hundred docstrings of Python's own library."""
    docstrings = []
    for module in (str, list, dict, set, math, statistics, shutil, textwrap, string, os.path, json):
        for name, member in inspect.getmembers(module):
            summary, _, rest = (inspect.getdoc(member) or "").partition("\n")
            if callable(member) and not name.startswith("_") and len(rest.split()) > 3 and len(summary.split()) > 2:
                docstrings.append((f"{module.__name__}.{name}", summary, " ".join(rest.split())[:400]))
    return docstrings


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write JSONL."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def write_beir(
    folder: Path,
    *,
    queries: bool = True,
    judged: Mapping[str, slice] | None = None,
    titles: bool = True,
    part: slice = slice(None),
) -> Path:
    """A BEIR folder of a part of the texts: a document's query is its summary line.

    `judged` says which queries are of which split; the rest are unlabelled.
    """
    documents = texts()[part]
    write_lines(
        folder / "corpus.jsonl",
        [{"_id": name, "text": rest} | ({"title": name} if titles else {}) for name, _, rest in documents],
    )
    if queries:
        write_lines(folder / "queries.jsonl", [{"_id": f"q.{name}", "text": query} for name, query, _ in documents])
    for split, chosen in (judged or {}).items():
        path = folder / "qrels" / f"{split}.tsv"
        path.parent.mkdir(exist_ok=True)
        rows = "".join(f"q.{name}\t{name}\t1\n" for name, *_ in documents[chosen])
        path.write_text(f"query-id\tcorpus-id\tscore\n{rows}", encoding="utf-8")
    return folder


def git_copy(root: Path, changed: Mapping[str, str]) -> dict[str, str]:
    """A copy of the project as a commit, some files changed; returns the environment in which its commands run."""
    plain_copy(Path(__file__).parents[2], root)
    for name, text in changed.items():
        (root / name).write_text(text, encoding="utf-8")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    commit(root)
    variables = {k: v for k, v in os.environ.items() if k not in {"MLFLOW_TRACKING_URI", "SLIMTOWER_CACHE"}}
    return variables | {"DVC_NO_ANALYTICS": "true", "PYTHONPATH": ""}


def write_click_log(folder: Path) -> Path:
    """A click log: each summary line was searched for, shown its own document, clicked, and two others, not clicked."""
    documents = texts()
    columns = {"doc_id": 0, "title": 0, "content": 2}
    write_lines(
        folder / "corpus.jsonl", [{ours: document[at] for ours, at in columns.items()} for document in documents]
    )
    rows = [
        {
            "query": query,
            "doc_id": documents[(number + step) % len(documents)][0],
            "rank": step + 1,
            "clicked": step == 0,
            "timestamp": f"2026-01-{1 + 27 * number // len(documents):02d}T00:00:00",
        }
        for number, (_, query, _) in enumerate(documents)
        for step in range(3)
    ]
    write_lines(folder / "impressions" / "log.jsonl", rows)
    return folder


def params_of(recipe: str, tower: Path, changes: Mapping[str, Any] | None = None, **variables: str) -> Params:
    """params.yaml with the recipe, the small settings, the teacher's folder and `changes` laid over it."""
    path = Path("recipes") / recipe
    raw = laid_over(read_mapping(Path("params.yaml")), path.read_text(encoding="utf-8"), variables, path)
    base = {"teach": {"teacher": {"dense": {"base": str(tower)}}}, "generate": {"judge": str(tower)}}
    for change in (SMALL, base, dict(changes or {})):
        raw = overlay(raw, change)
    return check_params(raw, str(path))


def run_ingest(root: Path, params: Params) -> Path:
    """Run `ingest` below `root`; returns its folder."""
    from steps.ingest.run import run as ingest

    folder = root / "data/ingest"
    ingest(output=folder, params=params.ingest, run=NullRun())
    return folder


class Declared:
    """Folders with links to those data and models below `root` that dvc.yaml lets a stage read, or a task fetches."""

    def __init__(self, root: Path, params: Params) -> None:
        self.root = root
        (root / ".dvc").mkdir()
        (root / ".dvc/config").write_text("[core]\n    no_scm = true\n")
        self.params = params.model_dump()
        (root / "params.yaml").write_text(yaml.safe_dump(self.params))
        shutil.copy("dvc.yaml", root)
        with contextlib.chdir(root), Repo() as repo:  # DVC names stages relative to where it runs
            self.read = {stage.addressing: {str(dep.def_path) for dep in stage.deps} for stage in repo.index.stages}

    def of(self, stage: str) -> Path:
        """The folder of a stage, made now."""
        folder = self.root / "declared" / stage
        fetched = {str(teacher) for teacher in other_teachers(self.params, stage)}
        for name in sorted(self.read[stage] | fetched):
            if name.startswith(("data/", "models/")):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).symlink_to(self.root / name)
        return folder


def run_all(root: Path, params: Params) -> list[str]:
    """Run every stage below `root`; returns the lines of the data check."""
    declared, teacher = Declared(root, params), Path("models/teach") / params.teach.index

    def run(address: str, output: str, stage_params: Any, **arguments: Any) -> None:
        run_stage(address.partition("@")[0], declared.of(address), root / output, stage_params, **arguments)

    lines = check_data(params, run_ingest(root, params))
    run("candidates", "data/candidates", params.candidates)
    (root / "data/rank").mkdir()
    earlier: Path | None = None  # the cell of clicks has none before it
    for signal, input_folders in (
        ("click", []),
        ("judged", [Path("data/candidates") / name for name in params.candidates.searchers]),
        ("relevance", [Path("data/rank") / name for name in params.rank.rankers]),
    ):
        for name in params.rank.rankers if signal == "relevance" else ():
            extra_inputs = {"mine": earlier, "teach": root / "models/teach" / name}
            run(f"rank@{name}", f"data/rank/{name}", params.rank.described(name), **extra_inputs)
        arguments = {"signal": signal, "input_folders": sorted(input_folders), "earlier": earlier}
        run(f"mine@{signal}", f"data/mine/{signal}", params.mine, **arguments)
        earlier = Path("data/mine") / signal
    for name in params.teach.teachers:
        extra_inputs = {"rankers": Path("data/rank")}
        run(f"teach@{name}", f"models/teach/{name}", params.teach.described(name), **extra_inputs)
    run("generate", "data/generate", params.generate)
    run("embed", "data/embed", params.embed, teach=teacher)
    (root / "data/score").mkdir()
    for name in params.score.teachers:
        run(f"score@{name}", f"data/score/{name}", params.score, teach=Path("models/teach") / name)
    run("index", "models/index", params.index, teach=teacher)
    for name in params.distill.students:
        run(f"distill@{name}", f"models/distill/{name}", params.distill, student=name, teach=teacher)
        distilled = Path("models/distill") / name
        run(f"release@{name}", f"models/release/{name}", params.release, student=name, distill=distilled)
    releases = {name: Path("models/release") / name for name in params.distill.students}
    arguments = {"distill": Path("models/distill"), "releases": releases, "rule": params.promote.policy}
    run("evaluate", "reports", params.evaluate, teach=teacher, **arguments)
    return lines

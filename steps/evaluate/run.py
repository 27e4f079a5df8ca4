"""Stage `evaluate`: measure every system that is not known yet, derive everything else from that, publish by rename."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slimtower.common.errors import UserError
from slimtower.common.files import write_json
from steps.core.tables import write_table
from steps.evaluate.background import DIGITS, Background, origin, read_background
from steps.evaluate.cache import Measurements, measure_all
from steps.evaluate.comparing import of_one_spec, seed_lines, spreads
from steps.evaluate.composition import Evaluation, compose, per_query_table
from steps.evaluate.frontier import write_frontier
from steps.evaluate.gains import fusion_lines, gain_lines
from steps.evaluate.insight import Insight, look_closer
from steps.evaluate.judging import (
    audit_leaks,
    own_document_lines,
    read_evaluation_sets,
    read_texts,
    unjudged_datasets,
    unmeasured_lines,
)
from steps.evaluate.measuring import Task
from steps.evaluate.other_teachers import open_earlier, open_reranked
from steps.evaluate.params import EvaluateParams
from steps.evaluate.report import write_report
from steps.evaluate.slicing import read_user_slices
from steps.evaluate.summary import charts, summary
from steps.evaluate.systems import Student, Systems, open_systems
from steps.evaluate.verdict import headline, left_out_lines
from steps.retrieval.noninferiority import NonInferiority
from steps.tracking.runs import NOTE, Run, shortened


@dataclass(frozen=True)
class Folders:
    """Outputs of the earlier stages but for the releases."""

    ingest: Path
    mine: Path
    embed: Path
    generate: Path
    teach: Path
    distill: Path


def run(
    ingest: Path,
    mine: Path,
    embed: Path,
    generate: Path,
    teach: Path,
    distill: Path,
    releases: Mapping[str, Path],
    output: Path,
    params: EvaluateParams,
    rule: NonInferiority,
    run: Run,
) -> None:
    """Write metrics.json, report.html, report.md, frontier.csv, and what they tell of query by query, below `output`.

    `releases`: student name -> release folder. `rule`: when the promotion gate finds a release no worse. UserError when
    an evaluation query leaked into training, or when a release is missing, damaged, of another teacher or without one
    of the data sets.
    """
    systems = open_systems(ingest, teach, releases)
    if params.earlier_towers:
        dim = systems.teacher.release.manifest.dim
        earlier = open_earlier(ingest, embed, teach, dim, list(releases))
        if not earlier:
            print("evaluate: the teacher was not trained, so there is no earlier tower to compare it with")
        systems = replace(systems, earlier=earlier)
    if params.rerankers:
        systems = replace(systems, reranked=open_reranked(ingest, teach.parent, systems.teacher, params))
    evaluate(systems, Folders(ingest, mine, embed, generate, teach, distill), output, params, rule, run)


def evaluate(
    systems: Systems, folders: Folders, output: Path, params: EvaluateParams, rule: NonInferiority, run: Run
) -> None:
    """The same with systems that are open.

    Of data sets without judged test queries the closeness of students to the teacher is measured, and decides where no
    data set is judged.
    """
    students = [system.name for system in systems.students]
    audit = audit_leaks(folders.ingest, folders.mine, folders.embed, folders.generate)
    background = replace(
        read_background(
            folders.ingest,
            folders.mine,
            folders.embed,
            folders.generate,
            folders.teach,
            folders.distill,
            students,
        ),
        origin=origin(folders.ingest, run),
    )
    task = _task(folders, systems.students, params)
    measurements = measure_all(systems, task)
    print(f"evaluate: {measurements.describe()}")
    evaluation = compose(measurements, students, [system.name for system in systems.earlier], task, audit, rule)
    spread = spreads(evaluation.metrics["retention"], of_one_spec(folders.distill, students))
    released = {student.name: student.content for student in systems.students}  # the checksum of each manifest
    evaluation = replace(evaluation, metrics=evaluation.metrics | {"seeds": spread, "releases": released})
    background = replace(
        background,
        origin=[*background.origin, *((f"release of {name}", digest[:DIGITS]) for name, digest in released.items())],
    )
    insight = look_closer(folders.ingest, folders.embed, folders.generate, systems, task, measurements, evaluation)
    for line in (
        *headline(evaluation.metrics),
        *left_out_lines(evaluation.metrics),
        *own_document_lines(folders.ingest, task.judged),
        *unmeasured_lines(task.judged, task.params),
        *insight.notes,
        *seed_lines(evaluation.metrics),
        *gain_lines(evaluation.metrics),
        *fusion_lines(evaluation.metrics),
    ):
        print(f"evaluate: {line}")
    _write(output, measurements, evaluation, insight, background)
    run.metrics(charts(evaluation.metrics))
    run.tag(NOTE, shortened((output / "report.md").read_text(encoding="utf-8")))
    run.tag("slimtower.choice", evaluation.choice.student or "none")
    run.tag("slimtower.runner_up", evaluation.choice.runner_up or "none")
    for name in ("metrics.json", "report.html", "report.md", "frontier.csv"):
        run.artifact(output / name)


def _task(folders: Folders, students: Sequence[Student], params: EvaluateParams) -> Task:
    """What is measured on; UserError when a release lacks one of the data sets."""
    judged = read_evaluation_sets(folders.ingest, params)
    unjudged = unjudged_datasets(folders.ingest, judged)
    for student in students:
        for dataset in [*(item.dataset for item in judged if item.split == "test"), *unjudged]:
            if dataset not in student.release.datasets:
                raise UserError(
                    f"release of {student.name!r}: it holds no index of {dataset!r} (it has"
                    f" {student.release.datasets}); run `dvc repro` to release it again"
                )
    texts = read_texts(folders.ingest, [folders.distill / student.name for student in students], unjudged, params.seed)
    for item in texts:
        print(
            f"evaluate: {item.dataset}: no test query is judged; measures closeness to the teacher on {item.describe()}"
        )
    query_ids = {query for item in judged if item.split == "test" for query in item.query_ids}
    user_slices = read_user_slices(Path(params.slice_table), query_ids) if params.slice_table else {}
    return Task(judged, texts, params, user_slices)


def _write(
    output: Path, measurements: Measurements, evaluation: Evaluation, insight: Insight, background: Background
) -> None:
    """Write everything beside its place, then move all of it onto it; the old run files make way first."""
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".evaluate.", dir=output) as staging_name:
        staging = Path(staging_name)
        (staging / "runs").mkdir()
        for path in measurements.runs:
            shutil.copyfile(path, staging / "runs" / path.name)
        write_json(staging / "metrics.json", evaluation.metrics | insight.metrics)
        write_frontier(staging / "frontier.csv", evaluation.points)
        write_table(staging, "per_query", per_query_table(measurements.results))
        write_table(staging, "slices", insight.slices)
        write_report(staging / "report.html", evaluation, background, insight)
        markdown = summary(evaluation.metrics | insight.metrics, evaluation.best, background.origin)
        (staging / "report.md").write_text(markdown, encoding="utf-8")
        old_runs = output / "runs"
        if old_runs.exists():
            old_runs.rename(staging / "old-runs")
        for path in sorted(staging.iterdir()):
            if path.name != "old-runs":
                path.replace(output / path.name)

"""Stage `evaluate`: measure every system that is not known yet, derive everything else from that, publish by rename."""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from slimtower.common.errors import UserError
from slimtower.common.files import write_json
from steps.core.tables import write_table
from steps.evaluate.cache import Measurements, measure_all
from steps.evaluate.comparing import of_one_spec, seed_lines, spreads
from steps.evaluate.frontier import write_frontier
from steps.evaluate.gains import fusion_lines, gain_lines
from steps.evaluate.insight import Insight, look_closer
from steps.evaluate.judging import (
    Folders,
    audit_leaks,
    describe_parts,
    own_document_lines,
    read_evaluation_sets,
    read_texts,
    unjudged_datasets,
    unmeasured_lines,
)
from steps.evaluate.measuring import Task
from steps.evaluate.metrics import Evaluation, compose, per_query_table
from steps.evaluate.other_teachers import open_earlier, open_reranked
from steps.evaluate.params import EvaluateParams
from steps.evaluate.report import DIGITS, Background, origin, read_background, write_report
from steps.evaluate.slicing import read_user_slices
from steps.evaluate.summary import charts, summary
from steps.evaluate.systems import Student, Systems, open_systems
from steps.evaluate.verdict import headline, left_out_lines
from steps.retrieval.noninferiority import NonInferiority
from steps.tracking.runs import NOTE, Run, shortened


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

    `releases`: student name -> release folder. `rule`: the promotion gate's. UserError when an evaluation query leaked
    into training, or when a release is missing, damaged, of another teacher or without one of the data sets.
    """
    folders = Folders(ingest, mine, embed, generate, teach, distill)
    systems = open_systems(ingest, teach, releases)
    if params.earlier_towers:
        systems = replace(systems, earlier=open_earlier(folders, systems.teacher.release.manifest.dim, list(releases)))
        if not systems.earlier:
            print("evaluate: the teacher was not trained, so there is no earlier tower to compare it with")
    if params.rerankers:
        reranked = open_reranked(ingest, teach.parent, systems.teacher, params)
        systems = replace(systems, reranked=reranked)
    evaluate(systems, folders, output, params, rule, run)


def evaluate(
    systems: Systems, folders: Folders, output: Path, params: EvaluateParams, rule: NonInferiority, run: Run
) -> None:
    """The same with systems that are open.

    Where no test query is judged, students' closeness to the teacher is measured; it decides if that is so everywhere.
    """
    students = [system.name for system in systems.students]
    audit = audit_leaks(folders)
    background = read_background(folders, students)
    task = _task(folders, systems.students, params)
    measurements = measure_all(systems, task)
    print(f"evaluate: {measurements.describe()}")
    evaluation = compose(measurements, systems, task, audit, rule)
    metrics = evaluation.metrics
    metrics["seeds"] = spreads(metrics["retention"], of_one_spec(folders.distill, students))
    digests = [(f"release of {name}", checksum[:DIGITS]) for name, checksum in metrics["releases"].items()]
    background = replace(background, origin=[*origin(folders.ingest, run), *digests])
    insight = look_closer(folders, systems, task, measurements, evaluation)
    for line in (
        *headline(metrics),
        *left_out_lines(metrics),
        *own_document_lines(folders.ingest, task.judged),
        *unmeasured_lines(task.judged, task.params),
        *insight.notes,
        *seed_lines(metrics),
        *gain_lines(metrics),
        *fusion_lines(metrics),
    ):
        print(f"evaluate: {line}")
    metrics |= insight.metrics
    _write(output, measurements, evaluation, insight, background)
    run.metrics(charts(metrics))
    run.tag(NOTE, shortened((output / "report.md").read_text(encoding="utf-8")))
    run.tag("slimtower.choice", metrics["choice"]["student"] or "none")
    run.tag("slimtower.runner_up", metrics["choice"]["runner_up"] or "none")
    for name in ("metrics.json", "report.html", "report.md", "frontier.csv"):
        run.artifact(output / name)


def _task(folders: Folders, students: Sequence[Student], params: EvaluateParams) -> Task:
    judged = read_evaluation_sets(folders.ingest, params)
    unjudged = unjudged_datasets(folders.ingest, judged)
    tests = [item for item in judged if item.split == "test"]
    for student in students:
        for dataset in [*(item.dataset for item in tests), *unjudged]:
            if dataset not in student.release.datasets:
                raise UserError(
                    f"release of {student.name!r}: it holds no index of {dataset!r} (it has"
                    f" {student.release.datasets}); run `dvc repro` to release it again"
                )
    texts = read_texts(folders.ingest, [folders.distill / student.name for student in students], unjudged, params.seed)
    for item in texts:
        parts = describe_parts(item.parts)
        print(f"evaluate: {item.dataset}: no test query is judged; measures closeness to the teacher on {parts}")
    query_ids = {query for item in tests for query in item.query_ids}
    user_slices = read_user_slices(Path(params.slice_table), query_ids) if params.slice_table else {}
    return Task(judged, texts, params, user_slices)


def _write(
    output: Path, measurements: Measurements, evaluation: Evaluation, insight: Insight, background: Background
) -> None:
    """Write everything beside its place, then move all of it onto it; the old run files make way first."""
    output.mkdir(parents=True, exist_ok=True)
    metrics = evaluation.metrics
    with tempfile.TemporaryDirectory(prefix=".evaluate.", dir=output) as staging_name:
        staging = Path(staging_name)
        (staging / "runs").mkdir()
        for path in measurements.runs:
            shutil.copyfile(path, staging / "runs" / path.name)
        if not measurements.runs:  # DVC warns of an empty folder
            (staging / "runs/README.md").write_text("No test query is judged: no run file.\n", encoding="utf-8")
        write_json(staging / "metrics.json", metrics)
        write_frontier(staging / "frontier.csv", metrics)
        write_table(staging, "per_query", per_query_table(measurements.results))
        write_table(staging, "slices", insight.slices)
        write_report(staging / "report.html", metrics, evaluation.best, background, insight)
        markdown = summary(metrics, evaluation.best, background.origin)
        (staging / "report.md").write_text(markdown, encoding="utf-8")
        if (output / "runs").exists():
            (output / "runs").rename(staging / "old-runs")
        for path in sorted(staging.iterdir()):
            if path.name != "old-runs":
                path.replace(output / path.name)

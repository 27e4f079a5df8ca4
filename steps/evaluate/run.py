"""Stage `evaluate`: measure every model once, derive everything else from the per-query values, publish by rename."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from steps.core.errors import UserError
from steps.core.files import write_json
from steps.core.tables import SCHEMAS, write_table
from steps.core.tracking import Run, flatten
from steps.evaluate import latency
from steps.evaluate.audit import audit_leaks
from steps.evaluate.choice import JudgedOn, choose, ranked
from steps.evaluate.closeness import Closeness, Texts, measure_closeness, read_texts
from steps.evaluate.examples import worst_losses
from steps.evaluate.frontier import frontier, write_frontier
from steps.evaluate.geometry import measure_geometry
from steps.evaluate.indexes import IndexFigures, measure_indexes, timed_indexes
from steps.evaluate.measures import MEASURES
from steps.evaluate.metrics import assemble
from steps.evaluate.params import EvaluateParams
from steps.evaluate.questions import EvaluationSet, read_evaluation_sets, unjudged_datasets
from steps.evaluate.report import read_background, write_report
from steps.evaluate.retention import Comparison, Retention, compare, retention
from steps.evaluate.scoring import Scored, score
from steps.evaluate.serving import measure_serving
from steps.evaluate.systems import (
    System,
    bm25_system,
    dense_search,
    open_releases,
    remembering,
    student_system,
    teacher_system,
)
from steps.serving.release import Release


def run(
    ingest: Path,
    mine: Path,
    embed: Path,
    generate: Path,
    teach: Path,
    index: Path,
    distill: Path,
    releases: Mapping[str, Path],
    output: Path,
    params: EvaluateParams,
    run: Run,
) -> None:
    """Write metrics.json, report.html, frontier.csv, per_query.parquet and runs/ below `output`.

    `releases`: student name -> release folder. Of data sets without judged test queries the closeness of students to
    the teacher is measured, and decides where no data set is judged. UserError when an evaluation query leaked into
    training, or when a release is missing, damaged, of another teacher or without one of the data sets.
    """
    audit = audit_leaks(ingest, mine, embed, generate)
    questions = read_evaluation_sets(ingest, params.splits)
    tests = [item for item in questions if item.split == "test"]
    unjudged = unjudged_datasets(ingest, questions)
    opened = open_releases(releases, teach)
    _check_datasets(opened, [*(item.dataset for item in tests), *unjudged])
    texts = read_texts(ingest, [distill / name for name in opened], unjudged, params.seed)
    for item in texts:
        print(f"evaluate: {item.dataset}: no test query is judged; measures closeness to the teacher on {item.told()}")
    first = next(iter(opened.values()))  # every release carries the same index
    teacher = teacher_system(teach, first, params.batch_size)
    embed_once = remembering(_encoder(teacher))
    students = [student_system(name, release) for name, release in opened.items()]
    bm25 = [bm25_system(ingest)] if questions else []
    systems = [*bm25, replace(teacher, search=dense_search(embed_once, first)), *students]

    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".evaluate.", dir=output) as staging_name:
        staging = Path(staging_name)
        (staging / "runs").mkdir()
        scored = {system.name: _score_all(system, questions, params, staging / "runs") for system in systems}
        retained, compared = _against_teacher(scored, list(opened), params)
        latencies = _time_all(systems, [text for item in tests or texts for text in item.texts], params)
        closeness = measure_closeness(opened, embed_once, texts)
        judged_on, quality = _quality({name: scored[name] for name in opened}, closeness)
        p50_ms = {name: latencies[name].p50_ms for name in opened}
        choice = choose(quality, p50_ms, params.budget_ms, judged_on)
        best = choice.student or ranked(quality, p50_ms)[0]
        geometry = measure_geometry(opened, embed_once, _of_split(scored["teacher"], "test"), params.seed)
        metrics = assemble(
            scored=[item for items in scored.values() for item in items],
            retained=retained,
            compared=compared,
            latencies=latencies,
            choice=choice,
            sizes={system.name: system.bytes for system in systems if system.bytes is not None},
            indexes=_indexes(first, index, embed_once, _of_split(scored["teacher"], "test"), texts, params),
            serving=measure_serving(opened, {name: _of_split(scored[name], "test") for name in opened}),
            geometry=geometry,
            closeness=closeness,
            closeness_texts=texts,
            audit=audit,
            params=params,
        )
        losses = worst_losses(_of_split(scored["teacher"], "dev"), _of_split(scored[best], "dev"), params.examples)
        points = frontier(latencies, retained, metrics)
        background = read_background(ingest, mine, generate, teach, distill, list(opened))
        write_json(staging / "metrics.json", metrics)
        write_frontier(staging / "frontier.csv", points)
        write_table(staging, "per_query", _per_query_table(scored))
        write_report(staging / "report.html", metrics, geometry, points, losses, best, background)
        _publish(staging, output)
    run.metrics({name: value for name, value in flatten(metrics).items() if isinstance(value, int | float)})
    run.tag("slimtower.choice", choice.student or "none")
    run.tag("slimtower.runner_up", choice.runner_up or "none")
    for name in ("metrics.json", "report.html", "frontier.csv"):
        run.artifact(output / name)


def _check_datasets(releases: Mapping[str, Release], datasets: Sequence[str]) -> None:
    for student, release in releases.items():
        for dataset in datasets:
            if dataset not in release.datasets:
                raise UserError(
                    f"release of {student!r}: it holds no index of {dataset!r} (it has {release.datasets});"
                    " run `dvc repro` to release it again"
                )


def _score_all(system: System, questions: Sequence[EvaluationSet], params: EvaluateParams, runs: Path) -> list[Scored]:
    return [
        score(
            system.name,
            system.search,
            item,
            params.k,
            runs / f"{item.dataset}.{system.name}.run" if item.split == "test" else None,
            params.run_depth,
        )
        for item in questions
    ]


def _of_split(scored: Sequence[Scored], split: str) -> list[Scored]:
    return [item for item in scored if item.questions.split == split]


def _quality(
    scored: Mapping[str, Sequence[Scored]], closeness: Mapping[str, Mapping[str, Closeness]]
) -> tuple[JudgedOn, dict[str, list[np.ndarray]]]:
    """What students are chosen by, an array a data set: nDCG@10 on dev, else on test, else closeness to the teacher."""
    splits: tuple[JudgedOn, ...] = ("dev", "test")
    for split in splits:
        sets = {name: _of_split(items, split) for name, items in scored.items()}
        if all(sets.values()):
            return split, {name: [item.values["nDCG@10"] for item in items] for name, items in sets.items()}
    return "nothing", {name: [row[name].overlaps for row in closeness.values()] for name in scored}


def _indexes(
    release: Release,
    index: Path,
    encode: latency.Encode,
    judged: Sequence[Scored],
    texts: Sequence[Texts],
    params: EvaluateParams,
) -> dict[str, dict[str, IndexFigures]]:
    """Figures of every index by data set; `judged`: the teacher's test scores; `texts` stand in for test queries."""
    timed, seed = params.latency_queries, params.seed
    return measure_indexes(release, index, encode, judged, timed, params.k, seed) | {
        item.dataset: timed_indexes(release, index, encode, item.dataset, item.texts, timed, seed) for item in texts
    }


def _against_teacher(
    scored: Mapping[str, Sequence[Scored]], students: Sequence[str], params: EvaluateParams
) -> tuple[dict[str, Retention], dict[str, dict[str, Comparison]]]:
    """Retention by student, and the paired comparisons by data set and student, on test nDCG@10; {} without any."""
    teacher = {item.questions.dataset: item.values["nDCG@10"] for item in _of_split(scored["teacher"], "test")}
    if not teacher:
        return {}, {}
    retained: dict[str, Retention] = {}
    compared: dict[str, dict[str, Comparison]] = {dataset: {} for dataset in teacher}
    for student in students:
        own = {item.questions.dataset: item.values["nDCG@10"] for item in _of_split(scored[student], "test")}
        paired = {dataset: (own[dataset], values) for dataset, values in teacher.items()}
        retained[student] = retention(paired, params.bootstrap_samples, params.seed)
        for dataset, (values, reference) in paired.items():
            compared[dataset][student] = compare(values, reference)
    return retained, compared


def _time_all(systems: Sequence[System], texts: Sequence[str], params: EvaluateParams) -> dict[str, latency.Latency]:
    single = latency.sample(texts, min(params.latency_queries, len(texts)), params.seed)
    batched = latency.sample(texts, params.throughput_queries, params.seed + 1)
    encoders = {system.name: system.encode for system in systems if system.encode is not None}
    return latency.measure(encoders, single, batched, params.throughput_batch)


def _encoder(system: System) -> latency.Encode:
    if system.encode is None:
        raise ValueError(f"{system.name} has no encoder")
    return system.encode


def _per_query_table(scored: Mapping[str, Sequence[Scored]]) -> pa.Table:
    """Every measured value: one row a query, model and measure."""
    schema = SCHEMAS["per_query"]
    parts = []
    for model in sorted(scored):
        for item in scored[model]:
            asked = item.questions
            for measure in MEASURES:
                count = len(asked.query_ids)
                columns = {
                    "query_id": asked.query_ids,
                    "dataset": [asked.dataset] * count,
                    "model": [model] * count,
                    "split": [asked.split] * count,
                    "measure": [measure] * count,
                    "value": item.values[measure],
                }
                parts.append(pa.table(columns, schema=schema))
    return pa.concat_tables(parts) if parts else schema.empty_table()


def _publish(staging: Path, output: Path) -> None:
    """Move every finished output onto its place; the old run files make way first."""
    old_runs = output / "runs"
    if old_runs.exists():
        old_runs.rename(staging / "old-runs")
    for path in sorted(staging.iterdir()):
        if path.name != "old-runs":
            path.replace(output / path.name)

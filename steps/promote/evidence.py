"""What is known of a release, and the evaluation it was measured on: test queries, judgements, slices, and a digest.

The candidate is one student's release with what the last evaluation measured of it.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slimtower.common.errors import UserError
from slimtower.common.files import folder_bytes, folder_digest, read_json
from steps.core.corpus import corpus_template
from steps.core.judged import JudgedSet, read_judged_sets
from steps.core.measures import weights
from steps.core.tables import read_table, table_path
from steps.promote.params import Policy
from steps.promote.registry import reading

MEASURE = "nDCG@10"
_TEACHER = "teacher"  # its name in the evaluation's tables


@dataclass(frozen=True)
class Evaluation:
    """What releases are measured on: test queries by data set, named slices of them, and a digest of the whole."""

    digest: str
    queries: Mapping[str, frozenset[str]]
    slices: Mapping[str, frozenset[str]]  # "<dataset>/<slice>" -> query ids of that data set
    reported: Mapping[str, frozenset[str]] = field(default_factory=dict)  # likewise: slices of the evaluation's report


@dataclass(frozen=True)
class Evidence:
    """What one release does: nDCG@10 by data set and query id, milliseconds a query, bytes below index/."""

    release: str  # digest of the release's files
    evaluation: Evaluation
    datasets: frozenset[str]  # those the release has an index of
    values: Mapping[str, Mapping[str, float]]
    p50_ms: float
    index_bytes: int
    teacher: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """The teacher's nDCG@10 on the same queries, if it was measured: a first champion is compared with it."""

    def as_json(self) -> dict[str, Any]:
        """Everything but the teacher's values, and of the evaluation its digest alone."""
        values = {dataset: dict(values) for dataset, values in self.values.items()}
        plain = {name: getattr(self, name) for name in ("release", "p50_ms", "index_bytes")}
        return plain | {"evaluation": self.evaluation.digest, "datasets": sorted(self.datasets), "values": values}


def evidence_from_json(raw: Mapping[str, Any], evaluation: Evaluation) -> Evidence:
    """Evidence that `as_json` wrote on the same evaluation; ValueError if it was another."""
    if raw["evaluation"] != evaluation.digest:
        raise ValueError(f"evidence of evaluation {raw['evaluation']}, expected {evaluation.digest}")
    return Evidence(
        release=raw["release"],
        evaluation=evaluation,
        datasets=frozenset(raw["datasets"]),
        values={name: {query: float(x) for query, x in values.items()} for name, values in raw["values"].items()},
        p50_ms=float(raw["p50_ms"]),
        index_bytes=int(raw["index_bytes"]),
    )


SLICE_WORDS = (4, 8)  # slices by length of the query: up to 4 words, 5 to 8 words, 9 words and more
_MODULUS = 2**256


def read_test_sets(ingest: Path, ignore_identical_ids: bool = False) -> list[JudgedSet]:
    """The judged test queries of every data set, hits counted as for the candidate; UserError when there are none."""
    judged_sets = [
        replace(item, ignore_identical_ids=ignore_identical_ids) for item in read_judged_sets(ingest, ["test"])
    ]
    if not judged_sets:
        raise UserError(
            "no test query is judged, so no floor can be checked and nothing compared; give a data set test queries"
            " with judgements, as queries.jsonl and qrels/test.tsv beside corpus.jsonl, and run the pipeline again"
        )
    return judged_sets


def read_evaluation(ingest: Path, judged: Sequence[JudgedSet], slice_words: Sequence[int]) -> Evaluation:
    """Queries, slices by query length, and a digest over corpus, test queries and their judgements, in any order.

    Neither other splits are part of it, nor topics that are no part of a document's text.
    """
    sums = {item.dataset: _judged_sum(item) for item in judged}
    parquet = pq.ParquetFile(table_path(ingest, "corpus"))
    columns = ["dataset", "doc_id", "title", "content", *["topic"] * corpus_template(ingest).names("topic")]
    for batch in parquet.iter_batches(columns=columns):
        for dataset, *document in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if dataset in sums:
                sums[dataset] = (sums[dataset] + _digest("document", *document)) % _MODULUS
    listed = "".join(f"{name}\n{sums[name]:064x}\n" for name in sorted(sums))
    if any(item.ignore_identical_ids for item in judged):
        listed += "without hits of the query's own id\n"
    total = hashlib.sha256(listed.encode())
    return Evaluation(
        digest=total.hexdigest(),
        queries={item.dataset: frozenset(item.query_ids) for item in judged},
        slices={name: queries for item in judged for name, queries in _slices(item, slice_words)},
    )


def with_reported_slices(evaluation: Evaluation, reports: Path) -> Evaluation:
    """The evaluation with the slices of `slices.parquet` in `reports` whose names it does not have yet."""
    reported: dict[str, set[str]] = {}
    for row in read_table(reports, "slices").to_pylist():
        if row["query_id"] in evaluation.queries.get(row["dataset"], ()):
            reported.setdefault(f"{row['dataset']}/{row['slice']}", set()).add(row["query_id"])
    return replace(
        evaluation,
        reported={name: frozenset(queries) for name, queries in reported.items() if name not in evaluation.slices},
    )


def _judged_sum(item: JudgedSet) -> int:
    total = sum(_digest("query", *pair) for pair in zip(item.query_ids, item.texts, strict=True))
    for query, grades in item.qrels.items():
        total += sum(_digest("judgement", query, doc, grade) for doc, grade in grades.items())
    return total % _MODULUS


def _digest(*fields: object) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(map(str, fields)).encode()).digest())


def _slices(item: JudgedSet, slice_words: Sequence[int]) -> Iterable[tuple[str, frozenset[str]]]:
    lengths = {query: len(text.split()) for query, text in zip(item.query_ids, item.texts, strict=True)}
    edges = [0, *slice_words]
    for low, high in zip(edges, [*slice_words, None], strict=True):
        inside = frozenset(q for q, words in lengths.items() if words > low and (high is None or words <= high))
        if inside and slice_words:
            label = f"up to {high} words" if low == 0 else f"{low + 1} to {high} words"
            yield f"{item.dataset}/{label if high else f'{low + 1} words and more'}", inside


@dataclass(frozen=True)
class Candidate:
    """A release on disk and the evidence for it."""

    student: str
    release: Path
    evidence: Evidence
    card: str
    """What it is and what was measured of it, as Markdown."""


@dataclass(frozen=True)
class Served:
    """A student as its release serves it: alone, or on the data sets in `fused` fused with BM25."""

    student: str
    datasets: frozenset[str]
    fused: frozenset[str]

    def model(self, dataset: str) -> str:
        """What the evaluation calls what serves a data set."""
        return f"{self.student}+bm25" if dataset in self.fused else self.student

    def p50_ms(self, metrics: Mapping[str, Any]) -> float:
        """Median latency in milliseconds: text to embedding, or text to hits on the slowest data set that is fused.

        Infinite where a judged data set lacks its figure, so that no budget holds it.
        """
        rows = metrics.get("fused", {})
        measured = [rows[dataset].get(self.student) for dataset in sorted(self.fused & rows.keys())]
        figures = [metrics["latency"].get(self.student), *measured]
        return max(float(row["p50_ms"]) if row else math.inf for row in figures)


def read_served(student: str, release: Path) -> Served:
    """What the manifest of a release says."""
    path = release / "manifest.json"
    manifest = read_json(path)
    with reading(str(path), "run `dvc repro` to release it anew"):
        fusions = (manifest.get("lexical") or {}).get("fusions", {})
        return Served(student, frozenset(manifest["datasets"]), frozenset(fusions))


@contextmanager
def metrics_of(reports: Path) -> Iterator[dict[str, Any]]:
    """What the last evaluation measured, for a block that reads it; UserError where it lacks what the block needs."""
    path = reports / "metrics.json"
    with reading(str(path), "run `dvc repro evaluate` to write it anew"):
        yield read_json(path)


def choose_students(named: str, reports: Path, releases: Path, policy: Policy) -> list[str]:
    """The named student, or those within the policy's budgets: the evaluation's choice, and behind it the best on dev.

    A choice may lose more than the gate allows. Without dev queries test says which is the best. UserError when the
    named one was not evaluated, or when no release is within the budgets.
    """
    with metrics_of(reports) as metrics:
        students = sorted(metrics["retention"])
        if named in students:
            return [named]
        if named:
            raise UserError(f"promote: student {named!r} was not evaluated; {reports / 'metrics.json'} has {students}")
        chosen = metrics.get("choice", {}).get("student")
        quality = metrics["datasets_dev"] or metrics["datasets"]
        joint = metrics.get("as_one_dev" if metrics["datasets_dev"] else "as_one", {})
        shares = weights(list(quality), list(joint))
        means = {
            student: float(
                np.average([row[served.model(dataset)][MEASURE] for dataset, row in quality.items()], weights=shares)
            )
            for student in students
            if (releases / student).is_dir()
            and (served := read_served(student, releases / student)).p50_ms(metrics) <= policy.max_p50_ms
            and index_bytes(releases / student) <= policy.max_index_bytes
        }
    if not means:
        raise UserError(
            f"promote.policy: none of {students} has a release in {releases} and is within max_p50_ms"
            f" {policy.max_p50_ms:g} and max_index_bytes {policy.max_index_bytes}; raise a budget, distil a smaller"
            " student, or run `dvc pull` where releases are missing"
        )
    best = min(means, key=lambda student: (-means[student], student))
    return [chosen, best] if chosen in means and chosen != best else [best]


def read_candidate(student: str, reports: Path, releases: Path, evaluation: Evaluation) -> Candidate:
    """The student's release with its per-query values on the test split; UserError when files are missing."""
    release = releases / student
    served = read_served(student, release)
    with metrics_of(reports) as metrics:
        p50_ms = served.p50_ms(metrics)
    evidence = Evidence(
        release=folder_digest(release),
        evaluation=evaluation,
        datasets=served.datasets,
        values=_test_values(reports, served.model),
        p50_ms=p50_ms,
        index_bytes=index_bytes(release),
        teacher=_test_values(reports, lambda dataset: _TEACHER),
    )
    return Candidate(student, release, evidence, read_card(release, reports))


def read_card(release: Path, reports: Path) -> str:
    """The release's card without its front matter, and the evaluation in short; UserError when one is missing."""
    report, card = reports / "report.md", release / "README.md"
    for path in (report, card):
        if not path.is_file():
            raise UserError(f"{path}: not found; run `dvc repro` to write it")
    body = card.read_text(encoding="utf-8").removeprefix("---\n").partition("\n---\n")[2].strip()
    return f"{body}\n\n## Evaluation\n\n{report.read_text(encoding='utf-8').strip()}"


def index_bytes(release: Path) -> int:
    """Size of all indexes of a release on disk, dense and lexical."""
    return folder_bytes(release / "index") + folder_bytes(release / "lexical")


def _test_values(reports: Path, model_of: Callable[[str], str]) -> dict[str, dict[str, float]]:
    """`[data set][query id]`: nDCG@10 on test of the model that `model_of` names."""
    values: dict[str, dict[str, float]] = {}
    measured = (pc.field("split") == "test") & (pc.field("measure") == MEASURE)
    for row in read_table(reports, "per_query").filter(measured).to_pylist():
        if row["model"] == model_of(row["dataset"]):
            values.setdefault(row["dataset"], {})[row["query_id"]] = row["value"]
    return values

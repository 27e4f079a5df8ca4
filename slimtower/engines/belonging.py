"""Do an encoder and a collection belong together? Dimensions, metric, digest, stored vectors, what a search finds."""

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from slimtower.common.errors import UserError
from slimtower.engines.contents import SAMPLE, K, QueryBatch, contents_digest, recall, sample_vectors
from slimtower.engines.engine import Engine, read_record
from slimtower.engines.params import DeployParams
from slimtower.serving.release import Hit, Release

PROBES = (1, 2, 3, 4, 6, 8, 12)  # tried before those of EF where these are lists to read
EF = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1000)  # pgvector takes 1000 at most
_NEAR = 1e-3  # of a vector's length: half precision is this exact
_PRESENT = 0.5  # share of sampled documents that has to be there: documents come and go
_LOOKED_UP = 500  # documents asked for at once
_WIDEST = 1000  # hits of a query among which documents of the release are looked for


class Tuned(NamedTuple):
    """Candidates a search looks at, or what else the index's knob counts; the share of the exact best ten that it finds
    so; whether that is the target."""

    ef: int
    recall: float
    met: bool


class SourceIds:
    """An engine whose documents have the ids of their source, where the release's have a data set's name in front."""

    def __init__(self, engine: Engine, prefix: str) -> None:
        self.engine, self.prefix = engine, prefix

    def search(self, name: str, vectors: np.ndarray, k: int, ef: int) -> list[list[Hit]]:
        rows = self.engine.search(name, vectors, k, ef)
        return [[hit._replace(id=f"{self.prefix}{hit.id}") for hit in row] for row in rows]

    def vectors(self, name: str, ids: Sequence[str]) -> dict[str, np.ndarray]:
        vectors = self.engine.vectors(name, [doc.removeprefix(self.prefix) for doc in ids])
        return {f"{self.prefix}{doc}": vector for doc, vector in vectors.items()}


Searchable = Engine | SourceIds


def under_its_ids(engine: Engine, name: str, dataset: str, sample: Sequence[str]) -> Searchable:
    """The engine, searched by the ids under which it knows the sample: the release's own, or those of the source."""
    source = SourceIds(engine, f"{dataset}/")
    return source if not engine.vectors(name, sample) and source.vectors(name, sample) else engine


def tune(
    engine: Searchable,
    name: str,
    queries: QueryBatch,
    target: float,
    k: int = K,
    release_ids: Container[str] | None = None,
    knob: str = "ef",
) -> Tuned:
    """The smallest setting of the knob that reaches the target, else the best; `release_ids`: the hits that count."""
    tried = []
    for ef in [value for value in EF if value >= k] if knob == "ef" else (*PROBES, *EF):
        hits = engine.search(name, queries.vectors, k, ef)
        results = [[hit.id for hit in row if release_ids is None or hit.id in release_ids][:K] for row in hits]
        reached = recall(results, queries.exact)
        if reached >= target:
            return Tuned(ef, reached, True)
        tried.append(Tuned(ef, reached, False))
    return max(tried, key=lambda trial: (trial.recall, -trial.ef))


def check_recall(
    name: str, tuned: Tuned, queries: QueryBatch, margin: float, knob: str = "ef", remedy: str = "raise deploy.m"
) -> None:
    """UserError if the engine's recall is below that of the release's own index by more than the margin."""
    if tuned.recall < queries.index_recall - margin:
        raise UserError(
            f"{name}: finds {tuned.recall:.2%} of the exact top {K} with {knob} {tuned.ef}, the release's own index"
            f" {queries.index_recall:.2%}, and deploy.margin allows {margin:.2%} less; nothing was changed: {remedy}"
        )


def fit_queries(
    engine: Searchable, name: str, queries: QueryBatch, release_ids: Container[str]
) -> tuple[QueryBatch, int]:
    """The queries that can judge an index whose documents have changed since, and how many hits to search for.

    Documents that the index no longer has are expected no more. The search is widened until each query has K hits of
    the release (`release_ids`); a query with fewer among _WIDEST hits is left out. UserError if all are.
    """
    ids = sorted(set().union(*queries.exact))
    blocks = (ids[start : start + _LOOKED_UP] for start in range(0, len(ids), _LOOKED_UP))
    there = {doc for block in blocks for doc in engine.vectors(name, block)}
    exact, k = [best & there for best in queries.exact], K
    while True:
        hits = engine.search(name, queries.vectors, k, max(k, EF[0]))
        here = [sum(hit.id in release_ids for hit in row) for row in hits]
        full = [len(row) < k or count >= min(K, len(best)) for row, count, best in zip(hits, here, exact, strict=True)]
        if all(full) or k == _WIDEST:
            break
        k = min(2 * k, _WIDEST)
    selected = [row for row, best in enumerate(exact) if best and full[row]]
    if not selected:
        raise UserError(
            f"{name}: no query finds documents of the release among {k} hits: most of what it holds is not in the"
            " release; release an index of these documents"
        )
    return queries._replace(vectors=queries.vectors[selected], exact=[exact[row] for row in selected]), k


def check_shape(engine: Engine, name: str, release: Release) -> None:
    """UserError for other dimensions, or for a metric that orders documents otherwise than the release does."""
    manifest, (dim, metric, _) = release.manifest, engine.shape(name)
    if dim and dim != manifest.dim:
        raise UserError(f"{name}: holds vectors of {dim} dimensions, the encoder makes {manifest.dim}: {_MISMATCH}")
    alike = {"inner_product", ""} | ({"cosine", "l2"} if manifest.normalised else set())
    if metric not in alike:
        raise UserError(f"{name}: compares by {metric}, the release by inner product: build its index anew for that")


def check_digest(engine: Engine, name: str, release: Release, dataset: str) -> None:
    """UserError if what is kept beside the collection says that it was filled from another index."""
    record = read_record(engine, name)
    if record and record.index != contents_digest(release, dataset):
        same = "of the same teacher" if record.teacher == release.manifest.teacher else "of another teacher"
        raise UserError(
            f"{name}: was filled from another index, {same}, for {record.student!r} ({record.manifest[:12]}):"
            f" {_MISMATCH}"
        )


def check_sample(
    engine: Searchable, name: str, release: Release, expected: Mapping[str, np.ndarray], present: float
) -> None:
    """UserError if fewer of the vectors `expected` are stored than the share `present`, or if one differs."""
    stored = engine.vectors(name, list(expected))
    if len(stored) < present * len(expected):
        raise UserError(
            f"{name}: has {len(stored)} of {len(expected)} sampled documents of the release, such as"
            f" {next(iter(expected))!r}: its ids are others, or it is not whole; {_MISMATCH}"
        )
    scaled = release.manifest.normalised  # an engine that compares by cosine may have scaled them
    wrong = [doc for doc, vector in stored.items() if not _distance(vector, expected[doc], scaled) <= _NEAR]
    if wrong:
        raise UserError(
            f"{name}: {len(wrong)} of {len(stored)} sampled documents have another vector than the release, such as"
            f" {wrong[0]!r} (mean cosine {_mean_cosine(stored, expected):.3f}): {_MISMATCH}"
        )


_FOREIGN = "build this index anew so that it finds more, or deploy the release without --encoder-only"
_MISMATCH = "encoder and index do not belong together; deploy the release without --encoder-only"


def _distance(stored: np.ndarray, expected: np.ndarray, scaled: bool) -> float:
    """How far a stored vector lies from the release's, as a share of its length."""
    length = float(np.linalg.norm(expected)) or 1.0
    stored_length = float(np.linalg.norm(stored))
    same = stored * (length / stored_length) if scaled and stored_length else stored
    return float(np.linalg.norm(same - expected)) / length


def _mean_cosine(stored: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> float:
    pairs = [(vector, expected[doc]) for doc, vector in stored.items()]
    return float(np.mean([a @ b / (float(np.linalg.norm(a) * np.linalg.norm(b)) or 1.0) for a, b in pairs]))


def check_encoder(
    engine: Engine, name: str, release: Release, dataset: str, queries: QueryBatch, params: DeployParams
) -> tuple[Tuned, int]:
    """Everything above on a collection that is there already and stays as it is; returns how to search it, and by how
    many queries that was found."""
    check_shape(engine, name, release)
    check_digest(engine, engine.target(name) or name, release, dataset)
    expected = sample_vectors(release, dataset, SAMPLE)
    searchable = under_its_ids(engine, name, dataset, list(expected))
    check_sample(searchable, name, release, expected, _PRESENT)
    release_ids = frozenset(release.documents(dataset).ids)
    judged, k = fit_queries(searchable, name, queries, release_ids)
    knob = engine.shape(name).knob
    tuned = tune(searchable, name, judged, params.target_recall, k, release_ids, knob)
    check_recall(name, tuned, judged, params.margin, knob, _FOREIGN)
    return tuned, len(judged.vectors)

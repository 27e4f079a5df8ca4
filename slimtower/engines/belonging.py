"""Do an encoder and a collection belong together? Dimensions, metric, digest, stored vectors, what a search finds."""

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from slimtower.common.errors import UserError
from slimtower.engines.contents import Asked, K, contents_digest, recall, sampled
from slimtower.engines.engine import Engine, Searched, read_record
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

    def __init__(self, engine: Searched, prefix: str) -> None:
        self.engine, self.prefix = engine, prefix

    def search(self, name: str, vectors: np.ndarray, k: int, ef: int) -> list[list[Hit]]:
        """The engine's hits under the release's ids."""
        found = self.engine.search(name, vectors, k, ef)
        return [[hit._replace(id=f"{self.prefix}{hit.id}") for hit in row] for row in found]

    def vectors(self, name: str, ids: Sequence[str]) -> dict[str, np.ndarray]:
        """The stored vectors under the release's ids."""
        found = self.engine.vectors(name, [doc.removeprefix(self.prefix) for doc in ids])
        return {f"{self.prefix}{doc}": vector for doc, vector in found.items()}


def under_its_ids(engine: Searched, name: str, dataset: str, sample: Sequence[str]) -> Searched:
    """The engine, asked by the ids that it knows some documents of the release by: the release's or the source's."""
    source = SourceIds(engine, f"{dataset}/")
    return source if not engine.vectors(name, sample) and source.vectors(name, sample) else engine


def tune(
    engine: Searched,
    name: str,
    asked: Asked,
    target: float,
    k: int = K,
    known: Container[str] | None = None,
    knob: str = "ef",
) -> Tuned:
    """The smallest setting of the knob that reaches the target; where none does, the one that finds most.

    With `known`, of `k` hits those that are among these documents count.
    """
    tried = []
    for ef in [each for each in EF if each >= k] if knob == "ef" else (*PROBES, *EF):
        hits = engine.search(name, asked.vectors, k, ef)
        found = [[hit.id for hit in row if known is None or hit.id in known][:K] for row in hits]
        reached = recall(found, asked.wanted)
        if reached >= target:
            return Tuned(ef, reached, True)
        tried.append(Tuned(ef, reached, False))
    return max(tried, key=lambda one: (one.recall, -one.ef))


def check_found(
    name: str,
    tuned: Tuned,
    asked: Asked,
    margin: float,
    knob: str = "ef",
    remedy: str = "raise deploy.m or deploy.ef_construction",
) -> None:
    """UserError where the engine finds less than the release's own index does, by more than the margin."""
    if tuned.recall < asked.own - margin:
        raise UserError(
            f"{name}: finds {tuned.recall:.2%} of the exact top {K} with {knob} {tuned.ef}, the release's own index"
            f" {asked.own:.2%}, and deploy.margin allows {margin:.2%} less; nothing was changed: {remedy}"
        )


def fitted(engine: Searched, name: str, asked: Asked, known: Container[str]) -> tuple[Asked, int]:
    """The queries as an index can be judged by them where documents have come and gone, and hits to ask for.

    Documents that are gone are wanted no more. So many hits are asked for that those of the release, `known`, are K of
    each query; one that has not so many among _WIDEST is left out. UserError where all are.
    """
    ids = sorted(set().union(*asked.wanted))
    blocks = (ids[start : start + _LOOKED_UP] for start in range(0, len(ids), _LOOKED_UP))
    there = {doc for block in blocks for doc in engine.vectors(name, block)}
    wanted, k = [best & there for best in asked.wanted], K
    while True:
        hits = engine.search(name, asked.vectors, k, max(k, EF[0]))
        here = [sum(hit.id in known for hit in row) for row in hits]
        full = [len(row) < k or own >= min(K, len(best)) for row, own, best in zip(hits, here, wanted, strict=True)]
        if all(full) or k == _WIDEST:
            break
        k = min(2 * k, _WIDEST)
    kept = [row for row, best in enumerate(wanted) if best and full[row]]
    if not kept:
        raise UserError(
            f"{name}: no query finds documents of the release among {k} hits: most of what it holds is not in the"
            " release; release an index of these documents"
        )
    return asked._replace(vectors=asked.vectors[kept], wanted=[wanted[row] for row in kept]), k


def check_shape(engine: Engine, name: str, release: Release) -> None:
    """UserError for other dimensions, or for a metric that orders documents otherwise than the release does."""
    manifest, (dim, metric, _) = release.manifest, engine.shape(name)
    if manifest.metric != "inner_product":
        raise UserError(f"{release.folder}: compares by {manifest.metric!r}; engines are told inner_product alone")
    if dim and dim != manifest.dim:
        raise UserError(f"{name}: holds vectors of {dim} dimensions, the encoder makes {manifest.dim}: {_OTHER}")
    alike = {"inner_product", ""} | ({"cosine", "l2"} if manifest.normalised else set())
    if metric not in alike:
        raise UserError(f"{name}: compares by {metric}, the release by inner product: build its index anew for that")


def check_digest(engine: Engine, name: str, release: Release, dataset: str) -> None:
    """UserError where what is kept beside the collection says that it was filled from another index."""
    record = read_record(engine, name)
    if record and record.index != contents_digest(release, dataset):
        same = "of the same teacher" if record.teacher == release.manifest.teacher else "of another teacher"
        raise UserError(
            f"{name}: was filled from another index, {same}, for {record.student!r} ({record.manifest[:12]}): {_OTHER}"
        )


def check_sample(engine: Searched, name: str, release: Release, own: Mapping[str, np.ndarray], present: float) -> int:
    """Compare stored vectors with some of the release's own; returns how many documents were compared.

    UserError where fewer than the share `present` of them are there, or one vector is another.
    """
    stored = engine.vectors(name, list(own))
    if len(stored) < present * len(own):
        raise UserError(
            f"{name}: has {len(stored)} of {len(own)} sampled documents of the release, such as {next(iter(own))!r}:"
            f" its ids are others, or it is not whole; {_OTHER}"
        )
    scaled = release.manifest.normalised  # an engine that compares by cosine may have scaled them
    off = {doc: _distance(vector, own[doc], scaled) for doc, vector in stored.items()}
    wrong = [doc for doc, distance in off.items() if not distance <= _NEAR]
    if wrong:
        raise UserError(
            f"{name}: {len(wrong)} of {len(off)} sampled documents have another vector than the release, such as"
            f" {wrong[0]!r} (mean cosine {_mean_cosine(stored, own):.3f}): {_OTHER}"
        )
    return len(off)


_FOREIGN = "build this index anew so that it finds more, or deploy the release without --encoder-only"
_OTHER = "encoder and index do not belong together; deploy the release without --encoder-only"


def _distance(stored: np.ndarray, own: np.ndarray, scaled: bool) -> float:
    """How far a stored vector lies from the release's, as a share of its length."""
    length = float(np.linalg.norm(own)) or 1.0
    found = float(np.linalg.norm(stored))
    same = stored * (length / found) if scaled and found else stored
    return float(np.linalg.norm(same - own)) / length


def _mean_cosine(stored: Mapping[str, np.ndarray], own: Mapping[str, np.ndarray]) -> float:
    pairs = [(vector, own[doc]) for doc, vector in stored.items()]
    return float(np.mean([a @ b / (float(np.linalg.norm(a) * np.linalg.norm(b)) or 1.0) for a, b in pairs]))


def check_encoder(
    engine: Engine,
    name: str,
    release: Release,
    dataset: str,
    asked: Asked,
    *,
    target: float,
    margin: float,
    sample: int,
) -> tuple[Tuned, int]:
    """Everything above on a collection that is there already and stays as it is; returns how to search it, and by how
    many queries that was found."""
    check_shape(engine, name, release)
    check_digest(engine, engine.target(name) or name, release, dataset)
    own = sampled(release, dataset, sample)
    found = under_its_ids(engine, name, dataset, list(own))
    check_sample(found, name, release, own, _PRESENT)
    known = frozenset(release.documents(dataset).ids)
    judged, k = fitted(found, name, asked, known)
    knob = engine.shape(name).knob
    tuned = tune(found, name, judged, target, k, known, knob)
    check_found(name, tuned, judged, margin, knob, _FOREIGN)
    return tuned, len(judged.vectors)

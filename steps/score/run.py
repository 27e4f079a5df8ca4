"""Let another teacher score each alignment text with the documents nearest to it."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from slimtower.common.errors import UserError
from slimtower.common.files import staged_folder, write_json
from slimtower.common.fingerprints import fingerprint
from steps.core.code import code_digest
from steps.core.corpus import CorpusTexts
from steps.core.measures import SIGNIFICANT, ndcg_at_10, p_of_gain
from steps.core.positives import positive_rows
from steps.core.progress import progress
from steps.core.tables import SCHEMAS, read_table, stream_table
from steps.core.vector_store import Compute, ScoreShards, new_array, text_key
from steps.core.versions import library_versions
from steps.encoders.cut_texts import sample_rows
from steps.encoders.precision import resolve_precision
from steps.retrieval.target_entropy import TARGET_ENTROPY, Sample, check_teacher_targets, layer_targets, layers_warning
from steps.score.params import ScoreParams
from steps.scorers import open_scorer
from steps.scorers.base import Reading, Scorer
from steps.tracking.runs import Run

OBSERVED = ("judged", "click_one_hop", "given")  # sources of triplets that no ranker made, and nobody inferred
_FEWEST = 20  # queries of which a mean is worth a line
SEED = 7  # draws texts and positives


def run(ingest: Path, mine: Path, embed: Path, teach: Path, output: Path, params: ScoreParams, run: Run) -> None:
    """Write the table `scores`: of each alignment text, or `max_texts` of them, the nearest documents, at most `depth`,
    the nearest first, and behind them at most `params.positives` known positives that are not among these.

    With `params.pairs` a teacher that embeds pairs also leaves `pairs.npy`, `(scored texts, pairs, dim)`; with
    `params.layers` one whose layers score `layers.npy`, a row for each of the table's, a column for each layer. A line
    warns if there is nothing to learn from the scores, or if they order known answers worse than the index does.
    UserError for a score that is not finite.
    """
    table = read_table(embed, "alignment_texts")
    texts = table["text"].to_pylist()
    nearest = np.load(embed / "nearest.npy")
    _check_nearest(embed, nearest, len(texts), ingest)
    chosen, limit = np.arange(len(texts)), params.texts_of(output.name)
    if limit and len(texts) > limit:
        chosen = np.sort(np.random.default_rng((SEED, 6)).choice(len(texts), size=limit, replace=False))
    texts, nearest = [texts[row] for row in chosen.tolist()], nearest[chosen, : params.depth or None]
    positives = positive_rows(ingest, mine, table) if params.positives else {}
    lists = lists_of(texts, nearest, positives, chosen, params.positives, SEED)
    rows = lists.rows
    documents = CorpusTexts(ingest, rows)
    teacher = fingerprint(teach / "tower")
    digests = np.array([np.frombuffer(text_key(text), dtype=np.uint8) for text in documents]).reshape(-1, 32)
    embedded: dict[str, object] = {}
    with staged_folder(output) as staging:
        scratch = staging / "documents.npy"
        reading = Reading(params.precision, params.batch_size, params.shard_texts)
        scorer = open_scorer(teach, teacher.id, documents, scratch, reading)
        scorer.check(pairs=params.pairs > 0 and scorer.embeds is not None, layers=params.layers)
        if cut := scorer.cut(_sampled_pairs(lists, ingest, SEED)):
            cut.tell("score", f"{cut.knob} of {output.name}")
        scorer.announce(texts)
        made_by = code_digest(type(scorer).__module__), *library_versions()
        settings = (teacher.id, resolve_precision(params.precision), *made_by)
        job = _Job(lists, rows, scorer, settings, digests, params.shard_texts)
        shards = job.shards()
        observed = positive_rows(ingest, mine, table, OBSERVED)
        answers = {position: observed[row] for position, row in enumerate(chosen.tolist()) if row in observed}
        stats = _ScoreStats(Sample(len(texts)), OrderCheck(nearest, answers))
        stream_table(staging, "scores", _tables(job, chosen, shards, stats))
        near = nearest[:, : params.pairs]
        if near.size and scorer.embeds:
            dim = _write_pairs(staging / "pairs.npy", job, near)
            embedded["pairs"] = {"documents": near.shape[1], "dim": dim, "embeds": scorer.embeds}
        if params.layers and scorer.layered and len(lists):
            sample = Sample(len(texts))
            embedded["layers"] = _write_layers(staging / "layers.npy", job, sample)
            by_layer = layer_targets(sample.all())
            embedded["layer_targets"] = {str(layer): asdict(figures) for layer, figures in by_layer.items()}
            if warning := layers_warning(by_layer, output.name):
                print(f"score: WARNING: {warning}", file=sys.stderr)
        scorer.finish()
        scratch.unlink(missing_ok=True)
        targets = check_teacher_targets(stats.sample.all())
        if targets and targets.hopeless:
            print(f"score: WARNING: {targets.warning(output.name)}", file=sys.stderr)
        elif targets:
            print(
                f"score: a teacher_temperature near {targets.temperature:.2g} makes {output.name}'s distributions over"
                f" {targets.documents} documents neither flat nor one-hot (entropy {TARGET_ENTROPY} of that of equal"
                " shares)",
                file=sys.stderr,
            )
        if orders := stats.order.orders():
            print(f"score: {orders.describe(output.name)}", file=sys.stderr)
        report: dict[str, Any] = {
            "teacher": asdict(teacher),
            "computed_in": resolve_precision(params.precision),
            "texts": len(texts),
            "documents": len(rows),
            "scores": stats.count,
            "positives": len(lists.missed),
            "cut": cut and cut.share,
            "score": stats.spread(),
            "targets": asdict(targets) if targets else None,
            "orders": asdict(orders) if orders else None,
        }
        write_json(staging / "report.json", report | embedded)
    run.param("teacher_fingerprint", teacher.id)
    run.metrics({"scores": stats.count, "shards_computed": shards.computed})
    for group in ("score", "targets", "orders"):
        figures = (report[group] or {}).items()
        run.metrics({f"{group}.{name}": value for name, value in figures if isinstance(value, int | float)})


@dataclass(frozen=True)
class Lists:
    """The documents of each text; rows of documents throughout.

    `nearest` `(texts, k)`; `missed` `(n, 2)`: the position of a text and a positive of it, ascending.
    """

    texts: Sequence[str]
    nearest: np.ndarray
    missed: np.ndarray

    @property
    def rows(self) -> np.ndarray:
        """All documents, once, ascending."""
        return np.unique(np.concatenate([self.nearest.reshape(-1), self.missed[:, 1]]))

    def __len__(self) -> int:
        return int(self.nearest.size + len(self.missed))

    def pairs(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Of the texts from `start` on: positions of texts and rows of documents, list by list, `(pairs,)` each."""
        near, missed, positions = self._shard(start, stop)
        order = np.argsort(positions, kind="stable")
        return positions[order], np.concatenate([near.reshape(-1), missed[:, 1]])[order]

    def get_or_compute(
        self, start: int, stop: int, rows: np.ndarray, shards: ScoreShards, compute: Compute
    ) -> tuple[np.ndarray, np.ndarray]:
        """What `compute` makes of the texts' nearest documents, `(texts, k, ...)`, and of `pairs`, `(pairs, ...)`."""
        near, missed, positions = self._shard(start, stop)
        first = shards.get_or_compute(compute, list(self.texts[start:stop]), np.searchsorted(rows, near))
        values = first.reshape(near.size, *first.shape[2:])
        if not len(missed):
            return first, values
        texts = [self.texts[position] for position in missed[:, 0].tolist()]
        more = shards.get_or_compute(compute, texts, np.searchsorted(rows, missed[:, 1:]))[:, 0]
        return first, np.concatenate([values, more])[np.argsort(positions, kind="stable")]

    def _shard(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Nearest documents, positives, and the positions of the texts of both, one after the other."""
        near = self.nearest[start:stop]
        missed = self.missed[slice(*np.searchsorted(self.missed[:, 0], [start, stop]))]
        repeated = np.repeat(np.arange(start, start + len(near)), near.shape[1])
        return near, missed, np.concatenate([repeated, missed[:, 0]])


def lists_of(
    texts: Sequence[str],
    nearest: np.ndarray,
    positives: Mapping[int, np.ndarray],
    chosen: np.ndarray,
    limit: int,
    seed: int,
) -> Lists:
    """Lists of the texts in the rows `chosen`, ascending, with at most `limit` of their positives, drawn by seed."""
    missed = [np.zeros((0, 2), dtype=np.int64)]
    for position in np.flatnonzero(np.isin(chosen, list(positives))).tolist():
        row = int(chosen[position])
        extra = np.setdiff1d(positives[row], nearest[position])
        if len(extra) > limit:
            extra = np.sort(np.random.default_rng((seed, 7, row)).choice(extra, limit, replace=False))
        missed.append(np.stack([np.full(len(extra), position), extra], axis=1).astype(np.int64))
    return Lists(texts, nearest, np.concatenate(missed))


@dataclass(frozen=True)
class Orders:
    """Mean nDCG@10 of both orders of the same lists, over training queries of which an answer is among them.

    A teacher that learned from these very queries looks better here than it is, be it this one or the index's.
    `p_worse`, `p_better`: of one-sided paired t-tests that the scoring teacher's is the lower, or the higher one.
    """

    queries: int
    index: float
    teacher: float
    p_worse: float
    p_better: float

    def describe(self, teacher: str) -> str:
        """One line; a WARNING if students that learn these scores may learn a worse order."""
        text = (
            f"nDCG@10 of the documents near {self.queries:,} training queries with a known answer: {self.teacher:.3f}"
            f" as {teacher} orders them, {self.index:.3f} in the order of the index's teacher"
        )
        if self.p_worse <= SIGNIFICANT:
            advice = "train it on more triplets or epochs, name a stronger one, or compare a student without them"
            return f"WARNING: {text}: students may lose by learning {teacher}'s scores; {advice}"
        return text if self.p_better <= SIGNIFICANT else f"{text}, which may be chance"


class OrderCheck:
    """Collects both orders, a shard of texts at a time.

    `nearest` `(texts, k)` are rows of documents, the nearest first; `answers` has rows of answers by a text's position.
    """

    def __init__(self, nearest: np.ndarray, answers: Mapping[int, np.ndarray]) -> None:
        self.nearest, self.answers, self._ndcgs = nearest, answers, list[np.ndarray]()

    def add(self, start: int, scores: np.ndarray) -> None:
        """Take the teacher's scores `(texts, k)` of the texts from `start` on."""
        positions = [
            position
            for position in range(start, start + len(scores))
            if position in self.answers and np.isin(self.answers[position], self.nearest[position]).any()
        ]
        if not positions:
            return
        names = [str(position) for position in positions]
        qrels = {str(position): dict.fromkeys(map(str, self.answers[position].tolist()), 1) for position in positions}
        documents = [list(map(str, self.nearest[position].tolist())) for position in positions]
        falling = [-np.arange(self.nearest.shape[1], dtype=np.float32)] * len(positions)
        orders = (falling, [scores[position - start] for position in positions])
        self._ndcgs.append(np.stack([ndcg_at_10(qrels, names, documents, values) for values in orders], axis=1))

    def orders(self) -> Orders | None:
        """Means of both orders; None of too few queries, or of lists of one document."""
        ndcgs = np.concatenate([np.zeros((0, 2)), *self._ndcgs])
        if len(ndcgs) < _FEWEST or self.nearest.shape[1] < 2:
            return None
        index, teacher = ndcgs.T
        worse, better = p_of_gain(teacher, index), p_of_gain(index, teacher)
        return Orders(len(ndcgs), float(index.mean()), float(teacher.mean()), worse, better)


@dataclass
class _ScoreStats:
    sample: Sample
    order: OrderCheck
    count: int = 0
    smallest: float = math.inf
    largest: float = -math.inf
    total: float = 0.0

    def add(self, scores: np.ndarray) -> None:
        _check_finite(scores, "a score of a text and a document")
        if scores.size:
            self.count += scores.size
            self.smallest = min(self.smallest, float(scores.min()))
            self.largest = max(self.largest, float(scores.max()))
            self.total += float(scores.sum(dtype=np.float64))

    def spread(self) -> dict[str, float] | None:
        """Least, mean and largest; None without scores."""
        return {"min": self.smallest, "mean": self.total / self.count, "max": self.largest} if self.count else None


@dataclass(frozen=True)
class _Job:
    """Who scores which lists; `rows` are those of their documents, `settings` and `digests` what results hang on."""

    lists: Lists
    rows: np.ndarray
    scorer: Scorer
    settings: tuple[str, ...]
    digests: np.ndarray
    shard_texts: int

    def shards(self, *kind: str) -> ScoreShards:
        return ScoreShards((*self.settings, *kind), self.digests)

    def blocks(self, caption: str) -> Iterator[tuple[int, int]]:
        starts = range(0, len(self.lists.texts), self.shard_texts)
        return ((start, start + self.shard_texts) for start in progress(starts, len(starts), caption))


def _tables(job: _Job, chosen: np.ndarray, shards: ScoreShards, stats: _ScoreStats) -> Iterator[pa.Table]:
    for block in job.blocks("score"):
        positions, documents = job.lists.pairs(*block)
        near, scores = job.lists.get_or_compute(*block, job.rows, shards, job.scorer.scores)
        stats.add(scores)
        stats.sample.add(near)
        stats.order.add(block[0], near)
        yield pa.table([chosen[positions], documents, scores], schema=SCHEMAS["scores"])


def _write_layers(target: Path, job: _Job, sample: Sample) -> int:
    """Write the layers' scores of all pairs, in the order of the table, float16 `(pairs, layers)`; returns `layers`.

    Each list's largest score is subtracted, as a softmax does: so 16 bits are exact where shares are large.
    """
    layers, offset, shards = 0, 0, job.shards("layers")
    for block in job.blocks("score by layers"):
        positions, _ = job.lists.pairs(*block)
        near, scores = job.lists.get_or_compute(*block, job.rows, shards, job.scorer.layer_scores)
        sample.add(near)
        _check_finite(scores, "a layer's score")
        if not layers:
            layers = scores.shape[1]
            written = new_array(target, np.float16, (len(job.lists), layers))
        firsts = np.flatnonzero(np.diff(positions, prepend=-1))
        largest = np.repeat(np.maximum.reduceat(scores, firsts), np.diff(firsts, append=len(positions)), axis=0)
        written[offset : offset + len(scores)] = np.maximum(scores - largest, np.finfo(np.float16).min)
        offset += len(scores)
    return layers


def _write_pairs(target: Path, job: _Job, nearest: np.ndarray) -> int:
    dim, shards = 0, job.shards("pairs")
    for start, stop in job.blocks("embed pairs"):
        positions = np.searchsorted(job.rows, nearest[start:stop])
        embeddings = shards.get_or_compute(job.scorer.pair_embeddings, list(job.lists.texts[start:stop]), positions)
        _check_finite(embeddings, "an embedding of a pair")
        if not dim:
            dim = embeddings.shape[2]
            written = new_array(target, np.float32, (*nearest.shape, dim))
        written[start:stop] = embeddings
    return dim


def _check_finite(values: np.ndarray, subject: str) -> None:
    if not (finite := np.isfinite(values)).all():
        raise UserError(
            f"score: {subject} is {values[~finite][0]}; set score.precision: fp32, or train the teacher again"
        )


def _sampled_pairs(lists: Lists, ingest: Path, seed: int) -> list[tuple[str, str]]:
    positions, rows = lists.pairs(0, len(lists.texts))
    sample = sample_rows(len(positions), seed)
    named = np.unique(rows[sample])
    documents = dict(zip(named.tolist(), CorpusTexts(ingest, named), strict=True))
    drawn_pairs = zip(positions[sample].tolist(), rows[sample].tolist(), strict=True)
    return [(lists.texts[position], documents[row]) for position, row in drawn_pairs]


def _check_nearest(embed: Path, nearest: np.ndarray, texts: int, ingest: Path) -> None:
    documents = len(CorpusTexts(ingest))
    if len(nearest) != texts or (nearest.size and int(nearest.max()) >= documents):
        raise UserError(
            f"{embed / 'nearest.npy'}: is of other texts or documents than the {texts} texts and {documents} documents"
            " that are here; run `dvc repro embed` again"
        )

"""Let another teacher score each alignment text with the documents nearest to it."""

import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from slimtower.common.errors import UserError
from slimtower.common.files import staged_folder, write_json
from slimtower.common.fingerprints import fingerprint
from steps.core.array_files import new_array
from steps.core.code import code_digest
from steps.core.corpus import CorpusTexts
from steps.core.positives import positive_rows
from steps.core.progress import progress
from steps.core.tables import SCHEMAS, read_table, stream_table
from steps.core.vector_store import text_key
from steps.core.versions import library_versions
from steps.encoders.cut_texts import sample_rows
from steps.encoders.precision import resolve_precision
from steps.retrieval.score_shards import ScoreShards
from steps.retrieval.target_entropy import TARGET_ENTROPY, Sample, check_teacher_targets, layer_targets, layers_warning
from steps.score.lists import Lists, lists_of
from steps.score.order_check import OBSERVED, OrderCheck
from steps.score.params import ScoreParams
from steps.scorers import open_scorer
from steps.scorers.base import Reading, Scorer
from steps.tracking.runs import Run

SEED = 7  # draws texts and positives


def run(ingest: Path, mine: Path, embed: Path, teach: Path, output: Path, params: ScoreParams, run: Run) -> None:
    """Write the table `scores`: every alignment text, or `max_texts` of them drawn by seed, with each of its nearest
    documents, or the nearest `depth`, the nearest first. Behind them stand known positives of a training query that are
    not among these, by `mine` and the judgements: at most `params.positives`, so that students learn of them too.

    With `params.pairs` a teacher that embeds pairs also leaves `pairs.npy`, `(scored texts, pairs, dim)`: see `Scorer`.
    With `params.layers` one whose layers score leaves `layers.npy`: a row for each of the table's, a column for each
    layer. A line warns where these scores have nothing to teach, or where training queries whose answers are known say
    that this teacher orders documents worse than the index's does.

    `embed` holds texts and nearest documents, `teach` is the folder of the teacher that scores. Shards of texts are
    kept below SLIMTOWER_CACHE, so a run that was killed repeats one at most. UserError for a score that is not finite.
    """
    table = read_table(embed, "alignment_texts")
    texts = table["text"].to_pylist()
    nearest = np.load(embed / "nearest.npy")
    _check_nearest(embed, nearest, len(texts), ingest)
    chosen = _choose_rows(len(texts), params.texts_of(output.name), SEED)
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
        if cut := scorer.cut(_sampled_pairs(lists, ingest, SEED)):
            cut.tell("score", f"{cut.knob} of {output.name}")
        scorer.announce(texts)
        made_by = code_digest(type(scorer).__module__), *library_versions()
        settings = (teacher.id, resolve_precision(params.precision), *made_by)
        shards = ScoreShards(settings, digests)
        observed = positive_rows(ingest, mine, table, OBSERVED)
        answers = {position: observed[row] for position, row in enumerate(chosen.tolist()) if row in observed}
        stats = _ScoreStats(Sample(len(texts)), OrderCheck(nearest, answers))
        tables = _tables(lists, chosen, rows, scorer, shards, params.shard_texts, stats)
        stream_table(staging, "scores", tables)
        near = nearest[:, : params.pairs]
        if near.size and scorer.embeds:
            pairs = ScoreShards((*settings, "pairs"), digests)
            dim = _write_pairs(staging / "pairs.npy", texts, near, rows, scorer, pairs, params)
            embedded["pairs"] = {"documents": near.shape[1], "dim": dim, "embeds": scorer.embeds}
        if params.layers and scorer.layered and len(lists):
            layered = ScoreShards((*settings, "layers"), digests)
            sample = Sample(len(texts))
            embedded["layers"] = _write_layers(staging / "layers.npy", lists, rows, scorer, layered, params, sample)
            by_layer = layer_targets(sample.all())
            embedded["layer_targets"] = {str(layer): figures.as_dict() for layer, figures in by_layer.items()}
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
        report = {
            "teacher": asdict(teacher),
            "computed_in": resolve_precision(params.precision),
            "texts": len(texts),
            "documents": len(rows),
            "scores": stats.count,
            "positives": len(lists.missed),
            "cut": cut and cut.share,
            "score": stats.spread(),
            "targets": targets.as_dict() if targets else None,
            "orders": orders.as_dict() if orders else None,
        }
        write_json(staging / "report.json", report | embedded)
    run.param("teacher_fingerprint", teacher.id)
    run.metrics({"scores": stats.count, "shards_computed": shards.computed})
    run.metrics({f"score.{name}": value for name, value in (stats.spread() or {}).items()})
    measured = targets.as_dict() if targets else {}
    run.metrics({f"targets.{name}": value for name, value in measured.items() if isinstance(value, int | float)})
    run.metrics({f"orders.{name}": value for name, value in (orders.as_dict() if orders else {}).items()})


@dataclass
class _ScoreStats:
    """Statistics of the scores so far."""

    sample: Sample
    order: OrderCheck
    count: int = 0
    smallest: float = math.inf
    largest: float = -math.inf
    total: float = 0.0

    def add(self, scores: np.ndarray) -> None:
        if not np.isfinite(scores).all():
            raise UserError(
                f"score: a text and a document have the score {scores[~np.isfinite(scores)][0]}; set score.precision:"
                " fp32, or train the teacher again"
            )
        if scores.size:
            self.count += scores.size
            self.smallest = min(self.smallest, float(scores.min()))
            self.largest = max(self.largest, float(scores.max()))
            self.total += float(scores.sum(dtype=np.float64))

    def spread(self) -> dict[str, float] | None:
        """Least, mean and largest; None without scores."""
        return {"min": self.smallest, "mean": self.total / self.count, "max": self.largest} if self.count else None


def _tables(
    lists: Lists,
    chosen: np.ndarray,
    rows: np.ndarray,
    scorer: Scorer,
    shards: ScoreShards,
    shard_texts: int,
    stats: _ScoreStats,
) -> Iterator[pa.Table]:
    """The table `scores`, a shard of texts at a time; `chosen` are the rows of the texts, `rows` of the documents."""
    starts = range(0, len(lists.texts), shard_texts)
    for start in progress(starts, len(starts), "score"):
        positions, documents = lists.pairs(start, start + shard_texts)
        near, scores = lists.get_or_compute(start, start + shard_texts, rows, shards, scorer.scores)
        stats.add(scores)
        stats.sample.add(near)
        stats.order.add(start, near)
        yield pa.table([chosen[positions], documents, scores], schema=SCHEMAS["scores"])


def _write_layers(
    target: Path,
    lists: Lists,
    rows: np.ndarray,
    scorer: Scorer,
    shards: ScoreShards,
    params: ScoreParams,
    sample: Sample,
) -> int:
    """Write the layers' scores of all pairs, in the order of the table, float16 `(pairs, layers)`; returns `layers`.
    `sample` takes from those of nearest documents, `(texts, k, layers)`.

    Each layer's largest score of a list is subtracted, as a softmax does: so 16 bits are exact where shares are large.
    """
    layers, offset = 0, 0
    starts = range(0, len(lists.texts), params.shard_texts)
    for start in progress(starts, len(starts), "score by layers"):
        positions, _ = lists.pairs(start, start + params.shard_texts)
        near, layer_scores = lists.get_or_compute(start, start + params.shard_texts, rows, shards, scorer.layer_scores)
        sample.add(near)
        if not np.isfinite(layer_scores).all():
            raise UserError("score: a layer's score is not finite; set score.precision: fp32, or train it again")
        if not layers:
            layers = layer_scores.shape[1]
            written = new_array(target, np.float16, (len(lists), layers))
        firsts = np.flatnonzero(np.diff(positions, prepend=-1))
        largest = np.repeat(np.maximum.reduceat(layer_scores, firsts), np.diff(firsts, append=len(positions)), axis=0)
        written[offset : offset + len(layer_scores)] = np.maximum(layer_scores - largest, np.finfo(np.float16).min)
        offset += len(layer_scores)
    return layers


def _choose_rows(texts: int, limit: int, seed: int) -> np.ndarray:
    """Rows of the texts that are scored, ascending; `limit` 0 = all."""
    if not limit or texts <= limit:
        return np.arange(texts)
    return np.sort(np.random.default_rng((seed, 6)).choice(texts, size=limit, replace=False))


def _write_pairs(
    target: Path,
    texts: list[str],
    nearest: np.ndarray,
    rows: np.ndarray,
    scorer: Scorer,
    shards: ScoreShards,
    params: ScoreParams,
) -> int:
    """Write the scorer's embeddings of each text with its `nearest` documents; returns their dimension."""
    dim = 0
    starts = range(0, len(texts), params.shard_texts)
    for start in progress(starts, len(starts), "embed pairs"):
        block = slice(start, start + params.shard_texts)
        embeddings = shards.get_or_compute(scorer.pair_embeddings, texts[block], np.searchsorted(rows, nearest[block]))
        if not np.isfinite(embeddings).all():
            raise UserError("score: an embedding of a pair is not finite; set score.precision: fp32, or train it again")
        if not dim:
            dim = embeddings.shape[2]
            written = new_array(target, np.float32, (*nearest.shape, dim))
        written[block] = embeddings
    return dim


def _sampled_pairs(lists: Lists, ingest: Path, seed: int) -> list[tuple[str, str]]:
    """Texts with the text of one of their documents, drawn by seed."""
    positions, rows = lists.pairs(0, len(lists.texts))
    sample = sample_rows(len(positions), seed)
    named = np.unique(rows[sample])
    documents = dict(zip(named.tolist(), CorpusTexts(ingest, named), strict=True))
    drawn_pairs = zip(positions[sample].tolist(), rows[sample].tolist(), strict=True)
    return [(lists.texts[position], documents[row]) for position, row in drawn_pairs]


def _check_nearest(embed: Path, nearest: np.ndarray, texts: int, ingest: Path) -> None:
    """UserError unless `nearest` is of these texts and documents."""
    documents = len(CorpusTexts(ingest))
    if len(nearest) != texts or (nearest.size and int(nearest.max()) >= documents):
        raise UserError(
            f"{embed / 'nearest.npy'}: is of other texts or documents than the {texts} texts and {documents} documents"
            " that are here; run `dvc repro embed` again"
        )

"""A cross encoder: from triplets to the teacher, and how well it ranks."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers as library

from slimtower.common.errors import UserError
from steps.core.corpus import texts_of
from steps.core.judged import read_judged_sets
from steps.core.leases import release_and_delete
from steps.core.measures import describe_gain, is_better, ndcg_at_10, p_of_gain
from steps.encoders.bases import resolve_base
from steps.encoders.towers import check_positions
from steps.retrieval.lexical import corpus_bm25
from steps.retrieval.rankers import check_pair_batches, dual_pooled, has_random_head, load_ranker, pair_scores
from steps.teach.dev_comparison import draw_queries
from steps.teach.kinds.base import Inputs
from steps.teach.kinds.cross_encoder import CrossEncoder
from steps.teach.teacher_folder import teacher_folder
from steps.tracking.runs import Run
from steps.training.ranker import WithReconstruction, train_on_triplets

_SECTION = "teach.teacher"


def teach(inputs: Inputs, output: Path, params: CrossEncoder, run: Run) -> None:
    """Write `output/tower` (a CrossEncoder folder), `output/report.json`; `epochs: 0` keeps a ready cross encoder."""
    ingest, mine, _ = inputs
    ranker = load_untrained(params)
    report: dict[str, Any] = params.model_dump(include={"kind", "base", "epochs", "pooling"})
    checkpoints: Path | None = None
    if params.epochs > 0:
        facts, checkpoints = train_on_triplets(
            ranker,
            ingest,
            mine,
            params,
            run,
            stage="teach",
            section=_SECTION,
            advice="take a base that is a cross encoder, with pooling: cls and epochs: 0.0",
            wrap=lambda loss: (
                WithReconstruction(ranker, loss, params.reconstruction_weight, params.base)
                if params.reconstruction_weight
                else loss
            ),
        )
        report |= facts
    elif has_random_head(ranker, resolve_base(params.base), params.seed):
        raise UserError(
            f"{_SECTION}: base {params.base} has no head that gives a score, so it ranks nothing untrained; set epochs"
            " above 0, or take a cross encoder"
        )
    with teacher_folder(output, ranker, report, run):
        report["quality"] = quality(ranker, ingest, params)
        tell(report["quality"], run)
    if checkpoints:  # last: where the tracking server is away, the next try goes on from them
        release_and_delete(checkpoints)


def load_untrained(params: CrossEncoder) -> library.CrossEncoder:
    """The base with the pooling that `params` ask for; UserError when it has too few positions."""
    base = resolve_base(params.base)
    if params.pooling == "cls":
        ranker = load_ranker(base, params.max_length, params.seed)
    else:
        ranker = dual_pooled(base, params.pooling, params.product_scale, params.max_length)
    check_positions(ranker.model, params.max_length, f"{_SECTION}: max_length", params.base)
    check_pair_batches(ranker, f"{_SECTION}: base {params.base}")
    return ranker


def quality(ranker: library.CrossEncoder, ingest: Path, params: CrossEncoder) -> dict[str, Any] | None:
    """Mean nDCG@10 of dev queries over the documents of their data set that BM25 finds; None where there are none.

    `ndcg_bm25` is that of BM25's own order, `ndcg_random` that of one drawn by seed; `p_value` is of the one-sided
    paired t-test that the cross encoder's is larger than BM25's.
    """
    random = np.random.default_rng(params.seed)
    texts: list[str] = []
    grades: dict[str, dict[str, int]] = {}
    lexical: list[np.ndarray] = []
    hit_ids: list[list[str]] = []
    for judged in draw_queries(read_judged_sets(ingest, ["dev"]), params.dev_queries, random):
        scores, hits = corpus_bm25(ingest, judged.dataset).search(judged.texts, params.dev_documents)
        lexical, hit_ids, texts = lexical + scores, hit_ids + hits, texts + judged.texts
        grades |= {query_id: judged.qrels[query_id] for query_id in judged.query_ids}
    documents = texts_of(ingest, {doc_id for hits in hit_ids for doc_id in hits})
    pairs = [(text, documents[doc_id]) for text, hits in zip(texts, hit_ids, strict=True) for doc_id in hits]
    if not pairs:
        return None
    teacher_scores = pair_scores(
        ranker, pairs, precision=params.precision, batch_size=params.batch_size, caption="teacher on dev"
    )
    bounds = np.cumsum([len(hits) for hits in hit_ids])[:-1]
    reranked, shuffled = np.split(teacher_scores, bounds), np.split(random.random(len(pairs)), bounds)
    after, before, chance = (
        ndcg_at_10(grades, list(grades), hit_ids, values) for values in (reranked, lexical, shuffled)
    )
    return {
        "n": len(hit_ids),
        "documents": params.dev_documents,
        "ndcg": float(after.mean()),
        "ndcg_random": float(chance.mean()),
        "ndcg_bm25": float(before.mean()),
        "p_value": p_of_gain(before, after),
        "beats_bm25": is_better(before, after),
    }


def tell(measured: dict[str, Any] | None, run: Run) -> None:
    """Log the quality, and say in one line whether it ranks better than BM25."""
    if measured is None:
        print(
            "teach: how the cross encoder ranks is not known: no dev query is judged, BM25 finds nothing for them, or"
            " dev_queries is 0",
            file=sys.stderr,
        )
        return
    before, after, p_value = (measured[name] for name in ("ndcg_bm25", "ndcg", "p_value"))
    run.metrics({"ndcg_teacher": after, "ndcg_bm25": before, "p_value": p_value})
    advice = "train it on more triplets or epochs, or do without it: take it out of score.teachers"
    better = measured["beats_bm25"]
    verdict = describe_gain("the cross encoder", "BM25", after > before, better, measured["n"], advice)
    print(
        f"teach: nDCG@10 on {measured['n']} dev queries, of the first {measured['documents']} documents that BM25 finds"
        f" for each: in random order {measured['ndcg_random']:.4f}, in BM25's {before:.4f}, in the teacher's"
        f" {after:.4f} (one-sided paired t-test p = {p_value:.2g}); {verdict}",
        file=sys.stderr,
    )

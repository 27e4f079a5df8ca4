"""Stage `rank`: train a ranker, say how good it is, and let it score candidates of training queries."""

import shutil
import sys
from pathlib import Path
from typing import Any

from slimtower.common.errors import UserError
from slimtower.common.files import staged_folder, write_json
from slimtower.common.fingerprints import fingerprint
from steps.core.leases import release_and_delete
from steps.core.measures import describe_gain
from steps.core.tables import read_table, stream_table
from steps.encoders.bases import resolve_base
from steps.encoders.cut_texts import cut_pairs
from steps.encoders.towers import check_positions
from steps.rank.params import CrossEncoderParams
from steps.rank.quality import measure
from steps.rank.relevance import (
    ScoringStats,
    draw_ids,
    relevance_tables,
    sampled_pairs,
    searchers,
    training_queries,
)
from steps.retrieval.rankers import check_pair_batches, has_random_head, load_ranker
from steps.tracking.runs import Run
from steps.training.ranker import train_on_triplets


def run(
    ingest: Path, candidates: Path, mine: Path, params: CrossEncoderParams, output: Path, teach: Path, run: Run
) -> None:
    """Write `output/relevance.parquet`, `teach/tower` (a CrossEncoder folder), and a `report.json` in both.

    `output/tower` is a copy for the stage `teach`, which depends on the rankers' folder as a whole. `candidates` has a
    folder for each searcher. `epochs: 0` keeps the base as it is, which has to be a cross encoder then. A killed run
    continues its training and its scoring. UserError without candidates, or a usable triplet to train on.
    """
    names = searchers(candidates)
    queries = read_table(ingest, "queries")
    eligible = training_queries(queries, candidates)
    if not eligible:
        raise UserError(
            f"{candidates}: no training query has candidates, so the ranker has nothing to score; set"
            " candidates.queries: all, or rank.rankers: []"
        )
    ids = draw_ids(eligible, params.max_queries or len(eligible), params.seed)
    chosen = {query_id: eligible[query_id] for query_id in ids}
    if len(eligible) > 2 * len(chosen):
        print(
            f"rank: scores the candidates of {len(chosen):,} of {len(eligible):,} training queries (max_queries); raise"
            " it where there is time for more, 0 takes all",
            file=sys.stderr,
        )
    base = resolve_base(params.base)
    ranker = load_ranker(base, params.max_length, params.seed)
    check_positions(ranker.model, params.max_length, "rank.ranker: max_length", params.base)
    check_pair_batches(ranker, f"rank.ranker: base {params.base}")
    if cut := cut_pairs(ranker, sampled_pairs(chosen, ingest, candidates, params)):
        cut.tell("rank", f"rank.ranker.{output.name}.{cut.knob}")
    base_embeds = has_random_head(ranker, base, params.seed)  # else it is a cross encoder already
    facts: dict[str, Any] = params.model_dump(include={"kind", "base", "epochs"}) | {"cut_pairs": cut and cut.share}
    checkpoints: Path | None = None
    if params.epochs > 0:
        trained, checkpoints = train_on_triplets(
            ranker,
            ingest,
            mine,
            params,
            run,
            stage="rank",
            section="rank.ranker",
            advice="do without a ranker: set rank.rankers: []",
        )
        facts |= trained
    elif base_embeds:
        raise UserError(
            f"rank.ranker: base {params.base} has no head that gives a score, so it ranks nothing untrained; set epochs"
            " above 0, or take a cross encoder"
        )
    with staged_folder(teach) as model, staged_folder(output) as staging:
        ranker.save_pretrained(str(model / "tower"), create_model_card=False, safe_serialization=True)
        facts["fingerprint"] = fingerprint(model / "tower").id
        shutil.copytree(model / "tower", staging / "tower")
        facts["quality"] = measure(ranker, ingest, candidates, params, base_embeds=base_embeds)
        tell(facts["quality"], run)
        scored = ScoringStats()
        stream_table(
            staging,
            "relevance",
            relevance_tables(ranker, facts["fingerprint"], chosen, ingest, candidates, params, scored),
        )
        write_json(model / "report.json", facts)
        write_json(staging / "report.json", facts | {"searchers": names, "scored": scored.report()})
    run.metrics({"scored_queries": scored.queries, "scores": scored.scores, "shards_computed": scored.shards_computed})
    run.model(teach / "tower", "ranker")
    run.artifact(output / "report.json")
    if checkpoints:  # last: where the tracking server is away, the next try goes on from them
        release_and_delete(checkpoints)


def tell(quality: dict[str, Any] | None, run: Run) -> None:
    """Log the quality, and say in one line whether the ranker is worth mining from."""
    if quality is None:
        print(
            "rank: the ranker's quality is not known: no judged dev query has candidates, or dev_queries is 0",
            file=sys.stderr,
        )
        return
    before, after, p_value = (quality[name] for name in ("ndcg_candidates", "ndcg_reranked", "p_value"))
    run.metrics({"ndcg_candidates": before, "ndcg_reranked": after, "p_value": p_value})
    areas = {name: quality["auc"][of] for name, of in (("auc", "mean"), ("auc_bm25", "bm25"), ("auc_base", "base"))}
    run.metrics({name: area for name, area in areas.items() if area is not None})
    words = ["unknown" if area is None else f"{area:.4f}" for area in areas.values()]
    searcher = "BM25" if quality["searcher"] == "bm25" else quality["searcher"]
    advice = "train it on more triplets or epochs, or mine without it: set rank.rankers: []"
    better = quality["reranking_is_better"]
    verdict = describe_gain("the ranker", searcher, after > before, better, quality["n"], advice)
    print(
        f"rank: nDCG@10 on {quality['n']} dev queries: {searcher} {before:.4f}, re-ranked {after:.4f} (one-sided paired"
        f" t-test p = {p_value:.2g}); AUC {words[0]} (BM25 {words[1]}, the base's embeddings {words[2]}); {verdict}",
        file=sys.stderr,
    )

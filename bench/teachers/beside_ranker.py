"""A teacher on the pairs on which its run's ranker is measured: what the ranker must be better than to be worth it."""

from sentence_transformers import SentenceTransformer

from bench.tables.pipeline import Pipeline
from slimtower.common.settings import load_section
from steps.rank.params import RankParams
from steps.rank.quality import BASELINE, dev_queries, mean_auc, reranked_ndcg, scored_texts, tower_scores
from steps.rank.relevance import searchers


def beside_ranker(tower: SentenceTransformer, pipeline: Pipeline) -> dict[str, float] | None:
    """`auc` and `ndcg_reranked` as the ranker's report has them, of the tower; None without ranker or dev queries.

    The tower reads documents as it is made to, the ranker its own `max_length`.
    """
    reports = sorted(pipeline.rankers.glob("*/report.json"))
    if not reports:
        return None
    params = load_section("rank", RankParams, pipeline.root / "params.yaml").described(reports[0].parent.name)
    candidates = pipeline.root / "data/candidates"
    names = searchers(candidates)
    searcher = BASELINE if BASELINE in names else names[0]
    dev = dev_queries(pipeline.ingest, candidates, searcher, params)
    if not dev:
        return None
    scored = tower_scores(tower, dev, scored_texts(dev, pipeline.ingest), params)
    area = mean_auc(dev, scored)["mean"]
    return {"ndcg_reranked": float(reranked_ndcg(dev, scored).mean())} | ({} if area is None else {"auc": area})

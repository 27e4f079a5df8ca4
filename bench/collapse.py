"""python -m bench.collapse cls,dual --run runs/cross_encoder_teacher: do a cross encoder's embeddings collapse?

EmbedDistill, Fig. 5: 6 dev queries, 12 documents, a relevant and a random one of each, and the distances between the
embeddings of all 72 pairs, with dual pooling of the query's; 20 times with other queries. Writes
bench/results/collapse.json (means and standard deviations) and, drawn, the first of them, collapse.svg; of another run
than runs/cross_encoder_teacher collapse.<run>.json. With [CLS] pooling the paper finds two points, those of relevant
and of other pairs. Exits 3 where an effective rank is not what bench/expected.yaml expects.
"""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from scipy.spatial.distance import pdist, squareform
from tqdm import tqdm

from bench.machine import recording, write_record
from bench.tables.expected import read_expected
from bench.tables.verdicts import near
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from slimtower.common.fingerprints import fingerprint
from slimtower.common.settings import checked_name
from steps.core.corpus import CorpusTexts, corpus_columns
from steps.core.judged import JudgedSet, read_judged_sets
from steps.evaluate.drawing import STYLE
from steps.retrieval.rankers import load_ranker, pair_embeddings

EXPECTED = Path("bench/expected.yaml")
RESULTS = Path("bench/results")
RUN = Path("runs/cross_encoder_teacher")
QUERIES, DRAWS = 6, 20


@dataclass(frozen=True)
class Pairs:
    """Every query with every document: texts, which query each is of, and whether its document is relevant."""

    texts: list[tuple[str, str]]
    query: np.ndarray
    relevant: np.ndarray


@dataclass(frozen=True)
class Collapse:
    """What the distances between the embeddings of n pairs are like.

    `effective_rank` of their matrix: exp of the entropy of its singular values, divided by their sum (Roy and Vetterli
    2007); 2 where there are two points, of equal share. `same_query` and `same_relevance`: mean distance between two
    pairs of one query, or both relevant or both not, divided by that between any two.
    """

    effective_rank: float
    same_query: float
    same_relevance: float


def chosen_pairs(ingest: Path, queries: int, seed: int) -> Pairs:
    """Dev queries of one data set, drawn by seed, and twice as many documents; UserError where there are too few."""
    for judged in read_judged_sets(ingest, ["dev"]):
        random = np.random.default_rng(seed)
        ids = {doc_id for doc_id, name in corpus_columns(ingest, ["doc_id", "dataset"]) if name == judged.dataset}
        picked: dict[str, int] = {}  # document -> the query that it is relevant to
        for row in random.permutation(len(judged.query_ids)).tolist():
            relevant_ids = sorted(relevant_documents(judged, row) & ids)
            if relevant_ids and relevant_ids[0] not in picked and len(picked) < queries:
                picked[relevant_ids[0]] = row
        relevant = [relevant_documents(judged, row) for row in picked.values()]
        candidates = sorted(ids.difference(*relevant))
        if len(picked) == queries <= len(candidates):
            documents = [*picked, *random.choice(candidates, size=queries, replace=False).tolist()]
            texts = [judged.texts[row] for row in picked.values()]
            return _crossed(texts, relevant, documents, ingest)
    raise UserError(f"{ingest}: no data set has {queries} judged dev queries and as many other documents")


def relevant_documents(judged: JudgedSet, row: int) -> set[str]:
    return {doc_id for doc_id, grade in judged.qrels[judged.query_ids[row]].items() if grade > 0}


def _crossed(queries: list[str], relevant: list[set[str]], documents: list[str], ingest: Path) -> Pairs:
    positions = {doc_id: at for at, (doc_id,) in enumerate(corpus_columns(ingest, ["doc_id"]))}
    order = sorted(documents, key=positions.__getitem__)
    texts = dict(zip(order, CorpusTexts(ingest, np.array([positions[doc_id] for doc_id in order])), strict=True))
    pairs, query, good = [], [], []
    for number, (text, relevant_ids) in enumerate(zip(queries, relevant, strict=True)):
        ranked = [doc_id for doc_id in documents if doc_id in relevant_ids] + [
            doc_id for doc_id in documents if doc_id not in relevant_ids
        ]
        pairs += [(text, texts[doc_id]) for doc_id in ranked]
        query += [number] * len(ranked)
        good += [doc_id in relevant_ids for doc_id in ranked]
    return Pairs(pairs, np.array(query), np.array(good))


def effective_rank(matrix: np.ndarray) -> float:
    """exp of the entropy of a matrix' singular values over their sum (Roy and Vetterli 2007); 0 for zeros alone."""
    values = np.linalg.svd(matrix, compute_uv=False)
    if not values.sum():
        return 0.0
    shares = values / values.sum()
    shares = shares[shares > 0]
    return float(np.exp(-(shares * np.log(shares)).sum()))


def collapse(embeddings: np.ndarray, pairs: Pairs) -> Collapse:
    """How far `embeddings` `(n, dim)` of pairs collapse."""
    distances = squareform(pdist(embeddings))
    two = ~np.eye(len(distances), dtype=bool)
    mean = distances[two].mean() or 1.0
    query = pairs.query[:, None] == pairs.query[None, :]
    relevance = pairs.relevant[:, None] == pairs.relevant[None, :]
    same = (float(distances[alike & two].mean() / mean) for alike in (query, relevance))
    return Collapse(effective_rank(distances), *same)


def measure(folder: Path, draws: Sequence[Pairs]) -> tuple[dict[str, Any], np.ndarray]:
    """Report on the cross encoder in a folder, and the first draw's distances `(n, n)`; UserError for another kind."""
    if (kind := read_json(folder / "report.json").get("kind")) != "cross_encoder":
        raise UserError(f"{folder}: is a {kind}; name cross encoders")
    ranker = load_ranker(folder / "tower")
    embedded = [
        pair_embeddings(ranker, pairs.texts, precision="fp32", batch_size=32).astype(np.float64)
        for pairs in tqdm(draws, desc=folder.name)
    ]
    collapses = [asdict(collapse(vectors, pairs)) for vectors, pairs in zip(embedded, draws, strict=True)]
    spread = {name: np.array([row[name] for row in collapses]) for name in collapses[0]}
    figures: dict[str, Any] = {
        name: {"mean": float(values.mean()), "sd": float(values.std(ddof=1)), "first": float(values[0])}
        for name, values in spread.items()
    }
    return figures | {"fingerprint": fingerprint(folder / "tower").id}, squareform(pdist(embedded[0]))


def draw(distances: dict[str, np.ndarray], ranks: dict[str, float], target: Path) -> None:
    """Draw the distances of each teacher, a light square for equal embeddings and a dark one for the farthest."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4 * len(distances), 4), layout="constrained")
        for axes, (name, matrix) in zip(
            np.atleast_1d(figure.subplots(1, len(distances))), distances.items(), strict=True
        ):
            axes.imshow(matrix, cmap="Blues")
            axes.set_title(f"{name}: effective rank {ranks[name]:.1f}")
            axes.set_xticks([])
            axes.set_yticks([])
        figure.savefig(target, format="svg", metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.collapse", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("teachers", help="names of cross encoders of the run, separated by commas")
    parser.add_argument("--run", type=Path, default=Path(), help="a pipeline's folder in which they are trained")
    words = parser.parse_args()
    run = words.run.resolve()
    expected = read_expected(EXPECTED).collapse
    draws = [chosen_pairs(run / "data/ingest", QUERIES, seed) for seed in range(1, DRAWS + 1)]
    rows: dict[str, dict[str, Any]] = {}
    distances: dict[str, np.ndarray] = {}
    for name in words.teachers.split(","):
        rows[name], distances[name] = measure(run / "models/teach" / checked_name("teachers", name), draws)
        row, aim = rows[name], expected.effective_rank.get(run.name, {}).get(name)
        rank = row["effective_rank"]
        verdict = near(rank["mean"], aim, expected.tolerance)
        row |= {"expected": aim, "tolerance": expected.tolerance, "verdict": verdict}
        print(
            f"{verdict:5} {name}: effective rank of the distances {rank['mean']:.1f} (sd {rank['sd']:.1f}) of"
            f" {len(draws[0].texts)}; distance within a query {row['same_query']['mean']:.2f}, at equal relevance"
            f" {row['same_relevance']['mean']:.2f} of the mean"
        )
    target = RESULTS / ("collapse.json" if run == RUN.resolve() else f"collapse.{run.name}.json")
    write_record(target, {"pairs": len(draws[0].texts), "draws": DRAWS, "teachers": rows})
    draw(distances, {name: row["effective_rank"]["first"] for name, row in rows.items()}, target.with_suffix(".svg"))
    if missed := [name for name, row in rows.items() if row["verdict"] == "FAIL"]:
        raise UserError(f"bench.collapse: FAIL for {', '.join(missed)}: other effective ranks than {EXPECTED} expects")


if __name__ == "__main__":
    recording(main)

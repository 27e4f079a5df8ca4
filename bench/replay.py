"""python -m bench.replay BEFORE AFTER --queries LOG --judge MODEL [--run FOLDER]: two releases over a query log.

What ScalingNote's A/B test measures online, offline: the share of irrelevant documents in the first 4 and in the first
20 hits, and of queries with fewer than 5 relevant ones among 20. BEFORE and AFTER are folders of releases. LOG is a
file with a query a line, as often as it was asked, or a folder of a service's search log (UBI, docs/serving.md). MODEL
is a cross encoder, by folder or name, whose probability of relevance counts from --threshold on; with --judgements in
its place it is a table (Parquet, .csv or .tsv) of query, doc_id and grade, relevant from 1 on, in which a missing pair
is irrelevant. The judge must not be a ranker or teacher of the run in FOLDER (default: the present one), nor what one
of them began as; it reads that run's corpus. Hits that have gone from there are counted, and are no hits then. Writes
reports/replay.json there.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit
from scipy.stats import bootstrap

from pipeline.params import load_params
from slimtower.common.errors import UserError, guarded
from slimtower.common.files import write_json
from slimtower.common.fingerprints import fingerprint
from slimtower.serving.release import Release, load_release
from steps.core.corpus import CorpusTexts, corpus_columns
from steps.encoders.bases import bundled_folder, resolve_base
from steps.evaluate.slicing import user_rows
from steps.retrieval.rankers import load_ranker, pair_scores

DEPTH, FEW = 20, 5
MEASURES = ("irrelevant@4", f"irrelevant@{DEPTH}", f"fewer_than_{FEW}")
_RESAMPLES, _BATCH = 2000, 32
Pair = tuple[str, str]  # text of a query, id of a document
Judge = Callable[[Sequence[Pair]], Sequence[bool | None]]  # whether each document is relevant; None: it is gone


def read_queries(path: Path) -> dict[str, int]:
    """How often each query was asked, by its text; UserError for fewer than two."""
    if path.is_dir():
        files = sorted(path.rglob("queries/**/*.jsonl"))
        rows = (json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines())
        texts = [str(row.get("user_query") or "") for row in rows]
    elif path.is_file():
        texts = path.read_text(encoding="utf-8").splitlines()
    else:
        raise UserError(f"--queries: {path}: no such file or folder")
    counts = Counter(text.strip() for text in texts if text.strip())
    if len(counts) < 2:
        raise UserError(f"--queries: {path}: holds {len(counts)} queries; give a file with one a line, or a UBI log")
    return dict(counts)


def check_judge(model: str, run: Path) -> None:
    """UserError where the judge is one of the run's own rankers or teachers, by weights, or what one began as."""
    if Path(folder := resolve_base(model)).is_dir():
        judging = fingerprint(Path(folder)).weights
        for tower in [*run.glob("models/teach/*/tower"), *run.glob("data/rank/*/tower")]:
            if fingerprint(tower).weights == judging:
                raise UserError(f"--judge: {model} is {tower}, which labelled or taught; name another cross encoder")
    if (run / "params.yaml").is_file():
        params = load_params(run / "params.yaml")
        bases = {name: params.rank.described(name).base for name in params.rank.rankers}
        bases |= {name: getattr(params.teach.described(name), "base", "") for name in params.teach.teachers}
        for name, base in bases.items():
            if base and _plain(base) == _plain(model):
                raise UserError(f"--judge: {model} is what {name} began as, which labelled or taught; name another one")


def _plain(model: str) -> str:
    """A model's name without its commit, or its folder."""
    path = bundled_folder(model)
    return str(Path(path).resolve()) if Path(path).exists() else path.partition("@")[0].casefold()


def ranker_judge(model: str, run: Path, threshold: float) -> Judge:
    """A cross encoder over the run's corpus; UserError as `check_judge` has it."""
    check_judge(model, run)
    ranker = load_ranker(resolve_base(model))
    ingest = run / "data/ingest"
    row_of = {doc_id: row for row, (doc_id,) in enumerate(corpus_columns(ingest, ["doc_id"]))}

    def judge(pairs: Sequence[Pair]) -> list[bool | None]:
        here = [pair for pair in pairs if pair[1] in row_of]
        rows = np.unique(np.array([row_of[doc_id] for _, doc_id in here], dtype=np.int64))
        texts = dict(zip(rows.tolist(), CorpusTexts(ingest, rows), strict=True))
        text_pairs = [(query, texts[row_of[doc_id]]) for query, doc_id in here]
        logits = pair_scores(ranker, text_pairs, precision="auto", batch_size=_BATCH, caption="judge")
        verdicts = dict(zip(here, (expit(logits) >= threshold).tolist(), strict=True))
        return [verdicts.get(pair) for pair in pairs]

    return judge


def table_judge(path: Path) -> Judge:
    """Grades of a table; UserError where it cannot be read or lacks a column."""
    rows = user_rows(path, ["query", "doc_id", "grade"], "--judgements")
    relevant = {(query, doc_id) for query, doc_id, grade in rows if float(grade) >= 1}
    return lambda pairs: [pair in relevant for pair in pairs]


def answers(release: Release, dataset: str, texts: Sequence[str]) -> list[list[str]]:
    """Ids of the first DEPTH hits of each text, as the release serves them."""
    return release.search_text(dataset, texts, DEPTH)[1]


def measured(hits: Mapping[str, Sequence[str]], relevant: Mapping[Pair, bool | None]) -> dict[str, np.ndarray]:
    """Each measure of every query, `(queries,)`: shares of the hits that there are, and 0 or 1."""
    values = []
    for text, ids in hits.items():
        good = np.array([verdict for doc_id in ids if (verdict := relevant[text, doc_id]) is not None], dtype=bool)
        values.append([*(float(np.mean(~good[:k])) if len(good) else 0.0 for k in (4, DEPTH)), float(good.sum() < FEW)])
    return dict(zip(MEASURES, np.array(values).T, strict=True))


def compared(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray], weights: np.ndarray) -> dict[str, Any]:
    """Weighted means of both, their difference, and its 95 % interval: a bootstrap over distinct queries."""

    def mean(differences: np.ndarray, weights: np.ndarray, axis: int) -> np.ndarray:
        weighed: np.ndarray = (differences * weights).sum(axis=axis) / weights.sum(axis=axis)
        return weighed

    rows = {}
    for name in MEASURES:
        means = [float(np.average(values[name], weights=weights)) for values in (before, after)]
        differences = after[name] - before[name]
        interval = bootstrap(
            (differences, weights), mean, paired=True, method="percentile", n_resamples=_RESAMPLES, batch=100, rng=0
        )
        low, high = map(float, interval.confidence_interval)
        rows[name] = {"before": means[0], "after": means[1], "difference": means[1] - means[0],
                       "ci95_low": low, "ci95_high": high}  # fmt: skip
    return rows


def replay(before: Release, after: Release, dataset: str, queries: Mapping[str, int], judge: Judge) -> dict[str, Any]:
    """Both releases' answers to the queries of a data set, judged; a pair that both found is judged once."""
    texts = list(queries)
    hits = [dict(zip(texts, answers(release, dataset, texts), strict=True)) for release in (before, after)]
    pairs = sorted({(text, doc_id) for by_text in hits for text, ids in by_text.items() for doc_id in ids})
    relevant = dict(zip(pairs, judge(pairs), strict=True))
    values = [measured(by_text, relevant) for by_text in hits]
    counts = np.array(list(queries.values()), dtype=np.float64)
    missing = [
        sum(relevant[text, doc_id] is None for text, ids in by_text.items() for doc_id in ids) for by_text in hits
    ]
    summary = {"dataset": dataset, "queries": len(texts), "searches": int(counts.sum())}
    summary |= {"judged_pairs": sum(verdict is not None for verdict in relevant.values())}
    summary |= {"hits_gone_from_corpus": dict(zip(("before", "after"), missing, strict=True))}
    manifests = {"before": before.manifest.checksum, "after": after.manifest.checksum}
    return summary | {"releases": manifests, "measures": compared(*values, counts)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.replay", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--queries", type=Path, required=True, help="a file with a query a line, or a UBI log's folder")
    judges = parser.add_mutually_exclusive_group(required=True)
    judges.add_argument("--judge", help="a cross encoder's folder or name")
    judges.add_argument("--judgements", type=Path, help="a table of query, doc_id and grade")
    parser.add_argument("--threshold", type=float, default=0.5, help="probability from which a document is relevant")
    parser.add_argument("--run", type=Path, default=Path(), help="the pipeline's folder; default: the present one")
    parser.add_argument("--dataset", default="", help="data set that is searched; default: the first of BEFORE")
    words = parser.parse_args()
    before, after = load_release(words.before), load_release(words.after)
    dataset, queries = words.dataset or before.datasets[0], read_queries(words.queries)
    judge = ranker_judge(words.judge, words.run, words.threshold) if words.judge else table_judge(words.judgements)
    result = replay(before, after, dataset, queries, judge) | {"judge": str(words.judge or words.judgements)}
    print(
        f"{dataset}: {result['queries']} queries, {result['searches']} searches, {result['judged_pairs']} judged pairs"
    )
    if any((missing := result["hits_gone_from_corpus"]).values()):
        print(f"left out, as the corpus has them no more: {missing['before']} hits before, {missing['after']} after")
    for name, row in result["measures"].items():
        interval = f"{row['ci95_low']:+.2%} to {row['ci95_high']:+.2%}"
        print(f"{name:14} {row['before']:7.2%} {row['after']:7.2%} {row['difference']:+7.2%} ({interval})")
    write_json(words.run / "reports/replay.json", result)


if __name__ == "__main__":
    guarded(main)

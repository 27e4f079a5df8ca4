"""Retrieval measures by ir-measures' names, with trec_eval's numbers and its rule for ties; their means and comparison.

trec_eval compares scores as float32 and orders equal ones by document id, descending.
"""

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ir_measures
import numpy as np

NDCG = "nDCG@10"
UNCUT = "uncut RR"  # 1 / rank of the first relevant document among all hits
_KINDS = ("nDCG@k", "RR@k", "AP@k", "R@k", "P@k", "Success@k", "RR", "AP", "Rprec", "Bpref")

Qrels = Mapping[str, Mapping[str, int]]
SIGNIFICANT = 0.05


def parse_measure(name: str) -> Any:
    """The ir-measures measure of this name, whose `str` is it (`R@5`: `Recall@5`); ValueError says which there are."""
    try:
        measure = _parsed(name)
        measure.validate_params()
        is_supported = any(kind.partition("@")[0] == measure.NAME for kind in _KINDS)
        if is_supported and measure.params.get("cutoff", 1) > 0 and ir_measures.pytrec_eval.supports(_uncut(measure)):
            return measure
    except (ValueError, SyntaxError, AssertionError, KeyError, TypeError):
        pass
    raise ValueError(
        f"{name!r} is no measure that trec_eval computes by query; possible are {', '.join(_KINDS)} with k from 1 on,"
        " also as R(rel=2)@100 where documents count from grade 2"
    )


def _parsed(name: str) -> Any:
    """Read `R(rel=2)@100` as ir-measures does, whose own parser fails on Python 3.14: it uses `ast.Num`."""
    kind: ast.expr = ast.parse(name, mode="eval").body
    cut: ast.expr | None = None
    parameters: dict[Any, Any] = {}
    if isinstance(kind, ast.BinOp) and isinstance(kind.op, ast.MatMult):
        cut, kind = kind.right, kind.left
    if isinstance(kind, ast.Call) and not kind.args:
        parameters = {keyword.arg: ast.literal_eval(keyword.value) for keyword in kind.keywords}
        kind = kind.func
    if not isinstance(kind, ast.Name):
        raise ValueError(f"{name!r} is no name of a measure")
    measure = ir_measures.measures.registry[kind.id]
    return measure(**parameters | ({} if cut is None else {measure.AT_PARAM: ast.literal_eval(cut)}))


def per_query(
    names: Sequence[str],
    qrels: Qrels,
    query_ids: Sequence[str],
    doc_ids: Sequence[Sequence[str]],
    scores: Sequence[np.ndarray],
    relevant_from: int = 1,
) -> dict[str, np.ndarray]:
    """Each of the named measures as float64 `(queries,)` in the order of `query_ids`, from the hits of each query.

    A document is relevant from grade `relevant_from`, where the name has no `rel` of its own; nDCG counts all grades.
    A query without hits, or without relevant documents, counts 0.
    """
    measures = {name: _from_grade(parse_measure(name), relevant_from) for name in names}
    # ir_measures gives RR@10 to MS MARCO's script, which breaks ties the other way round: cut here.
    values = _calculated(
        {name: _uncut(measure) for name, measure in measures.items()}, qrels, query_ids, doc_ids, scores
    )
    for name, measure in measures.items():
        if measure.NAME == "RR" and "cutoff" in measure.params:
            values[name] = np.where(values[name] >= 1 / measure["cutoff"], values[name], 0.0)
    return values


def ndcg_at_10(
    qrels: Qrels, query_ids: Sequence[str], doc_ids: Sequence[Sequence[str]], scores: Sequence[np.ndarray]
) -> np.ndarray:
    """nDCG@10, float64 `(queries,)`; arguments as for `per_query`."""
    return per_query([NDCG], qrels, query_ids, doc_ids, scores)[NDCG]


def ndcg_at_10_of_matrix(
    qrels: Qrels, query_ids: Sequence[str], doc_ids: Sequence[str], scores: np.ndarray
) -> np.ndarray:
    """nDCG@10, float64 `(queries,)`, of a score for every query and document, `(queries, documents)`."""
    return ndcg_at_10(qrels, query_ids, *best_hits(doc_ids, scores, 10))


def best_hits(doc_ids: Sequence[str], scores: np.ndarray, depth: int) -> tuple[list[list[str]], list[np.ndarray]]:
    """Ids and scores of the best `depth` documents of each row of `scores` `(queries, documents)`, in no order.

    All that score as the last of them are there too, so that no tie is broken before a measure breaks it.
    """
    scores32 = scores.astype(np.float32, copy=False)
    if not 0 < depth < scores32.shape[1]:
        return [list(doc_ids)] * len(scores32), list(scores32)
    thresholds = np.partition(scores32, -depth, axis=1)[:, -depth]
    chosen = [np.flatnonzero(row >= threshold) for row, threshold in zip(scores32, thresholds, strict=True)]
    ids = [[doc_ids[column] for column in columns.tolist()] for columns in chosen]
    return ids, [row[columns] for row, columns in zip(scores32, chosen, strict=True)]


def trec_order(doc_ids: Sequence[str], scores: np.ndarray) -> list[int]:
    """Positions of the hits as trec_eval ranks them: score descending, then document id descending."""
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True)) + 1
    sizes, positions = np.diff(ends, prepend=0), order.tolist()
    for stop, size in zip(ends[sizes > 1].tolist(), sizes[sizes > 1].tolist(), strict=True):  # of equal scores
        positions[stop - size : stop] = sorted(positions[stop - size : stop], key=doc_ids.__getitem__, reverse=True)
    return positions


def _uncut(measure: Any) -> Any:
    if measure.NAME != "RR":
        return measure
    return type(measure)(**{key: value for key, value in measure.params.items() if key != "cutoff"})


def _from_grade(measure: Any, grade: int) -> Any:
    counts_grades = "rel" not in measure.SUPPORTED_PARAMS or "rel" in measure.params
    return measure if counts_grades or grade == 1 else measure(rel=grade)


def _calculated(
    measures: Mapping[str, Any],
    qrels: Qrels,
    query_ids: Sequence[str],
    doc_ids: Sequence[Sequence[str]],
    scores: Sequence[np.ndarray],
) -> dict[str, np.ndarray]:
    judged = [ir_measures.Qrel(query, doc, grade) for query in query_ids for doc, grade in qrels[query].items()]
    hits = {
        query: dict(zip(docs, values.tolist(), strict=True))
        for query, docs, values in zip(query_ids, doc_ids, scores, strict=True)
    }
    position = {query: row for row, query in enumerate(query_ids)}
    values = {measure: np.zeros(len(query_ids)) for measure in measures.values()}
    for metric in ir_measures.pytrec_eval.iter_calc(list(values), judged, hits):
        values[metric.measure][position[metric.query_id]] = metric.value
    return {name: values[measure].copy() for name, measure in measures.items()}


def units(datasets: Iterable[str], names: Sequence[str]) -> dict[str, list[str]]:
    """Each data set under its own name, but those called `<name>-...` together under that name; in order."""
    groups: dict[str, list[str]] = {}
    for dataset in datasets:
        groups.setdefault(next((name for name in names if dataset.startswith(f"{name}-")), dataset), []).append(dataset)
    return groups


def weights(datasets: Sequence[str], names: Sequence[str]) -> list[float]:
    """Of each data set in a mean over data sets: those that count as one share the weight of one."""
    members = units(datasets, names)
    share = {dataset: 1 / len(group) / len(members) for group in members.values() for dataset in group}
    return [share[dataset] for dataset in datasets]


def joint_means(
    sets: Mapping[str, Mapping[str, Mapping[str, float]]], names: Sequence[str]
) -> dict[str, dict[str, dict[str, float]]]:
    """`[name][model][measure]` of data sets that count as one, from `[data set][model][measure]`: the plain means."""
    means: dict[str, dict[str, dict[str, float]]] = {}
    for name, members in units(sets, names).items():
        if members != [name]:
            first = sets[members[0]]
            means[name] = {
                model: {
                    measure: float(np.mean([sets[member][model][measure] for member in members]))
                    for measure in values
                    if all(measure in sets[member][model] for member in members)
                }
                for model, values in first.items()
            }
    return means


def counted_sets(metrics: Mapping[str, Any], part: str = "datasets") -> dict[str, Any]:
    """`datasets` or `datasets_dev` of metrics.json as a mean counts them: what counts as one in place of its parts."""
    joint = metrics.get("as_one" if part == "datasets" else "as_one_dev", {})
    counted_names = units(metrics[part], list(joint))
    return {name: joint[name] if name in joint else metrics[part][name] for name in counted_names}


def p_of_gain(before: np.ndarray, after: np.ndarray) -> float:
    """p-value of the one-sided paired t-test that `after` is larger, both `(queries,)`; 1 if all gains are equal."""
    from scipy.stats import ttest_rel  # half a second, which checks of params need not wait

    return float(ttest_rel(after, before, alternative="greater").pvalue) if np.ptp(after - before) > 0 else 1.0


def describe_gain(subject: str, baseline: str, higher: bool, better: bool, queries: int, advice: str) -> str:
    """What a person is told of a comparison: a gain, one that may be chance, or a WARNING with what to do."""
    if better:
        return f"{subject} beats {baseline}"
    if higher:
        return f"{subject} ranks better than {baseline}, which on {queries:,} queries may be chance; judge more"
    return f"WARNING: {subject} does not rank better than {baseline}; {advice}"


def is_better(before: np.ndarray, after: np.ndarray) -> bool:
    """Whether `after` is larger in the mean, and that significantly."""
    return bool(after.mean() > before.mean() and p_of_gain(before, after) <= SIGNIFICANT)

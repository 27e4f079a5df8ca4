"""Test queries as people also type them: with a slip, in another order, or not yet typed to the end."""

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from steps.core.judged import JudgedSet
from steps.core.measures import NDCG
from steps.core.texts import word_places
from steps.evaluate.comparing import figures
from steps.evaluate.figures.base import NEIGHBOURS, EvaluatedTower, Figure, Measured, Part, RenderContext
from steps.evaluate.formatting import Block, Cell, Table, percent
from steps.evaluate.fusing import fused_search
from steps.evaluate.params import BOOTSTRAP_SAMPLES
from steps.evaluate.scoring import score
from steps.evaluate.slicing import MIN_QUERIES
from steps.evaluate.systems import TEACHER, Search, Student, dense_search, fused_name, remembering

_LONG = 4  # letters; a slip in a shorter word would often make another word
_TYPED = (0.5, 0.8)  # share of the characters that a prefix keeps
QUERIES = 200  # of a data set, drawn with the seed


class ChangedQueries(Figure):
    """`perturbed.<set>.<change>` of metrics.json, of typos, word_order and prefix: see `comparing.figures`.

    By the teacher, each student, and `<student>+bm25` where its release fuses. `unchanged.<model>`: mean nDCG@10 of the
    same queries as they were. None of a data set with fewer than MIN_QUERIES of them.
    """

    title = "Changed queries"
    part: ClassVar[Part] = "queries"

    def measure(self, evaluated: EvaluatedTower) -> dict[str, Any] | None:
        """`rows` of the queries, and nDCG@10 by system, `alone` or `served`, and change, a value a row."""
        judged, release = evaluated.judged, evaluated.tower.release
        rows = drawn_rows(len(judged.query_ids), QUERIES, evaluated.seed)
        if len(rows) < MIN_QUERIES:
            return None
        searches = {"alone": dense_search(remembering(evaluated.tower.encode), release)}
        if isinstance(evaluated.tower, Student) and (fusion := release.fusion(judged.dataset)):
            dense, lexical = dense_search(evaluated.tower.encode, release, "ann"), release.lexical(judged.dataset)
            searches["served"] = fused_search(
                dense, lambda _, texts, k: lexical.search(texts, k), {judged.dataset: fusion}
            )

        def ndcg(system: str, search: Search, kind: str) -> list[float]:
            name = f"{evaluated.tower.name}{' as served' if system == 'served' else ''}, {kind}"
            changed = perturbed_set(judged, rows, kind, evaluated.seed)
            values: list[float] = (
                score(name, search, changed, NEIGHBOURS, exact=system == "alone").values[NDCG].tolist()
            )
            return values

        return {"rows": rows.tolist()} | {
            system: {kind: ndcg(system, search, kind) for kind in PERTURBATIONS} for system, search in searches.items()
        }

    def merge(self, measured: Measured, values: Mapping[str, Mapping[str, np.ndarray]], seed: int) -> dict[str, Any]:
        """`[data set][change]`."""
        merged: dict[str, Any] = {}
        for dataset, by_model in super().merge(measured, values, seed).items():
            systems = {name: row["alone"] for name, row in by_model.items()}
            systems |= {fused_name(name): row["served"] for name, row in by_model.items() if "served" in row}
            rows = next(iter(by_model.values()))["rows"]
            merged[dataset] = {
                kind: figures({name: np.array(row[kind]) for name, row in systems.items()}, BOOTSTRAP_SAMPLES, seed)
                | {"unchanged": {name: float(values[name][dataset][rows].mean()) for name in systems}}
                for kind in PERTURBATIONS
            }
        return merged

    def render(self, value: Mapping[str, Any], context: RenderContext) -> Iterator[Block]:
        """A row a change: nDCG@10 before and after it, and what a student then keeps of the teacher's."""
        yield (
            "A sample of the test queries, changed as people change them: one slip of a letter (typos), another order"
            " of the words, or only the first half to four fifths typed (prefix). Shown are nDCG@10 before and after"
            " the change, and the share of the teacher's that a student then keeps."
            + " A name with +bm25 adds the BM25 of its release."
            * context.fused
        )
        rows = [(dataset, kind, row) for dataset, changes in sorted(value.items()) for kind, row in changes.items()]
        models = sorted({name for *_, row in rows for name in row["ndcg"]} - {TEACHER})

        def moved(row: Mapping[str, Any], model: str) -> Cell | str:
            if model not in row["ndcg"]:
                return "–"
            ratio = row["retention"].get(model)
            text = f"{row['unchanged'][model]:.3f} →\u00a0{row['ndcg'][model]:.3f}"
            share = f"{percent(ratio['ratio'])}, {ratio['ci95_low']:.0%} to {ratio['ci95_high']:.0%}" if ratio else ""
            return Cell(text, share)

        yield Table(
            ["change", TEACHER, *(f"{model}, keeps" for model in models)],
            [
                [Cell(f"{dataset}, {kind.replace('_', ' ')}", f"{row['queries']:,} queries")]
                + [moved(row, model) for model in (TEACHER, *models)]
                for dataset, kind, row in rows
            ],
        )


def perturbed_set(judged: JudgedSet, rows: np.ndarray, kind: str, seed: int) -> JudgedSet:
    """Some queries of a judged set with changed texts, by row; the change depends on query id, kind and seed alone."""
    ids, position = [judged.query_ids[row] for row in rows], list(PERTURBATIONS).index(kind)
    generators = [np.random.default_rng([seed, zlib.crc32(query.encode()), position]) for query in ids]
    texts = [PERTURBATIONS[kind](judged.texts[row], generator) for row, generator in zip(rows, generators, strict=True)]
    return replace(judged, query_ids=ids, texts=texts, qrels={query: judged.qrels[query] for query in ids})


def drawn_rows(count: int, limit: int, seed: int) -> np.ndarray:
    """Rows below `count`, ascending: all, or `limit` drawn alike where there are more."""
    return np.sort(np.random.default_rng(seed).permutation(count)[:limit])


def _typo(text: str, generator: np.random.Generator) -> str:
    spans = [(start, end) for start, end in word_places(text) if end - start >= 2]
    spans = [(start, end) for start, end in spans if end - start >= _LONG] or spans
    if not spans:
        return text
    start, end = spans[generator.integers(len(spans))]
    slip = generator.integers(3)
    swaps = [at for at in range(start, end - 1) if text[at] != text[at + 1]]
    if slip == 0 and swaps:
        at = swaps[generator.integers(len(swaps))]
        return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
    at = int(generator.integers(start, end))
    return text[:at] + text[at + 1 :] if slip == 1 else text[:at] + text[at] + text[at:]


def _word_order(text: str, generator: np.random.Generator) -> str:
    tokens = text.split()
    if len(set(tokens)) < 2:
        return text
    while (shuffled := [tokens[at] for at in generator.permutation(len(tokens))]) == tokens:
        pass
    return " ".join(shuffled)


def _prefix(text: str, generator: np.random.Generator) -> str:
    return text[: max(1, round(len(text) * generator.uniform(*_TYPED)))].rstrip() or text


PERTURBATIONS: Mapping[str, Callable[[str, np.random.Generator], str]] = {
    "typos": _typo,
    "word_order": _word_order,
    "prefix": _prefix,
}
"""How test queries are changed; a text in which nothing can be changed, such as the order of one word, stays."""

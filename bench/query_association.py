"""python -m bench.query_association PATH [TRAIN_PAIRS]: do associated queries ask for the same? On labelled pairs.

PATH is a TSV with the columns split (train, or anything else for test), query, other_query and entails (1 or 0), such
as can be made of github.com/abachaa/RQE_Data_AMIA2016: a question entails another when every answer to the other is
also an answer to it. That is when it may borrow the other's clicks, `query <- other`.

For each query planner and each way to associate, threshold, top terms and min terms are chosen on the train pairs alone
(TRAIN_PAIRS of them, drawn by seed; 0 = all), once for the best F1 and once for the best recall at a precision of 0.9,
and applied to the test pairs; a third line takes those of params.yaml (top 4 for relevance). Prints a table and writes
bench/results/query_association.json. Occlusion encodes each question once for each of its terms: minutes for 900
pairs; what it found is kept under SLIMTOWER_CACHE. The scores of the planner `table` are those of the English of
programmers: idf over the documents (docstrings) of data/ingest, for the words of at least 20 of them. Words of any text
(of, what, should) score low, but a word that docstrings seldom use (why, who) is not there, and what the table lacks
counts as much as its highest.
"""

import csv
import inspect
import math
import random
import sys
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.machine import recording, write_record
from pipeline.params import load_params
from slimtower.common.errors import UserError
from slimtower.common.files import cache_root, sha256_file, sha256_text, staged_file
from slimtower.common.fingerprints import fingerprint
from steps.core.progress import progress
from steps.core.tables import read_table
from steps.core.texts import fold, words
from steps.encoders.bases import resolve_base
from steps.mine.association import MIN_TERMS
from steps.mine.from_clicks import CLICK_TOP_TERMS
from steps.mine.from_relevance import RELEVANCE_TOP_TERMS
from steps.mine.planner import OcclusionPlanner, shares, table_importances, term_key

MODEL, BATCH_SIZE, MAX_LENGTH = "all-MiniLM-L6-v2", 64, 128
INGEST, MIN_DOCUMENTS = Path("data/ingest"), 20
COLUMNS = ("split", "query", "other_query", "entails")
TRAIN_PAIRS = 900
THRESHOLDS = np.arange(2, 100) / 200  # params.yaml admits none below 0.01
PRECISE = 0.9
RESAMPLES, SEED = 2000, 7
MEASURES = ("precision", "recall", "f1")
Importances = dict[str, dict[str, float]]


class Pair(NamedTuple):
    """One labelled pair; `identical` when its texts are one after folding."""

    query: str
    other_query: str
    entails: bool
    train: bool

    @property
    def identical(self) -> bool:
        return fold(self.query) == fold(self.other_query)


class Knobs(NamedTuple):
    threshold: float
    top_terms: int
    min_terms: int


def read_pairs(path: Path) -> list[Pair]:
    """Read the TSV; UserError for a missing file, other columns, and labels other than 0 and 1."""
    if not path.is_file():
        raise UserError(f"{path}: not found; give the TSV of labelled pairs")
    with path.open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle, delimiter="\t", quoting=csv.QUOTE_NONE))
    for number, row in enumerate(rows, start=2):
        if any(row.get(name) is None for name in COLUMNS) or row["entails"] not in {"0", "1"}:
            raise UserError(f"{path}:{number}: is {row}; give the columns {', '.join(COLUMNS)} (entails: 1 or 0)")
    return [Pair(row["query"], row["other_query"], row["entails"] == "1", row["split"] == "train") for row in rows]


def idf(count: int, total: int) -> float:
    """The formula of steps/mine/planner.py, of a word in `count` of `total` texts."""
    return math.log(1 + (total - count + 0.5) / (count + 0.5))


def idf_importances(texts: list[str], training: list[str]) -> Importances:
    """Share of the query's idf, counted over distinct training texts."""
    frequency = _texts_with_each_word(training)
    return {text: shares({term: idf(frequency[term], len(training)) for term in words(text)}) for text in texts}


def term_scores(contents: list[str]) -> dict[str, float]:
    """idf of each word of at least MIN_DOCUMENTS texts."""
    frequency = _texts_with_each_word(contents)
    return {word: idf(count, len(contents)) for word, count in frequency.items() if count >= MIN_DOCUMENTS}


def _texts_with_each_word(texts: list[str]) -> Counter[str]:
    return Counter(word for text in texts for word in set(words(text)))


def occlusion_importances(texts: list[str]) -> Importances:
    """What OcclusionPlanner gives; kept on disk every hundred texts, so that a killed run loses little."""
    code = sha256_file(Path(inspect.getfile(OcclusionPlanner)))
    key = sha256_text(f"{fingerprint(Path(resolve_base(MODEL))).id} {MAX_LENGTH} {code}")
    path = cache_root() / "query_association" / f"{key[:16]}.npz"
    importances: dict[str, list[float]] = {}
    if path.is_file():
        with np.load(path) as stored:
            parts = np.split(stored["values"], np.cumsum(stored["sizes"])[:-1])
            importances = {str(digest): part.tolist() for digest, part in zip(stored["texts"], parts, strict=True)}
    missing = [text for text in texts if sha256_text(text) not in importances]
    if missing:
        planner = OcclusionPlanner(MODEL, BATCH_SIZE, MAX_LENGTH)
    for start in progress(range(0, len(missing), 100), math.ceil(len(missing) / 100), "hundreds of questions"):
        batch = missing[start : start + 100]
        computed = planner.importances(batch)
        importances |= {
            sha256_text(text): list(by_term.values()) for text, by_term in zip(batch, computed, strict=True)
        }
        with staged_file(path) as staging, staging.open("wb") as handle:
            values = np.array([value for part in importances.values() for value in part], dtype=np.float64)
            np.savez(handle, texts=list(importances), sizes=[len(part) for part in importances.values()], values=values)
    return {text: dict(zip(dict.fromkeys(words(text)), importances[sha256_text(text)], strict=True)) for text in texts}


def strength(receiver: dict[str, float], giver: dict[str, float], top_terms: int) -> float:
    """Least importance in `giver` of the receiver's top terms: `receiver <- giver` holds where it is above th."""
    top = sorted(receiver, key=lambda term: (-receiver[term], term_key("", term)))[:top_terms]
    return min((giver.get(term, 0.0) for term in top), default=0.0)


def strengths(pairs: list[Pair], importances: Importances) -> dict[str, dict[int, np.ndarray]]:
    """Way to associate -> top terms -> strength of each pair, `(pairs,)`."""
    ways: dict[str, dict[int, np.ndarray]] = {"query<-other": {}, "either": {}, "relevance": {}}
    for top_terms in range(1, 5):
        there = np.array(
            [strength(importances[pair.query], importances[pair.other_query], top_terms) for pair in pairs]
        )
        back = np.array([strength(importances[pair.other_query], importances[pair.query], top_terms) for pair in pairs])
        ways["query<-other"][top_terms] = there
        ways["either"][top_terms] = np.maximum(there, back)
    ways["relevance"] = {4: np.minimum(there, back)}
    return ways


def measures(associated: np.ndarray, entails: np.ndarray, weights: np.ndarray) -> list[np.ndarray]:
    """Precision, recall and F1 of each point in each sample, each `(samples, points)`; nan where undefined.

    associated: `(pairs, points)`; entails: `(pairs,)`; weights: how often a sample holds each pair, `(samples, pairs)`.
    """
    true = weights @ (associated & entails[:, None]).astype(np.float64)
    claimed, entailing = weights @ associated.astype(np.float64), (weights @ entails.astype(np.float64))[:, None]
    with np.errstate(invalid="ignore"):
        return [true / claimed, true / entailing, 2 * true / (claimed + entailing)]


def choose(by_top: dict[int, np.ndarray], sizes: np.ndarray, entails: np.ndarray) -> dict[str, Knobs]:
    """The knobs of best F1 and of best recall at precision >= PRECISE (where there are some)."""
    best: dict[str, tuple[tuple[float, float], Knobs]] = {}
    for (top_terms, scores), min_terms in product(by_top.items(), range(1, 5)):
        associated = np.where(sizes >= min_terms, scores, 0.0)[:, None] > THRESHOLDS
        points = zip(*(value[0] for value in measures(associated, entails, np.ones((1, len(entails))))), strict=True)
        for threshold, (precision, recall, f1) in zip(THRESHOLDS, points, strict=True):
            ranks = {"best_f1": (f1, precision)}
            if precision >= PRECISE:
                ranks["precise"] = (recall, precision)
            for goal, rank in ranks.items():
                if goal not in best or rank > best[goal][0]:
                    best[goal] = (rank, Knobs(float(threshold), top_terms, min_terms))
    return {goal: knobs for goal, (_, knobs) in best.items()}


def bootstrap_weights(pairs: int) -> np.ndarray:
    """How often each pair is in each bootstrap sample, `(RESAMPLES, pairs)`; the same at every call, so paired."""
    return np.random.default_rng(SEED).multinomial(pairs, np.full(pairs, 1 / pairs), size=RESAMPLES).astype(np.float64)


def interval(values: np.ndarray) -> list[float]:
    """Ends of the middle 95 % of bootstrapped values."""
    return [round(float(bound), 4) for bound in np.nanpercentile(values, [2.5, 97.5])]


def figures(associated: np.ndarray, entails: np.ndarray) -> dict[str, Any]:
    """Precision, recall and F1 with 95 % intervals; null where undefined."""
    result: dict[str, Any] = {"pairs": len(associated), "associated": int(associated.sum())}
    exact = measures(associated[:, None], entails, np.ones((1, len(associated))))
    resampled = measures(associated[:, None], entails, bootstrap_weights(len(associated)))
    for name, value, spread in zip(MEASURES, exact, resampled, strict=True):
        is_defined = math.isfinite(value.item())
        result[name] = {"value": round(value.item(), 4), "interval": interval(spread)} if is_defined else None
    return result


def measure(pairs: list[Pair], planners: dict[str, Importances]) -> dict[str, dict[str, dict[str, Any]]]:
    """Planner -> way -> goal -> knobs, figures of each part of the pairs, and the difference of test F1 to idf's."""
    entails, train = (np.array([getattr(pair, name) for pair in pairs]) for name in ("entails", "train"))
    sizes = np.array([min(len(set(words(pair.query))), len(set(words(pair.other_query)))) for pair in pairs])
    parts = {"train": train, "test": ~train}
    weights, params = bootstrap_weights(int((~train).sum())), load_params().mine
    click = Knobs(params.click_threshold, CLICK_TOP_TERMS, MIN_TERMS)
    result: dict[str, dict[str, dict[str, Any]]] = {planner: {} for planner in planners}
    reference: dict[tuple[str, str], np.ndarray] = {}
    for planner, importances in planners.items():
        for way, by_top in strengths(pairs, importances).items():
            result[planner][way] = {}
            chosen = choose({top: scores[train] for top, scores in by_top.items()}, sizes[train], entails[train])
            chosen["params"] = (
                click if way != "relevance" else Knobs(params.relevance_threshold, RELEVANCE_TOP_TERMS, MIN_TERMS)
            )
            for goal, knobs in chosen.items():
                associated = (sizes >= knobs.min_terms) & (by_top[knobs.top_terms] > knobs.threshold)
                entry = {name: figures(associated[part], entails[part]) for name, part in parts.items()}
                f1 = measures(associated[~train][:, None], entails[~train], weights)[2]
                minus_idf = interval(f1 - reference.setdefault((way, goal), f1))
                result[planner][way][goal] = {"knobs": knobs._asdict(), "test_f1_minus_idf": minus_idf} | entry
    return result


def show(result: dict[str, dict[str, dict[str, Any]]]) -> None:
    print(f"{'planner':10}{'way':14}{'goal':8}    th top min   train: P, R, F1     test: P, R, F1 [95 %]")
    for planner, way in [(planner, way) for planner, ways in result.items() for way in ways]:
        for goal, entry in result[planner][way].items():
            line = "{threshold:6.3f} {top_terms:3} {min_terms:3}".format(**entry["knobs"])
            for part in ("train", "test"):
                values = (entry[part][name] for name in MEASURES)
                line += "   " + " ".join(f"{value['value']:.3f}" if value else "    -" for value in values)
            print(f"{planner:10}{way:14}{goal:8}{line} {entry['test']['f1']['interval']}")


def shape(pairs: list[Pair]) -> dict[str, float]:
    """What the pairs are like, and the F1 of associating every pair, which a planner has to beat."""
    entailing, identical = sum(pair.entails for pair in pairs), sum(pair.identical for pair in pairs)
    every = round(2 * entailing / (len(pairs) + entailing), 4)
    share = round(identical / len(pairs), 4)
    return {"pairs": len(pairs), "entailing": entailing, "identical_share": share, "f1_of_every_pair": every}


def questions(pairs: list[Pair]) -> list[str]:
    """Distinct texts of the pairs."""
    return list(dict.fromkeys(text for pair in pairs for text in (pair.query, pair.other_query)))


def main() -> None:
    if len(sys.argv) < 2 or not all(word.isdigit() for word in sys.argv[2:]):
        raise UserError(f"bench.query_association {sys.argv[1:]}: give the path of the TSV [number of train pairs]")
    everything = read_pairs(Path(sys.argv[1]))
    train, test = ([pair for pair in everything if pair.train == is_train] for is_train in (True, False))
    if not (train and test):
        raise UserError(f"{sys.argv[1]}: {len(train)} train and {len(test)} test pairs; give some of both")
    count = int(sys.argv[2]) if len(sys.argv) > 2 else TRAIN_PAIRS
    sample = random.Random(SEED).sample(train, count) if 0 < count < len(train) else train
    texts = questions(test + sample)
    scores = term_scores(read_table(INGEST, "corpus")["content"].to_pylist())
    planners = {
        "idf": idf_importances(texts, questions(train)),
        "occlusion": occlusion_importances(texts),
        "table": dict(zip(texts, table_importances(texts, scores), strict=True)),
    }
    result = measure(test + sample, planners)
    data = {"train": shape(sample), "test": shape(test), "whole_file": shape(everything), "questions": len(texts)}
    settings = {"occlusion_model": MODEL, "max_length": MAX_LENGTH, "bootstrap_samples": RESAMPLES, "seed": SEED}
    report = {"settings": settings, "data": data, "planners": result}
    write_record(Path("bench/results/query_association.json"), report)
    show(result)


if __name__ == "__main__":
    recording(main)

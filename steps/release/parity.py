"""Whether an exported encoder still is the model it was made from, by cosine; and the texts that both embed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slimtower.common.errors import UserError
from steps.core.corpus import corpus_columns
from steps.core.cosines import cosines
from steps.core.judged import JudgedSet
from steps.core.tables import read_table
from steps.core.texts import sentences
from steps.retrieval.noninferiority import FEWEST


def probe_texts(ingest: Path, count: int) -> list[str]:
    """Titles, then sentences of documents, then training queries: releases are handed on, and queries are people's."""
    return [*islice(chain(_document_texts(ingest), _training_queries(ingest)), count)]


def query_texts(ingest: Path, count: int) -> list[str]:
    """The first training queries by id; titles, then first sentences of documents where there are too few."""
    return [*islice(chain(_training_queries(ingest), _document_texts(ingest)), count)]


def sample_texts(ingest: Path, dataset: str, count: int) -> list[str]:
    """Texts like the queries of a data set: its dev, train and unlabelled queries, by id, then titles and sentences."""
    queries, unlabelled = (
        read_table(ingest, name).filter(pc.field("dataset") == dataset) for name in ("queries", "unlabelled_queries")
    )
    splits = (queries.filter(pc.field("split") == split) for split in ("dev", "train"))
    return [*islice(chain(*map(_by_id, [*splits, unlabelled]), _document_texts(ingest, dataset)), count)]


def _training_queries(ingest: Path) -> Iterator[str]:
    return _by_id(read_table(ingest, "queries").filter(pc.field("split") == "train"))


def _by_id(queries: pa.Table) -> Iterator[str]:
    return (text.as_py() for text in queries.sort_by("query_id")["text"])


def _document_texts(ingest: Path, dataset: str | None = None) -> Iterator[str]:
    """Titles of the corpus or of one data set, then first sentences of its documents; read as far as needed."""
    for name, title in corpus_columns(ingest, ["dataset", "title"]):
        if title and dataset in (None, name):
            yield title
    for name, content in corpus_columns(ingest, ["dataset", "content"]):
        if dataset in (None, name) and (parts := sentences(content)):
            yield parts[0]


def check_export(texts: Sequence[str], reference: np.ndarray, exported: np.ndarray, minimum: float) -> float:
    """Least cosine of embeddings `(texts, dim)` by the model and by its fp32 export; UserError below `minimum`."""
    close = cosines(exported, reference)
    worst = int(np.nan_to_num(close, nan=-2.0).argmin())
    if not close[worst] >= minimum:  # also catches NaN
        raise UserError(
            f"parity: the fp32 export of {texts[worst]!r} has cosine {close[worst]:.6f} to the"
            f" model's embedding, below {minimum}; the export is wrong: report the model"
        )
    return float(close[worst])


@dataclass(frozen=True)
class Unjudged:
    """What is measured beside nDCG@10 where too few dev queries are judged: cosines of served texts to the student."""

    reason: str
    texts: int
    served_cosine_mean: float
    served_cosine_min: float


def few_judged(datasets: Iterable[str], queries: Sequence[JudgedSet]) -> dict[str, str]:
    """Data sets whose judged dev queries are too few to prove a loss -> the reason, in words, in order of names."""
    counts = {judged.dataset: len(judged.query_ids) for judged in queries}
    return {name: _reason(counts.get(name, 0)) for name in sorted(datasets) if counts.get(name, 0) < FEWEST}


def _reason(count: int) -> str:
    amount = "no dev query" if not count else "only one dev query" if count == 1 else f"only {count} dev queries"
    return f"{amount} of this data set {'is' if count < 2 else 'are'} judged"


def closeness(dataset: str, reason: str, reference: np.ndarray, served: np.ndarray) -> Unjudged:
    """Compare sample texts as the model embeds them and as they are served, `(texts, dim)`; a NaN counts as -1.

    UserError when there is no text.
    """
    if not len(reference):
        raise UserError(f"{dataset!r}: no query and no document has a text to compare encoders with; leave it out")
    close = np.nan_to_num(cosines(served, reference), nan=-1.0)
    return Unjudged(reason, len(close), float(close.mean()), float(close.min()))


def check_unjudged(unjudged: Mapping[str, Unjudged], minimum_mean: float) -> None:
    """UserError for the first data set on whose texts the mean cosine is below `minimum_mean`."""
    for dataset, close in unjudged.items():
        if close.served_cosine_mean < minimum_mean:
            raise UserError(
                f"release: on {close.texts} texts of {dataset!r}, what serves has mean cosine"
                f" {close.served_cosine_mean:.4f} to the student, below {minimum_mean}; nDCG@10 cannot tell what that"
                f" costs, as {close.reason}: set release.precision: auto, or judge dev queries"
            )

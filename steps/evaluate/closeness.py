"""Data sets that nobody judged: how close students come to the teacher, on texts that trained none of them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slimtower.common.errors import UserError
from slimtower.serving.release import Release
from steps.core.corpus import corpus_batches, corpus_columns
from steps.core.cosines import cosines
from steps.core.judged import JudgedSet
from steps.core.tables import read_table
from steps.core.texts import sentences

DEPTH = 10
QUERIES = frozenset({"train_queries", "unlabelled_queries"})
DOCUMENTS = frozenset({"titles", "sentences", "spans"})
NOBODYS = "unlabelled_queries/"  # ids of queries that belong to no data set begin so
CORPUS = "corpus"  # the part of texts of which it is not known that they trained nobody
_ENOUGH = 20  # held out; with fewer, texts of documents are read as queries too
_MAX_TEXTS = 500  # texts of a data set


@dataclass(frozen=True)
class Texts:
    """Texts of one data set, and how many of them come from which part of the alignment texts, or from the CORPUS."""

    dataset: str
    texts: list[str]
    parts: dict[str, int]

    def describe(self) -> str:
        """The texts in words: `40 unlabelled queries that trained no student`."""
        return describe_parts(self.parts)


def describe_parts(parts: Mapping[str, int]) -> str:
    """What was measured on, in words; `parts` as in `Texts`."""
    if count := parts.get(CORPUS):
        reason = "too few texts of this data set were held out"
        return f"{count:,} titles and sentences, which may have trained students: {reason}"
    names = {"train_queries": "training queries", "unlabelled_queries": "unlabelled queries"}
    listed = ", ".join(f"{count:,} {names.get(part, part)}" for part, count in sorted(parts.items()))
    return f"{listed} that trained no student"


@dataclass(frozen=True)
class Closeness:
    """One student on the texts of one data set, each `(texts,)`.

    `cosines` to the teacher's embeddings; `overlaps`: share of the teacher's ten nearest documents that are among the
    student's, both over the exact index.
    """

    cosines: np.ndarray
    overlaps: np.ndarray

    def as_dict(self) -> dict[str, float]:
        """Key of metrics.json -> value."""
        return {"cosine": float(self.cosines.mean()), "overlap": float(self.overlaps.mean())}


def unjudged_datasets(ingest: Path, judged: Sequence[JudgedSet]) -> list[str]:
    """Data sets of the corpus without a test set among the judged ones, sorted."""
    names: set[str] = set()
    for batch in corpus_batches(ingest, ["dataset"]):
        names.update(batch["dataset"].unique().to_pylist())
    return sorted(names - {item.dataset for item in judged if item.split == "test"})


def read_texts(ingest: Path, students: Iterable[Path], datasets: Sequence[str], seed: int) -> list[Texts]:
    """Up to 500 texts of each data set that no student trained on.

    Its own queries; where these are few, queries of no data set as well, and where both are, texts of its documents.
    `students` are their folders, in which `distill` lists what it held out. Where all held out next to nothing of use,
    titles and first sentences of documents stand in. UserError for a data set without any text.
    """
    if not datasets:
        return []
    held_out = _held_out(students)
    nobodys = [(part, text) for part, source, text in held_out if source.startswith(NOBODYS)]
    samples = []
    for dataset in datasets:
        candidates = [(part, text) for part, source, text in held_out if source.startswith(f"{dataset}/")]
        queries = [item for item in candidates if item[0] in QUERIES]
        if len(queries) < _ENOUGH:
            queries += nobodys
        chosen = queries if len(queries) >= _ENOUGH else queries + [item for item in candidates if item[0] in DOCUMENTS]
        if len(chosen) < _ENOUGH:  # students of several seeds hold out hardly a text in common
            documents = [(CORPUS, text) for text in _document_texts(ingest, dataset)]
            chosen = max(chosen, documents, key=len)
        if not chosen:
            raise UserError(f"data set {dataset!r}: no document has a title or a sentence to search with; leave it out")
        picked = [chosen[row] for row in np.random.default_rng(seed).permutation(len(chosen))[:_MAX_TEXTS]]
        samples.append(Texts(dataset, [text for _, text in picked], dict(Counter(part for part, _ in picked))))
    return samples


def measure_closeness(
    release: Release, dataset: str, teacher_vectors: np.ndarray, student_vectors: np.ndarray
) -> Closeness:
    """Closeness from the embeddings of the same texts by the teacher and by the student: `(texts, dim)` each."""
    nearest, hits = (
        release.search(dataset, vectors, DEPTH, "flat")[1] for vectors in (teacher_vectors, student_vectors)
    )
    return Closeness(cosines(teacher_vectors, student_vectors), overlaps(nearest, hits))


def overlaps(expected: Sequence[Sequence[str]], hits: Sequence[Sequence[str]]) -> np.ndarray:
    """Share of each row of `expected` that is in the same row of `hits`, 1 of an empty row: float64 `(n,)`."""
    return np.array([len(set(a) & set(b)) / len(a) if a else 1.0 for a, b in zip(expected, hits, strict=True)])


def _held_out(students: Iterable[Path]) -> list[tuple[str, str, str]]:
    """(part, source id, text) of the texts that every student held out, generated ones and their like left out."""
    tables = [read_table(folder, "held_out") for folder in students]
    common = set.intersection(*(set(table["text_sha"].to_pylist()) for table in tables))
    return [
        (row["part"], row["source_id"], row["text"])
        for row in tables[0].to_pylist()
        if row["text_sha"] in common and row["part"] in QUERIES | DOCUMENTS
    ]


def _document_texts(ingest: Path, dataset: str) -> list[str]:
    """The title, else the first sentence, of each document of a data set."""
    rows = corpus_columns(ingest, ["dataset", "title", "content"])
    texts = (title or next(iter(sentences(content)), "") for name, title, content in rows if name == dataset)
    return [text for text in texts if text.strip()]

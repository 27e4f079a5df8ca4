"""Other teachers as systems: what the index's teacher was before, and those that put its hits into their own order."""

from array import array
from collections.abc import Collection
from functools import partial
from pathlib import Path

import numpy as np

from slimtower.common.errors import UserError
from slimtower.common.files import read_json, sha256_file
from slimtower.common.fingerprints import fingerprint
from slimtower.serving.dims import truncate
from steps.core.code import code_digest
from steps.core.corpus import CorpusRows, CorpusTexts, corpus_columns
from steps.core.vector_store import new_array
from steps.encoders.precision import Precision, resolve_precision
from steps.encoders.towers import encode, load_tower
from steps.encoders.vector_cache import embed_once
from steps.evaluate.judging import Folders
from steps.evaluate.params import BATCH_SIZE, EvaluateParams
from steps.evaluate.systems import BM25, TEACHER, Hits, Other, Search, Teacher, dense_search, digest
from steps.retrieval.exact_search import best_documents
from steps.scorers import open_reranker

_SHARD = 4096  # documents between two savings of their vectors
_BLOCK = 16_384  # documents whose vectors are cut at once


def open_earlier(folders: Folders, dim: int, students: Collection[str]) -> list[Other]:
    """The towers that `towers.json` in `teach/earlier` names, in order; none of a teacher that was not trained.

    They read documents as `embed` does, to `dim` dimensions. UserError for one that is missing or named as a student.
    """
    precision, code = read_json(folders.embed / "report.json")["computed_in"], "steps.evaluate.other_teachers"
    reading = {"dim": dim, "computed_in": precision}
    shared = sha256_file(folders.ingest / "corpus.parquet"), reading, code_digest(code)
    towers = []
    for name in read_json(folders.teach / "earlier" / "towers.json"):
        folder = folders.teach / "earlier" / name
        if name in {BM25, TEACHER, *students}:
            raise UserError(
                f"evaluate.earlier_towers: {folder} and another system are both named {name!r}; rename the student"
            )
        if not folder.is_dir():
            raise UserError(f"{folder}: not found; run `dvc pull`, or `dvc repro` to train the teacher again")
        tower_id = fingerprint(folder).id
        search_in = partial(search_corpus, folder, tower_id, folders.ingest, dim, precision)
        towers.append(Other(name, digest(tower_id, *shared), search_in))
    return towers


def search_corpus(
    folder: Path,
    tower_id: str,
    ingest: Path,
    dim: int,
    precision: Precision,
    datasets: Collection[str],
    scratch: Path,
) -> Search:
    """Exact search, by the tower in a folder, in all documents of some data sets; `tower_id` is its fingerprint's id.

    Documents are read as `embed` reads them, and once: vectors are kept below SLIMTOWER_CACHE, and those of this corpus
    lie in the folder `scratch` while they are searched.
    """
    tower = load_tower(folder)
    doc_ids: dict[str, list[str]] = {name: [] for name in datasets}
    positions = {name: array("q") for name in datasets}
    chosen = array("q")
    for row, (doc_id, dataset) in enumerate(CorpusRows(ingest, ["doc_id", "dataset"])):
        if dataset in positions:
            doc_ids[dataset].append(doc_id)
            positions[dataset].append(len(chosen))
            chosen.append(row)
    embed_once(
        tower,
        tower_id,
        "document",
        CorpusTexts(ingest, np.array(chosen, dtype=np.int64)),
        scratch / "documents.npy",
        dtype="float32",
        precision=precision,
        batch_size=BATCH_SIZE,
        shard_texts=_SHARD,
        caption=f"embed documents, {folder.name}",
    )
    vectors = _cut(scratch / "documents.npy", dim)
    rows = {name: np.array(values, dtype=np.int64) for name, values in positions.items()}

    def search(dataset: str, texts: list[str], k: int) -> Hits:
        query_vectors = truncate(encode(tower, texts, "query", batch_size=BATCH_SIZE), dim)
        dataset_rows, ids = rows[dataset], doc_ids[dataset]
        scores, best = best_documents(query_vectors, vectors, k, dataset_rows)
        return list(scores), [[ids[at] for at in line] for line in np.searchsorted(dataset_rows, best).tolist()]

    return search


def _cut(path: Path, dim: int) -> np.ndarray:
    """The vectors of a file as a memory map, cut to `dim` dimensions as those of the index are."""
    vectors: np.ndarray = np.load(path, mmap_mode="r")
    if vectors.shape[1] == dim:
        return vectors
    target = path.with_name("first_dimensions.npy")
    first = new_array(target, np.float32, (len(vectors), dim))
    for start in range(0, len(vectors), _BLOCK):
        first[start : start + _BLOCK] = truncate(vectors[start : start + _BLOCK], dim)
    return first


def open_reranked(ingest: Path, teachers: Path, teacher: Teacher, params: EvaluateParams) -> list[Other]:
    """A system for each of `evaluate.rerankers`, whose folders lie below `teachers`; UserError where one is missing."""
    shared = (sha256_file(ingest / "corpus.parquet"), teacher.content, params.rerank_depth)
    computed = resolve_precision("auto"), code_digest("steps.evaluate.other_teachers")
    systems = []
    for name in params.rerankers:
        folder = teachers / name
        if not (folder / "tower").is_dir():
            raise UserError(f"{folder}/tower: not found; run `dvc repro` to train {name!r}, or take it off rerankers")
        content = digest(fingerprint(folder / "tower").id, *shared, *computed)
        search_in = partial(rerank, ingest, folder, teacher, params.rerank_depth)
        systems.append(Other(name, content, search_in, comparable=False))
    return systems


def rerank(
    ingest: Path, folder: Path, teacher: Teacher, depth: int, datasets: Collection[str], scratch: Path
) -> Search:
    """Search with the index's teacher, then put its first `depth` hits into the order of the one in `folder`."""
    reranker = open_reranker(folder, scratch, "auto", BATCH_SIZE)
    rows = {doc_id: row for row, (doc_id,) in enumerate(corpus_columns(ingest, ["doc_id"]))}
    first = dense_search(teacher.encode, teacher.release)

    def search(dataset: str, texts: list[str], k: int) -> Hits:
        _, doc_ids = first(dataset, texts, k)
        candidates = [np.array([rows[doc_id] for doc_id in ids[:depth]], dtype=np.int64) for ids in doc_ids]
        return reordered(doc_ids, reranker.scores(texts, candidates, lambda chosen: list(CorpusTexts(ingest, chosen))))

    return search


def reordered(hits: list[list[str]], scored: list[np.ndarray]) -> Hits:
    """Each query's hits, the first by their scores, equal ones and those that have none in their old order."""
    result: Hits = ([], [])
    for ids, scores in zip(hits, scored, strict=True):
        order = np.argsort(-scores, kind="stable")
        behind = ids[len(scores) :]
        below = (scores.min() if len(scores) else 0.0) - 1.0 - np.arange(len(behind), dtype=np.float32)
        result[0].append(np.concatenate([scores[order], below]).astype(np.float32))
        result[1].append([ids[index] for index in order.tolist()] + behind)
    return result

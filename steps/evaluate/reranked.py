"""The hits of the index's teacher in the order of another teacher, of any kind that runs here."""

from functools import partial
from pathlib import Path

import numpy as np

from slimtower.common.errors import UserError
from slimtower.common.files import sha256_file
from slimtower.common.fingerprints import fingerprint
from steps.core.code import code_digest
from steps.core.corpus import CorpusTexts, corpus_columns
from steps.encoders.precision import resolve_precision
from steps.evaluate.params import EvaluateParams
from steps.evaluate.systems import Hits, Reranked, Search, Teacher, dense_search, digest
from steps.scorers import open_reranker


def open_reranked(ingest: Path, teachers: Path, teacher: Teacher, params: EvaluateParams) -> list[Reranked]:
    """A system for each of `evaluate.rerankers`, whose folders lie below `teachers`; UserError where one is missing."""
    shared = (sha256_file(ingest / "corpus.parquet"), teacher.content, params.rerank_depth)
    computed = resolve_precision("auto"), code_digest("steps.evaluate.reranked")
    systems = []
    for name in params.rerankers:
        folder = teachers / name
        if not (folder / "tower").is_dir():
            raise UserError(f"{folder}/tower: not found; run `dvc repro` to train {name!r}, or take it off rerankers")
        content = digest(fingerprint(folder / "tower").id, *shared, *computed)
        systems.append(Reranked(name, content, partial(rerank, ingest, folder, teacher, params)))
    return systems


def rerank(ingest: Path, folder: Path, teacher: Teacher, params: EvaluateParams, scratch: Path) -> Search:
    """Search with the index's teacher, then put its first `rerank_depth` hits into the order of the one in `folder`.

    Hits behind these keep the teacher's order, with scores below.
    """
    reranker = open_reranker(folder, scratch, "auto", params.batch_size)
    rows = {doc_id: row for row, (doc_id,) in enumerate(corpus_columns(ingest, ["doc_id"]))}
    first = dense_search(teacher.encode, teacher.release)

    def read_texts(chosen_rows: np.ndarray) -> list[str]:
        return list(CorpusTexts(ingest, chosen_rows))

    def search(dataset: str, texts: list[str], k: int) -> Hits:
        _, doc_ids = first(dataset, texts, k)
        candidates = [
            np.array([rows[doc_id] for doc_id in ids[: params.rerank_depth]], dtype=np.int64) for ids in doc_ids
        ]
        scored = reranker.scores(texts, candidates, read_texts)
        return reordered(doc_ids, scored)

    return search


def reordered(hits: list[list[str]], scored: list[np.ndarray]) -> Hits:
    """Each query's hits, the first by their scores, equal ones and those that have none in their old order."""
    scores: list[np.ndarray] = []
    doc_ids: list[list[str]] = []
    for ids, query_scores in zip(hits, scored, strict=True):
        order = np.argsort(-query_scores, kind="stable")
        behind = ids[len(query_scores) :]
        below = (query_scores.min() if len(query_scores) else 0.0) - 1.0 - np.arange(len(behind), dtype=np.float32)
        scores.append(np.concatenate([query_scores[order], below]).astype(np.float32))
        doc_ids.append([ids[index] for index in order.tolist()] + behind)
    return scores, doc_ids

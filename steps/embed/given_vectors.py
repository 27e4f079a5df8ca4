"""Vectors that an index has already: are they what the teacher gives the same documents? Else: what would match them?

A sample of each data set is tried with other prompts, roles, cuts, poolings, document texts, dimensions and ids.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.errors import TransientError, UserError
from steps.core.corpus import CorpusRows, CorpusTexts, rows_by_dataset
from steps.core.cosines import cosines
from steps.encoders.precision import Precision
from steps.encoders.towers import encode, endpoint_of, route
from steps.endpoint.module import Endpoint
from steps.retrieval.exact_search import best_documents

CHECKED_DOCUMENTS = 100  # of each data set, drawn by seed, that the teacher reads anew
LEAST_COSINE = 0.99  # that each of them must have to its given vector
_LENGTH = 0.01  # by which the length of a vector may differ, as a share
_PROMPTS = ("", "passage: ", "query: ", "search_document: ", "search_query: ", "Represent this sentence: ")
_TOKENS = (32, 64, 128, 256, 512)
_LONGER = (1024, 2048, 8000)  # of APIs
_BODIES = ({}, *({"input_type": role} for role in ("document", "query", "search_document", "search_query")))
_POOLING = ("mean", "cls", "max", "lasttoken")

ReadVectors = Callable[[], np.ndarray]


@dataclass(frozen=True)
class IndexVectors:
    """The index's own vectors `(documents, dim)` and the sample of them that is compared: rows, texts, vectors."""

    path: Path
    ingest: Path
    rows: np.ndarray
    texts: list[str]
    vectors: np.ndarray


def sampled_rows(ingest: Path, seed: int) -> np.ndarray:
    """Rows of the documents that are compared, ascending: so many of each data set, drawn by seed."""
    rows_of_datasets, random = rows_by_dataset(ingest), np.random.default_rng((seed, 7))
    samples = [random.choice(len(rows), min(CHECKED_DOCUMENTS, len(rows)), replace=False) for rows in rows_of_datasets]
    return np.sort(np.concatenate([rows[sample] for rows, sample in zip(rows_of_datasets, samples, strict=True)]))


def check_given(
    path: Path, ingest: Path, tower: SentenceTransformer, seed: int, precision: Precision
) -> dict[str, float]:
    """Compare a sample of the vectors in `path` with the tower's; if one differs, UserError says what would match."""
    matrix = np.load(path, mmap_mode="r")
    rows = sampled_rows(ingest, seed)
    index = IndexVectors(path, ingest, rows, list(CorpusTexts(ingest, rows)), np.array(matrix[rows], dtype=np.float32))
    teacher_vectors = encode(tower, index.texts, "document", precision=precision)
    if teacher_vectors.shape[1] == index.vectors.shape[1]:
        similarities = cosines(teacher_vectors, index.vectors)
        if (similarities >= LEAST_COSINE).all():
            _check_lengths(index, teacher_vectors)
            return {
                "documents": len(rows),
                "least_cosine": float(similarities.min()),
                "mean_cosine": float(similarities.mean()),
            }
        below = int((similarities < LEAST_COSINE).sum())
        met = f"{below} of {len(rows)} have a cosine below {LEAST_COSINE} (mean {similarities.mean():.3f})"
    else:
        met = f"they have {index.vectors.shape[1]} dimensions, the teacher {teacher_vectors.shape[1]}"
    raise UserError(
        f"{path}: not the teacher's vectors of these documents: {met};"
        f" {_diagnosis(index, teacher_vectors, tower, precision)}"
    )


def _check_lengths(index: IndexVectors, teacher_vectors: np.ndarray) -> None:
    lengths, teacher_lengths = (np.linalg.norm(vectors, axis=1) for vectors in (index.vectors, teacher_vectors))
    if np.allclose(lengths, teacher_lengths, rtol=_LENGTH):
        return
    if np.allclose(teacher_lengths, 1.0, rtol=_LENGTH):
        fix = "they are not normalised, the teacher's are: divide each by its length, in the index too"
    else:
        fix = "the teacher's are not normalised like that: give one that is, or vectors that are not"
    raise UserError(
        f"{index.path}: the directions are the teacher's, the lengths are not (mean {lengths.mean():.3f}, the teacher's"
        f" {teacher_lengths.mean():.3f}): {fix}"
    )


def _diagnosis(
    index: IndexVectors, teacher_vectors: np.ndarray, tower: SentenceTransformer, precision: Precision
) -> str:
    """What would match, and what was tried with which mean cosine."""
    if teacher_vectors.shape[1] == index.vectors.shape[1] and (moved := _under_other_ids(index, teacher_vectors)):
        return moved
    tried = []
    refused = []  # by an API, or by the budget
    for change, fix, read_vectors in _guesses(index, tower, precision):
        try:
            vectors = read_vectors()
        except TransientError:
            raise
        except UserError:
            refused.append(change)
            continue
        if vectors.shape[1] >= index.vectors.shape[1]:
            cut = vectors[:, : index.vectors.shape[1]]
            similarities = cosines(cut, index.vectors)
            first = f" and the first {cut.shape[1]} dimensions of it" if cut.shape[1] < vectors.shape[1] else ""
            tried.append((f"{change}{first}", float(similarities.mean())))
            if (similarities >= LEAST_COSINE).all():
                return f"{change}{first} matches (mean cosine {similarities.mean():.3f}): {fix}"
    listed = ", ".join(
        [*(f"{change} {cosine:.3f}" for change, cosine in tried), *(f"{change} refused" for change in refused)]
    )
    return (
        f"another model made them: nothing that was tried matches ({listed or 'they have more dimensions'}); name that"
        " model as the teacher, or leave ingest.document_vectors out"
    )


def _under_other_ids(index: IndexVectors, teacher_vectors: np.ndarray) -> str:
    """Whether the teacher's vectors of the sample are there, but under other ids; "" where they are not."""
    unit = teacher_vectors / np.maximum(np.linalg.norm(teacher_vectors, axis=1, keepdims=True), 1e-12)
    matrix = np.load(index.path, mmap_mode="r")
    scores, rows = best_documents(unit.astype(np.float32), matrix, 1, cosine=True)
    best, where = scores[:, 0], rows[:, 0]
    wrong = cosines(teacher_vectors, index.vectors) < LEAST_COSINE
    moved = wrong & (best >= LEAST_COSINE) & (where != index.rows)
    if not wrong.any() or moved.sum() < 0.9 * wrong.sum():
        return ""
    ids = np.array([doc_id for (doc_id,) in CorpusRows(index.ingest, ["doc_id"])], dtype=object)
    row = int(np.flatnonzero(moved)[0])
    shifts = where[moved] - index.rows[moved]
    by = f", all by {shifts[0]:+d} rows" if (shifts == shifts[0]).all() else ""
    return (
        f"the ids are shuffled: {int(moved.sum())} of these vectors belong to other documents{by}"
        f" ({ids[index.rows[row]]!r} is closest to the vector given for {ids[where[row]]!r}, cosine {best[row]:.3f});"
        " write ids and vectors in one order"
    )


def _guesses(
    index: IndexVectors, tower: SentenceTransformer, precision: Precision
) -> Iterator[tuple[str, str, ReadVectors]]:
    reader = route(tower, "document")
    prompts = reader.prompts
    current_prompt = prompts.get("document") or ""
    as_it_is = partial(encode, reader, index.texts, "document", precision=precision)
    yield "the teacher as it is", "let the teacher cut its vectors there (`dimensions` of an endpoint)", as_it_is
    endpoint = endpoint_of(reader, "document")
    knob = "prompt of the teacher's document" if endpoint else "the teacher's document_prompt"
    for prompt in dict.fromkeys([*_PROMPTS, *filter(None, tower.prompts.values())]):
        if prompt != current_prompt:
            changed = partial(_with, reader, "prompts", {**prompts, "document": prompt}, as_it_is)
            change = f"prompt {prompt!r}" if prompt else "no prompt"
            yield change, f"set {knob} to {prompt!r}", changed
    as_query = partial(encode, tower, index.texts, "query", precision=precision)
    yield "the role of a query", "give the teacher's documents the prompt and route of its queries", as_query
    if (current_length := reader.max_seq_length) is not None:
        config = getattr(getattr(reader[0], "auto_model", None), "config", None)
        limit = getattr(config, "max_position_embeddings", current_length)
        for tokens in (size for size in _TOKENS if size != current_length and size <= limit):
            cut = partial(_with, reader, "max_seq_length", tokens, as_it_is)
            yield f"cut at {tokens} tokens", f"set the teacher's max_document_length to {tokens}", cut
    if endpoint:
        yield from _of_an_api(index, reader, endpoint, as_it_is)
    pooling = next((module for module in reader if isinstance(module, Pooling)), None)
    for mode in (name for name in _POOLING if pooling is not None and name != pooling.pooling_mode):
        pooled = partial(_with, pooling, "pooling_mode", mode, as_it_is)
        yield f"pooling {mode}", f"give the teacher's Pooling the mode {mode}", pooled
    for template, texts in _other_texts(index):
        embed_texts = partial(encode, reader, texts, "document", precision=precision)
        yield f"text {template!r}", f"set ingest.document to {template!r}", embed_texts


def _of_an_api(
    index: IndexVectors, reader: SentenceTransformer, endpoint: Endpoint, read_vectors: ReadVectors
) -> Iterator[tuple[str, str, ReadVectors]]:
    """Other cuts and other roles of a request; what would send the same texts is not asked for."""
    spec, prompt = endpoint.model, reader.prompts.get("document") or ""

    def ask(has_probes: bool, update: dict[str, object]) -> np.ndarray:
        variant = Endpoint(
            spec.model_copy(update=update),
            endpoint.connection,
            cast(Any, endpoint.tokenizer),
            endpoint.probes if has_probes else None,
        )
        variant.share(endpoint)
        reader[0] = variant
        try:
            return read_vectors()
        finally:
            reader[0] = endpoint

    for tokens in (*_TOKENS, *_LONGER):
        cut = [endpoint.cut(prompt + text, tokens) for text in index.texts]
        if cut != [endpoint.cut(prompt + text) for text in index.texts]:
            fix = f"set max_length of the teacher's document to {tokens}"
            yield f"cut at {tokens} tokens", fix, partial(ask, True, {"max_length": tokens})
    for body in (candidate for candidate in _BODIES if candidate != spec.body):
        yield f"body {body}", f"give the teacher's document the body {body}", partial(ask, False, {"body": body})


def _other_texts(index: IndexVectors) -> Iterator[tuple[str, list[str]]]:
    chosen = set(index.rows.tolist())
    fields = [
        row_fields
        for row, row_fields in enumerate(CorpusRows(index.ingest, ["title", "topic", "content"]))
        if row in chosen
    ]
    for template in ("{content}", "{title} {content}", "{title}\n{content}", "{title} {topic} {content}"):
        document_template = DocumentTemplate(template)
        if (texts := [document_template.text(*row_fields) for row_fields in fields]) != index.texts:
            yield template, texts


def _with(owner: object, name: str, value: object, read_vectors: ReadVectors) -> np.ndarray:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        return read_vectors()
    finally:
        setattr(owner, name, before)

"""A late interaction model's scores: MaxSim of a text's tokens and each document's."""

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from slimtower.common.files import cache_root
from steps.core.code import code_digest
from steps.core.leases import acquire, release_and_delete
from steps.core.vector_store import TextFile, Texts
from steps.core.versions import library_versions
from steps.encoders.cut_texts import Cut, cut_of_tokens
from steps.encoders.precision import Precision, resolve_precision
from steps.retrieval.late_interaction import (
    TokenVectors,
    check_tokens_stay,
    depth_of_late_interaction,
    digest_of_texts,
    giving_layers,
    layer_similarities,
    load_late_interaction,
    max_similarities,
    paired_similarities,
    similarities,
    token_states,
    token_vectors,
)
from steps.scorers.base import Network, Reading, Reranker, Scorer, VectorReranker, distinct_once

_TEXTS, _DOCUMENTS = 256, 32  # whose states of layers are in memory at once: 100 MB at 100 tokens of 6 times 384


class LateInteractionScorer(Scorer):
    """A model, and the documents' token vectors on disk, float16, which it reads once."""

    kind = "late_interaction"
    layered = True

    def __init__(self, teach: Path, fingerprint: str, documents: Texts, scratch: Path, reading: Reading) -> None:
        """Vectors lie below SLIMTOWER_CACHE until `finish`, for a killed run; waits while another run has them."""
        self.reading, self.texts, self.model = reading, documents, load_late_interaction(teach / "tower")
        self.scratch = scratch
        precision, batch_size, _ = reading
        self.embed = partial(token_vectors, self.model, precision=precision, batch_size=batch_size)
        code = code_digest("steps.retrieval.late_interaction")
        settings = (fingerprint, resolve_precision(reading.precision), code, *library_versions())
        self.folder = cache_root() / "token_vectors" / digest_of_texts(settings, documents)
        acquire(self.folder, "score: waits for another run with this teacher and these documents")
        self.documents = TokenVectors(self.folder, self.model.get_embedding_dimension() or 0)

    def scores(self, texts: list[str], documents: np.ndarray) -> np.ndarray:
        queries = distinct_once(lambda once: self.embed(once, "query"), texts)
        # Only now: of a run that was finished before no text is to be scored.
        self.documents.fill(self.model, self.texts, **self.reading._asdict(), caption="embed documents' tokens")
        scores = np.empty(documents.shape, dtype=np.float32)
        for row, query in enumerate(queries):
            scores[row] = max_similarities(query, [self.documents[document] for document in documents[row].tolist()])
        return scores

    def cut(self, pairs: Sequence[tuple[str, str]]) -> Cut | None:
        return cut_of_tokens(self.model, sorted({document for _, document in pairs}))

    def check(self, *, pairs: bool, layers: bool) -> None:
        if layers:
            check_tokens_stay(self.model)

    def layer_scores(self, texts: list[str], documents: np.ndarray) -> np.ndarray:
        """MaxSim of all layers' states, too many to be kept: a document is read again for each few hundred texts."""
        with giving_layers(self.model) as layers:
            scores = np.empty((*documents.shape, layers), dtype=np.float32)
            for start in range(0, len(texts), _TEXTS):
                positions = documents[start : start + _TEXTS]
                queries = distinct_once(lambda once: self.embed(once, "query"), texts[start : start + _TEXTS])
                distinct = np.unique(positions)
                for first in range(0, len(distinct), _DOCUMENTS):
                    piece = distinct[first : first + _DOCUMENTS]
                    states = self.embed([*self.document_texts.read(piece).values()], "document")
                    for text, column in zip(*np.nonzero(np.isin(positions, piece)), strict=True):
                        document = states[int(np.searchsorted(piece, positions[text, column]))]
                        scores[start + text, column] = layer_similarities(queries[text], document, layers)
        return scores

    @cached_property
    def document_texts(self) -> TextFile:
        """The documents' texts, for who needs them in another order."""
        return TextFile(self.scratch, self.texts)

    def finish(self) -> None:
        """Remove the vectors: they are many times larger than the texts."""
        release_and_delete(self.folder)

    @classmethod
    def reranker(cls, tower: Path, scratch: Path, precision: Precision, batch_size: int) -> Reranker:
        model = load_late_interaction(tower)
        embed = partial(token_vectors, model, precision=precision, batch_size=batch_size)
        return VectorReranker(scratch, model.get_embedding_dimension() or 0, embed, max_similarities)

    @classmethod
    def network(cls, tower: Path, max_length: int, max_document_length: int) -> Network:
        """It reads of a text as many tokens as it is made for."""
        return LateInteractionNetwork(tower, max_document_length)


class LateInteractionNetwork:
    """MaxSim of its vectors, and of its layers' states (LEAD, Eq. 2)."""

    kind = LateInteractionScorer.kind
    candidates: Literal["batch", "own"] = "batch"

    def __init__(self, tower: Path, max_document_length: int) -> None:
        model = load_late_interaction(tower).eval()
        length = getattr(model[0], "document_length", None) or model.max_seq_length or max_document_length
        self.model, self.depth = model, depth_of_late_interaction(model)
        self.length = min(length, max_document_length)

    def scores(self, texts: list[str], documents: list[str], pairs: np.ndarray, layers: Sequence[int]) -> Tensor:
        if layers:
            check_tokens_stay(self.model)
        query_states, query_mask = token_states(self.model, texts, "query", layers)
        document_states, document_mask = token_states(self.model, documents, "document", layers, self.length)
        sides = list(zip(query_states, document_states, strict=True))
        text, document = torch.from_numpy(pairs).to(query_mask.device)
        if pairs.shape[1] == len(texts) * len(documents):  # all of them: no document has to be laid beside each text
            scores = [similarities(query, answer, query_mask, document_mask) for query, answer in sides]
            return torch.stack(scores, dim=2)[text, document]
        return torch.stack(
            [
                paired_similarities(query[text], answer[document], query_mask[text], document_mask[document])
                for query, answer in sides
            ],
            dim=1,
        )

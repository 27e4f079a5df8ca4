"""Which documents of a batch are relevant to which of its queries: the loss must not push these apart."""

from collections.abc import Mapping, Sequence, Set

import numpy as np
import torch
from torch import Tensor

from steps.core.texts import fold
from steps.teach.training_triplets import TextTriplet

Positives = Mapping[str, Set[str]]
"""Ids of the documents known to be relevant to a query, by its folded text."""


class InBatch:
    """Numbers for the queries and documents of triplets; texts that are equal when folded share one."""

    def __init__(self, triplets: Sequence[TextTriplet], positives: Positives) -> None:
        queries: dict[str, int] = {}
        texts: dict[str, int] = {}
        documents: dict[str, int] = {}
        for triplet in triplets:
            for doc_id, text in ((triplet.positive_id, triplet.positive), (triplet.negative_id, triplet.negative)):
                if doc_id not in documents:
                    documents[doc_id] = texts.setdefault(fold(text), len(texts))
        self.numbers = [
            [
                queries.setdefault(fold(triplet.query), len(queries)),
                documents[triplet.positive_id],
                documents[triplet.negative_id],
            ]
            for triplet in triplets
        ]
        self.documents = len(texts)
        pairs = {query * self.documents + positive for query, positive, _ in self.numbers}
        for query, number in queries.items():
            pairs |= {
                number * self.documents + documents[positive_id]
                for positive_id in positives.get(query, ())
                if positive_id in documents
            }
        self.pairs = torch.from_numpy(np.array(sorted(pairs), dtype=np.int64))

    def relevant(self, numbers: Tensor) -> Tensor:
        """Whether a document is relevant to a query but is not its row's positive: bool `(batch, 2 * batch)`.

        `numbers` int64 `(batch, 3)` are those of queries, positives and negatives; columns: positives, then negatives.
        """
        self.pairs = self.pairs.to(numbers.device)
        pairs = numbers[:, :1] * self.documents + torch.cat([numbers[:, 1], numbers[:, 2]])
        positions = torch.searchsorted(self.pairs, pairs).clamp(max=len(self.pairs) - 1)
        is_relevant = self.pairs[positions] == pairs
        is_relevant.diagonal().fill_(False)
        return is_relevant

"""Which documents of a batch are relevant to which of its queries: the loss must not push these apart."""

from collections.abc import Mapping, Sequence, Set

import numpy as np
import torch
from torch import Tensor

from steps.core.texts import fold
from steps.teach.training_triplets import TextTriplet

Known = Mapping[str, Set[str]]
"""Ids of the documents known to be relevant to a query, by its folded text."""


class InBatch:
    """Numbers for the queries and documents of triplets; texts that are equal when folded share one."""

    def __init__(self, triplets: Sequence[TextTriplet], known: Known) -> None:
        queries: dict[str, int] = {}
        texts: dict[str, int] = {}
        documents: dict[str, int] = {}
        for each in triplets:
            for doc_id, text in ((each.positive_id, each.positive), (each.negative_id, each.negative)):
                if doc_id not in documents:
                    documents[doc_id] = texts.setdefault(fold(text), len(texts))
        self.numbers = [
            [
                queries.setdefault(fold(each.query), len(queries)),
                documents[each.positive_id],
                documents[each.negative_id],
            ]
            for each in triplets
        ]
        self.documents = len(texts)
        pairs = {query * self.documents + positive for query, positive, _ in self.numbers}
        for query, number in queries.items():
            pairs |= {number * self.documents + documents[each] for each in known.get(query, ()) if each in documents}
        self.pairs = torch.from_numpy(np.array(sorted(pairs), dtype=np.int64))

    def relevant(self, numbers: Tensor) -> Tensor:
        """Whether a document is relevant to a query but is not its row's positive: bool `(batch, 2 * batch)`.

        `numbers` int64 `(batch, 3)` are those of a batch's queries, positives and negatives; columns are the positives,
        then the negatives.
        """
        self.pairs = self.pairs.to(numbers.device)
        pairs = numbers[:, :1] * self.documents + torch.cat([numbers[:, 1], numbers[:, 2]])
        places = torch.searchsorted(self.pairs, pairs).clamp(max=len(self.pairs) - 1)
        found = self.pairs[places] == pairs
        found.diagonal().fill_(False)
        return found

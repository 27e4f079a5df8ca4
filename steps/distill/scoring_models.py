"""Networks that score pairs of a text and a document, by their end and by each layer, and that can be trained."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from sentence_transformers.base.model import BaseModel
from torch import Tensor

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.retrieval.late_interaction import (
    depth_of_late_interaction,
    load_late_interaction,
    paired_similarities,
    similarities,
    token_states,
)
from steps.retrieval.rankers import layer_logits, load_ranker, ranker_depth


class ScoringModel(Protocol):
    """A network that scores pairs."""

    kind: str  # that of the teacher
    depth: int  # layers of its transformer

    @property
    def network(self) -> BaseModel:
        """All that trains, and is saved."""

    def scores(self, texts: list[str], documents: list[str], pairs: np.ndarray, layers: Sequence[int]) -> Tensor:
        """Of the texts and documents at these places, `pairs` `(2, p)`: float32 `(p, 1 + len(layers))`.

        The score itself stands first, then those of the layers, numbered from 0. With gradient where that is on.
        """


class LateModel:
    """A late interaction model: MaxSim of its vectors, and of its layers' states (LEAD, Eq. 2)."""

    kind = "late_interaction"

    def __init__(self, tower: Path, max_length: int, max_document_length: int) -> None:
        """It reads at most `max_document_length` tokens of a document, and of a text as many as it is made for."""
        model = load_late_interaction(tower).eval()
        limit = getattr(model[0], "document_length", None) or model.max_seq_length or max_document_length
        self.network, self.depth = model, depth_of_late_interaction(model)
        self.length = min(limit, max_document_length)

    def scores(self, texts: list[str], documents: list[str], pairs: np.ndarray, layers: Sequence[int]) -> Tensor:
        """Each text and each document is read once."""
        asking, query_mask = token_states(self.network, texts, "query", layers)
        answering, document_mask = token_states(self.network, documents, "document", layers, self.length)
        sides = list(zip(asking, answering, strict=True))
        text, document = torch.from_numpy(pairs).to(query_mask.device)
        if pairs.shape[1] == len(texts) * len(documents):  # all of them: no document has to be laid beside each text
            scores = torch.stack(
                [similarities(query, answer, query_mask, document_mask) for query, answer in sides], dim=2
            )
            return scores[text, document]
        return torch.stack(
            [
                paired_similarities(query[text], answer[document], query_mask[text], document_mask[document])
                for query, answer in sides
            ],
            dim=1,
        )


class CrossModel:
    """A cross encoder: its logit, and what its head makes of each layer (LEAD, Eq. 3)."""

    kind = "cross_encoder"

    def __init__(self, tower: Path, max_length: int, max_document_length: int) -> None:
        """It reads at most as many tokens of a pair as these are together."""
        ranker = load_ranker(tower).eval()
        self.network, self.depth = ranker, ranker_depth(ranker)
        self.length = min(ranker.max_seq_length or max_length, max_length + max_document_length)

    def scores(self, texts: list[str], documents: list[str], pairs: np.ndarray, layers: Sequence[int]) -> Tensor:
        """Each pair is read once."""
        pair_texts = [(texts[text], documents[document]) for text, document in pairs.T.tolist()]
        return layer_logits(self.network, pair_texts, [self.depth - 1, *layers], self.length)


def open_scoring_model(teach: Path, max_length: int, max_document_length: int) -> ScoringModel:
    """The network of the teacher in `teach`; UserError where there is none, or one that reads no pairs."""
    if not (teach / "tower").is_dir():
        raise UserError(
            f"{teach}/tower: not found, but targets: joint trains it; name {teach.name} in teach.teachers and run"
            f" `dvc repro teach@{teach.name}`"
        )
    kind = read_json(teach / "report.json").get("kind")
    if kind == LateModel.kind:
        return LateModel(teach / "tower", max_length, max_document_length)
    if kind == CrossModel.kind:
        return CrossModel(teach / "tower", max_length, max_document_length)
    raise UserError(
        f"{teach}: a teacher of kind {kind!r} does not train along (targets: joint); let the losses name a"
        f" {LateModel.kind} or a {CrossModel.kind}, or none for the teacher of the index"
    )

"""What keeps a dual-pooled cross encoder's embeddings rich: its token embeddings have to tell its tokens."""

from typing import Any

import torch
from sentence_transformers import CrossEncoder
from torch import Tensor, nn
from torch.nn import functional

from slimtower.common.errors import UserError


class WithReconstruction(nn.Module):
    """A ranking loss, and `weight` times the reconstruction loss of the same batch (EmbedDistill, Sec. 4.2).

    The paper names no head that predicts: here it is the table of input embeddings, as in BERT's own pretraining.
    """

    def __init__(self, ranker: CrossEncoder, ranking: nn.Module, weight: float, base: str = "") -> None:
        """UserError when tokens are embedded in other dimensions than the network's states have."""
        super().__init__()
        self.model, self.ranking, self.weight = ranker, ranking, weight
        network: Any = ranker.model
        width, states = self.table.shape[1], network.config.hidden_size
        if width != states:
            raise UserError(
                f"teach.teacher: {base} embeds tokens in {width} dimensions, but its states have {states}, so none of"
                " them can tell its token; set reconstruction_weight: 0.0"
            )

    @property
    def table(self) -> Tensor:
        """The input embeddings, `(vocabulary, dim)`."""
        network: Any = self.model.model
        rows: Tensor = network.get_input_embeddings().weight
        return rows

    def forward(
        self, inputs: list[Any], labels: Any, prompt: str | None = None, task: str | None = None
    ) -> dict[str, Tensor]:
        """Both terms; their sum is minimised."""
        outputs: list[dict[str, Any]] = []
        hook = self.model[-1].register_forward_hook(lambda _, __, features: outputs.append(features))
        try:
            ranking = self.ranking(inputs, labels, prompt=prompt, task=task)
        finally:
            hook.remove()
        states, ids = [], []
        for features in outputs:
            is_text = features["text_tokens"].any(dim=0)
            states.append(features["token_embeddings"][is_text])
            ids.append(features["input_ids"][is_text])
        lost = reconstruction(torch.cat(states), torch.cat(ids), self.table)
        return {"ranking": ranking, "reconstruction": self.weight * lost}


def reconstruction(states: Tensor, ids: Tensor, table: Tensor) -> Tensor:
    """`-mean_t log softmax(table h_t)[id_t]`: how likely tokens are, each by its own final embedding; a scalar.

    `states` `(tokens, dim)` are those of queries and documents, `ids` `(tokens,)` what they are, `table` `(vocabulary,
    dim)`; 0 without tokens.
    """
    if not len(ids):
        return states.sum() * 0
    logits = states.to(table.dtype) @ table.T
    return functional.cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), ids)

"""What the layers of student and teacher say of the candidates (LEAD, Sec. 3.3).

| kind | needs | source |
|---|---|---|
| layer_distillation | pooled states of both models' layers `(n, k, width)` | LEAD, Eq. 4-8 |
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from steps.distill.losses.base import Batch, LayerTargets, Loss, Need, Outputs, Scoring, Targets, exact
from steps.distill.losses.label import only

LAYER_TEMPERATURE = 10.0  # divides each layer's own loss in the weights of layers
Selection = Literal["random", "weighted", "last", "skip"]


class LayerDistillation(Loss):
    """`sum_i w_i KL(softmax(t_a_i / T_t) || softmax(s_b_i / T))` over k pairs of layers (LEAD, Eq. 6 and 8; T_t = T).

    A layer's score of a document is the inner product of its states of text and document, each pooled as the tower
    pools its last layer: the first token's state, as in LEAD, where the tower embeds by its first token. A student
    without documents of its own is scored against the teacher's states of them.

    Layers of another `teacher` have scored in the stage `score` (`score.layers`), or score while it trains along: late
    interaction by MaxSim of their states of tokens (Eq. 2), a cross encoder by its head on each layer's first token
    (Eq. 3), over the candidates that it scored. A student without documents of its own is then scored against the index
    teacher's states of them, of the layer that stands as high as the student's.

    `selection` (Sec. 4.4.2), numbers of layers from 1, in their order, the embedding layer never:

      random    k of the teacher's N and, apart from these, k of the student's M, anew every 10 steps
      weighted  the same, but the teacher's with the probabilities of Eq. 7 over the batch at hand
      last      the last k of both
      skip      the teacher's 1, 3, 5, ... and the student's last k, as in the published code

    `reweighting`: w is Eq. 7, softmax over the k teacher layers of minus each layer's own loss over
    LAYER_TEMPERATURE, without gradient; else 1/k. `weights_by: text` takes each text's own loss, as Eq. 7 has it, and
    equal weights for a text without label; `batch` the mean over the batch, as the published code. That code divides
    the teacher's scores alone by a temperature, which is 1 there (`teacher_temperature`), and without re-weighting
    gives each pair the weight 1 (`weight: k`).

    The teacher's states are kept as they are, or with `state_dim` as random projections to so many dimensions, which
    keep inner products but for a relative error of about `1 / sqrt(state_dim)`.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.CANDIDATES, Need.LAYERS})
    is_single: ClassVar[bool] = True
    looks_inside: ClassVar[bool] = True
    undivided: ClassVar[str] = "compares states of layers"

    kind: Literal["layer_distillation"]
    """The layers of another `teacher` scored (score.layers) or train along."""
    layers: int = Field(ge=1)
    """Pairs of layers, k."""
    selection: Selection = "random"
    """Which layers make the pairs."""
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Divides the student's scores, T."""
    teacher_temperature: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Divides the teacher's scores, T_t; null: as the student's. `score` suggests one for layers of another teacher."""
    reweighting: bool = True
    """Whether the pairs are weighted by how well the teacher's layer knows the labels."""
    weights_by: Literal["text", "batch"] = "text"
    """Whether each text has weights of its own, or the batch."""
    state_dim: int = Field(default=0, ge=0)
    """Dimensions of the teacher's states as they are stored below SLIMTOWER_CACHE; 0 = all."""

    @property
    def wants_labels(self) -> bool:
        """Whether layers are weighed by labels."""
        return self.reweighting or self.selection == "weighted"

    @property
    def weighs_batches(self) -> bool:
        """Whether it needs the layers' own losses over the whole batch."""
        return self.reweighting and self.weights_by == "batch"

    def complain_of_start(self, start: str) -> str:
        if start == "static":
            return "compares layers, and a static embedding has none; leave it out"
        return "compares layers, and an adapter's encoder stays as it is; leave it out" if start == "adapter" else ""

    def complain_of_scoring(self, scoring: Scoring) -> str:
        if scoring.layers and "layers" in scoring.gives:
            return ""
        return (
            f"learns layers' scores, but score.layers is {str(scoring.layers).lower()} and {scoring.teacher} a"
            f" {scoring.kind}; set score.layers: true, and name a late_interaction or a cross_encoder"
        )

    def values(self, outputs: Outputs, targets: Targets, batch: Batch) -> Tensor:
        layers = targets.layers
        if layers is None or outputs.layers is None:
            raise ValueError("layer_distillation compares states of layers, but there are none")
        if not layers.scores.shape[2]:
            return outputs.layers.sum(dim=(1, 2)) * 0
        documents = layers.documents if outputs.document_layers is None else outputs.document_layers
        if documents is None:
            raise ValueError("layer_distillation has no states of documents to score the student's against")
        states, documents, teacher = exact(outputs.layers, documents, layers.scores)
        student = products(states, documents)
        theirs, ours = teacher / (self.teacher_temperature or self.temperature), student / self.temperature
        diverging = divergence(theirs, ours, layers.is_scored[:, None, :])
        return (self._weights(teacher, layers, batch) * diverging).sum(dim=1)

    def _weights(self, teacher: Tensor, layers: LayerTargets, batch: Batch) -> Tensor:
        if not self.reweighting:
            return torch.full_like(teacher[:1, :, 0], 1 / teacher.shape[1])
        if self.weights_by == "text":
            losses = own_losses(teacher.detach(), batch, layers.is_scored)
        elif layers.losses is None:
            raise ValueError("weights_by: batch needs the layers' losses over the whole batch")
        else:
            losses = layers.losses.to(teacher)[None, :]
        return layer_weights(losses)


def products(texts: Tensor, documents: Tensor) -> Tensor:
    """Inner products of `(n, k, width)` and `(m, k, width)` states, layer by layer, `(n, k, m)`."""
    return torch.einsum("nkd,mkd->nkm", texts, documents)


def divergence(teacher: Tensor, student: Tensor, mask: Tensor) -> Tensor:
    """`sum_j p_j (log p_j - log q_j)`, p and q the softmax of either side over the last dimension, where `mask`."""
    log_p, log_q = (
        functional.log_softmax(only(side, mask), dim=-1).masked_fill(~mask, 0) for side in (teacher, student)
    )
    return (log_p.exp() * (log_p - log_q)).sum(dim=-1)


def own_losses(scores: Tensor, batch: Batch, is_scored: Tensor) -> Tensor:
    """`-log softmax(t_i)` of each text's label by each layer, `(n, k)`: KL(y, t_i) in Eq. 7. 0 without a scored label.

    `scores` `(n, k, m)`; softmax over the candidates that count for the text.
    """
    label = batch.label & is_scored
    shares = functional.log_softmax(only(scores, (batch.counts & is_scored)[:, None, :]), dim=-1)
    return -shares.masked_fill(~label[:, None, :], 0).sum(dim=-1)


def layer_weights(losses: Tensor) -> Tensor:
    """`softmax(-losses / LAYER_TEMPERATURE)` over the last dimension (LEAD, Eq. 7)."""
    return functional.softmax(-losses / LAYER_TEMPERATURE, dim=-1)

"""What the layers of student and teacher say of the candidates: layer_distillation (LEAD, Sec. 3.3, Eq. 4-8)."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from slimtower.common.errors import UserError
from slimtower.common.fingerprints import fingerprint
from slimtower.common.names import ROLES
from steps.core.corpus import CorpusTexts
from steps.distill.layer_pairs import LayerPairs, Pairs, Selection, candidate_layers, layer_weights, maps_between
from steps.distill.layer_teachers import LayerTeacher, ScoredLayers, StateTable, StoredLayers, products
from steps.distill.losses.base import Batch, Loss, Need, Outputs, Scoring, Targets, exact
from steps.distill.losses.label import only
from steps.distill.providers import Provider, Setting
from steps.distill.score_tables import ScoreTable
from steps.distill.tokens import Tokens
from steps.encoders.precision import device


@dataclass(frozen=True)
class LayerScores:
    """Scores of the candidates by k pairs of layers, `(n, k, m)`: by the student's, and by the teacher's.

    They have a gradient where their model trains. `is_scored` `(n, m)`: which candidates the teacher scored. `losses`
    `(k,)`: the mean over the batch of the own loss of each of the teacher's layers, if `weights_by` is batch.
    """

    student: Tensor
    teacher: Tensor
    is_scored: Tensor
    losses: Tensor | None = None


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

    `reweighting`: w is Eq. 7, softmax over the k teacher layers of minus each layer's own loss over 10, as in the
    published code (the paper names no value), without gradient; else 1/k. `weights_by: text` takes each text's own
    loss, as Eq. 7 has it, and equal weights for a text without label; `batch` the mean over the batch, as the published
    code. That code divides the teacher's scores alone by a temperature, which is 1 there (`teacher_temperature`), and
    without re-weighting gives each pair the weight 1 (`weight: k`).

    The teacher's states are kept as they are, or with `state_dim` as random projections to so many dimensions, which
    keep inner products but for a relative error of about `1 / sqrt(state_dim)`. Layers are those of transformers alone;
    LEAD also takes linear layers behind them (Table 7).
    """

    needs: ClassVar[frozenset[Need]] = frozenset({Need.CANDIDATES, Need.SCORES})
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

    def provider(self, setting: Setting) -> Provider:
        return provide_layers(self, setting)

    def values(self, outputs: Outputs, targets: Targets, batch: Batch) -> Tensor:
        scores: LayerScores = targets.provided[self.name]
        if not scores.student.shape[2]:
            return scores.student.sum(dim=(1, 2))
        theirs = scores.teacher / (self.teacher_temperature or self.temperature)
        diverging = divergence(theirs, scores.student / self.temperature, scores.is_scored[:, None, :])
        return (self._weights(scores, batch) * diverging).sum(dim=1)

    def _weights(self, scores: LayerScores, batch: Batch) -> Tensor:
        teacher = scores.teacher
        if not self.reweighting:
            return torch.full_like(teacher[:1, :, 0], 1 / teacher.shape[1])
        if self.weights_by == "text":
            losses = own_losses(teacher.detach(), batch, scores.is_scored)
        elif scores.losses is None:
            raise ValueError("weights_by: batch needs the layers' losses over the whole batch")
        else:
            losses = scores.losses.to(teacher)[None, :]
        return layer_weights(losses)


class PairedLayers(Provider):
    """A student, a teacher whose layers score, and the pairs of their layers.

    `documents`: states of the index teacher's layers, for a student without documents if the teacher has none either.
    """

    def __init__(
        self,
        loss: LayerDistillation,
        student: Any,  # steps.distill.students.TransformerStudent
        teacher: LayerTeacher,
        pairs: LayerPairs,
        documents: StateTable | None = None,
    ) -> None:
        self.loss, self.student, self.teacher, self.documents = loss, student, teacher, documents
        self.module: LayerPairs = pairs
        self.pairs = Pairs((), ())  # of the step at hand
        self.batch: tuple[np.ndarray, Any] = np.zeros(0, dtype=np.int64), None  # its rows and their candidates

    @property
    def arrays(self) -> Mapping[str, np.ndarray]:
        return self.teacher.layer_arrays

    def prepare(self, step: int, rows: np.ndarray, candidates: Any) -> None:
        """Pair layers; the whole batch weighs the teacher's where they are drawn by weight."""
        self.batch = rows, candidates
        self.pairs = self.module.at(step, self._losses)
        self.teacher.pair(self.pairs.teacher)

    def embed(self, tokens: Tokens, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        embeddings, states = self.student.embed_layers(tokens, rows, self.pairs.student)
        return embeddings, self.module.mapped(states, self.pairs.student)

    def values(self, tensors: Mapping[str, Tensor], rows: np.ndarray, documents: np.ndarray) -> LayerScores:
        targets = self.teacher.layer_targets(tensors, rows, documents, self.pairs.teacher)
        states = tensors["queries.states"]
        document_states = tensors.get("documents.states", targets.documents)
        if self.documents is not None:
            document_states = self.documents.of(documents, np.array(self.pairs.student))
        if document_states is None:
            if len(documents):
                raise ValueError("layer_distillation has no states of documents to score the student's against")
            document_states = states[:0]
        states, document_states, teacher = exact(states, document_states, targets.scores)
        losses = self._losses(self.pairs.teacher) if self.loss.weighs_batches else None
        return LayerScores(products(states, document_states), teacher, targets.is_scored, losses)

    def _losses(self, layers: Sequence[int]) -> Tensor:
        """Mean of each layer's own loss over the labelled texts of the batch, `(layers,)`; 0 where there is none."""
        rows, candidates = self.batch
        labelled = np.asarray(candidates.label.any(axis=1))
        if not labelled.any():
            return torch.zeros(len(layers))
        targets = self.teacher.scores(rows[labelled], candidates.documents, layers)
        batch = candidates.batch(labelled, targets.is_scored.device)
        return own_losses(targets.scores, batch, targets.is_scored).mean(dim=0)


def provide_layers(loss: LayerDistillation, setting: Setting) -> PairedLayers:
    """Layers of the student beside those of the index's frozen teacher, or of one that has scored or trains along.

    A student without documents of its own then has those of the index teacher's layers that stand as high as its own.
    States of texts and documents are read, or cached. UserError if either has too few layers, or no pooling.
    """
    from steps.distill.layer_pooling import depth_of, pooling_of  # seconds: params are read without them
    from steps.distill.layer_store import LayerReader
    from steps.encoders.towers import load_tower, route

    student, sources, candidates = setting.student, setting.sources, setting.candidates
    if not hasattr(student, "embed_layers"):
        raise UserError("distill.student: a static embedding has no layers; leave layer_distillation out")
    width, depth = int(pooling_of(student.tower, "the student").get_embedding_dimension()), depth_of(student.tower)
    own_documents = setting.document_tokens is not None

    def paired(teacher: LayerTeacher, layers: list[int], maps: Any = None, documents: Any = None) -> PairedLayers:
        pairs = LayerPairs(loss.layers, loss.selection, layers, depth, setting.seed, maps)
        return PairedLayers(loss, student, teacher, pairs, documents)

    scorer: Any = setting.teachers if isinstance(setting.teachers, LayerTeacher) else None
    if scorer is None and loss.teacher:
        scorer = ScoredLayers(sources.layer_scores(loss.teacher, candidates.nearest.shape[1]))
    if scorer:
        chosen = candidate_layers(loss.layers, loss.selection, scorer.depth, depth)
        if isinstance(scorer, ScoredLayers):
            warn_of_temperature(loss, scorer.table, candidates.nearest.shape[1], chosen)
        if own_documents:
            return paired(scorer, chosen)
    tower = load_tower(setting.teacher)
    query_tower, document_tower = (route(tower, role) for role in ROLES)
    if scorer:
        heights = [max(0, (layer + 1) * depth_of(document_tower) // depth - 1) for layer in range(depth)]
        stored = sorted(set(heights))
    else:
        stored = chosen = candidate_layers(
            loss.layers, loss.selection, min(depth_of(query_tower), depth_of(document_tower)), depth
        )
    rows = candidates.documents_of(setting.training)
    reader = LayerReader(setting.teacher, fingerprint(setting.teacher).id, stored, loss.state_dim, setting.precision)
    documents = reader.table("document", CorpusTexts(sources.ingest, rows), rows)
    pooling = pooling_of(document_tower if scorer else query_tower, "the teacher")
    projection = reader.projection(int(pooling.get_embedding_dimension()))
    maps = None if own_documents else maps_between(width, documents.states.shape[2], projection, depth)
    maps = None if maps is None else maps.to(device())
    if scorer:
        return paired(scorer, chosen, maps, replace(documents, columns=[stored.index(layer) for layer in heights]))
    texts = np.unique(setting.training)
    queries = reader.table("query", [sources.strings[row] for row in texts], texts)
    return paired(StoredLayers(stored, queries, documents, reader.key), chosen, maps)


def warn_of_temperature(loss: LayerDistillation, table: ScoreTable, count: int, layers: Sequence[int]) -> None:
    """Warn if layers' scores of the `count` nearest documents are flat or one-hot at the temperature of the loss."""
    from steps.retrieval.target_entropy import layer_targets, layers_warning  # SciPy: params are read without it

    figures = layer_targets(table.sampled(count), loss.teacher_temperature or loss.temperature, layers)
    if warning := layers_warning(figures, loss.teacher):
        print(f"distill: WARNING: {loss.kind}: {warning}", file=sys.stderr)


def divergence(teacher: Tensor, student: Tensor, mask: Tensor) -> Tensor:
    """`sum_j p_j (log p_j - log q_j)`, p and q the softmax of either side over the last dimension, where `mask`."""
    log_p, log_q = (
        functional.log_softmax(only(side, mask), dim=-1).masked_fill(~mask, 0) for side in (teacher, student)
    )
    return (log_p.exp() * (log_p - log_q)).sum(dim=-1)


def own_losses(scores: Tensor, batch: Batch, is_scored: Tensor) -> Tensor:
    """`-log softmax(t_i)` of each text's label by each layer, `(n, k)`: KL(y, t_i) of Eq. 7; 0 without a label."""
    label = batch.label & is_scored
    shares = functional.log_softmax(only(scores, (batch.counts & is_scored)[:, None, :]), dim=-1)
    return -shares.masked_fill(~label[:, None, :], 0).sum(dim=-1)

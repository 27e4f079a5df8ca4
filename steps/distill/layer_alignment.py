"""A student's layers beside its teacher's: the pairs of a step, and what is stored of the teacher for them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slimtower.common.errors import UserError
from slimtower.common.fingerprints import fingerprint
from slimtower.common.names import ROLES
from steps.core.corpus import CorpusTexts
from steps.distill.candidates import CandidateBatch, Candidates
from steps.distill.checks import check_layer_temperature
from steps.distill.joint import TrainedTeacher
from steps.distill.layer_pairs import LayerPairs, Pairs, candidate_layers, maps_between
from steps.distill.layer_pooling import depth_of, pooling_of
from steps.distill.layer_store import LayerReader, LayerTeacher, ScoredLayers, StateTable
from steps.distill.losses.base import LayerTargets
from steps.distill.losses.layer import LayerDistillation, own_losses
from steps.distill.params import DistillParams
from steps.distill.sources import Sources
from steps.distill.student import Student
from steps.distill.students import TransformerStudent
from steps.distill.tokens import Tokens
from steps.encoders.towers import device, load_tower, route


@dataclass(frozen=True)
class LayerAlignment:
    """A student, a teacher whose layers score, and the pairs of their layers.

    `documents`: states of documents `(documents, student's layers, width)` for a student without its own, where the
    teacher has none: those of the index teacher's layers that stand as high as the student's.
    """

    student: TransformerStudent
    teacher: LayerTeacher
    pairs: LayerPairs
    documents: StateTable | None = None

    def at(self, step: int, rows: np.ndarray, candidates: CandidateBatch) -> Pairs:
        """The pairs of a step; the whole batch `rows` weighs the teacher's layers where they are drawn by weight."""
        return self.pairs.at(step, lambda layers: self._losses(rows, candidates, layers))

    def embed(self, tokens: Tokens, rows: np.ndarray, pairs: Pairs) -> tuple[Tensor, Tensor]:
        embeddings, states = self.student.embed_layers(tokens, rows, pairs.student)
        return embeddings, self.pairs.mapped(states, pairs.student)

    def targets(
        self,
        tensors: Mapping[str, Tensor],
        piece: np.ndarray,
        rows: np.ndarray,
        candidates: CandidateBatch,
        pairs: Pairs,
    ) -> LayerTargets:
        targets = self.teacher.layer_targets(tensors, piece, candidates.documents, pairs.teacher)
        if self.documents is not None:
            targets = replace(targets, documents=self.documents.of(candidates.documents, np.array(pairs.student)))
        if not self.pairs.loss.weighs_batches:
            return targets
        return replace(targets, losses=self._losses(rows, candidates, pairs.teacher))

    def _losses(self, rows: np.ndarray, candidates: CandidateBatch, layers: Sequence[int]) -> Tensor:
        """Mean of each layer's own loss over the labelled texts of the batch, `(layers,)`; 0 where there is none."""
        labelled = np.asarray(candidates.label.any(axis=1))
        if not labelled.any():
            return torch.zeros(len(layers))
        targets = self.teacher.scores(rows[labelled], candidates.documents, layers)
        batch = candidates.batch(labelled, targets.is_scored.device)
        return own_losses(targets.scores, batch, targets.is_scored).mean(dim=0)


def layer_alignment(
    loss: LayerDistillation,
    student: Student,
    teacher: Path,
    scorer: TrainedTeacher | ScoredLayers | None,
    sources: Sources,
    candidates: Candidates,
    training: np.ndarray,
    params: DistillParams,
    own_documents: bool,
) -> LayerAlignment:
    """Layers of the student beside those of the tower in the folder `teacher`, which is frozen.

    With a `scorer`, beside the layers of that teacher, which have scored or train along; a student without documents of
    its own then has those of the tower's layers that stand as high as its own. The states of a frozen tower are read
    here, of the `training` rows and of the documents that they may be compared with, unless SLIMTOWER_CACHE holds them
    already. UserError if either has too few layers, or no pooling.
    """
    if not isinstance(student, TransformerStudent):
        raise UserError("distill.student: a static embedding has no layers; leave layer_distillation out")
    width, own_depth = int(pooling_of(student.tower, "the student").get_embedding_dimension()), depth_of(student.tower)
    if scorer:
        chosen = candidate_layers(loss, scorer.depth, own_depth)
        if isinstance(scorer, ScoredLayers):
            check_layer_temperature(loss, scorer.table, candidates.nearest.shape[1], chosen)
        if own_documents:
            return LayerAlignment(student, scorer, LayerPairs(loss, chosen, own_depth, params.seed))
    tower = load_tower(teacher)
    asking, answering = (route(tower, role) for role in ROLES)
    if not scorer:
        chosen = candidate_layers(loss, min(depth_of(asking), depth_of(answering)), own_depth)
    rows = _documents(candidates, training)
    documents = CorpusTexts(sources.ingest, rows)
    heights = [max(0, (layer + 1) * depth_of(answering) // own_depth - 1) for layer in range(own_depth)]
    stored = sorted(set(heights)) if scorer else chosen
    reader = LayerReader(teacher, fingerprint(teacher).id, stored, loss.state_dim, params.precision)
    layer_teacher: LayerTeacher
    if scorer:
        layer_teacher = scorer
        states = replace(reader.documents(documents, rows), columns=[stored.index(layer) for layer in heights])
    else:
        texts = np.unique(training)
        frozen = reader.stored([sources.strings[row] for row in texts], texts, documents, rows)
        layer_teacher, states = frozen, frozen.documents
    maps = None
    if not own_documents:
        pooling = pooling_of(answering if scorer else asking, "the teacher")
        projection = reader.projection(int(pooling.get_embedding_dimension()))
        maps = maps_between(width, states.states.shape[2], projection, own_depth)
    pairs = LayerPairs(loss, chosen, own_depth, params.seed, None if maps is None else maps.to(device()))
    return LayerAlignment(student, layer_teacher, pairs, states if scorer else None)


def _documents(candidates: Candidates, training: np.ndarray) -> np.ndarray:
    """Rows of the documents, ascending, that a batch of these texts may be compared with."""
    rows = [np.asarray(candidates.nearest[training]).reshape(-1)]
    rows += [candidates.positives[row] for row in training.tolist() if row in candidates.positives]
    return np.unique(np.concatenate(rows)).astype(np.int64)

"""Contrastive training of a late interaction model on triplets, resumable from its last checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from datasets import Dataset
from sentence_transformers import (
    MultiVectorEncoder,
    MultiVectorEncoderTrainer,
    MultiVectorEncoderTrainingArguments,
)
from sentence_transformers.base.sampler import BatchSamplers
from sentence_transformers.multi_vector_encoder.losses import (
    CachedMultiVectorMultipleNegativesRankingLoss,
    MultiVectorMultipleNegativesRankingLoss,
)
from sentence_transformers.multi_vector_encoder.scoring import colbert_scores
from torch import Tensor, nn

from steps.teach.contrastive_training import ROLE_OF_COLUMN, InBatch, Positives, training_data
from steps.teach.kinds.late_interaction import LateInteraction
from steps.teach.training_triplets import TextTriplet, turns_of
from steps.training.distributed import micro_batch
from steps.training.library_trainer import LossLog, WholeCheckpoints, shared_arguments

if TYPE_CHECKING:  # how runs are tracked changes no weight: checkpoints outlive it
    from steps.tracking.runs import Run


def train_late_interaction(
    model: MultiVectorEncoder,
    triplets: list[TextTriplet],
    positives: Positives,
    params: LateInteraction,
    checkpoints: Path,
    run: "Run",
) -> None:
    """Train the model in place, as `train_tower` does, but in one process."""
    in_batch = InBatch(triplets, positives)
    data = training_data(triplets, in_batch, params.hard_negatives)
    arguments = MultiVectorEncoderTrainingArguments(
        **shared_arguments(params, checkpoints, params.batch_size),
        batch_sampler=BatchSamplers.NO_DUPLICATES,  # a text twice in a batch would be its own negative
        prompts={column: model.prompts.get(role) or "" for column, role in ROLE_OF_COLUMN.items() if column in data},
    )
    trainer = LateInteractionTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict(data),
        loss=objective(model, params.temperature, in_batch),
        callbacks=[LossLog(run, "teacher", "teach.teacher", "raise temperature or set precision: fp32")],
        turns=turns_of(triplets),
    )
    trainer.train_on(checkpoints, "teach", params.precision, params.max_document_length)
    model.eval()


class LateInteractionTrainer(WholeCheckpoints, MultiVectorEncoderTrainer):
    """The library's trainer, with checkpoints that appear whole."""


def objective(model: MultiVectorEncoder, temperature: float, in_batch: InBatch) -> nn.Module:
    """`-mean_i log softmax_j(s(q_i, d_j) / temperature)[i]` over the documents of a batch, s MaxSim (LEAD, Eq. 2).

    A document that is known to be relevant to another row's query is none of its negatives (`in_batch`). With
    SLIMTOWER_MICRO_BATCH the batch is read in pieces, with the gradients of the whole (gradient caching).
    """
    scores = MaskedScores(in_batch)
    knobs: dict[str, Any] = {"scale": 1 / temperature, "similarity_fct": scores}
    loss: nn.Module
    if (size := micro_batch()) is None:
        loss = MultiVectorMultipleNegativesRankingLoss(model, **knobs)
    else:
        loss = CachedMultiVectorMultipleNegativesRankingLoss(model, **knobs, mini_batch_size=size)
    loss.register_forward_pre_hook(lambda _, inputs: scores.begin(len(inputs[0]) - 1, inputs[1]))
    return loss


class MaskedScores:
    """`exact_scores` of a batch, piece by piece of its queries in their order, without what is relevant elsewhere."""

    def __init__(self, in_batch: InBatch) -> None:
        self.in_batch, self.masked = in_batch, torch.empty(0)

    def begin(self, documents: int, numbers: Tensor) -> None:
        """A new batch of so many documents a row, and its numbers; the loss has all of a row's before the next's."""
        is_relevant = self.in_batch.relevant(numbers)
        self.masked = is_relevant.view(len(is_relevant), 2, -1)[:, :documents].transpose(1, 2).flatten(1)

    def __call__(self, queries: Tensor, documents: Tensor, **masks: Any) -> Tensor:
        """As `exact_scores`; -inf where a document is left out."""
        scores = exact_scores(queries, documents, **masks)
        mask, self.masked = self.masked[: len(queries)], self.masked[len(queries) :]
        return scores.masked_fill(mask, -torch.inf)


def exact_scores(queries: Tensor, documents: Tensor, **masks: Any) -> Tensor:
    """MaxSim of every query and document, at least in fp32 whatever the network computes in."""
    wide = torch.promote_types(queries.dtype, torch.float32)
    with torch.autocast(queries.device.type, enabled=False):
        return colbert_scores(queries.to(wide), documents.to(wide), **masks)

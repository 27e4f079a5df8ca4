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

from steps.teach.training_triplets import TextTriplet, turns_of
from steps.training.distributed import micro_batch
from steps.training.library_trainer import (
    LossLog,
    WholeCheckpoints,
    fast_attention,
    set_dropout,
    shared_arguments,
    use_one_gpu,
)

if TYPE_CHECKING:  # how runs are tracked changes no weight: checkpoints outlive it
    from steps.core.tracking import Run
    from steps.teach.kinds.late_interaction import LateInteraction


def train_late_interaction(
    model: MultiVectorEncoder, triplets: list[TextTriplet], params: "LateInteraction", checkpoints: Path, run: "Run"
) -> None:
    """Train the model in place for `params.epochs`, from the checkpoint in `checkpoints` if a killed run left one.

    UserError when the loss stops being a finite number.
    """
    columns = {
        "query": [triplet.query for triplet in triplets],
        "positive": [triplet.positive for triplet in triplets],
    }
    if params.hard_negatives != "none":
        columns["negative"] = [triplet.negative for triplet in triplets]
    roles = {"query": "query", "positive": "document", "negative": "document"}
    arguments = MultiVectorEncoderTrainingArguments(
        **shared_arguments(params, checkpoints, params.batch_size),
        batch_sampler=BatchSamplers.NO_DUPLICATES,  # a text twice in a batch would be its own negative
        prompts={column: model.prompts.get(roles[column]) or "" for column in columns},
    )
    use_one_gpu(arguments)
    model.model_card_data.generate_widget_examples = False
    trainer = LateInteractionTrainer(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict(columns),
        loss=objective(model, params.temperature),
        callbacks=[LossLog(run, "teacher", "teach.teacher", "raise temperature or set precision: fp32")],
    )
    trainer.turns = turns_of(triplets)
    trainer.quieten()
    set_dropout(model, params.dropout)
    with fast_attention(model, params.precision, params.max_document_length):
        trainer.train_on(checkpoints, "teach")
    model.eval()


class LateInteractionTrainer(WholeCheckpoints, MultiVectorEncoderTrainer):
    """The library's trainer, with checkpoints that appear whole."""


def objective(model: MultiVectorEncoder, temperature: float) -> nn.Module:
    """`-mean_i log softmax_j(s(q_i, d_j) / temperature)[i]` over all documents of a batch, s MaxSim (LEAD, Eq. 2).

    With SLIMTOWER_MICRO_BATCH the batch is read in pieces, with the gradients of the whole (gradient caching).
    """
    size = micro_batch()
    if size is None:
        return MultiVectorMultipleNegativesRankingLoss(model, scale=1 / temperature, similarity_fct=exact_scores)
    return CachedMultiVectorMultipleNegativesRankingLoss(
        model, scale=1 / temperature, similarity_fct=exact_scores, mini_batch_size=size
    )


def exact_scores(queries: Tensor, documents: Tensor, **masks: Any) -> Tensor:
    """MaxSim of every query and document, at least in fp32 whatever the network computes in."""
    wide = torch.promote_types(queries.dtype, torch.float32)
    with torch.autocast(queries.device.type, enabled=False):
        return colbert_scores(queries.to(wide), documents.to(wide), **masks)

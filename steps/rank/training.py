"""Training of the ranker on lists, resumable from its last checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from datasets import Dataset
from sentence_transformers import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss, LambdaLoss
from torch import nn

from steps.rank.params import CrossEncoderParams
from steps.rank.training_lists import ListChoice, RankedList
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


def train_ranker(
    ranker: CrossEncoder, choice: ListChoice, params: CrossEncoderParams, checkpoints: Path, run: "Run"
) -> None:
    """Train the ranker in place for `params.epochs`, from the checkpoint in `checkpoints` if a killed run left one.

    UserError when the loss stops being a finite number.
    """
    ranker.model_card_data.generate_widget_examples = False
    arguments = CrossEncoderTrainingArguments(
        **shared_arguments(params, checkpoints, _rows_a_step(params)),
        prompts=ranker.prompts.get(ranker.default_prompt_name or "") or None,
    )
    use_one_gpu(arguments)
    trainer = RankerTrainer(
        model=ranker,
        args=arguments,
        train_dataset=rows(choice.chosen, params.loss),
        loss=objective(ranker, params, positive_weight(choice, params)),
        callbacks=[LossLog(run, "ranker", "rank.ranker", "or set precision: fp32")],
    )
    trainer.quieten()
    set_dropout(ranker, params.dropout)
    with fast_attention(ranker, params.precision, params.max_length):
        trainer.train_on(checkpoints, "rank")
    ranker.eval()


class RankerTrainer(WholeCheckpoints, CrossEncoderTrainer):
    """The library's trainer, with checkpoints that appear whole."""


def positive_weight(choice: ListChoice, params: CrossEncoderParams) -> float:
    """How often a positive counts in the loss `bce`; auto: negatives per positive, so that both classes weigh equal."""
    return choice.negatives_per_positive if params.positive_weight == "auto" else params.positive_weight


def objective(ranker: CrossEncoder, params: CrossEncoderParams, weight: float) -> nn.Module:
    """The loss of a batch of rows.

    `bce`: mean over pairs of `-(w y log s(x) + (1 - y) log(1 - s(x)))`, x the logit, s the sigmoid, y the label, w
    `weight`. `lambda`: LambdaLoss with the weights NDCG-Loss2++ over lists (Wang et al., "The LambdaLoss Framework for
    Ranking Metric Optimization", 2018, Sec. 4.3).
    """
    if params.loss == "bce":
        return BinaryCrossEntropyLoss(ranker, pos_weight=torch.tensor(weight, dtype=torch.float32))
    return LambdaLoss(ranker, mini_batch_size=-1)  # all lists of a batch in one forward pass


def rows(chosen: list[RankedList], loss: str) -> Dataset:
    """The lists as the loss reads them: a row for each pair (bce) or for each list (lambda), positives first."""
    if loss == "lambda":
        return Dataset.from_dict(
            {
                "query": [each.query for each in chosen],
                "documents": [[each.positive, *each.negatives] for each in chosen],
                "labels": [[1.0] + [0.0] * len(each.negatives) for each in chosen],
            }
        )
    pairs = [(each.query, each.positive, 1.0) for each in chosen]
    pairs += [(each.query, negative, 0.0) for each in chosen for negative in each.negatives]
    queries, documents, labels = zip(*pairs, strict=True)
    return Dataset.from_dict({"query": queries, "document": documents, "label": labels})


def _rows_a_step(params: CrossEncoderParams) -> int:
    """Rows that make up `batch_size` pairs: a list has as many as it may have documents."""
    documents = 1 + params.negatives + params.random_negatives
    return params.batch_size if params.loss == "bce" else max(1, params.batch_size // documents)

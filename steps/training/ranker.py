"""Training of a cross encoder on lists, resumable from its last checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss, LambdaLoss, ListNetLoss
from torch import nn

from slimtower.common.errors import UserError
from steps.encoders.towers import positions_of
from steps.training.checkpoint_files import keyed_folder
from steps.training.library_trainer import (
    LossLog,
    WholeCheckpoints,
    fast_attention,
    set_dropout,
    shared_arguments,
    use_one_gpu,
)
from steps.training.params import RankerTraining
from steps.training.ranked_lists import RANDOM_NEGATIVES, ListChoice, RankedList
from steps.training.triplets import Turns

if TYPE_CHECKING:  # how runs are tracked changes no weight: checkpoints outlive it
    from steps.tracking.runs import Run


_SURE = 1e4  # ListNet's label of a positive: of its softmax over labels, 0 for the others, nothing is left for these


def train_ranker(
    ranker: CrossEncoder,
    choice: ListChoice,
    params: RankerTraining,
    checkpoints: Path,
    run: "Run",
    *,
    stage: str = "rank",
    section: str = "rank.ranker",
    loss: nn.Module | None = None,
) -> None:
    """Train the ranker in place for `params.epochs`, from the checkpoint in `checkpoints` if a killed run left one.

    `stage` and `section` are what messages name; `loss` that of a batch of rows, None = `objective`. UserError when the
    loss stops being a finite number.
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
        loss=loss or objective(ranker, params, choice.negatives_per_positive),
        callbacks=[LossLog(run, "ranker", section, "or set precision: fp32")],
    )
    trainer.turns = turns_of_rows(choice.chosen, params.loss)
    trainer.quieten()
    set_dropout(ranker)
    with fast_attention(ranker, params.precision, params.max_length):
        trainer.train_on(checkpoints, stage)
    ranker.eval()


class RankerTrainer(WholeCheckpoints, CrossEncoderTrainer):
    """The library's trainer, with checkpoints that appear whole."""


def objective(ranker: CrossEncoder, params: RankerTraining, weight: float) -> nn.Module:
    """The loss of a batch of rows.

    `bce`: mean over pairs of `-(w y log s(x) + (1 - y) log(1 - s(x)))`, x the logit, s the sigmoid, y the label, w
    `weight`: negatives per positive, so that both classes weigh equal. `softmax`: mean over lists of
    `-log softmax_j(x)` of the positive (EmbedDistill, Eq. 8). `lambda`: LambdaLoss with the weights NDCG-Loss2++ over
    lists (Wang et al., "The LambdaLoss Framework for Ranking Metric Optimization", 2018, Sec. 4.3).
    """
    if params.loss == "bce":
        return BinaryCrossEntropyLoss(ranker, pos_weight=torch.tensor(weight, dtype=torch.float32))
    listwise = ListNetLoss if params.loss == "softmax" else LambdaLoss
    return listwise(ranker, mini_batch_size=-1)  # all lists of a batch in one forward pass


def rows(chosen: list[RankedList], loss: str) -> Dataset:
    """The lists as the loss reads them: a row for each pair (bce) or for each list, positives first."""
    if loss != "bce":
        relevant = _SURE if loss == "softmax" else 1.0
        return Dataset.from_dict(
            {
                "query": [ranked_list.query for ranked_list in chosen],
                "documents": [[ranked_list.positive, *ranked_list.negatives] for ranked_list in chosen],
                "labels": [[relevant] + [0.0] * len(ranked_list.negatives) for ranked_list in chosen],
            }
        )
    pairs = [(ranked_list.query, ranked_list.positive, 1.0) for ranked_list in chosen]
    pairs += [(ranked_list.query, negative, 0.0) for ranked_list in chosen for negative in ranked_list.negatives]
    queries, documents, labels = zip(*pairs, strict=True)
    return Dataset.from_dict({"query": queries, "document": documents, "label": labels})


def turns_of_rows(chosen: list[RankedList], loss: str) -> Turns:
    """In which epochs each of these `rows` trains: those of a list in the same ones, the likeliest list in all."""
    of_list = np.arange(len(chosen))
    if loss == "bce":
        of_list = np.concatenate([of_list, of_list.repeat([len(ranked_list.negatives) for ranked_list in chosen])])
    chances, luck = (
        np.array([getattr(ranked_list, name) for ranked_list in chosen])[of_list] for name in ("chance", "luck")
    )
    return Turns(chances / chances.max(), luck)


def _rows_a_step(params: RankerTraining) -> int:
    """Rows that make up `batch_size` pairs: a list has as many as it may have documents."""
    documents = 1 + params.negatives + RANDOM_NEGATIVES
    return params.batch_size if params.loss == "bce" else max(1, params.batch_size // documents)


def training_facts(choice: ListChoice, params: RankerTraining) -> dict[str, Any]:
    """What a cross encoder was trained on, for the report."""
    return {
        "lists": len(choice.chosen),
        "lists_an_epoch": len(turns_of_rows(choice.chosen, "lambda").rows(0)),
        "negatives_per_positive": choice.negatives_per_positive,
        "positive_weight": choice.negatives_per_positive if params.loss == "bce" else None,
        "by_source": choice.by_source,
        "left_out": choice.left_out,
    }


def check_length(ranker: CrossEncoder, params: RankerTraining, section: str = "rank.ranker") -> None:
    """UserError when the base's positions end before `max_length`."""
    positions = positions_of(ranker.model)
    if positions is not None and params.max_length > positions:
        raise UserError(
            f"{section}: max_length is {params.max_length}, but {params.base} has {positions} positions; set it to"
            f" {positions} or less"
        )


def checkpoint_folder(
    ranker: CrossEncoder, choice: ListChoice, knobs: Mapping[str, Any], stage: str = "rank", code: Sequence[str] = ()
) -> Path:
    """`keyed_folder` of a training on lists; `code` names modules besides this one."""
    lists = (repr(astuple(ranked_list)) for ranked_list in choice.chosen)
    return keyed_folder(stage, ranker, lists, knobs, (__name__, *code))

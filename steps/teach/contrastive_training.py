"""Contrastive training of the tower on triplets, resumable from its last checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from accelerate.data_loader import prepare_data_loader  # type: ignore[import-untyped]
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.modules import Router
from sentence_transformers.base.sampler import BatchSamplers
from torch import Tensor, nn
from torch.utils.data import DataLoader

from slimtower.common.errors import UserError
from steps.encoders.towers import route
from steps.teach.cached_gradients import backward
from steps.teach.contrastive_loss import ContrastiveLoss
from steps.teach.in_batch import InBatch, Positives
from steps.teach.kinds.contrastive import Contrastive
from steps.teach.lora import low_rank
from steps.teach.training_triplets import TextTriplet, turns_of
from steps.training.distributed import micro_batch, world
from steps.training.library_trainer import (
    LossLog,
    fast_attention,
    networks_of,
    set_dropout,
    shared_arguments,
    use_one_gpu,
)
from steps.training.sharding import ShardedTrainer, is_sharded, to_train

if TYPE_CHECKING:  # how runs are tracked changes no weight: checkpoints outlive it
    from steps.tracking.runs import Run


def train_tower(
    tower: SentenceTransformer,
    triplets: list[TextTriplet],
    positives: Positives,
    params: Contrastive,
    checkpoints: Path,
    run: "Run",
    trainer_class: "type[ContrastiveTrainer] | None" = None,
    loss_class: type[ContrastiveLoss] = ContrastiveLoss,
) -> None:
    """Train the tower in place for `params.epochs`, from the checkpoint in `checkpoints` if a killed run left one.

    Processes that torchrun started train it together, on the batches and to the weights of one process, up to the order
    of summation (with dropout 0); those of `accelerate launch` may shard it. No document that is among a query's
    `positives` counts as its negative in a batch. LoRA's matrices are merged into the tower at the end. UserError if
    the loss stops being a finite number.
    """
    in_batch = InBatch(triplets, positives)
    columns: dict[str, list[Any]] = {
        "query": cut_to_tokens(tower, [triplet.query for triplet in triplets], params.max_query_length),
        "positive": [triplet.positive for triplet in triplets],
    }
    if params.loss.hard_negatives != "none":
        columns["negative"] = [triplet.negative for triplet in triplets]
    columns["label"] = in_batch.numbers
    tower.model_card_data.generate_widget_examples = False
    networks = networks_of(tower)
    torch.manual_seed(params.seed)  # LoRA's matrices
    with (
        low_rank(networks, params.lora),
        checkpoint_activations(networks, params.gradient_checkpointing),
        to_train(tower) as trained,
    ):
        trainer = (trainer_class or ContrastiveTrainer)(
            model=trained,
            args=_arguments(trained, params, checkpoints),
            train_dataset=Dataset.from_dict(columns),
            loss=loss_class(trained, params.temperature, params.loss, in_batch),
            callbacks=[LossLog(run, "teacher", "teach.teacher", "raise temperature or set precision: fp32")],
        )
        trainer.turns = turns_of(triplets)
        trainer.check_sharding()
        trainer.quieten()
        set_dropout(trained)
        with fast_attention(trained, params.precision, params.max_document_length):
            trainer.train_on(checkpoints, "teach")
    tower.eval()


class ContrastiveTrainer(ShardedTrainer, SentenceTransformerTrainer):
    """The library's trainer, with checkpoints that appear whole and batches that pieces and processes can share."""

    def get_train_dataloader(self) -> DataLoader:
        """Whole batches for every process: of each it embeds its own rows."""
        if world() == 1:
            return super().get_train_dataloader()
        loader = self._build_dataloader(self.train_dataset, self.args.train_batch_size, dataset_kind="train")
        self._train_dataloader = prepare_data_loader(
            loader, self.accelerator.device, num_processes=1, process_index=0, put_on_device=True
        )
        return self._train_dataloader

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Gradients of one batch; with SLIMTOWER_MICRO_BATCH or several processes piece by piece."""
        if world() == 1 and micro_batch() is None and not is_sharded():
            return super().training_step(model, inputs, num_items_in_batch)
        self.model.train()
        columns, labels = self.collect_features(self._prepare_inputs(inputs))
        loss = cast(ContrastiveLoss, self.loss)
        # the tower itself, not its DDP wrapper: that would average what has to be summed, and after every piece
        return backward(
            self.model,
            lambda embeddings: loss.compute_loss_from_embeddings(embeddings, cast(Tensor, labels)),
            columns,
            micro_batch(),
            self.pass_on if is_sharded() else None,
        )


@contextmanager
def checkpoint_activations(networks: list[Any], enabled: bool) -> Iterator[None]:
    """If `enabled`, recompute the layers' activations instead of keeping them: less memory, a third more time.

    UserError for a network that cannot.
    """
    chosen = networks if enabled else []
    for network in chosen:
        if not network.supports_gradient_checkpointing:
            raise UserError(
                f"teach.teacher: {type(network).__name__} recomputes no activations; set gradient_checkpointing: false"
            )
        network.activation_checkpointing_enable({"use_reentrant": False})
    yield
    for network in chosen:
        network.activation_checkpointing_disable()


def cut_to_tokens(tower: SentenceTransformer, texts: list[str], limit: int) -> list[str]:
    """Each text cut, at a token's end, to at most `limit` tokens (special tokens not counted)."""
    encoded = route(tower, "query").tokenizer(
        texts, add_special_tokens=False, truncation=True, max_length=limit, return_offsets_mapping=True
    )
    return [
        text[: offsets[-1][1]] if len(offsets) == limit else text
        for text, offsets in zip(texts, encoded["offset_mapping"], strict=True)
    ]


def _arguments(
    tower: SentenceTransformer, params: Contrastive, checkpoints: Path
) -> SentenceTransformerTrainingArguments:
    roles = {"query": "query", "positive": "document", "negative": "document"}
    arguments = SentenceTransformerTrainingArguments(
        **shared_arguments(params, checkpoints, params.batch_size),
        weight_decay=params.weight_decay,
        batch_sampler=BatchSamplers.NO_DUPLICATES,  # a text twice in a batch would be its own negative
        prompts={column: tower.prompts.get(role) or "" for column, role in roles.items()},
        router_mapping=roles if isinstance(tower[0], Router) else {},
        dataloader_drop_last=world() > 1,  # the library insists on it there
    )
    arguments.dataloader_drop_last = False  # our processes share the last batch, whatever its size
    use_one_gpu(arguments)
    return arguments

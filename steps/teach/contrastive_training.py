"""Contrastive training of the tower on triplets, resumable from its last checkpoint."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from accelerate.data_loader import prepare_data_loader  # type: ignore[import-untyped]
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.losses.gradcache import RandContext
from sentence_transformers.base.modules import Router
from sentence_transformers.base.sampler import BatchSamplers
from torch import Tensor, nn
from torch.utils.data import DataLoader

from slimtower.common.errors import UserError, line
from steps.encoders.towers import route
from steps.teach.contrastive_loss import ContrastiveLoss, InBatch, Positives
from steps.teach.kinds.contrastive import Contrastive, LoraParams
from steps.teach.training_triplets import TextTriplet, turns_of
from steps.training.distributed import gather, micro_batch, rank, sum_over_ranks, world
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

PassOn = Callable[[Tensor, Tensor, bool], None]
"""Backward pass from a piece's embeddings, by their gradient; whether it is the batch's last."""
Features = dict[str, Any]
"""What a tower reads: tensors whose first dimension is the batch, and settings that go to every piece."""
ROLE_OF_COLUMN = {"query": "query", "positive": "document", "negative": "document"}
SCALE = 2  # what the product of the matrices is multiplied by: alpha / rank


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

    Processes that torchrun started train it together, to the weights of one process up to the order of summation (with
    dropout 0); those of `accelerate launch` may shard it. No document among a query's `positives` is its negative in
    a batch. LoRA's matrices are merged in the end. UserError if the loss stops being a finite number.
    """
    in_batch = InBatch(triplets, positives)
    data = training_data(triplets, in_batch, params.loss.hard_negatives)
    data["query"] = cut_to_tokens(tower, data["query"], params.max_query_length)
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
            train_dataset=Dataset.from_dict(data),
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


def training_data(triplets: Sequence[TextTriplet], in_batch: InBatch, hard_negatives: str) -> dict[str, list[Any]]:
    """Columns of texts, and `label`: numbers of queries and documents; the column `negative` unless they are `none`."""
    data: dict[str, list[Any]] = {
        "query": [triplet.query for triplet in triplets],
        "positive": [triplet.positive for triplet in triplets],
    }
    if hard_negatives != "none":
        data["negative"] = [triplet.negative for triplet in triplets]
    return data | {"label": in_batch.numbers}


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
    cuts = zip(texts, encoded["offset_mapping"], strict=True)
    return [text[: offsets[-1][1]] if len(offsets) == limit else text for text, offsets in cuts]


def _arguments(
    tower: SentenceTransformer, params: Contrastive, checkpoints: Path
) -> SentenceTransformerTrainingArguments:
    arguments = SentenceTransformerTrainingArguments(
        **shared_arguments(params, checkpoints, params.batch_size),
        weight_decay=params.weight_decay,
        batch_sampler=BatchSamplers.NO_DUPLICATES,  # a text twice in a batch would be its own negative
        prompts={column: tower.prompts.get(role) or "" for column, role in ROLE_OF_COLUMN.items()},
        router_mapping=ROLE_OF_COLUMN if isinstance(tower[0], Router) else {},
        dataloader_drop_last=world() > 1,  # the library insists on it there
    )
    arguments.dataloader_drop_last = False  # our processes share the last batch, whatever its size
    use_one_gpu(arguments)
    return arguments


def backward(
    tower: nn.Module,
    loss: Callable[[list[Tensor]], Tensor],
    columns: Sequence[Features],
    micro_batch: int | None,
    pass_on: PassOn | None = None,
) -> Tensor:
    """Add the gradients of `loss` to the tower's parameters and return its value, equal on every process.

    `columns` are the batch's texts, a column each for query, positive and negative, whole on every process. `loss`
    takes the columns' embeddings, each `(batch, dim)` or, of several embeddings a text, `(batch, n, dim)`. A process
    embeds its own rows, at most `micro_batch` at once. `pass_on`, where the tower is sharded, sees to the sum of the
    gradients over the processes as well.
    """
    batch = len(columns[0]["input_ids"])
    share = -(-batch // world())
    positions = torch.arange(rank() * share, (rank() + 1) * share)
    rows = positions % batch  # if the batch does not divide, some are read twice, the second time without gradient
    pieces = rows.split(micro_batch or share)
    once = len(pieces) == 1

    replays, embedded = [], []
    for piece in pieces:
        replays.append(RandContext(*(value for value in columns[0].values() if isinstance(value, Tensor))))
        with torch.set_grad_enabled(once):
            embedded.append(_embed(tower, columns, piece))
    gathered = gather(torch.cat(embedded).detach())[:batch].requires_grad_()
    value = loss(list(gathered.unbind(dim=1)))
    (by_embedding,) = torch.autograd.grad(value, gathered)

    is_counted = (positions < batch).to(gathered).view(-1, *[1] * (gathered.ndim - 1))
    own_gradient = by_embedding[rows.to(gathered.device)] * is_counted
    hand_on = pass_on or (lambda embeddings, gradient, last: embeddings.backward(gradient))
    if once:
        hand_on(embedded[0], own_gradient, True)
    else:
        gradients = own_gradient.split(micro_batch or share)
        for number, (piece, replay, gradient) in enumerate(zip(pieces, replays, gradients, strict=True), start=1):
            with replay:  # the same dropout again
                again = _embed(tower, columns, piece)
            hand_on(again, gradient, number == len(pieces))
    if pass_on is None:
        sum_over_ranks(tower.parameters())
    return value.detach()


def _embed(tower: nn.Module, columns: Sequence[Features], rows: Tensor) -> Tensor:
    """Embeddings of these rows of every column, `(rows, columns, ..., dim)`."""

    def take(value: Any) -> Any:
        return value[rows.to(value.device)] if isinstance(value, Tensor) and value.ndim else value

    pieces = ({name: take(value) for name, value in column.items()} for column in columns)
    return torch.stack([tower(piece)["sentence_embedding"] for piece in pieces], dim=1)


@contextmanager
def low_rank(networks: Sequence[nn.Module], params: "LoraParams | None") -> Iterator[None]:
    """Freeze networks, in place, but for low-rank matrices in fp32; at the end these are merged. None = all trains.

    UserError without peft, and where a network has none of the target modules.
    """
    if params is None:
        yield
        return
    try:
        from peft import LoraConfig, LoraModel
    except ModuleNotFoundError:
        raise UserError("teach.teacher: lora needs peft; run `pip install peft`, or set lora: null") from None
    config = LoraConfig(r=params.rank, lora_alpha=SCALE * params.rank, target_modules=params.target_modules)
    try:
        adapted = [LoraModel(network, config, "default") for network in networks]
    except ValueError as error:
        raise UserError(f"teach.teacher: lora: {line(error)[:200]}") from None
    for weight in (weight for network in networks for weight in network.parameters() if weight.requires_grad):
        weight.data = weight.data.float()  # what is merged is rounded once
    yield
    for model in adapted:
        model.merge_and_unload()
        model.model.requires_grad_(True)

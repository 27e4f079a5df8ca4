"""Contrastive training of the tower on triplets (ScalingNote, Eq. 5-12), resumable from its last checkpoint."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from accelerate.data_loader import prepare_data_loader  # type: ignore[import-untyped]
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.base.losses.gradcache import RandContext
from sentence_transformers.base.modules import Router
from sentence_transformers.base.sampler import BatchSamplers
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from slimtower.common.errors import UserError, line
from steps.core.texts import fold
from steps.encoders.towers import route
from steps.teach.kinds.base import Contrastive, LoraParams, LossParams
from steps.teach.training_triplets import TextTriplet, turns_of
from steps.training.distributed import gather, micro_batch, rank, sum_over_ranks, world
from steps.training.library_trainer import (
    LossLog,
    ShardedTrainer,
    is_sharded,
    networks_of,
    shared_arguments,
    to_train,
)

if TYPE_CHECKING:  # how runs are tracked changes no weight: checkpoints outlive it
    from steps.tracking.runs import Run

Positives = Mapping[str, Set[str]]
"""Ids of the documents known to be relevant to a query, by its folded text."""
PassOn = Callable[[Tensor, Tensor, bool], None]
"""Backward pass from a piece's embeddings, by their gradient; whether it is the batch's last."""
Features = dict[str, Any]
"""What a tower reads: tensors whose first dimension is the batch, and settings that go to every piece."""
ROLE_OF_COLUMN = {"query": "query", "positive": "document", "negative": "document"}
SCALE = 2  # what the product of the matrices is multiplied by: alpha / rank


class InBatch:
    """Which documents of a batch are relevant to which of its queries; texts that fold to the same share a number."""

    def __init__(self, triplets: Sequence[TextTriplet], positives: Positives) -> None:
        queries: dict[str, int] = {}
        texts: dict[str, int] = {}
        documents: dict[str, int] = {}
        for triplet in triplets:
            for doc_id, text in ((triplet.positive_id, triplet.positive), (triplet.negative_id, triplet.negative)):
                if doc_id not in documents:
                    documents[doc_id] = texts.setdefault(fold(text), len(texts))
        self.numbers = [
            [
                queries.setdefault(fold(triplet.query), len(queries)),
                documents[triplet.positive_id],
                documents[triplet.negative_id],
            ]
            for triplet in triplets
        ]
        self.documents = len(texts)
        pairs = {query * self.documents + positive for query, positive, _ in self.numbers}
        for query, number in queries.items():
            pairs |= {
                number * self.documents + documents[positive_id]
                for positive_id in positives.get(query, ())
                if positive_id in documents
            }
        self.pairs = torch.from_numpy(np.array(sorted(pairs), dtype=np.int64))

    def relevant(self, numbers: Tensor) -> Tensor:
        """Documents relevant to a query but not its row's positive, `(batch, 2 * batch)`; `numbers` `(batch, 3)`."""
        self.pairs = self.pairs.to(numbers.device)
        pairs = numbers[:, :1] * self.documents + torch.cat([numbers[:, 1], numbers[:, 2]])
        positions = torch.searchsorted(self.pairs, pairs).clamp(max=len(self.pairs) - 1)
        is_relevant = self.pairs[positions] == pairs
        is_relevant.diagonal().fill_(False)
        return is_relevant


class ContrastiveLoss(MultipleNegativesRankingLoss):
    """`sum_m (softmax_m + margin_weight * hard_m)` over the embeddings and their first m dimensions, m in `dims`.

    softmax: `-mean_i log softmax_j(s(q_i, d_j) / temperature)[i]` (InfoNCE, Eq. 5) over the positives and, if
    `hard_negatives` is softmax or both, mined negatives. With `both_directions` half of this, and half of the same of
    each positive over the batch's queries (Eq. 6-7). hard: `mean_i max(0, margin - s(q_i, d_i+) + s(q_i, d_i-))` (Eq.
    9) if `hard_negatives` is margin or both.

    s is the tower's own similarity, at least in fp32; of first dimensions, which the index normalises, the cosine. A
    document that is known to be relevant to a query is none of its negatives (`in_batch`): no other row's in the
    softmax, and of a mined one that is, the row's hinge is 0.

    Embeddings `(batch, dim)` of queries, positives and, unless there are none, negatives; labels: numbers, int64
    `(batch, 3)`.
    """

    def __init__(
        self, tower: SentenceTransformer, temperature: float, params: LossParams, in_batch: InBatch | None = None
    ) -> None:
        def similarity(queries: Tensor, documents: Tensor) -> Tensor:
            with torch.autocast(queries.device.type, enabled=False):
                scores = tower.similarity(_exact(queries), _exact(documents))
            return scores if self.masked is None else scores.masked_fill(self.masked[:, : len(documents)], -torch.inf)

        def of_pairs(queries: Tensor, documents: Tensor) -> Tensor:
            with torch.autocast(queries.device.type, enabled=False):
                return tower.similarity_pairwise(_exact(queries), _exact(documents))

        super().__init__(
            tower,
            scale=1 / temperature,
            similarity_fct=similarity,
            directions=("query_to_doc", "doc_to_query") if params.both_directions else ("query_to_doc",),
            partition_mode="per_direction" if params.both_directions else "joint",
        )
        self.params, self.of_pairs, self.in_batch = params, of_pairs, in_batch
        self.masked: Tensor | None = None  # (batch, 2 * batch), of the batch at hand

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor) -> Tensor:
        self.masked = self.in_batch.relevant(labels) if self.in_batch else None
        views = [embeddings, *([_first(vectors, dim) for vectors in embeddings] for dim in self.params.dims)]
        return torch.stack([self._loss_of(view, labels) for view in views]).sum()

    def _loss_of(self, embeddings: list[Tensor], labels: Tensor) -> Tensor:
        in_softmax = embeddings if self.params.hard_negatives in {"softmax", "both"} else embeddings[:2]
        value = super().compute_loss_from_embeddings(in_softmax, labels)
        if self.params.hard_negatives in {"margin", "both"}:
            queries, positives, negatives = embeddings
            near, far = self.of_pairs(queries, positives), self.of_pairs(queries, negatives)
            hard = functional.relu(self.params.margin - near + far)
            if self.masked is not None:
                hard = hard.masked_fill(self.masked[:, len(positives) :].diagonal(), 0)
            value = value + self.params.margin_weight * hard.mean()
        return value


def _exact(vectors: Tensor) -> Tensor:
    return vectors.to(torch.promote_types(vectors.dtype, torch.float32))


def _first(vectors: Tensor, dim: int) -> Tensor:
    """The first `dim` dimensions of `(n, d)` vectors, of length 1."""
    return functional.normalize(_exact(vectors)[:, :dim], dim=1)


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
    """Train the tower in place, from the checkpoint in `checkpoints` if a killed run left one.

    Processes train it together, to the weights of one up to the order of summation, or shard it (`accelerate launch`).
    No document among a query's `positives` is its negative in a batch. UserError if the loss is not a finite number.
    """
    in_batch = InBatch(triplets, positives)
    data = training_data(triplets, in_batch, params.loss.hard_negatives)
    data["query"] = cut_to_tokens(tower, data["query"], params.max_query_length)
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
            turns=turns_of(triplets),
        )
        trainer.check_sharding()
        trainer.train_on(checkpoints, "teach", params.precision, params.max_document_length)
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
    """If `enabled`, recompute the layers' activations instead of keeping them; UserError for a network that cannot."""
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
    return arguments


def backward(
    tower: nn.Module,
    loss: Callable[[list[Tensor]], Tensor],
    columns: Sequence[Features],
    micro_batch: int | None,
    pass_on: PassOn | None = None,
) -> Tensor:
    """Add the gradients of `loss` to the tower's parameters and return its value, equal on every process.

    `columns` are queries, positives and negatives, whole on every process; `loss` takes their embeddings, each `(batch,
    dim)` or `(batch, n, dim)`. A process embeds its own rows, at most `micro_batch` at once. `pass_on`, of a sharded
    tower, also sums gradients over the processes.
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

    def take(value: Any) -> Any:
        return value[rows.to(value.device)] if isinstance(value, Tensor) and value.ndim else value

    pieces = ({name: take(value) for name, value in column.items()} for column in columns)
    return torch.stack([tower(piece)["sentence_embedding"] for piece in pieces], dim=1)


@contextmanager
def low_rank(networks: Sequence[nn.Module], params: "LoraParams | None") -> Iterator[None]:
    """Freeze networks but for low-rank matrices, merged in the end; UserError without peft or target modules."""
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

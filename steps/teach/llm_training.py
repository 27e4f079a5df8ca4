"""Contrastive training of a causal language model's towers on all three embeddings of a document."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.base.modules.module import Module
from torch import Tensor

from steps.core.tables import ROLES
from steps.core.towers import device, route
from steps.teach.contrastive_loss import ContrastiveLoss
from steps.teach.contrastive_training import ContrastiveTrainer, train_tower
from steps.teach.in_batch import Known
from steps.teach.llm_tower import CONTENT_QUERY, TITLE_QUERY
from steps.teach.lora import low_rank
from steps.teach.master_weights import MasterAdamW
from steps.teach.training_triplets import TextTriplet
from steps.training.distributed import rank
from steps.training.sharding import is_sharded

if TYPE_CHECKING:
    from steps.core.tracking import Run
    from steps.teach.kinds.llm_dual_encoder import LlmDualEncoder

_WEIGHTS = "trained.pt"  # of a checkpoint


def train_llm_tower(
    tower: SentenceTransformer,
    triplets: list[TextTriplet],
    known: Known,
    params: "LlmDualEncoder",
    checkpoints: Path,
    run: "Run",
) -> None:
    """Train a tower of `llm_tower` in place, as `train_tower` does; LoRA's matrices are merged into it at the end."""
    networks: list[Any] = [route(tower, role)[0].auto_model for role in ROLES]
    torch.manual_seed(params.seed)  # LoRA's matrices
    with low_rank(networks, params.lora), _recomputed(networks, params.gradient_checkpointing):
        train_tower(_training_tower(tower), triplets, known, params, checkpoints, run, LlmTrainer, PlaceholderLoss)


class StatesBefore(Module):
    """Pools the states before some tokens, `(batch, tokens, width)`; for None, and a token cut off, the last one."""

    def __init__(self, tokens: list[int | None]) -> None:
        super().__init__()
        self.tokens = tokens

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add `sentence_embedding`; wherever the padding is."""
        ids, states = features["input_ids"], features["token_embeddings"]
        order = torch.arange(ids.shape[1], device=ids.device)
        last = (order * features["attention_mask"]).argmax(dim=1)
        places = torch.stack([last if token is None else _before(ids == token, last) for token in self.tokens], dim=1)
        features["sentence_embedding"] = states.gather(1, places[:, :, None].expand(-1, -1, states.shape[2]))
        return features

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: it serves training alone."""


def _before(found: Tensor, last: Tensor) -> Tensor:
    """Position before the first place where `(batch, length)` is true, `(batch,)`."""
    return torch.where(found.any(dim=1), found.int().argmax(dim=1) - 1, last)


class PlaceholderLoss(ContrastiveLoss):
    """The sum of `ContrastiveLoss` over the three embeddings of a document (ScalingNote, Eq. 8, 11, 12).

    | texts | labels | embeddings |
    |---|---|---|
    | as there | none | `(batch, 3, dim)` each, of a query three times the same |
    """

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor) -> Tensor:
        """Sum over title, content and final embedding."""
        each = [super(PlaceholderLoss, self).compute_loss_from_embeddings(list(parts), labels)
                for parts in zip(*(column.unbind(dim=1) for column in embeddings), strict=True)]  # fmt: skip
        return torch.stack(each).sum()


class LlmTrainer(ContrastiveTrainer):
    """The trainer, whose optimizer keeps fp32 copies of narrower weights, and whose checkpoints hold what trains."""

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """AdamW as it is set, without weight decay; weights that are sharded are in fp32 themselves."""
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        rate = self.args.learning_rate
        plain = is_sharded()
        self.optimizer = torch.optim.AdamW(weights, rate, weight_decay=0.0) if plain else MasterAdamW(weights, lr=rate)
        return self.optimizer

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if self.is_fsdp_enabled or rank() > 0:
            return
        folder = Path(output_dir or str(self.args.output_dir))
        folder.mkdir(parents=True, exist_ok=True)
        trained = {name: weight for name, weight in self.model.named_parameters() if weight.requires_grad}
        torch.save(trained, folder / _WEIGHTS)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.is_fsdp_enabled:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        trained = torch.load(Path(resume_from_checkpoint) / _WEIGHTS, map_location="cpu", weights_only=True)
        self.model.load_state_dict(trained, strict=False)


def _training_tower(tower: SentenceTransformer) -> SentenceTransformer:
    """The tower with three embeddings of a text, `(batch, 3, dim)`, not normalised; it shares its weights."""
    first: Any = tower[0]
    (reader, _, query_map), (writer, _, document_map) = (list(first.sub_modules[role]) for role in ROLES)
    title, content = writer.tokenizer.convert_tokens_to_ids([TITLE_QUERY, CONTENT_QUERY])
    asking = [reader, StatesBefore([None, None, None]), query_map]
    telling = [writer, StatesBefore([title, content, None]), document_map]
    routes = Router.for_query_document(asking, telling)
    return SentenceTransformer(modules=[routes], device=device(), similarity_fn_name="cosine")


@contextmanager
def _recomputed(networks: list[Any], wanted: bool) -> Iterator[None]:
    """Keep no activations of the layers but recompute them, where that is wanted: less memory, a third more time."""
    for network in networks if wanted else []:
        network.activation_checkpointing_enable({"use_reentrant": False})
    yield
    for network in networks if wanted else []:
        network.activation_checkpointing_disable()

"""Contrastive training of a causal language model's towers on all three embeddings of a document."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.base.modules.module import Module
from torch import Tensor, nn

from slimtower.common.names import ROLES
from steps.encoders.towers import device
from steps.teach.contrastive_loss import ContrastiveLoss, Positives
from steps.teach.contrastive_training import ContrastiveTrainer, train_tower
from steps.teach.kinds.llm_dual_encoder import LlmDualEncoder
from steps.teach.llm_tower import CONTENT_QUERY, TITLE_QUERY
from steps.teach.training_triplets import TextTriplet
from steps.training.sharding import is_sharded

if TYPE_CHECKING:
    from steps.tracking.runs import Run


def train_llm_tower(
    tower: SentenceTransformer,
    triplets: list[TextTriplet],
    positives: Positives,
    params: LlmDualEncoder,
    checkpoints: Path,
    run: "Run",
) -> None:
    """Train a tower of `llm_tower` in place, as `train_tower` does."""
    train_tower(_training_tower(tower), triplets, positives, params, checkpoints, run, LlmTrainer, PlaceholderLoss)


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
        positions = torch.stack(
            [last if token is None else _before(ids == token, last) for token in self.tokens], dim=1
        )
        features["sentence_embedding"] = states.gather(1, positions[:, :, None].expand(-1, -1, states.shape[2]))
        return features

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: it serves training alone."""


def _before(matches: Tensor, last: Tensor) -> Tensor:
    return torch.where(matches.any(dim=1), matches.int().argmax(dim=1) - 1, last)


class PlaceholderLoss(ContrastiveLoss):
    """The sum of `ContrastiveLoss` over the three embeddings of a document (ScalingNote, Eq. 8, 11, 12).

    | texts | labels | embeddings |
    |---|---|---|
    | as there | none | `(batch, 3, dim)` each, of a query three times the same |
    """

    def compute_loss_from_embeddings(self, embeddings: list[Tensor], labels: Tensor) -> Tensor:
        """Sum over title, content and final embedding."""
        losses = [super(PlaceholderLoss, self).compute_loss_from_embeddings(list(parts), labels)
                for parts in zip(*(column.unbind(dim=1) for column in embeddings), strict=True)]  # fmt: skip
        return torch.stack(losses).sum()


class LlmTrainer(ContrastiveTrainer):
    """The trainer, whose optimizer keeps fp32 copies of narrower weights."""

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        """AdamW as it is set; weights that are sharded are in fp32 themselves."""
        matrices = set(self.get_decay_parameter_names(self.model))
        weights = [(name in matrices, weight) for name, weight in self.model.named_parameters() if weight.requires_grad]
        groups = [
            {"params": [weight for decays, weight in weights if decays == which], "weight_decay": decay}
            for which, decay in ((True, self.args.weight_decay), (False, 0.0))
        ]
        kind = torch.optim.AdamW if is_sharded() else MasterAdamW
        self.optimizer = kind(groups, lr=self.args.learning_rate)
        return self.optimizer


def _training_tower(tower: SentenceTransformer) -> SentenceTransformer:
    """The tower with three embeddings of a text, `(batch, 3, dim)`, not normalised; it shares its weights."""
    first: Any = tower[0]
    (reader, _, query_map), (writer, _, document_map) = (list(first.sub_modules[role]) for role in ROLES)
    title, content = writer.tokenizer.convert_tokens_to_ids([TITLE_QUERY, CONTENT_QUERY])
    query_modules = [reader, StatesBefore([None, None, None]), query_map]
    document_modules = [writer, StatesBefore([title, content, None]), document_map]
    routes = Router.for_query_document(query_modules, document_modules)
    return SentenceTransformer(modules=[routes], device=device(), similarity_fn_name="cosine")


class MasterAdamW(torch.optim.AdamW):
    """AdamW on fp32 copies of narrower weights (Micikevicius et al., "Mixed Precision Training", 2018, Sec. 3.1).

    bf16 keeps 8 bits: an update below 1/512 of a weight, such as every one at usual learning rates, would be rounded
    away. Weights in fp32 are updated themselves.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], lr: float) -> None:
        """`groups` as torch has them, of `params`, a list, and their `weight_decay`."""
        self.weights: list[nn.Parameter] = [weight for group in groups for weight in group["params"]]
        self.masters = [
            weight if weight.dtype == torch.float32 else weight.detach().float().requires_grad_()
            for weight in self.weights
        ]
        copies = iter(self.masters)
        super().__init__([{**group, "params": [next(copies) for _ in group["params"]]} for group in groups], lr=lr)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the copies by the weights' gradients, and the weights from the copies."""
        for weight, master in self._weight_copies():
            master.grad = None if weight.grad is None else weight.grad.float()
        value = super().step(closure)
        for weight, master in self._weight_copies():
            weight.copy_(master)
            master.grad = None
        return value

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the weights' gradients."""
        for weight in self.weights:
            weight.grad = None

    def state_dict(self) -> dict[str, Any]:
        """Moments and copies."""
        return {**super().state_dict(), "masters": [master.detach() for _, master in self._weight_copies()]}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Moments and copies of a run that was killed."""
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "masters"})
        for (_, master), saved in zip(self._weight_copies(), state_dict["masters"], strict=True):
            master.copy_(saved)

    def _weight_copies(self) -> list[tuple[nn.Parameter, torch.Tensor]]:
        return [(weight, copy) for weight, copy in zip(self.weights, self.masters, strict=True) if weight is not copy]

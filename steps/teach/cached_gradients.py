"""A contrastive batch read in pieces, by one process or several, with the gradients of the whole.

In-batch negatives tie all texts of a batch together, so its loss is no sum over pieces. Gradient caching (Gao et al.,
"Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup", 2021, Sec. 3.2) embeds the pieces without
gradient, takes the loss and its gradient by every embedding, then embeds each piece again and passes its gradient on.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from sentence_transformers.base.losses.gradcache import RandContext
from torch import Tensor, nn

from steps.training.distributed import gather, rank, sum_over_ranks, world

PassOn = Callable[[Tensor, Tensor, bool], None]
"""Backward pass from a piece's embeddings, by their gradient; whether it is the batch's last."""
Features = dict[str, Any]
"""What a tower reads: tensors whose first dimension is the batch, and settings that go to every piece."""


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
    return torch.stack([tower(_take(column, rows))["sentence_embedding"] for column in columns], dim=1)


def _take(column: Features, rows: Tensor) -> Features:
    return {
        name: value[rows.to(value.device)] if isinstance(value, Tensor) and value.ndim else value
        for name, value in column.items()
    }

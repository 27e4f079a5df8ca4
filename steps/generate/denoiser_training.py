"""Training of the small BART: write the text back from its masked form."""

import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from slimtower.common.errors import UserError
from steps.core.progress import progress
from steps.encoders.towers import device
from steps.generate.denoiser import MAX_TOKENS, Denoiser
from steps.generate.params import GenerateParams
from steps.generate.small_bart import SPECIAL_TOKENS, new_small_bart, train_tokenizer
from steps.generate.token_masking import mask_tokens
from steps.tracking.runs import Run

WARMUP_STEPS = 100
LOG_STEPS = 20
MASK_RATIO = 0.3  # more than when writing, as only masked tokens teach anything
KEPT_SHARE = 0.15  # of the tokens that are not masked: the model starts as a copier and only has to stay one
PAD, START = SPECIAL_TOKENS.index("<pad>"), SPECIAL_TOKENS.index("</s>")  # BART's decoder starts from </s>


def train_denoiser(texts: Sequence[str], params: GenerateParams, run: Run) -> Denoiser:
    """Train tokenizer and small BART on the texts; logs the loss; UserError when it stops being finite."""
    small = params.small
    tokenizer = train_tokenizer(texts, small.vocabulary)
    model: Any = new_small_bart(len(tokenizer), MAX_TOKENS + 2, small, params.seed)
    model.to(device()).train()
    ids: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=MAX_TOKENS)["input_ids"]
    generator = torch.Generator().manual_seed(params.seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=small.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    steps = max(1, math.ceil(small.epochs * len(ids) / small.batch_size))
    recent: list[float] = []
    mask_id = tokenizer.mask_token_id
    for step, rows in enumerate(progress(batches(ids, small.batch_size, steps, params.seed), steps, "small BART")):
        for group in optimiser.param_groups:
            group["lr"] = small.learning_rate * schedule(step, steps)
        loss = denoising_loss(model, padded(ids, rows), MASK_RATIO, mask_id, generator)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        recent.append(loss.item())
        if not math.isfinite(recent[-1]):
            raise UserError(
                f"generate: the loss is {recent[-1]} at step {step}; lower generate.small.learning_rate"
                f" ({small.learning_rate:g})"
            )
        if len(recent) == LOG_STEPS or step == steps - 1:
            run.metric("loss", sum(recent) / len(recent), step=step + 1)
            recent = []
    return Denoiser(model.eval(), tokenizer)


def denoising_loss(model: Any, ids: Tensor, ratio: float, mask_id: int, generator: torch.Generator) -> Tensor:
    """Mean cross-entropy of the masked tokens of `ids` `(batch, tokens)`, given the masked text and the tokens before.

    A random share of the other tokens counts as well. Only tokens that count pass the output layer, the most expensive
    one.
    """
    real = ids != PAD
    hidden = mask_tokens(ids, ids >= len(SPECIAL_TOKENS), ratio, mask_id, generator)
    shifted = torch.cat([torch.full((len(ids), 1), START), ids[:, :-1]], dim=1)
    model_device = next(model.parameters()).device
    states = model.model(
        input_ids=hidden.to(model_device),
        attention_mask=real.long().to(model_device),
        decoder_input_ids=shifted.to(model_device),
    ).last_hidden_state
    counted = real & ((hidden != ids) | (torch.rand(ids.shape, generator=generator) < KEPT_SHARE))
    counted[:, 0] = True  # never an empty mean
    counted = counted.to(model_device)
    return cross_entropy(model.lm_head(states[counted]) + model.final_logits_bias, ids.to(model_device)[counted])


def schedule(step: int, steps: int) -> float:
    """Share of the learning rate at a step: linear warm-up, then linear decay to 2 %."""
    warmup = min(WARMUP_STEPS, max(1, steps // 10))
    return min(1.0, (step + 1) / warmup) * max(0.02, 1 - step / steps)


def batches(ids: Sequence[Sequence[int]], size: int, steps: int, seed: int) -> Iterator[list[int]]:
    """`steps` batches of row numbers, epoch after epoch in new order, rows of like length together."""
    order = random.Random(seed)
    remaining = steps
    while True:
        rows = list(range(len(ids)))
        order.shuffle(rows)
        epoch = []
        for start in range(0, len(rows), 50 * size):
            window = sorted(rows[start : start + 50 * size], key=lambda row: len(ids[row]))
            epoch += [window[first : first + size] for first in range(0, len(window), size)]
        order.shuffle(epoch)
        for batch in epoch:
            if remaining == 0:
                return
            remaining -= 1
            yield batch


def padded(ids: Sequence[Sequence[int]], rows: Sequence[int]) -> Tensor:
    """The named rows as one tensor `(len(rows), longest)`."""
    longest = max(len(ids[row]) for row in rows)
    return torch.tensor([[*ids[row], *[PAD] * (longest - len(ids[row]))] for row in rows])

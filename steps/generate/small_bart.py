"""The small BART: a tokenizer, and a model that starts as a copier and learns to write masked texts back."""

import math
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerFast

from slimtower.common.errors import UserError
from steps.core.progress import progress
from steps.encoders.towers import device
from steps.generate.denoiser import MAX_TOKENS, Denoiser, mask_tokens
from steps.generate.params import GenerateParams
from steps.tracking.runs import Run

WARMUP_STEPS = 100
LOG_STEPS = 20
MASK_RATIO = 0.3  # more than when writing, as only masked tokens teach anything
KEPT_SHARE = 0.15  # of the tokens that are not masked: the model starts as a copier and only has to stay one
SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]  # ids 0 to 4, as in BART
PAD, START = SPECIAL_TOKENS.index("<pad>"), SPECIAL_TOKENS.index("</s>")  # BART's decoder starts from </s>
VOCABULARY = 6000  # byte-level BPE tokens, trained on the same texts
WIDTH, LAYERS, HEADS = 192, 2, 4  # layers of the encoder, and as many of the decoder; attention heads a layer
BATCH_SIZE = 32  # texts a step
LEARNING_RATE = 2.0e-3  # of AdamW
COPY_SHARPNESS = 1.5
TOKEN_GAIN = 2.5  # over BART's 0.02, at which tied output logits start too flat to copy


def train_denoiser(texts: Sequence[str], params: GenerateParams, run: Run) -> Denoiser:
    """Train tokenizer and small BART on the texts; logs the loss; UserError when it stops being finite."""
    tokenizer = train_tokenizer(texts, VOCABULARY)
    model: Any = new_small_bart(len(tokenizer), MAX_TOKENS + 2, params.seed, width=WIDTH, heads=HEADS)
    model.to(device()).train()
    ids: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=MAX_TOKENS)["input_ids"]
    generator = torch.Generator().manual_seed(params.seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    steps = max(1, math.ceil(params.small.epochs * len(ids) / BATCH_SIZE))
    recent: list[float] = []
    mask_id = tokenizer.mask_token_id
    for step, rows in enumerate(progress(batches(ids, BATCH_SIZE, steps, params.seed), steps, "small BART")):
        for group in optimiser.param_groups:
            group["lr"] = LEARNING_RATE * schedule(step, steps)
        loss = denoising_loss(model, padded(ids, rows), MASK_RATIO, mask_id, generator)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        recent.append(loss.item())
        if not math.isfinite(recent[-1]):
            raise UserError(f"generate: the loss is {recent[-1]} at step {step}; name a model in generate.model")
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

    def epochs() -> Iterator[list[int]]:
        while True:
            rows = list(range(len(ids)))
            order.shuffle(rows)
            epoch = []
            for start in range(0, len(rows), 50 * size):
                window = sorted(rows[start : start + 50 * size], key=lambda row: len(ids[row]))
                epoch += [window[first : first + size] for first in range(0, len(window), size)]
            order.shuffle(epoch)
            yield from epoch

    return islice(epochs(), steps)


def padded(ids: Sequence[Sequence[int]], rows: Sequence[int]) -> Tensor:
    """The named rows as one tensor `(len(rows), longest)`."""
    longest = max(len(ids[row]) for row in rows)
    return torch.tensor([[*ids[row], *[PAD] * (longest - len(ids[row]))] for row in rows])


def train_tokenizer(texts: Sequence[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE with BART's special tokens, trained on the texts; `vocabulary` entries at most."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), SPECIAL_TOKENS, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def new_small_bart(tokens: int, positions: int, seed: int, *, width: int, heads: int) -> BartForConditionalGeneration:
    """A BART over `tokens` tokens that starts out as a copier of at most `positions` tokens."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = BartForConditionalGeneration(
            BartConfig(
                vocab_size=tokens,
                max_position_embeddings=positions,
                d_model=width,
                encoder_layers=LAYERS,
                decoder_layers=LAYERS,
                encoder_attention_heads=heads,
                decoder_attention_heads=heads,
                encoder_ffn_dim=2 * width,
                decoder_ffn_dim=2 * width,
                dropout=0.0,
                attention_dropout=0.0,
                activation_dropout=0.0,
                forced_eos_token_id=None,
            )
        )
    start_as_copier(model, seed)
    return model


def start_as_copier(model: Any, seed: int) -> None:
    """Let every decoder position attend to the encoder position of its index and pass that token on.

    Both stacks get equal random positions inside a subspace; cross-attention compares inside it and passes on what lies
    outside. Five thousand queries do not teach a fresh decoder to copy within a minute of CPU time (measured: 42 % of
    the tokens after 300 steps of 32); from here all of the training goes into filling masks.
    """
    width = model.config.d_model
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model.model.shared.weight.mul_(TOKEN_GAIN)
        count = len(model.model.encoder.embed_positions.weight)
        rank = min(count, width // 2)
        basis = torch.linalg.qr(torch.randn(width, rank, generator=generator)).Q
        # as large as the token embeddings, so that neither drowns the other
        size = model.config.init_std * TOKEN_GAIN * (width / rank) ** 0.5
        positions = size * torch.randn(count, rank, generator=generator) @ basis.T
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.weight.copy_(positions)
        inside, identity = basis @ basis.T, torch.eye(width)
        for layer in model.model.decoder.layers:
            attention = layer.encoder_attn
            attention.q_proj.weight.add_(COPY_SHARPNESS * inside)
            attention.k_proj.weight.add_(COPY_SHARPNESS * inside)
            attention.v_proj.weight.add_(identity - inside)
            attention.out_proj.weight.add_(identity)

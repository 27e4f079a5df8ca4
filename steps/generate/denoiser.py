"""x' = Dec(Enc(mask(x)) + eps): a seq2seq model that writes variants of texts (EmbedDistill, Sec. 4.3)."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from tokenizers import Tokenizer, processors
from tokenizers.implementations.byte_level_bpe import ByteLevelBPETokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import BaseModelOutput

from slimtower.common.errors import UserError
from steps.core.progress import progress
from steps.encoders.bases import resolve_base
from steps.encoders.model_loading import check_tokenizer, loading
from steps.encoders.precision import device
from steps.encoders.towers import positions_of
from steps.generate.params import GenerateParams
from steps.tracking.runs import Run

MASK_RATIO = 0.1  # chance of each token to be masked; every query loses at least one token
TOP_K = 10  # tokens to draw from
TEMPERATURE = 0.7  # of the draw; below 1 = closer to the likeliest
MAX_TOKENS = 32  # of a query, read and written
WARMUP_STEPS = 100
LOG_STEPS = 20
TRAINING_MASK_RATIO = 0.3  # more than when writing, as only masked tokens teach anything
KEPT_SHARE = 0.15  # of the tokens that are not masked: the model starts as a copier and only has to stay one
SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]  # ids 0 to 4, as in BART
PAD, START = SPECIAL_TOKENS.index("<pad>"), SPECIAL_TOKENS.index("</s>")  # BART's decoder starts from </s>
VOCABULARY = 6000  # byte-level BPE tokens, trained on the same texts
WIDTH, LAYERS, HEADS = 192, 2, 4  # layers of the encoder, and as many of the decoder; attention heads a layer
BATCH_SIZE = 32  # texts a step
LEARNING_RATE = 2.0e-3  # of AdamW
COPY_SHARPNESS = 1.5
TOKEN_GAIN = 2.5  # over BART's 0.02, at which tied output logits start too flat to copy


@dataclass(frozen=True)
class Denoiser:
    """An encoder-decoder and its tokenizer."""

    model: Any
    tokenizer: Any


@dataclass(frozen=True)
class Variants:
    """One decoded text a source, in their order, and the share of maskable tokens that were masked."""

    texts: list[str]
    masked_share: float


def load_denoiser(params: GenerateParams) -> Denoiser:
    """The pretrained seq2seq model `model`; UserError if it cannot be loaded or mask, or reads too few tokens."""
    name = params.model
    instead = 'generate.model a seq2seq folder or a reachable name such as facebook/bart-base, or "" for the small BART'
    loaded = load_seq2seq(name, instead, "model", MAX_TOKENS)
    if loaded.tokenizer.mask_token_id is None or loaded.tokenizer.pad_token_id is None:
        raise UserError(
            f"params.yaml: generate.model {name!r} has no mask or padding token; choose a model of the BART family"
        )
    return loaded


def load_seq2seq(name: str, instead: str, knob: str, length: int) -> Denoiser:
    """A pretrained model that a knob names; UserError if it cannot be loaded, or reads fewer tokens than `length`."""
    folder = resolve_base(name)
    with loading(folder, instead):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        model = AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=False)
        check_tokenizer(tokenizer, model, folder)
    positions = positions_of(model)
    if positions is not None and length > positions:
        raise UserError(
            f"params.yaml: generate.{knob}: {name} has {positions} positions, but reads {length} tokens; name another"
            " one"
        )
    return Denoiser(ready_to_write(model.float()), tokenizer)


def ready_to_write(model: Any) -> Any:
    """The model on the device; of the settings that it was saved with, its special tokens alone stay."""
    tokens = {name: value for name, value in model.generation_config.to_dict().items() if name.endswith("_token_id")}
    model.generation_config = GenerationConfig(**tokens)
    return model.to(device()).eval()


def fits(denoiser: Denoiser, texts: Sequence[str]) -> list[bool]:
    """Whether the model reads each text to its end: what it wrote of a part would pass for a new query."""
    return [len(ids) <= MAX_TOKENS for ids in denoiser.tokenizer(list(texts))["input_ids"]]


def write_variants(
    denoiser: Denoiser, texts: Sequence[str], sigma: float, seed: int, params: GenerateParams
) -> Variants:
    """Decode one variant of each text under noise of deviation `sigma`; equal arguments give equal texts."""
    generator = torch.Generator().manual_seed(seed)
    masked = maskable_total = 0

    def write(batch: list[str]) -> list[str]:
        nonlocal masked, maskable_total
        ids, attention, maskable = tokenize(denoiser, batch, MAX_TOKENS)
        hidden_ids = mask_tokens(ids, maskable, MASK_RATIO, denoiser.tokenizer.mask_token_id, generator)
        masked += int((hidden_ids != ids).sum())
        maskable_total += int(maskable.sum())
        states = encoder_states(denoiser.model, hidden_ids, attention)
        return decode(denoiser, add_noise(states, sigma, generator), attention)

    written = by_length(texts, params.batch_size, seed, f"generate, sigma {sigma:g}", write)
    return Variants(written, masked / max(1, maskable_total))


def by_length(
    texts: Sequence[str], batch_size: int, seed: int, caption: str, write: Callable[[list[str]], list[str]]
) -> list[str]:
    """What `write` makes of each text, in batches of texts of like length."""
    order = sorted(range(len(texts)), key=lambda index: (len(texts[index]), index))
    written = [""] * len(texts)
    with torch.random.fork_rng(), torch.inference_mode():
        torch.manual_seed(seed)  # sampling in `generate` draws from the global generator
        starts = range(0, len(order), batch_size)
        for start in progress(starts, len(starts), caption):
            rows = order[start : start + batch_size]
            for index, text in zip(rows, write([texts[index] for index in rows]), strict=True):
                written[index] = text
    return written


def tokenize(denoiser: Denoiser, texts: list[str], limit: int) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, attention mask and which tokens may be masked, each `(batch, tokens)`; at most `limit` tokens."""
    batch = denoiser.tokenizer(
        texts, truncation=True, max_length=limit, padding=True, return_special_tokens_mask=True, return_tensors="pt"
    )
    special = batch["special_tokens_mask"].bool() | ~batch["attention_mask"].bool()
    return batch["input_ids"], batch["attention_mask"], ~special


def encoder_states(model: Any, ids: Tensor, attention: Tensor) -> Tensor:
    """Enc(x): last encoder states `(batch, tokens, dim)` on the model's device."""
    outputs = model.get_encoder()(input_ids=ids.to(model.device), attention_mask=attention.to(model.device))
    states: Tensor = outputs.last_hidden_state
    return states


def add_noise(states: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """States plus eps ~ N(0, sigma^2 I), drawn on the CPU so that every device sees the same noise."""
    noise = torch.randn(states.shape, generator=generator)
    return states + sigma * noise.to(states.device, states.dtype)


def decode(denoiser: Denoiser, states: Tensor, attention: Tensor) -> list[str]:
    """Dec(states): one text a row, by seeded sampling."""
    ids = denoiser.model.generate(
        encoder_outputs=BaseModelOutput(last_hidden_state=states),
        attention_mask=attention.to(states.device),
        max_new_tokens=MAX_TOKENS,
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=TOP_K,
    )
    texts: list[str] = denoiser.tokenizer.batch_decode(ids, skip_special_tokens=True)
    return [" ".join(text.split()) for text in texts]


def mask_tokens(ids: Tensor, maskable: Tensor, ratio: float, mask_id: int, generator: torch.Generator) -> Tensor:
    """Copy of `ids` `(batch, tokens)` in which each `maskable` token is `mask_id` with chance `ratio`.

    A row that no draw hits loses one random maskable token all the same, unless `ratio` is 0: the decoder would copy a
    query that passes whole. EmbedDistill, Sec. 4.3 and App. E.
    """
    if ratio == 0:
        return ids.clone()
    draws = torch.rand(ids.shape, generator=generator).masked_fill(~maskable, 2.0)
    hit = draws < ratio
    smallest = torch.zeros_like(hit)
    smallest[torch.arange(len(ids)), draws.argmin(dim=1)] = True
    hit |= smallest & maskable & ~hit.any(dim=1, keepdim=True)
    return ids.masked_fill(hit, mask_id)


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
        batch = pad_sequence([torch.tensor(ids[row]) for row in rows], batch_first=True, padding_value=PAD)
        loss = denoising_loss(model, batch, TRAINING_MASK_RATIO, mask_id, generator)
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

    A random KEPT_SHARE of the other tokens counts as well. Only tokens that count pass the costly output layer.
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


def train_tokenizer(texts: Sequence[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE with BART's special tokens, trained on the texts; `vocabulary` entries at most."""
    trained = ByteLevelBPETokenizer(add_prefix_space=True)
    trained.train_from_iterator(iter(texts), vocabulary, special_tokens=list(SPECIAL_TOKENS), show_progress=False)
    tokenizer = Tokenizer.from_str(trained.to_str())
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
    outside. Five thousand queries do not teach a fresh decoder to copy within a minute of CPU time.
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

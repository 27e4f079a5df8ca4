"""A small BART and its byte-level tokenizer, made for the texts at hand."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerFast

from steps.core.params.generate import SmallBartParams

SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]  # ids 0 to 4, as in BART
COPY_SHARPNESS = 1.5


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
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        mask_token="<mask>",
    )


def new_small_bart(tokens: int, positions: int, params: SmallBartParams, seed: int) -> BartForConditionalGeneration:
    """A BART over `tokens` tokens that starts out as a copier of at most `positions` tokens."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = BartForConditionalGeneration(
            BartConfig(
                vocab_size=tokens,
                max_position_embeddings=positions,
                d_model=params.d_model,
                encoder_layers=params.layers,
                decoder_layers=params.layers,
                encoder_attention_heads=params.heads,
                decoder_attention_heads=params.heads,
                encoder_ffn_dim=2 * params.d_model,
                decoder_ffn_dim=2 * params.d_model,
                dropout=0.0,
                attention_dropout=0.0,
                activation_dropout=0.0,
                forced_eos_token_id=None,
            )
        )
    start_as_copier(model)
    return model


def start_as_copier(model: Any) -> None:
    """Let every decoder position attend to the encoder position of its index and pass its token on.

    Sinusoidal positions, equal on both sides, and cross-attention near the identity. Five thousand queries do not
    teach a fresh decoder to copy within a minute of CPU time; starting there, training is spent on filling masks.
    """
    with torch.no_grad():
        for stack in (model.model.encoder, model.model.decoder):
            positions = stack.embed_positions.weight
            # root mean square equal to that of the token embeddings, so that neither drowns the other
            positions.copy_(sinusoids(*positions.shape) * math.sqrt(2) * model.config.init_std)
        identity = torch.eye(model.config.d_model)
        for layer in model.model.decoder.layers:
            attention = layer.encoder_attn
            for projection, weight in (
                (attention.q_proj, COPY_SHARPNESS),
                (attention.k_proj, COPY_SHARPNESS),
                (attention.v_proj, 1.0),
                (attention.out_proj, 1.0),
            ):
                projection.weight.add_(weight * identity)


def sinusoids(positions: int, dim: int) -> Tensor:
    """Sine and cosine of each position at geometric frequencies, `(positions, dim)`, interleaved."""
    steps = torch.arange(positions, dtype=torch.float32)[:, None]
    frequencies = torch.exp(torch.arange(0, dim, 2, dtype=torch.float32) * (-math.log(1000.0) / dim))
    return torch.stack([torch.sin(steps * frequencies), torch.cos(steps * frequencies)], dim=2).flatten(1)[:, :dim]

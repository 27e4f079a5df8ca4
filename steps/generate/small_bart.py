"""A small BART and its byte-level tokenizer, made for the texts at hand."""

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import BartConfig, BartForConditionalGeneration, PreTrainedTokenizerFast

from steps.generate.params import SmallBartParams

SPECIAL_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]  # ids 0 to 4, as in BART
COPY_SHARPNESS = 1.5
TOKEN_GAIN = 2.5  # over BART's 0.02, at which tied output logits start too flat to copy


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

"""Tiny random models of each kind that a stage loads, as folders; and what happens to folders on their way."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, StaticEmbedding
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2Model,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)  # fmt: skip

Weights = dict[str, torch.Tensor]
_WORDS = "alpha beta gamma delta sum rows plot how to add a two words text of few more than I do the table"
WORDS = _WORDS.split()
SPECIAL = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
NAMES = [*SPECIAL.values(), *WORDS]
SIZES: dict[str, Any] = {
    "vocab_size": len(NAMES), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 128,
}  # fmt: skip
BERT = SIZES | {"initializer_range": 0.3}


def write_tokenizer(folder: Path, **changes: str | None) -> None:
    """A vocabulary of words, with the special tokens of BERT; a token of None is not named."""
    raw = Tokenizer(WordLevel({name: row for row, name in enumerate(NAMES)}, unk_token="[UNK]"))
    raw.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    raw.post_processor = TemplateProcessing(  # type: ignore[assignment]
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = {name: token for name, token in (SPECIAL | changes).items() if token is not None}
    PreTrainedTokenizerFast(tokenizer_object=raw, **named).save_pretrained(folder)


def write_network(folder: Path, kind: Any, config: PretrainedConfig, **changes: str | None) -> Path:
    torch.manual_seed(0)
    kind(config).save_pretrained(folder)
    write_tokenizer(folder, **changes)
    return folder


def bert(folder: Path, **changes: str | None) -> Path:
    return write_network(folder, BertModel, BertConfig(**BERT), **changes)


def masked_language_model(folder: Path) -> Path:
    """A BERT with the head that it was trained with, and without a pooler."""
    return write_network(folder, BertForMaskedLM, BertConfig(**BERT))


def cross_encoder(folder: Path) -> Path:
    return write_network(folder, BertForSequenceClassification, BertConfig(**BERT, num_labels=1))


def llm(folder: Path) -> Path:
    config = Qwen2Config(**BERT, num_key_value_heads=1, eos_token_id=3)
    return write_network(folder, Qwen2ForCausalLM, config, eos_token="[SEP]")


def gpt2(folder: Path, **changes: str | None) -> Path:
    config = GPT2Config(
        vocab_size=len(NAMES), n_embd=16, n_layer=2, n_head=2, n_positions=128, initializer_range=0.3, bos_token_id=2,
        eos_token_id=3,
    )  # fmt: skip
    return write_network(folder, GPT2Model, config, **({"eos_token": "[SEP]"} | changes))


def bart(folder: Path) -> Path:
    config = BartConfig(
        vocab_size=len(NAMES), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=128, pad_token_id=0,
        bos_token_id=2, eos_token_id=3, decoder_start_token_id=3, forced_eos_token_id=3,
    )  # fmt: skip
    return write_network(folder, BartForConditionalGeneration, config, eos_token="[SEP]", bos_token="[CLS]")


def tower(folder: Path, network: Path, pooling: str = "mean", dense: int = 0) -> Path:
    """A sentence-transformers folder around a network."""
    transformer = Transformer(str(network))
    modules: list[Any] = [transformer, Pooling(16, pooling)]
    modules += [Dense(16, dense)] if dense else []
    SentenceTransformer(modules=[*modules, Normalize()], device="cpu").save_pretrained(
        str(folder), create_model_card=False
    )
    return folder


def static(folder: Path) -> Path:
    raw = Tokenizer(WordLevel({name: row for row, name in enumerate(NAMES)}, unk_token="[UNK]"))
    raw.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    table = StaticEmbedding(raw, embedding_weights=torch.randn(len(NAMES), 8))
    SentenceTransformer(modules=[table], device="cpu").save_pretrained(str(folder), create_model_card=False)
    return folder


def changed_weights(folder: Path, change: Callable[[Weights], Weights], module: str = "") -> Path:
    """The folder with other weights in its file, or in that of a module."""
    file = folder / module / "model.safetensors"
    weights = {name: tensor.clone() for name, tensor in load_file(file).items()}
    save_file(change(weights), file, metadata={"format": "pt"})
    return folder


def changed_json(path: Path, **changes: Any) -> None:
    """A JSON file with some values changed; None takes one out."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def prefixed(prefix: str) -> Callable[[Weights], Weights]:
    return lambda weights: {prefix + name: tensor for name, tensor in weights.items()}


def without(part: str) -> Callable[[Weights], Weights]:
    return lambda weights: {name: tensor for name, tensor in weights.items() if part not in name}


def narrower(part: str) -> Callable[[Weights], Weights]:
    """The file's matrices of that name have a column less."""
    return lambda weights: {
        name: tensor[..., :-1].contiguous() if part in name else tensor for name, tensor in weights.items()
    }


def without_tokenizer(folder: Path) -> Path:
    for path in folder.glob("*token*"):
        path.unlink()
    return folder

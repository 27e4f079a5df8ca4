"""A student's vocabulary cut to what the texts of the corpus consist of: of a hundred languages few tokens are read."""

import json
from collections.abc import Iterable
from itertools import chain, islice
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from torch import nn

from slimtower.common.errors import UserError

_CHUNK = 4096  # texts
_CUT = ("Unigram", "WordPiece")


def used_tokens(tokenizer: Tokenizer, texts: Iterable[str]) -> np.ndarray:
    """Ids, ascending, of the tokens of texts, of special ones, and of single letters, by which any text can be read."""
    reader = Tokenizer.from_str(tokenizer.to_str())  # what is set below stays here
    reader.no_padding()
    reader.no_truncation()
    vocabulary = reader.get_vocab(with_added_tokens=True)
    used = np.zeros(max(vocabulary.values()) + 1, dtype=bool)
    used[list(reader.get_added_tokens_decoder())] = True
    described = json.loads(reader.to_str())["model"]
    if described["type"] not in _CUT:
        raise UserError(
            f"distill.student: vocabulary: used: the tokenizer is a {described['type']} model, and only"
            f" {' and '.join(_CUT)} can be cut; set vocabulary: all"
        )
    marks = (described.get("continuing_subword_prefix") or "", "▁")
    single = [
        number for token, number in vocabulary.items() if any(len(token.removeprefix(mark)) == 1 for mark in marks)
    ]
    used[single] = True
    unknown = described.get("unk_id", vocabulary.get(described.get("unk_token")))
    if unknown is not None:
        used[unknown] = True
    remaining = iter(texts)
    while chunk := list(islice(remaining, _CHUNK)):
        for encoding in reader.encode_batch_fast(chunk, add_special_tokens=True):
            used[encoding.ids] = True
    return np.flatnonzero(used)


def cut_tokenizer(tokenizer: Tokenizer, token_ids: np.ndarray) -> Tokenizer:
    """The same tokenizer with the tokens `token_ids` alone, numbered in their order."""
    number = {int(old): new for new, old in enumerate(token_ids)}
    state = json.loads(tokenizer.to_str())
    model = state["model"]
    if model["type"] == "Unigram":
        model["vocab"] = [model["vocab"][old] for old in number if old < len(model["vocab"])]
        model["unk_id"] = number.get(model["unk_id"])
    else:
        model["vocab"] = {token: number[old] for token, old in model["vocab"].items() if old in number}
    for token in state["added_tokens"]:
        token["id"] = number[token["id"]]
    if state["padding"]:
        state["padding"]["pad_id"] = number[state["padding"]["pad_id"]]
    _renumber(state["post_processor"], number)
    return Tokenizer.from_str(json.dumps(state))


def cut_transformer(tower: SentenceTransformer, texts: Iterable[str]) -> None:
    """Leave a transformer only the tokens that it needs for texts and prompts; embeddings of these stay the same."""
    first: Any = tower[0]
    tokenizer, network = first.tokenizer, first.auto_model
    token_ids = used_tokens(tokenizer._tokenizer, chain(filter(None, tower.prompts.values()), texts))
    if (
        tokenizer.pad_token_id is not None
        and int(np.searchsorted(token_ids, tokenizer.pad_token_id)) != tokenizer.pad_token_id
    ):
        raise UserError(
            "distill.student: vocabulary: used: the padding token would get another number; set vocabulary: all"
        )
    rows = network.get_input_embeddings()
    smaller = nn.Embedding(len(token_ids), rows.embedding_dim, padding_idx=rows.padding_idx, device=rows.weight.device)
    smaller.weight.data.copy_(rows.weight.data[token_ids])
    network.set_input_embeddings(smaller)
    for name, value in {"vocab_size": len(token_ids), **_special_ids(network.config, token_ids)}.items():
        setattr(network.config, name, value)
    tokenizer._tokenizer = cut_tokenizer(tokenizer._tokenizer, token_ids)


def _special_ids(config: Any, token_ids: np.ndarray) -> dict[str, int]:
    old = {
        name: getattr(config, name, None) for name in ("bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id")
    }
    return {name: int(np.searchsorted(token_ids, value)) for name, value in old.items() if isinstance(value, int)}


def _renumber(part: Any, number: dict[int, int]) -> None:
    if not part:
        return
    for inner in part.get("processors", ()):
        _renumber(inner, number)
    for name in ("sep", "cls"):  # of BERT's and RoBERTa's
        if isinstance(part.get(name), list):
            part[name][1] = number[part[name][1]]
    if part["type"] == "TemplateProcessing":
        for token in part["special_tokens"].values():
            token["ids"] = [number[old] for old in token["ids"]]

"""Students: what each is made of, and how it reads a batch of token ids."""

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from torch import Tensor, nn

from steps.core.towers import device, load_tower, trains_with_plain_attention
from steps.distill.params import DistillParams, EmbedDistillParams, StaticParams, StudentParams
from steps.distill.starts import fresh, layer_subset, pretrained
from steps.distill.token_tables import token_table
from steps.distill.tokens import Tokens, tokenize


class Student(Protocol):
    """A query tower under training; `pads`: whether a text costs as much as the longest of its batch."""

    tower: SentenceTransformer
    pads: bool

    def read(self, texts: list[str], max_length: int) -> Tokens:
        """The texts' tokens, cut to `max_length`."""

    def embed(self, tokens: Tokens, rows: np.ndarray) -> Tensor:
        """Embeddings of the rows' texts, `(len(rows), dim)`, with gradient."""

    def token_rows(self) -> nn.Parameter:
        """The embeddings of its tokens, `(vocabulary, width)`."""

    def finish(self) -> None:
        """Make the tower what it is to be saved as; its embeddings stay the same."""


class TransformerStudent:
    """A transformer with its pooling, projected to the teacher's width where its own differs."""

    pads = True

    def __init__(self, tower: SentenceTransformer, *, plain_attention: bool = False) -> None:
        """`plain_attention`: trains without PyTorch's fused attention, which computes the same."""
        self.tower = tower
        self.pad = tower.tokenizer.pad_token_id or 0
        self.attention = self._network().config._attn_implementation
        if plain_attention:
            self._network().set_attn_implementation("eager")

    def _network(self) -> Any:
        first: Any = self.tower[0]
        return first.auto_model

    def read(self, texts: list[str], max_length: int) -> Tokens:
        """The texts' tokens, with those that the tokenizer puts around a text, cut to `max_length`."""
        return tokenize(texts, self.tower.tokenizer, max_length, special=True)

    def embed(self, tokens: Tokens, rows: np.ndarray) -> Tensor:
        """Embeddings of the rows' texts, `(len(rows), dim)`."""
        lengths = tokens.lengths(rows)
        ids = np.full((len(rows), int(lengths.max())), self.pad, dtype=np.int64)
        mask = np.arange(ids.shape[1])[None, :] < lengths[:, None]
        ids[mask] = np.concatenate([tokens.row(row) for row in rows])
        features = {
            "input_ids": torch.from_numpy(ids).to(self.tower.device),
            "attention_mask": torch.from_numpy(mask.astype(np.int64)).to(self.tower.device),
        }
        return self.tower(features)["sentence_embedding"]

    def token_rows(self) -> nn.Parameter:
        """The input embeddings of its tokens, `(vocabulary, width)`."""
        rows: nn.Parameter = self._network().get_input_embeddings().weight
        return rows

    def finish(self) -> None:
        """Its own attention again."""
        self._network().set_attn_implementation(self.attention)


def untrained(
    chosen: StudentParams, teacher_folder: Path, embed: Path, texts: list[str], params: DistillParams
) -> Student:
    """The student that `chosen` describes, before its training."""
    teacher = load_tower(teacher_folder, "query")
    if isinstance(chosen, StaticParams):
        return token_table(teacher, embed, texts, chosen, params.max_length)
    longest = _longest(chosen, params)
    if chosen.layers:
        tower = layer_subset(teacher_folder, chosen.layers)
    elif chosen.base:
        tower = pretrained(chosen.base, teacher)
    else:
        assert chosen.fresh is not None  # params see to it
        tower = fresh(chosen.fresh, teacher, texts, longest)
    plain = trains_with_plain_attention(params.precision, longest)
    return TransformerStudent(tower, plain_attention=plain)


def _longest(chosen: StudentParams, params: DistillParams) -> int:
    """Tokens of the longest text that it reads."""
    if isinstance(chosen, EmbedDistillParams) and chosen.towers == "symmetric":
        return max(params.max_length, chosen.max_document_length)
    return params.max_length


def router(student: SentenceTransformer, documents: SentenceTransformer) -> SentenceTransformer:
    """One model with the student on the query route and another tower on the document route."""
    routes = Router.for_query_document(query_modules=[*student], document_modules=[*documents])
    return SentenceTransformer(
        modules=[routes],
        device=device(),
        similarity_fn_name=documents.similarity_fn_name,
        prompts={"query": "", "document": documents.prompts.get("document") or ""},
    )

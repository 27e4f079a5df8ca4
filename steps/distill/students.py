"""Students: what each is made of, and how it reads a batch of token ids."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, assert_never

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from torch import Tensor, nn

from steps.core.corpus import CorpusTexts
from steps.distill.cut_vocabulary import cut_transformer
from steps.distill.initialisation import adapted, fit_projection, fresh, layer_subset, pretrained
from steps.distill.layer_pooling import pooled_states
from steps.distill.params import DistillParams, StudentParams
from steps.distill.sources import Sources
from steps.distill.starts import Adapter, Base, Fresh, Layers, Static
from steps.distill.static_embedding import static_embedding
from steps.distill.student import Student
from steps.distill.tokens import Tokens, tokenize
from steps.encoders.precision import device
from steps.encoders.towers import load_tower, remembering_states, trains_with_plain_attention


class TransformerStudent(Student):
    """A transformer with its pooling, projected to the teacher's dimension where its own differs."""

    pads = True

    def __init__(self, tower: SentenceTransformer, *, plain_attention: bool = False) -> None:
        """`plain_attention`: trains without PyTorch's fused attention, which computes the same."""
        super().__init__(tower)
        self.pad = tower.tokenizer.pad_token_id or 0
        self.attention = self.network.config._attn_implementation
        if plain_attention:
            self.network.set_attn_implementation("eager")

    @property
    def network(self) -> Any:
        first: Any = self.tower[0]
        return first.auto_model

    def tokenize(self, texts: list[str], max_length: int) -> Tokens:
        return tokenize(texts, self.tower.tokenizer, max_length, special=True)

    def embed(self, tokens: Tokens, rows: np.ndarray) -> Tensor:
        return self._embedding_of(self.features(tokens, rows))

    def embed_layers(self, tokens: Tokens, rows: np.ndarray, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The same, and pooled states of these layers, numbered from 0, `(len(rows), len(layers), width)`."""
        if not layers:
            raw = self.embed(tokens, rows)
            return raw, raw.new_zeros(len(rows), 0, 0)
        with remembering_states(self.network):
            features = self.tower[0](self.features(tokens, rows))
        states = pooled_states(self.tower[1], features, layers)
        return self._embedding_of(features, start=1), states

    def features(self, tokens: Tokens, rows: np.ndarray) -> dict[str, Tensor]:
        """What its network reads of the rows' texts, padded to the longest."""
        lengths = tokens.lengths(rows)
        ids = np.full((len(rows), int(lengths.max())), self.pad, dtype=np.int64)
        mask = np.arange(ids.shape[1])[None, :] < lengths[:, None]
        ids[mask] = np.concatenate([tokens.row(row) for row in rows])
        return {
            "input_ids": torch.from_numpy(ids).to(self.tower.device),
            "attention_mask": torch.from_numpy(mask.astype(np.int64)).to(self.tower.device),
        }

    def token_rows(self) -> nn.Parameter:
        rows: nn.Parameter = self.network.get_input_embeddings().weight
        return rows

    def finish(self) -> None:
        self.network.set_attn_implementation(self.attention)


def untrained(
    chosen: StudentParams, teacher_folder: Path, sources: Sources, training: np.ndarray, params: DistillParams
) -> Student:
    """The student that `chosen` describes, before its training; `training`: rows of the texts that train."""
    teacher = load_tower(teacher_folder, "query")
    longest = max(params.max_length, chosen.max_document_length if chosen.towers == "symmetric" else 0)
    cuts = chosen.vocabulary == "used"
    vocabulary_texts = chain(sources.strings, CorpusTexts(sources.ingest)) if cuts else None
    match chosen.start:
        case Static(static=described):
            texts = [sources.strings[row] for row in training]
            return static_embedding(teacher, sources.embed, texts, described, params.max_length, vocabulary_texts)
        case Layers(layers=layers):
            tower = layer_subset(teacher_folder, layers, prompts=not chosen.trains)
        case Base(base=base):
            tower = pretrained(base, teacher)
            fit_projection(tower, sources, training, params)
        case Fresh(fresh=described):
            tower = fresh(described, teacher, [sources.strings[row] for row in training], longest)
        case Adapter(adapter=name):
            tower = adapted(name, teacher, sources, params)
        case _:
            assert_never(chosen.start)
    if vocabulary_texts is not None:
        cut_transformer(tower, vocabulary_texts)
    return TransformerStudent(tower, plain_attention=trains_with_plain_attention(params.precision, longest))


def router(student: SentenceTransformer, documents: SentenceTransformer) -> SentenceTransformer:
    """One model with the student on the query route and another tower on the document route."""
    routes = Router.for_query_document(query_modules=[*student], document_modules=[*documents])
    return SentenceTransformer(
        modules=[routes],
        device=device(),
        similarity_fn_name=documents.similarity_fn_name,
        prompts={role: tower.prompts.get(role) or "" for role, tower in (("query", student), ("document", documents))},
    )

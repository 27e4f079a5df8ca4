"""Students: what each is made of, and how it reads a batch of token ids."""

from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from torch import Tensor, nn

from steps.core.errors import UserError
from steps.core.params.distill import LayerSubsetParams
from steps.core.towers import device, load_tower
from steps.distill.tokens import Tokens


class Student(Protocol):
    """A query tower under training."""

    tower: SentenceTransformer

    def embed(self, tokens: Tokens, rows: np.ndarray) -> Tensor:
        """Embeddings of the rows' texts, `(len(rows), dim)`, with gradient."""


class TokenTable:
    """One vector a token and their mean: a student without a transformer."""

    def __init__(self, teacher: SentenceTransformer, rows: np.ndarray) -> None:
        """Start from `rows` `(vocabulary, dim)`; normalised where the teacher is."""
        table = StaticEmbedding(teacher.tokenizer, embedding_weights=torch.from_numpy(rows).float())
        modules: list[nn.Module] = [table]
        if any(isinstance(module, Normalize) for module in teacher):
            modules.append(Normalize())
        self.tower = SentenceTransformer(
            modules=modules, device=device(), similarity_fn_name=teacher.similarity_fn_name
        )

    def embed(self, tokens: Tokens, rows: np.ndarray) -> Tensor:
        """Embeddings of the rows' texts, `(len(rows), dim)`."""
        parts = [tokens.row(row) for row in rows]
        starts = np.cumsum([0] + [len(part) for part in parts[:-1]])
        features = {
            "input_ids": torch.from_numpy(np.concatenate(parts)).long().to(self.tower.device),
            "offsets": torch.from_numpy(starts).long().to(self.tower.device),
        }
        return self.tower(features)["sentence_embedding"]


class LayerSubset:
    """Some of the teacher's layers between its own embedding and pooling layers."""

    def __init__(self, teacher_folder: Path, params: LayerSubsetParams) -> None:
        """Copy the teacher and keep the layers that params name; UserError for a layer it does not have."""
        self.tower = load_tower(teacher_folder)
        _forget_prompts(self.tower)
        transformer = self.tower[0]
        if not isinstance(transformer, Transformer):
            raise UserError(f"{teacher_folder}: its first module is no transformer, so it has no layers to keep")
        model = transformer.auto_model
        owner, name, blocks = _blocks(model, teacher_folder)
        depth = len(blocks)
        outside = [layer for layer in params.layers if not -depth <= layer < depth]
        if outside:
            raise UserError(f"distill.student: layers {outside} do not exist; the teacher's are 0 to {depth - 1}")
        setattr(owner, name, nn.ModuleList([blocks[layer % depth] for layer in params.layers]))
        model.config.num_hidden_layers = len(params.layers)
        self.pad = self.tower.tokenizer.pad_token_id or 0

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


def _blocks(model: nn.Module, folder: Path) -> tuple[nn.Module, str, nn.ModuleList]:
    """The model's transformer blocks: the module that holds them, under which name, and the list."""
    for path in ("encoder.layer", "transformer.layer", "encoder.layers", "layers"):
        holder, _, name = path.rpartition(".")
        owner = getattr(model, holder, None) if holder else model
        found = getattr(owner, name, None)
        if isinstance(owner, nn.Module) and isinstance(found, nn.ModuleList):
            return owner, name, found
    raise UserError(f"{folder}: no list of layers found in {type(model).__name__}; use a BERT-like encoder as teacher")


def _forget_prompts(tower: SentenceTransformer) -> None:
    """A student reads bare text: what the teacher's query prompt adds is in the targets that it learns."""
    tower.prompts = dict.fromkeys(tower.prompts, "")
    tower.default_prompt_name = None


def router(student: SentenceTransformer, teacher: SentenceTransformer) -> SentenceTransformer:
    """One model with the student on the query route and the teacher on the document route."""
    query, document = ([*model] for model in (student, teacher))
    routes = Router.for_query_document(query_modules=query, document_modules=document)
    return SentenceTransformer(
        modules=[routes],
        device=device(),
        similarity_fn_name=teacher.similarity_fn_name,
        prompts={"query": "", "document": teacher.prompts.get("document") or ""},
    )

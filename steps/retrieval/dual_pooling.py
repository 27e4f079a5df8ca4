"""Dual pooling: a cross encoder whose score is the inner product of two embeddings (EmbedDistill, Sec. 4.2, App. B).

A query and a document are read jointly, as `[CLS] query [SEP] document [SEP]`. Of the final token embeddings one is
pooled for each, given the other: *proxy* embeddings, which a dual encoder can learn.
"""

from pathlib import Path
from typing import Any, Literal

import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Module
from sentence_transformers.base.modules.transformer import Transformer
from torch import Tensor

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.encoders.towers import device, load_tower

Pooling = Literal["special_tokens", "segments"]
_MODULE = "1_DualPooling"


class DualPooling(Module):
    """Pools `query_embedding` and `document_embedding`, `(n, dim)`, and `scores` `(n, 1)`: `scale` times their product.

    special_tokens: the first [CLS], and the first [SEP], which stands before the document as [CLS] before the query
    (Eq. 13). segments: over the tokens of the query, and over those of the document, their sum divided by the square
    root of their number (Eq. 14); 0 for a text without tokens. The paper's `scale` is 1.
    """

    config_keys: list[str] = ["pooling", "scale", "cls_token_id", "sep_token_id"]  # noqa: RUF012

    def __init__(self, pooling: Pooling, scale: float, cls_token_id: int, sep_token_id: int) -> None:
        super().__init__()
        self.pooling, self.scale = pooling, scale
        self.cls_token_id, self.sep_token_id = cls_token_id, sep_token_id

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Add embeddings and scores, in float32 or float64, and `text_tokens` `(2, n, length)`: see `segments`."""
        tokens: Tensor = features["token_embeddings"]
        tokens = tokens if tokens.dtype == torch.float64 else tokens.float()
        ids, mask = features["input_ids"], features["attention_mask"]
        text_tokens = segments(ids, mask, self.cls_token_id, self.sep_token_id)
        with torch.autocast(tokens.device.type, enabled=False):
            if self.pooling == "segments":
                counted = text_tokens.to(tokens.dtype)
                sums = (counted[:, :, None] @ tokens)[:, :, 0]
                query, document = sums / counted.sum(dim=2, keepdim=True).clamp(min=1).sqrt()
            else:
                rows = torch.arange(len(ids), device=ids.device)
                query, document = (
                    tokens[rows, (ids == special).int().argmax(dim=1)]
                    for special in (self.cls_token_id, self.sep_token_id)
                )
            features["scores"] = self.scale * (query * document).sum(dim=1, keepdim=True)
        features |= {"query_embedding": query, "document_embedding": document, "text_tokens": text_tokens}
        return features

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """It has no weights."""
        self.save_config(output_path)


def segments(ids: Tensor, mask: Tensor, cls_token_id: int, sep_token_id: int) -> Tensor:
    """Which tokens are the query's and which the document's, boolean `(2, n, length)`; special ones are neither's.

    `ids` and `mask` `(n, length)` are the tokens of pairs and those that count; the query ends at the first [SEP].
    """
    counted = mask.bool()
    ends = (ids == sep_token_id) & counted
    behind = ends.int().cumsum(dim=1) > 0
    text = counted & ~ends & (ids != cls_token_id)
    return torch.stack([text & ~behind, text & behind])


def dual_pooled(base: str, pooling: Pooling, scale: float, max_length: int) -> CrossEncoder:
    """A base's network and tokenizer with dual pooling, in fp32; UserError for a tokenizer without [CLS] and [SEP]."""
    first: Any = load_tower(base, "query")[0]
    tokenizer = getattr(first, "tokenizer", None)
    cls, sep = (getattr(tokenizer, f"{name}_token_id", None) for name in ("cls", "sep"))
    if not isinstance(first, Transformer) or cls is None or sep is None:
        raise UserError(
            f"model {base}: has no tokens [CLS] and [SEP] around a query and a document; take an encoder like BERT or"
            " RoBERTa, or set pooling: cls"
        )
    return _assemble(first, DualPooling(pooling, scale, cls, sep), max_length)


def load_dual_pooled(source: str | Path, max_length: int | None = None) -> CrossEncoder | None:
    """The cross encoder that was saved in a folder with dual pooling; None where the folder holds another model."""
    folder = Path(source)
    listed = read_json(folder / "modules.json") if (folder / "modules.json").is_file() else []
    if not any(str(module["type"]).endswith(f".{DualPooling.__name__}") for module in listed):
        return None
    return _assemble(Transformer.load(str(folder)), DualPooling.load(str(folder), subfolder=_MODULE), max_length)


def is_dual_pooled(ranker: CrossEncoder) -> bool:
    """Whether it ends in dual pooling."""
    return isinstance(ranker[-1], DualPooling)


def _assemble(network: Transformer, pooling: DualPooling, max_length: int | None) -> CrossEncoder:
    network.model.config.num_labels = 1
    ranker = CrossEncoder(modules=[network, pooling], device=device()).float()
    if max_length is not None:
        ranker.max_seq_length = max_length
    return ranker

"""Late interaction: models that give every token a vector, the one way to load and run them, and vectors on disk."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.multi_vector_encoder.modules import BaseTokenPooling
from sentence_transformers.util import batch_to_device
from torch import Tensor, nn

from slimtower.common.errors import TransientError, UserError
from slimtower.common.names import Role
from steps.core.progress import progress
from steps.core.vector_store import Texts, text_key
from steps.encoders.model_loading import check_model, loading
from steps.encoders.precision import Precision, device
from steps.encoders.towers import autocast, forget_origin, name_document_prompt, remembering_states

PIECE = 512  # documents whose vectors are in memory at once: 200 MB of 256 tokens of 384 dimensions
_ELEMENTS = 20_000_000  # of documents' vectors that are multiplied at once: 80 MB
_NOTHING = -1e9  # MaxSim of a document without tokens


def load_late_interaction(source: str | Path) -> MultiVectorEncoder:
    """Load a MultiVectorEncoder from a folder or a Hugging Face name, in fp32; UserError when it cannot be loaded."""
    with loading(source, "a late interaction model's folder, or its name on the hub"):
        model = MultiVectorEncoder(str(source), device=device(), trust_remote_code=False).float()
        check_model(model, source)
    forget_origin(model)
    name_document_prompt(model.prompts)
    return model


def token_vectors(
    model: MultiVectorEncoder, texts: list[str], role: Role, *, precision: Precision, batch_size: int
) -> list[np.ndarray]:
    """Vectors of the tokens of each text that count, float32 `(tokens, dim)`; a batch has texts of like length."""
    embed = model.encode_query if role == "query" else model.encode_document
    window = 64 * batch_size
    vectors: list[np.ndarray] = []
    for start in range(0, len(texts), window):
        with torch.inference_mode(), autocast(precision):
            batch = embed(texts[start : start + window], batch_size=batch_size, show_progress_bar=False)
        vectors += [tensor.float().cpu().numpy() for tensor in batch]
    return vectors


def max_similarities(query: np.ndarray, documents: Sequence[np.ndarray]) -> np.ndarray:
    """`sum_x max_y q_x . d_y` of a query `(x, dim)` and each document `(y, dim)` (LEAD, Eq. 2): float32 `(documents,)`.

    In blocks of documents that are laid end to end, not padded. One without tokens is below all.
    """
    query_tokens = torch.from_numpy(query.astype(np.float32)).to(device())
    sums: list[Tensor] = []
    for block in _blocks(documents):
        block_tokens = torch.from_numpy(np.concatenate(block)).to(device()).float()
        products = (query_tokens @ block_tokens.T).split([len(document) for document in block], dim=1)
        sums += [
            similarity.amax(dim=1).sum() if similarity.shape[1] else query_tokens.new_tensor(_NOTHING)
            for similarity in products
        ]
    return torch.stack(sums).cpu().numpy() if sums else np.zeros(0, dtype=np.float32)


def _blocks(documents: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    block, size = list[np.ndarray](), 0
    for document in documents:
        if block and size + document.size > _ELEMENTS:
            yield block
            block, size = [], 0
        block.append(document)
        size += document.size
    if block:
        yield block


@contextmanager
def giving_layers(model: MultiVectorEncoder) -> Iterator[int]:
    """Let each token have the states of all layers, end to end, `(tokens, layers * width)`; yields how many they are.

    As they are: before a linear layer and before the normalisation (LEAD's published code).
    """
    network: Any = model[0]
    with remembering_states(network.auto_model):

        def stacked(_: nn.Module, __: Any, features: dict[str, Any]) -> dict[str, Any]:
            return features | {"token_embeddings": torch.cat(features["all_layer_embeddings"][1:], dim=-1)}

        hook = model.register_forward_hook(stacked)
        try:
            yield depth_of_late_interaction(model)
        finally:
            hook.remove()


def check_tokens_stay(model: MultiVectorEncoder) -> None:
    """UserError for a model that pools tokens: its layers have other ones than its vectors."""
    if pooling := [type(module).__name__ for module in model if isinstance(module, BaseTokenPooling)]:
        raise UserError(
            f"a late interaction model with {pooling[0]} gives no score for each layer; set score.layers: false, and"
            " name it in no layer_distillation"
        )


def layer_similarities(query: np.ndarray, document: np.ndarray, layers: int) -> np.ndarray:
    """MaxSim of a query `(x, layers * width)` and a document `(y, layers * width)`, by layer: float32 `(layers,)`."""
    query_states, document_states = (
        torch.from_numpy(states).view(len(states), layers, -1).to(device()) for states in (query, document)
    )
    products = torch.einsum("xlw,ylw->lxy", query_states, document_states)
    scores: np.ndarray = products.amax(dim=2).sum(dim=1).cpu().numpy()
    return scores


def depth_of_late_interaction(model: MultiVectorEncoder) -> int:
    """How many layers its transformer has."""
    network: Any = model[0]
    return int(network.auto_model.config.num_hidden_layers)


def token_states(
    model: MultiVectorEncoder, texts: list[str], role: Role, layers: Sequence[int], max_length: int | None = None
) -> tuple[list[Tensor], Tensor]:
    """Texts read at once: vectors of their tokens and states of these layers, numbered from 0, `(n, tokens, width)`
    each, and which tokens count, boolean `(n, tokens)`. States as in `giving_layers`.

    `max_length`: tokens of a text that are read; None = as many as the model can.
    """
    prompt = model.prompts.get(role) or None
    features = batch_to_device(model.preprocess(texts, prompt=prompt, task=role, max_length=max_length), model.device)
    network: Any = model[0]
    with remembering_states(network.auto_model):
        output = model(features, task=role)
    states = output["all_layer_embeddings"]
    return [output["token_embeddings"], *(states[1 + layer] for layer in layers)], output["attention_mask"].bool()


def paired_similarities(queries: Tensor, documents: Tensor, query_mask: Tensor, document_mask: Tensor) -> Tensor:
    """MaxSim of each query `(p, x, width)` with the document `(p, y, width)` beside it, at least in fp32: `(p,)`.

    `query_mask` `(p, x)` and `document_mask` `(p, y)`: which of their tokens count.
    """
    wide = torch.promote_types(queries.dtype, torch.float32)
    with torch.autocast(queries.device.type, enabled=False):
        products = queries.to(wide) @ documents.to(wide).transpose(1, 2)
        best = products.masked_fill(~document_mask[:, None, :], torch.finfo(wide).min).amax(dim=2)
    return best.masked_fill(~query_mask, 0).sum(dim=1)


def similarities(queries: Tensor, documents: Tensor, query_mask: Tensor, document_mask: Tensor) -> Tensor:
    """MaxSim of each query `(n, x, width)` with each document `(m, y, width)`, at least in fp32: `(n, m)`.

    `query_mask` `(n, x)` and `document_mask` `(m, y)`: which of their tokens count.
    """
    wide = torch.promote_types(queries.dtype, torch.float32)
    with torch.autocast(queries.device.type, enabled=False):
        products = torch.einsum("nxw,myw->nmxy", queries.to(wide), documents.to(wide))
        best = products.masked_fill(~document_mask[None, :, None, :], torch.finfo(wide).min).amax(dim=3)
    return best.masked_fill(~query_mask[:, None, :], 0).sum(dim=2)


class TokenVectors(Sequence[np.ndarray]):
    """Token vectors of documents on disk: `tokens.f16`, one behind the other, and `lengths.i64`, how many each has."""

    def __init__(self, folder: Path, dim: int) -> None:
        """Open what lies in `folder`, if there is one."""
        self.file, self.lengths_file, self.dim = folder / "tokens.f16", folder / "lengths.i64", dim
        self.ends = self._load_ends()

    def _load_ends(self) -> np.ndarray:
        """Where the documents that are whole on disk end."""
        if not (self.file.is_file() and self.lengths_file.is_file()):
            return np.zeros(1, dtype=np.int64)
        lengths = np.fromfile(self.lengths_file, dtype=np.int64)
        if (lengths < 1).any():  # zeros that a power failure left; each document has a token at least
            lengths = lengths[: int(np.argmax(lengths < 1))]
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        tokens = self.file.stat().st_size // (2 * self.dim)
        return ends[: int(np.searchsorted(ends, tokens, side="right"))]

    def _bytes(self, ends: np.ndarray) -> int:
        return 2 * int(ends[-1]) * self.dim

    def __len__(self) -> int:
        return len(self.ends) - 1

    def __getitem__(self, row: int) -> np.ndarray:  # type: ignore[override]  # no slices
        """Vectors of one document, float16 `(tokens, dim)`."""
        first, last = int(self.ends[row]), int(self.ends[row + 1])
        values = np.fromfile(self.file, np.float16, count=(last - first) * self.dim, offset=2 * first * self.dim)
        return values.reshape(-1, self.dim)

    def fill(
        self,
        model: MultiVectorEncoder,
        documents: Texts,
        *,
        precision: Precision,
        batch_size: int,
        shard_texts: int,
        caption: str,
    ) -> None:
        """Read the documents that are not here yet; a kill costs at most `shard_texts` of them, or PIECE.

        They have to be those of the run that began, and no other process may use the folder.
        """
        if len(self) == len(documents):
            return
        size = min(shard_texts, PIECE)
        shards = -(-(len(documents) - len(self)) // size)
        for shard in progress(_pieces(islice(documents, len(self), None), size), shards, caption):
            self.append(token_vectors(model, shard, "document", precision=precision, batch_size=batch_size))

    def append(self, documents: Sequence[np.ndarray]) -> None:
        """Add vectors of documents, `(tokens, dim)` each; if it is killed, the first of them or none.

        TransientError where the vectors before them are gone, UserError where one of these is not finite.
        """
        documents = [vectors.astype(np.float16) for vectors in documents]
        if not all(np.isfinite(vectors).all() for vectors in documents):
            raise UserError(
                "a token's vector is not finite in 16 bits; set score.precision: fp32, or train that teacher again"
            )
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.touch()
        with self.file.open("r+b") as handle:
            if handle.seek(0, 2) < self._bytes(self.ends):
                raise TransientError(f"{self.file}: vectors that were here are gone; another run may have removed them")
            handle.truncate(self._bytes(self.ends))  # what a killed run left
            handle.seek(0, 2)
            for vectors in documents:
                handle.write(vectors.tobytes())
        lengths = np.array([len(vectors) for vectors in documents], dtype=np.int64)
        self.lengths_file.touch()
        with self.lengths_file.open("r+b") as handle:
            if handle.seek(0, 2) < 8 * len(self):
                raise TransientError(f"{self.lengths_file}: is shorter than it was; another run may have removed it")
            handle.truncate(8 * len(self))
            handle.seek(0, 2)
            handle.write(lengths.tobytes())
        self.ends = np.concatenate([self.ends, self.ends[-1] + np.cumsum(lengths)])


def _pieces(texts: Iterator[str], size: int) -> Iterator[list[str]]:
    while piece := list(islice(texts, size)):
        yield piece


def digest_of_texts(settings: Sequence[object], texts: Texts) -> str:
    """32 hex digits of texts in their order, and of all that their vectors depend on besides."""
    key = sha256(repr(tuple(settings)).encode())
    for text in texts:
        key.update(text_key(text))
    return key.hexdigest()[:32]

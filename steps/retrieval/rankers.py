"""Rankers: CrossEncoder models that read a query and a document at once, and the one way to load and run them."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules import Module
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.util import batch_to_device
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.core.progress import progress
from steps.encoders.batch_check import check_batches
from steps.encoders.model_loading import check_model, loading, prompt_of, quiet
from steps.encoders.precision import Precision, device
from steps.encoders.towers import autocast, forget_origin, load_tower, remembering_states

Pooling = Literal["special_tokens", "segments"]
_MODULE = "1_DualPooling"
Pair = tuple[str, str]
"""Text of a query, text of a document."""


def load_ranker(source: str | Path, max_length: int | None = None, seed: int = 0) -> CrossEncoder:
    """Load a ranker from a folder or a Hugging Face name, in fp32; an encoder gets a random head, drawn by `seed`.

    `max_length`: tokens of a pair, None as saved. UserError if it cannot be loaded, or has several outputs.
    """
    with torch.random.fork_rng(), quiet():  # of a converted encoder and its new head
        torch.manual_seed(seed)
        instead = "a cross encoder's or encoder's folder, or its name on the hub"
        with loading(source, instead, new_head=True):
            ranker = load_dual_pooled(source, max_length) or CrossEncoder(
                str(source), device=device(), max_length=max_length, trust_remote_code=False
            )
            check_model(ranker, source)
    if ranker.num_labels != 1:
        raise UserError(
            f"model {source}: gives a pair {ranker.num_labels} outputs; take a cross encoder that gives one"
        )
    ranker.float()
    forget_origin(ranker)
    ranker.set_keep_in_fp32_modules(_heads(ranker) or _output_layer(ranker))
    return ranker


def has_random_head(ranker: CrossEncoder, source: str | Path, seed: int) -> bool:
    """Whether another seed than `seed`, by which it was loaded from `source`, gives other weights."""
    reseeded = load_ranker(source, seed=seed + 1).state_dict()
    return any(not torch.equal(tensor, reseeded[name]) for name, tensor in ranker.state_dict().items())


def check_pair_batches(ranker: CrossEncoder, name: str) -> None:
    """UserError where the score of a pair depends on the longer pairs of its batch."""

    def scores(texts: list[str]) -> list[np.ndarray]:
        pairs = [("a query", text) for text in texts]
        return list(pair_scores(ranker, pairs, precision="fp32", batch_size=len(pairs))[:, None])

    check_batches(scores, ranker.tokenizer, name)


def _heads(ranker: CrossEncoder) -> list[str]:
    """The layer that gives the score, by name: bf16 keeps 8 bits of it, and documents would tie."""
    layers = [
        name for name, layer in ranker.named_modules() if isinstance(layer, nn.Linear) and layer.out_features == 1
    ]
    return layers[-1:]


def _output_layer(ranker: CrossEncoder) -> list[str]:
    """What gives a language model's logits of tokens, of which the score of such a ranker is made; none of others."""
    network: Any = getattr(ranker, "model", None)
    find = getattr(network, "get_output_embeddings", None)
    output = find() if find else None
    return [name for name, layer in ranker.named_modules() if output is not None and layer is output][-1:]


def pair_scores(
    ranker: CrossEncoder, pairs: Sequence[Pair], *, precision: Precision, batch_size: int, caption: str = ""
) -> np.ndarray:
    """Logit of each pair, float32 `(len(pairs),)`, higher is better; shows progress when `caption` names the work.

    A batch has pairs of like length; where `max_seq_length` ends, the longer text is cut first.
    """
    window = 64 * batch_size
    starts = range(0, len(pairs), window)
    scores = np.zeros(len(pairs), dtype=np.float32)
    for start in progress(starts, len(starts), caption) if caption else starts:
        rows = slice(start, start + window)
        with torch.inference_mode(), autocast(precision):
            scores[rows] = ranker.predict(
                list(pairs[rows]), batch_size=batch_size, show_progress_bar=False, activation_fn=nn.Identity()
            )
    return scores


def pair_embeddings(
    ranker: CrossEncoder, pairs: Sequence[Pair], *, precision: Precision, batch_size: int
) -> np.ndarray:
    """What a ranker makes of each pair before it gives its score, float32 `(len(pairs), dim)`.

    With dual pooling the query's proxy embedding (EmbedDistill, Eq. 13 or 14), else the pair's joint embedding: what
    its last layer, w in `s = <w, emb>` (Eq. 2), reads. UserError for a ranker that ends in no such layer.
    """
    with _capture_head_inputs(ranker) as head_inputs:

        def embed(batch: list[Pair]) -> Tensor:
            features = ranker(_features(ranker, batch))
            embedded: Tensor = head_inputs.pop() if head_inputs else features["query_embedding"]
            if embedded.ndim != 2:
                raise UserError("a ranker whose head reads every token has no embedding of a pair; set score.pairs: 0")
            return embedded

        return _by_batches(embed, ranker, pairs, precision, batch_size)


def pair_layer_scores(
    ranker: CrossEncoder, pairs: Sequence[Pair], *, precision: Precision, batch_size: int
) -> np.ndarray:
    """What a ranker would say of each pair if it ended behind each of its layers, float32 `(len(pairs), layers)`.

    Its own head on that layer's states (LEAD, Sec. 3.2: `w` on the layer's [CLS]), or its dual pooling of them.
    """
    layers = range(ranker_depth(ranker))
    return _by_batches(lambda batch: layer_logits(ranker, batch, layers), ranker, pairs, precision, batch_size)


def check_layer_scores(ranker: CrossEncoder) -> None:
    """UserError if its head, given the states of the last layer, does not give the ranker's own score."""
    features = _features(ranker, [("a query", "a document"), ("a query", "a document that is longer")])
    was_training = ranker.training
    ranker.eval()
    try:
        with torch.inference_mode(), remembering_states(ranker.model):
            output = ranker(dict(features))
            replayed = _scores_of(ranker, features, output["all_layer_embeddings"][-1])
        is_same = torch.allclose(replayed.float().flatten(), output["scores"].float().flatten(), atol=1e-3)
    except torch.OutOfMemoryError:
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        is_same = False
    finally:
        ranker.train(was_training)
    if not is_same:
        raise UserError(
            f"a ranker of the kind {type(ranker.model).__name__} gives no score for each layer; set score.layers: false"
        )


def _features(ranker: CrossEncoder, pairs: Sequence[Pair], max_length: int | None = None) -> dict[str, Any]:
    """What its network reads of pairs; `max_length` tokens of each, None = as many as it can."""
    features = ranker.preprocess(list(pairs), prompt=prompt_of(ranker), max_length=max_length)
    return batch_to_device(features, ranker.device)


def _by_batches(
    compute: Callable[[list[Pair]], Tensor],
    ranker: CrossEncoder,
    pairs: Sequence[Pair],
    precision: Precision,
    batch_size: int,
) -> np.ndarray:
    order = sorted(range(len(pairs)), key=lambda row: -len(pairs[row][0]) - len(pairs[row][1]))
    by_row: dict[int, np.ndarray] = {}
    ranker.eval()
    with torch.inference_mode(), autocast(precision):
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            by_row |= dict(zip(rows, compute([pairs[row] for row in rows]).float().cpu().numpy(), strict=True))
    return np.stack([by_row[row] for row in range(len(pairs))])


def ranker_depth(ranker: CrossEncoder) -> int:
    """How many layers its transformer has."""
    network: Any = ranker.model
    return int(network.config.num_hidden_layers)


def layer_logits(
    ranker: CrossEncoder, pairs: Sequence[Pair], layers: Sequence[int], max_length: int | None = None
) -> Tensor:
    """What a ranker would say of pairs, read at once, behind each of these layers: float32 `(len(pairs), len(layers))`.

    Layers are numbered from 0. `max_length`: tokens of a pair that are read; None = as many as it can.
    """
    features = _features(ranker, pairs, max_length)
    with remembering_states(ranker.model):
        output = ranker(dict(features))
    states, last = output["all_layer_embeddings"], ranker_depth(ranker) - 1
    logits = [
        output["scores"] if layer == last else _scores_of(ranker, features, states[1 + layer]) for layer in layers
    ]
    return torch.stack([logit.float().flatten() for logit in logits], dim=1)


def _scores_of(ranker: CrossEncoder, features: dict[str, Any], states: Tensor) -> Tensor:
    """The scores of a batch, if its network ended in these states `(n, length, width)`."""
    if is_dual_pooled(ranker):
        return ranker[-1]({**features, "token_embeddings": states})["scores"]  # type: ignore[no-any-return]
    network: Any = ranker.model
    base = network.base_model
    pooler = getattr(base, "pooler", None)
    ended = BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=pooler(states) if pooler else None)
    base.forward = lambda *_, **__: ended
    try:
        return ranker(dict(features))["scores"]  # type: ignore[no-any-return]
    finally:
        del base.forward  # that of its class again


@contextmanager
def _capture_head_inputs(ranker: CrossEncoder) -> Iterator[list[Tensor]]:
    """The inputs of the layer that gives the score, a batch at a time; none with dual pooling: it has no such layer."""
    head_inputs: list[Tensor] = []
    if is_dual_pooled(ranker):
        yield head_inputs
        return
    heads = _heads(ranker)
    if not heads:
        raise UserError("a ranker whose score no linear layer gives has no joint embedding; set score.pairs: 0")
    hook = ranker.get_submodule(heads[0]).register_forward_pre_hook(lambda _, inputs: head_inputs.append(inputs[0]))
    try:
        yield head_inputs
    finally:
        hook.remove()


class DualPooling(Module):
    """Pools `query_embedding` and `document_embedding`, `(n, dim)`, and `scores` `(n, 1)`: `scale` times their product.

    A query and a document are read jointly, as `[CLS] query [SEP] document [SEP]`. For each a final token embedding is
    pooled, given the other: *proxy* embeddings, which a dual encoder can learn (EmbedDistill, Sec. 4.2, App. B).

    special_tokens: the first [CLS] and the first [SEP] (Eq. 13). segments: over the tokens of the query, and of the
    document, their sum divided by the square root of their number (Eq. 14); 0 without tokens. The paper's `scale` is 1.
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
    """Which tokens of pairs are the query's, to the first [SEP], and which the document's: boolean `(2, n, length)`."""
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

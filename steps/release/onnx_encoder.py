"""A transformer tower as one ONNX graph, from token ids to the embedding: in fp32, in int8, or in int8 in part.

All of its matrix products are in int8, or all but those that lose most by it; its activations are smoothed first. A
few channels of a transformer's activations are many times as large as the others, and int8 has one scale for them all.
Dividing each channel by a factor, and multiplying the rows of the weights by it, changes nothing in float32 and evens
the channels out. Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language
Models", 2023, Eq. 3 and 4. Here the division is a node of its own, as others may read what comes before a product.
"""

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import NodeProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers.optimizer import optimize_model
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from tokenizers import Tokenizer
from torch import Tensor, nn

from slimtower.common.errors import UserError
from slimtower.common.files import read_json, write_json
from slimtower.serving.query_encoder import TokenIds
from slimtower.serving.tower_files import query_pooling, tower_facts
from steps.encoders.model_loading import quiet
from steps.encoders.towers import load_tower

PRODUCTS = ("MatMul", "Attention")  # of the second input, a constant matrix, by the first
STRENGTH = 0.75  # alpha of Eq. 4; of 0.3 to 1.0 the best mean cosine on training queries, for two, four and six layers
_SMALLEST = 1e-5

TokenBatch = dict[str, np.ndarray]  # the inputs of the graph
OPSET = 17
NO_LIMIT = 10**9  # a tokenizer without a limit states a far larger number


class _Graph(nn.Module):
    """The tower as a function of tensors, truncated to its first `dim` dimensions."""

    def __init__(self, tower: SentenceTransformer, dim: int) -> None:
        super().__init__()
        self.tower, self.dim = nn.ModuleList(tower), dim
        self.renormalise = dim < (tower.get_embedding_dimension() or 0) and isinstance(tower[-1], Normalize)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Embeddings `(batch, dim)` of token ids `(batch, length)`."""
        features: dict[str, Tensor] = {"input_ids": input_ids, "attention_mask": attention_mask}
        for module in self.tower:
            features = module(features)
        embedding = features["sentence_embedding"][:, : self.dim]
        return nn.functional.normalize(embedding, dim=-1) if self.renormalise else embedding


def export_onnx(tower_folder: Path, out: Path, *, dim: int = 0) -> None:
    """Write `encoder.onnx`, `tokenizer.json` and `serving.json` to `out`, in fp32.

    The graph takes `input_ids` and `attention_mask`, int64 `(batch, length)`, and holds all modules and, above 0, the
    truncation to the first `dim` dimensions. UserError for a tower that cannot be one graph.
    """
    tower = load_tower(tower_folder).to("cpu").eval()
    transformer = _transformer(tower, tower_folder)
    out.mkdir(parents=True, exist_ok=True)
    full = tower.get_embedding_dimension() or 0
    dim = min(dim, full) if dim else full
    _write_graph(_Graph(tower, dim).eval(), transformer, out / "encoder.onnx")
    tokenizer = tower.tokenizer.backend_tokenizer
    if (side := tower.tokenizer.truncation_side) != "right":
        raise UserError(f"{tower_folder}/tokenizer.json: truncates on the {side}; set it to right")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    limits = [limit for limit in (transformer.query_length, transformer.max_seq_length) if limit and limit < NO_LIMIT]
    serving = {
        "format": "onnx",
        "precision": "fp32",
        "dim": dim,
        "max_length": min(limits, default=None),
        "normalise": isinstance(tower[-1], Normalize),
        "pooling": query_pooling(tower_facts(tower_folder, "query")),
        "prompt": tower.prompts.get("query") or "",
        "pad_id": tower.tokenizer.pad_token_id or 0,
    }
    write_json(out / "serving.json", serving)


def _transformer(tower: SentenceTransformer, folder: Path) -> Transformer:
    transformer = tower[0]
    if not isinstance(transformer, Transformer):
        raise UserError(f"{folder}: its first module is no transformer and no token table; distil another student")
    for module in list(tower)[1:]:
        if not isinstance(module, Pooling | Dense | Normalize):
            raise UserError(
                f"{folder}: a {type(module).__name__} cannot be exported; use pooling, projections and Normalize only"
            )
        if isinstance(module, Pooling) and not module.include_prompt and tower.prompts.get("query"):
            raise UserError(
                f"{folder}: its pooling leaves the query prompt out, which cannot be exported; give it no prompt"
            )
    return transformer


def _write_graph(graph: _Graph, transformer: Transformer, path: Path) -> None:
    """Trace, then fuse into onnxruntime's operators; fusion knows the plain form of attention."""
    transformer.auto_model.set_attn_implementation("eager")
    config = transformer.auto_model.config
    ids = torch.arange(16).reshape(2, 8) % config.vocab_size
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    axes = {0: "batch", 1: "length"}
    with TemporaryDirectory() as folder, torch.inference_mode(), quiet():
        traced = Path(folder) / "traced.onnx"
        torch.onnx.export(
            graph,
            (ids, mask),
            str(traced),
            input_names=["input_ids", "attention_mask"],
            output_names=["embedding"],
            dynamic_axes={"input_ids": axes, "attention_mask": axes, "embedding": {0: "batch"}},
            opset_version=OPSET,
            dynamo=False,  # the fusion cannot read the other exporter's graphs
        )
        heads, hidden = getattr(config, "num_attention_heads", 0), getattr(config, "hidden_size", 0)
        fused = optimize_model(str(traced), model_type="bert", num_heads=heads, hidden_size=hidden, opt_level=0)
        fused.save_model_to_file(str(path))


def smooth(source: Path, target: Path, batches: Iterable[TokenBatch]) -> None:
    """Write the graph with its activations smoothed; `batches` are token ids of texts like those to be read."""
    model = onnx.load(source)
    graph = model.graph
    constants = {initializer.name: initializer for initializer in graph.initializer}
    products = _products(graph)
    largest = _largest_activations(model, list(dict.fromkeys(node.input[0] for node in products)), batches)
    for node in products:
        weight = numpy_helper.to_array(constants[node.input[1]])
        factors = smoothing_factors(largest[node.input[0]], np.abs(weight).max(axis=1))
        _divide_before(graph, node, factors, weight)
    used = {name for node in graph.node for name in node.input}
    remaining = [initializer for initializer in graph.initializer if initializer.name in used]
    del graph.initializer[:]
    graph.initializer.extend(remaining)
    onnx.save(model, target)


def smoothing_factors(activations: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """What to divide channels by: `activations^alpha / weights^(1 - alpha)` of their maxima, of geometric mean 1."""
    high, low = np.maximum(activations, _SMALLEST), np.maximum(weights, _SMALLEST)
    exponents = STRENGTH * np.log(high) - (1 - STRENGTH) * np.log(low)
    factors: np.ndarray = np.exp(exponents - exponents.mean())
    return factors


def _divide_before(graph: onnx.GraphProto, node: NodeProto, factors: np.ndarray, weight: np.ndarray) -> None:
    name = f"{node.name}.smoothed"
    for suffix, array in ((".factors", 1 / factors), (".weight", weight * factors[:, None])):
        graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name + suffix))
    division = helper.make_node("Mul", [node.input[0], f"{name}.factors"], [name], name=f"{name}.divide")
    graph.node.insert(list(graph.node).index(node), division)
    node.input[0], node.input[1] = name, f"{name}.weight"


def _largest_activations(
    model: onnx.ModelProto, names: list[str], batches: Iterable[TokenBatch]
) -> dict[str, np.ndarray]:
    """Largest magnitude of each channel, `(channels,)`, of the named activations over all batches."""
    if not names:  # a graph whose products are of another kind, as GPT-2's: onnxruntime would give its outputs
        return {}
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    watched.graph.output.extend(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
    session = _session(watched.SerializeToString())
    largest: dict[str, np.ndarray] = {}
    for batch in batches:
        for name, activations in zip(names, session.run(names, batch), strict=True):
            channels = np.abs(activations).reshape(-1, activations.shape[-1]).max(axis=0)
            largest[name] = np.maximum(largest.get(name, 0), channels)
    return largest


def _session(graph: str | bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


EXACT_SHARE = 0.25  # of the products of a mixed graph stay in fp32
RANKED = 64  # texts by which those are chosen


def embed(graph: Path, batches: Iterable[TokenBatch]) -> np.ndarray:
    """Embeddings `(texts, dim)` by a graph."""
    session = _session(str(graph))
    return np.concatenate([session.run(None, batch)[0] for batch in batches])


def calibration(serving: Path, texts: list[str]) -> list[TokenBatch]:
    """Training queries, one a batch, as the encoder in `serving` reads them, to show how large activations are."""
    settings = read_json(serving / "serving.json")
    tokenize = TokenIds(Tokenizer.from_file(str(serving / "tokenizer.json")), settings["max_length"], special=True)
    ids = [np.array([tokenize(settings["prompt"] + text)], dtype=np.int64) for text in texts]
    return [{"input_ids": token_ids, "attention_mask": np.ones_like(token_ids)} for token_ids in ids]


def quantise_smoothed(source: Path, target: Path, batches: list[TokenBatch], exact_share: float = 0.0) -> None:
    """Write the graph in int8, smoothed first; a share of the products, those that lose most by int8, stays in fp32."""
    with TemporaryDirectory() as folder:
        smoothed, trial = Path(folder) / "smoothed.onnx", Path(folder) / "trial.onnx"
        smooth(source, smoothed, batches)
        names, few, errors = product_names(smoothed) if exact_share else [], batches[:RANKED], dict[str, float]()
        exact = embed(source, few) if names else np.empty(0)
        for name in names:
            quantise(smoothed, trial, exact=[product for product in names if product != name])
            errors[name] = float(np.linalg.norm(embed(trial, few) - exact, axis=1).mean())
        worst = sorted(names, key=lambda name: -errors[name])[: max(1, round(exact_share * len(names)))]
        quantise(smoothed, target, exact=worst)


def product_names(graph: Path) -> list[str]:
    """Names of the products by a constant matrix."""
    return [node.name for node in _products(onnx.load(graph).graph)]


def _products(graph: onnx.GraphProto) -> list[NodeProto]:
    constants = {initializer.name for initializer in graph.initializer}
    return [node for node in graph.node if node.op_type in PRODUCTS and node.input[1] in constants]


def quantise(source: Path, target: Path, exact: list[str] | None = None) -> None:
    """Write the graph with the weights of its matrix products in int8, a scale a column; those named in `exact` stay.

    Token embeddings stay float32: looking them up costs no time, and onnxruntime would give the whole table one scale.
    Weights use 7 bits. Without VNNI onnxruntime adds pairs of products in 16 bits, where 8-bit weights saturate: the
    graph would embed differently on another processor. Unsigned weights are exact too, but half as slow again.
    """
    with quiet():
        quantize_dynamic(
            source,
            target,
            op_types_to_quantize=list(PRODUCTS),
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=exact or [],
            # shape inference does not know onnxruntime's fused operators
            extra_options={"MatMulConstBOnly": True, "DefaultTensorType": onnx.TensorProto.FLOAT},
        )

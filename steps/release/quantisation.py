"""A graph in int8: all of its matrix products, or all but those that lose most by it."""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import QuantType, quantize_dynamic
from tokenizers import Tokenizer

from slimtower.common.files import read_json
from slimtower.serving.query_encoder import TokenIds
from steps.release.onnx_export import quiet
from steps.release.smoothing import PRODUCTS, TokenBatch, smooth

EXACT_SHARE = 0.25  # of the products of a mixed graph stay in fp32
RANKED = 64  # texts by which those are chosen


@dataclass(frozen=True)
class Calibration:
    """Texts, as token ids, that show how large activations are; training queries, never dev or test ones."""

    batches: list[TokenBatch]

    def embed(self, graph: Path) -> np.ndarray:
        """Embeddings `(texts, dim)` by a graph."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
        return np.concatenate([session.run(None, batch)[0] for batch in self.batches])


def calibration(serving: Path, texts: list[str]) -> Calibration:
    """Read the texts, one a batch, as the encoder in the folder `serving` does."""
    settings = read_json(serving / "serving.json")
    tokenize = TokenIds(Tokenizer.from_file(str(serving / "tokenizer.json")), settings["max_length"], special=True)
    ids = [np.array([tokenize(settings["prompt"] + text)], dtype=np.int64) for text in texts]
    return Calibration([{"input_ids": token_ids, "attention_mask": np.ones_like(token_ids)} for token_ids in ids])


def quantise_int8(source: Path, target: Path, samples: Calibration) -> None:
    """Write the graph in int8, its activations smoothed first."""
    with TemporaryDirectory() as folder:
        smoothed = Path(folder) / "smoothed.onnx"
        smooth(source, smoothed, samples.batches)
        quantise(smoothed, target)


def quantise_mixed(source: Path, target: Path, samples: Calibration) -> None:
    """The same, but a quarter of the products stay in fp32: those that alone in int8 move the embeddings most."""
    with TemporaryDirectory() as folder:
        smoothed, trial = Path(folder) / "smoothed.onnx", Path(folder) / "trial.onnx"
        smooth(source, smoothed, samples.batches)
        names, few = products(smoothed), Calibration(samples.batches[:RANKED])
        exact = few.embed(source)
        errors: dict[str, float] = {}
        for name in names:
            quantise(smoothed, trial, exact=[product for product in names if product != name])
            errors[name] = float(np.linalg.norm(few.embed(trial) - exact, axis=1).mean())
        worst = sorted(names, key=lambda name: -errors[name])[: max(1, round(EXACT_SHARE * len(names)))]
        quantise(smoothed, target, exact=worst)


def products(graph: Path) -> list[str]:
    """Names of the products by a constant matrix."""
    loaded = onnx.load(graph).graph
    constants = {initializer.name for initializer in loaded.initializer}
    return [node.name for node in loaded.node if node.op_type in PRODUCTS and node.input[1] in constants]


def quantise(source: Path, target: Path, exact: list[str] | None = None) -> None:
    """Write the graph with the weights of its matrix products in int8, a scale a column; those named in `exact` stay.

    Activations are quantised as they come, with one scale for all texts of a batch. The token embeddings stay float32:
    looking them up costs no time, and onnxruntime would give the whole table one scale.

    Weights use 7 of the 8 bits. Without VNNI instructions onnxruntime adds pairs of products (unsigned activations by
    signed weights) in 16 bits, where 8-bit weights saturate: such a graph would embed differently on another processor.
    Unsigned weights are exact everywhere too, but take half as long again with VNNI.
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

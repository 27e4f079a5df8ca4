"""Export of a transformer tower as one ONNX graph, from token ids to the embedding, in fp32."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from onnxruntime.transformers.optimizer import optimize_model
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from torch import Tensor, nn

from slimtower.common.errors import UserError
from slimtower.common.files import write_json
from slimtower.serving.tower_files import query_pooling, tower_facts
from steps.encoders.towers import load_tower

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

    The graph takes `input_ids` and `attention_mask`, int64 `(batch, length)`, and holds everything behind them:
    transformer, pooling, projection, normalisation and, above 0, truncation to the first `dim` dimensions. UserError
    for a tower made of anything else.
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
    """The tower's first module; UserError when the tower cannot be one graph."""
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


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the exporters' advice to their authors off the screen."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)

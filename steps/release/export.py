"""One way to export a student: as a token table or as an ONNX graph, in fp32 and in what is smaller."""

import shutil
from pathlib import Path
from typing import Literal

import numpy as np
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from torch import nn

from slimtower.common.errors import UserError
from slimtower.common.files import read_json, write_json
from slimtower.serving.query_encoder import ONNX_FILES, PROJECTION, TABLE_FILES
from steps.encoders.towers import load_tower
from steps.release.onnx_encoder import EXACT_SHARE, calibration, export_onnx, quantise_smoothed

Format = Literal["onnx", "table"]
Precision = Literal["int8", "mixed", "fp32"]  # mixed: int8, but for the products that lose most by it


def export(tower: Path, serving: Path, dim: int) -> Format:
    """Export the tower in fp32 to `serving`, truncated to `dim`, in the format of its kind, which is returned."""
    if isinstance(load_tower(tower)[0], StaticEmbedding):  # a mean of token vectors
        export_table(tower, serving, dim=dim)
        return "table"
    export_onnx(tower, serving, dim=dim)
    return "onnx"


def convert(exported: Path, target: Path, form: Format, precision: Precision, texts: list[str]) -> None:
    """Write an fp32 export in one of its precisions to `target`, a new folder; int8 is calibrated on `texts`."""
    target.mkdir(parents=True)
    shutil.copy2(exported / "tokenizer.json", target)
    write_json(target / "serving.json", read_json(exported / "serving.json") | {"precision": precision})
    if (exported / PROJECTION).is_file():
        shutil.copy2(exported / PROJECTION, target)
    files = TABLE_FILES if form == "table" else ONNX_FILES
    source, written = exported / files["fp32"][0], target / files[precision][0]
    if precision == "fp32":
        shutil.copy2(source, written)
    elif form == "table":
        quantise_table(source, target)
    else:
        share = EXACT_SHARE if precision == "mixed" else 0.0
        quantise_smoothed(source, written, calibration(exported, texts), share)


def export_table(tower_folder: Path, out: Path, *, dim: int = 0) -> None:
    """Write `table.npy`, `tokenizer.json` and `serving.json` to `out`; UserError for a tower that is no token table.

    A projection is multiplied into the rows, as the mean and a linear map commute; one to more dimensions becomes
    `projection.npy`, so that the table stays narrow. Above 0, only the first `dim` dimensions are kept.
    """
    tower = load_tower(tower_folder)
    static = tower[0]
    if not isinstance(static, StaticEmbedding):
        raise UserError(f"{tower_folder}: its first module is no token table")
    rows = static.embedding.weight.detach().float().cpu().numpy()
    projection, normalise = None, False
    for module in list(tower)[1:]:
        if isinstance(module, Dense) and not normalise:
            further = _projection(module, tower_folder)
            projection = further if projection is None else projection @ further
        elif isinstance(module, Normalize):
            normalise = True
        else:
            raise UserError(
                f"{tower_folder}: a {type(module).__name__} behind a token table cannot be exported; use a projection"
                " without activation and Normalize only"
            )
    if projection is not None and rows.shape[1] >= (dim or projection.shape[1]):
        rows, projection = rows @ projection, None
    if projection is None:
        rows = rows[:, :dim] if dim else rows
    else:
        projection = projection[:, :dim] if dim else projection
    truncation = static.tokenizer.truncation
    if truncation and truncation["direction"] != "right":
        raise UserError(f"{tower_folder}/tokenizer.json: truncates on the {truncation['direction']}; set it to right")
    out.mkdir(parents=True, exist_ok=True)
    np.save(out / "table.npy", np.ascontiguousarray(rows, dtype=np.float32))
    static.tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    serving = {
        "format": "table",
        "precision": "fp32",
        "dim": int((rows if projection is None else projection).shape[1]),
        "max_length": truncation["max_length"] if truncation else None,
        "normalise": normalise,
        "pooling": "mean",
        "prompt": tower.prompts.get("query") or "",
        "pad_id": 0,
    }
    if projection is not None:
        np.save(out / PROJECTION, np.ascontiguousarray(projection, dtype=np.float32))
        serving["width"] = int(rows.shape[1])
    write_json(out / "serving.json", serving)


def quantise_table(source: Path, folder: Path) -> None:
    """Write a table in int8 to `folder`: `row = scale * code`, the scale being the row's largest magnitude / 127."""
    rows = np.load(source, allow_pickle=False)
    scales = np.abs(rows).max(axis=1) / np.float32(127)
    codes = np.rint(rows / np.where(scales > 0, scales, 1)[:, None])
    np.save(folder / "table.npy", codes.astype(np.int8))
    np.save(folder / "scales.npy", scales.astype(np.float32))


def _projection(dense: Dense, folder: Path) -> np.ndarray:
    plain = isinstance(dense.activation_function, nn.Identity) and not dense.use_residual
    if not plain or (dense.linear.bias is not None and bool(dense.linear.bias.any())):
        raise UserError(
            f"{folder}: the projection behind the token table has an activation, a residual or a bias; distil with a"
            " plain linear projection"
        )
    return dense.linear.weight.detach().float().cpu().numpy().T

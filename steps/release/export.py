"""One way to export a student: as a token table or as an ONNX graph, in fp32 and in what is smaller."""

import shutil
from pathlib import Path
from typing import Literal

from slimtower.common.files import read_json, write_json
from slimtower.serving.query_encoder import ONNX_FILES, TABLE_FILES
from steps.encoders.towers import load_tower
from steps.release.onnx_export import export_onnx
from steps.release.quantisation import calibration, quantise_int8, quantise_mixed
from steps.release.table_export import export_table, is_table, quantise_table

Format = Literal["onnx", "table"]
Precision = Literal["int8", "mixed", "fp32"]  # mixed: int8, but for the products that lose most by it


def export(tower: Path, serving: Path, dim: int) -> Format:
    """Export the tower in fp32 to `serving`, truncated to `dim`, in the format of its kind, which is returned."""
    if is_table(load_tower(tower)):
        export_table(tower, serving, dim=dim)
        return "table"
    export_onnx(tower, serving, dim=dim)
    return "onnx"


def convert(exported: Path, target: Path, form: Format, precision: Precision, texts: list[str]) -> None:
    """Write an fp32 export in one of its precisions to `target`, a new folder; int8 is calibrated on `texts`."""
    target.mkdir(parents=True)
    shutil.copy2(exported / "tokenizer.json", target)
    write_json(target / "serving.json", read_json(exported / "serving.json") | {"precision": precision})
    names = (TABLE_FILES if form == "table" else ONNX_FILES)[precision]
    source, written = exported / names[0], target / names[0]
    match form, precision:
        case "table", "int8":
            quantise_table(source, target)
        case "onnx", "int8" | "mixed":
            quantised = quantise_int8 if precision == "int8" else quantise_mixed
            quantised(exported / ONNX_FILES["fp32"][0], written, calibration(exported, texts))
        case _:
            shutil.copy2(source, written)

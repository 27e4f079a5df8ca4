"""One way to export a student: as a token table or as an ONNX graph."""

from pathlib import Path
from typing import Literal

from steps.core.errors import UserError
from steps.core.towers import load_tower
from steps.release.onnx_export import export_onnx, quantise_onnx
from steps.release.table_export import export_table, is_table, quantise_table

Format = Literal["onnx", "table"]


def export(tower: Path, serving: Path, form: Literal["auto", "onnx", "table"], width: int) -> Format:
    """Export the tower in fp32 to `serving`, cut to `width`; `auto` chooses by its kind. Returns the format.

    UserError for a format that the tower cannot have.
    """
    table = is_table(load_tower(tower))
    chosen: Format = ("table" if table else "onnx") if form == "auto" else form
    if table != (chosen == "table"):
        kind = "a token table" if table else "a transformer"
        raise UserError(f"release.format is {chosen}, but {tower} is {kind}; set it to auto")
    if chosen == "table":
        export_table(tower, serving, int8=False, width=width)
    else:
        export_onnx(tower, serving, int8=False, width=width)
    return chosen


def quantise(serving: Path, form: Format) -> None:
    """Turn an fp32 export into int8, in place: a release holds what it serves and no more."""
    if form == "table":
        quantise_table(serving)
    else:
        quantise_onnx(serving)
        (serving / "encoder.onnx").unlink()

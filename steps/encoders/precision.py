"""What a network computes on and in, chosen by what the machine has and does natively."""

import os
from typing import Literal

import torch

from slimtower.common.errors import UserError

Precision = Literal["auto", "fp32", "bf16"]


def device() -> str:
    """`cuda` where torch sees a GPU, else `cpu`."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def resolve_precision(precision: Precision) -> Literal["fp32", "bf16"]:
    """`auto` is SLIMTOWER_PRECISION (UserError for an unknown one), else bf16 if the processor has it, else fp32."""
    if precision != "auto":
        return precision
    match os.environ.get("SLIMTOWER_PRECISION", ""):
        case "fp32":
            return "fp32"
        case "bf16":
            return "bf16"
        case "":
            pass
        case value:
            raise UserError(f"SLIMTOWER_PRECISION is {value!r}; it may be fp32 or bf16, or unset")
    if torch.cuda.is_available():
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "bf16" if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported() else "fp32"

"""The precision: what the processor has natively, unless it is forced."""

import pytest
import torch

from slimtower.common.errors import UserError
from steps.encoders.precision import resolve_precision


@pytest.fixture(autouse=True)
def a_processor_without_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLIMTOWER_PRECISION", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    pretend(monkeypatch, {})


def pretend(monkeypatch: pytest.MonkeyPatch, has: dict[str, bool]) -> None:
    """A processor with these instructions; an ARM one does not even know the names."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)


@pytest.mark.parametrize(
    ("has", "found"),
    [
        ({"architecture": "arm64", "neon": True, "bf16": True}, "fp32"),
        ({"avx2": True, "avx512_bf16": False, "amx_tile": False}, "fp32"),
        ({"avx512_f": True}, "fp32"),
        ({"avx512_bf16": True}, "bf16"),
        ({"amx_tile": True}, "bf16"),
    ],
    ids=["arm", "avx2", "avx512 alone", "avx512_bf16", "amx"],
)
def test_auto_takes_bf16_where_it_is_native(monkeypatch: pytest.MonkeyPatch, has: dict[str, bool], found: str) -> None:
    pretend(monkeypatch, has)
    assert resolve_precision("auto") == found


@pytest.mark.parametrize(("native", "found"), [(True, "bf16"), (False, "fp32")])
def test_a_gpu_decides_where_there_is_one(monkeypatch: pytest.MonkeyPatch, native: bool, found: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    assert resolve_precision("auto") == found


@pytest.mark.parametrize("forced", ["fp32", "bf16"])
def test_it_can_be_forced_for_auto_alone(monkeypatch: pytest.MonkeyPatch, forced: str) -> None:
    monkeypatch.setenv("SLIMTOWER_PRECISION", forced)
    assert resolve_precision("auto") == forced
    assert resolve_precision("fp32") == "fp32"
    assert resolve_precision("bf16") == "bf16"


@pytest.mark.parametrize("wrong", ["fp16", "BF16", "auto", "1"])
def test_another_value_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("SLIMTOWER_PRECISION", wrong)
    with pytest.raises(UserError, match=f"SLIMTOWER_PRECISION is '{wrong}'; it may be fp32 or bf16, or unset"):
        resolve_precision("auto")


def test_an_empty_value_is_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMTOWER_PRECISION", "")
    assert resolve_precision("auto") == "fp32"

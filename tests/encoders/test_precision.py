"""The precision: what the processor has natively, unless it is forced."""

import pytest
import torch

from slimtower.common.errors import UserError
from steps.encoders.precision import resolve_precision


@pytest.fixture(autouse=True)
def a_processor_without_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLIMTOWER_PRECISION", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)


@pytest.mark.parametrize(
    ("has", "precision"),
    [
        ({"architecture": "arm64", "neon": True, "bf16": True}, "fp32"),  # it does not even know the others' names
        ({"avx2": True, "avx512_f": True, "avx512_bf16": False, "amx_tile": False}, "fp32"),
        ({"avx512_bf16": True}, "bf16"),
        ({"amx_tile": True}, "bf16"),
    ],
)
def test_auto_takes_bf16_where_it_is_native(
    monkeypatch: pytest.MonkeyPatch, has: dict[str, bool], precision: str
) -> None:
    monkeypatch.setenv("SLIMTOWER_PRECISION", "")
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    assert resolve_precision("auto") == precision
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # a GPU decides where there is one
    for native in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, native=native: native)
        assert resolve_precision("auto") == ("bf16" if native else "fp32")


@pytest.mark.parametrize("forced", ["fp32", "bf16"])
def test_it_can_be_forced_for_auto_alone(monkeypatch: pytest.MonkeyPatch, forced: str) -> None:
    monkeypatch.setenv("SLIMTOWER_PRECISION", forced)
    assert resolve_precision("auto") == forced
    assert (resolve_precision("fp32"), resolve_precision("bf16")) == ("fp32", "bf16")


@pytest.mark.parametrize("wrong", ["fp16", "BF16", "auto", "1"])
def test_another_value_is_refused(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("SLIMTOWER_PRECISION", wrong)
    with pytest.raises(UserError, match=f"SLIMTOWER_PRECISION is '{wrong}'"):
        resolve_precision("auto")

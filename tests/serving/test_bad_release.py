"""Releases by somebody who renews every digest and checksum: still one line, never a traceback."""

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import onnx
import pytest

from slimtower.common.errors import UserError
from slimtower.common.files import read_json, sha256_file
from slimtower.serving.manifest import Manifest
from slimtower.serving.release import load_release

pytestmark = pytest.mark.faults("bad input")

BAD: list[Any] = [None, True, -1, 2**70, 1e300, "", "../x", "\0", [], [[]], {}, {"x": {}}, ["x"] * 3, {"": ""}]


@pytest.fixture(scope="module", params=["static", "2l"])
def release(released: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A release of which files are changed and put back."""
    target = tmp_path_factory.mktemp("bad") / "release"
    return Path(shutil.copytree(released / "models/release" / request.param, target))


def opens(folder: Path) -> bool:
    """Whether a release opens; any error but ours fails the test."""
    try:
        load_release(folder)
    except UserError as error:
        assert len(str(error)) < 3000
        return False
    return True


def sign(folder: Path) -> None:
    """Write the digests of all files into the manifest, and its checksum, as far as they are read at all."""
    path = folder / "manifest.json"
    raw = read_json(path)
    for part, field in (("query_encoder", "student_files"), ("serving", "serving_files"), ("index", "index_files")):
        for name in raw[field]:
            raw[field][name] = sha256_file(folder / part / name)
    with suppress(ValueError, UserError):  # or what serves says it alone
        updated = raw | {"encoder_settings": read_json(folder / "serving/serving.json")}
        Manifest.model_validate(updated)
        raw = updated
    raw["index_manifest"] = sha256_file(folder / "index" / "manifest.json")
    path.write_text(json.dumps(raw))
    Manifest.model_validate(raw).write(path)


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key below a value, and of lists the first place."""
    items = value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    for key, below in items:
        yield (*path, key)
        yield from paths_in(below, (*path, key))


def edited(text: str, path: tuple[Any, ...], bad: Any) -> str:
    """JSON with something else at a path."""
    document = node = json.loads(text)
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = bad
    return json.dumps(document)


@pytest.mark.medium
def test_a_manifest_that_says_anything_is_one_line(release: Path, record_property: Callable[..., None]) -> None:
    path = release / "manifest.json"
    original = path.read_text()
    assert opens(release)
    for at, key_path in enumerate(paths_in(json.loads(original))):
        for bad in (BAD[at % len(BAD)], BAD[(at * 5 + 3) % len(BAD)]):
            path.write_text(edited(original, key_path, bad))
            if path.read_text() == json.dumps(json.loads(original)):
                continue  # it was this value
            assert not opens(release)
            record_property("cases", 1)
            raw = json.loads(path.read_text())
            try:
                Manifest.model_validate(raw).write(path)  # its checksum is right again
            except (ValueError, TypeError):
                continue
            opens(release)
    for text in ("", "[]", "null", "{", "[" * 100_000, '{"format": ' * 5000, "\0"):
        path.write_text(text)
        assert not opens(release)
    path.write_text(original)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["index/manifest.json", "serving/serving.json", "query_encoder/modules.json"])
def test_settings_that_say_anything_are_one_line(
    release: Path, name: str, record_property: Callable[..., None]
) -> None:
    manifest, path = (release / "manifest.json").read_text(), release / name
    original = path.read_text()
    bad_ones = [edited(original, key_path, bad) for key_path in paths_in(json.loads(original)) for bad in BAD[::3]]
    lengths = [edited(original, ("max_length",), bad) for bad in (-1, 0, 2**70)] if "serving.json" in name else []
    for text in [*bad_ones[:: len(bad_ones) // 40 + 1], *lengths, "[]", "null", "7", "[" * 100_000]:
        path.write_text(text)
        sign(release)
        opens(release)
        record_property("cases", 1)
    path.write_text(original)
    (release / "manifest.json").write_text(manifest)


def header(shape: str, kind: str = "<f4") -> bytes:
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


DAMAGE: list[Callable[[bytes], bytes]] = [
    lambda content: b"",
    lambda content: content[: len(content) // 2],
    lambda content: b"\0" * 64,
    lambda content: b"PAR1" + b"\xff" * 40 + b"PAR1",
    lambda content: header("(40000000000,)"),
    lambda content: header("(-1, 32)") + b"\0" * 64,
    lambda content: header("(1, 1)", "|O") + b"\0" * 64,
    lambda content: header("()") + b"\0" * 4,
]


@pytest.mark.slow
def test_files_that_hold_anything_are_one_line(release: Path, record_property: Callable[..., None]) -> None:
    manifest = (release / "manifest.json").read_text()
    named = ("*.parquet", "*.npy", "*.onnx", "tokenizer.json", "*.faiss")
    files = [path for pattern in named for path in sorted(release.rglob(pattern))]
    assert len(files) > 4
    for path in files:
        original = path.read_bytes()
        index = release / "index" / "manifest.json"
        described = index.read_text()
        for damage in DAMAGE if path.suffix == ".npy" else DAMAGE[:4]:
            path.write_bytes(damage(original))
            if path.is_relative_to(release / "index"):  # its manifest names the digest too
                index.write_text(described.replace(sha256(original).hexdigest(), sha256_file(path)))
            sign(release)
            unread = path.is_relative_to(release / "query_encoder") or path.name == "semantic_ids.parquet"
            assert not opens(release) or unread, path
            record_property("cases", 1)
        path.write_bytes(original)
        index.write_text(described)
    (release / "manifest.json").write_text(manifest)
    assert opens(release)


@pytest.mark.medium
@pytest.mark.parametrize("release", ["2l"], indirect=True)  # a token table has no graph
def test_a_sound_graph_of_other_inputs_is_one_line(release: Path) -> None:
    (graph,) = (release / "serving").glob("*.onnx")
    manifest, original = (release / "manifest.json").read_text(), graph.read_bytes()
    kind, (source, target) = onnx.TensorProto.FLOAT, ("pixels", "classes")
    node = onnx.helper.make_node("Identity", [source], [target])
    inputs, outputs = ([onnx.helper.make_tensor_value_info(name, kind, [1, 4])] for name in (source, target))
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node], "other", inputs, outputs),
        opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    graph.write_bytes(model.SerializeToString())
    sign(release)
    assert not opens(release)
    graph.write_bytes(original)
    (release / "manifest.json").write_text(manifest)

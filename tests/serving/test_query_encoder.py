"""The encoders of the latency path give what the tokenizer and plain arithmetic give."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from slimtower.common.errors import UserError
from slimtower.serving import query_encoder
from slimtower.serving.query_encoder import TokenIds, load_query_encoder
from steps.encoders.bases import resolve_base

TOKENIZER = Path(resolve_base("all-MiniLM-L6-v2")) / "tokenizer.json"
SERVING = {"format": "table", "precision": "fp32", "dim": 8, "max_length": 16, "normalise": True}
SERVING |= {"prompt": "", "pad_id": 0}


def tokenizer(max_length: int | None = None) -> Tokenizer:
    loaded = Tokenizer.from_file(str(TOKENIZER))
    loaded.no_padding()
    loaded.no_truncation()
    if max_length is not None:
        loaded.enable_truncation(max_length)
    return loaded


READERS = {
    (special, max_length): (tokenizer(max_length), TokenIds(tokenizer(), max_length, special=special))
    for special in (True, False)
    for max_length in (None, 6)
}
MANY = [
    TokenIds(tokenizer(), length, special=False, prompt=prompt)
    for length in (None, 6)
    for prompt in ("", "query: ", "Instruct: find\nQuery: ", "x [MA")
]
WORDY = st.text(st.characters(max_codepoint=126), max_size=40) | st.text(max_size=30)


@pytest.mark.medium
@given(
    WORDY
    | st.lists(st.sampled_from(["Sum", "unaffable", "don't", "[SEP]", "[", "x_y", "é", "2.5", "\t", "##ing"])).map(
        " ".join
    )
)
@example("a" * 101)
@example("")
@example("the [MASK] of [PAD]")
@example("snake_case(arg=1.0) -> None")
@example("naïve 東京\u0000 \x7f")
def test_token_ids_are_the_tokenizers_own(text: str) -> None:
    for (special, _), (expected, ids) in READERS.items():
        reference = expected.encode(text, add_special_tokens=special).ids
        assert ids(text) == reference
        assert ids(text) == reference  # and again from memory


@pytest.mark.medium
@given(
    st.lists(
        WORDY | st.sampled_from(["", "Sum of x_y", "the [MASK]", "naïve 東京", "two\nlines", "SK] a", "a" * 101]),
        max_size=8,
    )
)
def test_many_texts_have_the_ids_that_each_has_alone(texts: list[str]) -> None:
    for tokens in MANY:
        ids, starts, counts = tokens.spans(texts)
        spans = [ids[start : start + count].tolist() for start, count in zip(starts, counts, strict=True)]
        assert spans == [tokens(text) for text in texts]


def test_added_words_are_found() -> None:
    plain = tokenizer()
    for model in (plain, grown := tokenizer()):
        model.add_tokens([AddedToken("new york", normalized=True), "c++"])
    ids = TokenIds(grown, None, special=False)
    for text in ("The New York hotel", "c++ or c", "new yorker"):
        assert ids(text) == plain.encode(text, add_special_tokens=False).ids
        assert ids.spans(["sum", text])[2].tolist() == [1, len(ids(text))]


def write_serving(folder: Path, table: np.ndarray, **changes: object) -> Path:
    folder.mkdir(exist_ok=True)
    np.save(folder / "table.npy", table)
    (folder / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
    (folder / "serving.json").write_text(json.dumps(SERVING | changes))
    return folder


def random_table(dim: int = 8) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((30522, dim), dtype=np.float32)


TEXTS = ["cumulative sum of an array", "", "☃ ☃", "sum", "a" * 500, "cumulative " * 40, "Ünïcode naïveté"]


@pytest.mark.parametrize("normalise", [True, False])
def test_a_table_gives_the_mean_of_its_rows(tmp_path: Path, normalise: bool) -> None:
    table = random_table()
    encoder = load_query_encoder(write_serving(tmp_path / "serving", table, normalise=normalise))
    vectors = encoder.encode(TEXTS)
    assert encoder.dim == 8
    assert vectors.dtype == np.float32
    reference = tokenizer(16)
    for text, vector in zip(TEXTS, vectors, strict=True):
        rows = table[reference.encode(text, add_special_tokens=False).ids].astype(np.float64)
        expected = rows.mean(axis=0) if len(rows) else np.zeros(8)
        length = np.linalg.norm(expected)
        np.testing.assert_allclose(vector, expected / length if normalise and length else expected, atol=1e-6)
        np.testing.assert_array_equal(encoder.encode([text])[0], vector)
    assert not vectors[1].any()
    assert encoder.encode([]).shape == (0, 8)


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize(("precision", "width"), [("fp32", 8), ("int8", 8), ("int8", 6)])
def test_a_text_is_embedded_among_thousands_as_it_is_alone(
    precision: str, width: int, normalise: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(6)
    table = random_table() if precision == "fp32" else rng.integers(-127, 128, (30522, width)).astype(np.int8)
    changes = {"precision": precision, "width": width, "max_length": None, "normalise": normalise}
    folder = write_serving(tmp_path / "serving", table, **changes)
    np.save(folder / "scales.npy", rng.uniform(1e-3, 1, 30522).astype(np.float32))
    np.save(folder / "projection.npy", rng.standard_normal((width, 8), dtype=np.float32))
    encoder = load_query_encoder(folder)
    monkeypatch.setattr(query_encoder, "_CHUNK_LETTERS", 100_000)
    words = ["sum", "array", "of", "naïve", "unaffable", "2.5", "☃"]
    lengths = [*rng.integers(0, 12, 6000).tolist(), 5000]  # more than is looked up, and than is gathered, at once
    texts = [" ".join(rng.choice(words, length)) for length in lengths]
    vectors, compare = (
        encoder.encode(texts),
        np.testing.assert_array_equal if width == 8 else np.testing.assert_allclose,
    )
    for row in [0, 1, 2, *rng.integers(0, 6000, 300).tolist(), 4095, 4096, 5999, 6000]:
        compare(vectors[row], encoder.encode([texts[row]])[0], **({} if width == 8 else {"rtol": 1e-4, "atol": 1e-4}))


def test_a_batch_of_long_texts_takes_little_more_memory_than_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load_query_encoder(write_serving(tmp_path / "serving", random_table(), max_length=None))
    monkeypatch.setattr(query_encoder, "_CHUNK_LETTERS", 10_000)
    texts = ["sum of an array " * 500] * 40

    def peak(texts: list[str]) -> int:
        tracemalloc.start()
        encoder.encode(texts)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak(texts)
    assert peak(texts) < 5 * peak(texts[:2])


def test_a_token_without_a_row_is_no_other_tokens_embedding(tmp_path: Path) -> None:
    encoder = load_query_encoder(write_serving(tmp_path / "serving", random_table()[:2000]))
    for texts in (["unaffable"], ["unaffable", "sum"]):
        with pytest.raises(IndexError):
            encoder.encode(texts)


def test_an_int8_table_scales_each_row_its_own_way(tmp_path: Path) -> None:
    codes = np.random.default_rng(4).integers(-127, 128, (30522, 8)).astype(np.int8)
    scales = np.random.default_rng(5).uniform(1e-3, 1, 30522).astype(np.float32)
    folder = write_serving(tmp_path / "serving", codes, precision="int8", normalise=False)
    np.save(folder / "scales.npy", scales)
    ids = tokenizer(16).encode(TEXTS[0], add_special_tokens=False).ids
    expected = (codes[ids].astype(np.float64) * scales[ids, None].astype(np.float64)).mean(axis=0)
    embedding = load_query_encoder(folder).encode(TEXTS[:1])[0]
    np.testing.assert_allclose(embedding, expected, rtol=1e-5, atol=1e-5)  # float32 terms of up to 127


def test_narrow_rows_are_brought_to_the_embedding_by_one_map(tmp_path: Path) -> None:
    table, projection = random_table(6), np.random.default_rng(7).standard_normal((6, 8), dtype=np.float32)
    folder = write_serving(tmp_path / "serving", table, width=6)
    with pytest.raises(UserError, match=r"projection\.npy: not found"):
        load_query_encoder(folder)
    np.save(folder / "projection.npy", projection)
    encoder = load_query_encoder(folder)
    ids = tokenizer(16).encode(TEXTS[0], add_special_tokens=False).ids
    expected = table[ids].astype(np.float64).mean(axis=0) @ projection.astype(np.float64)
    np.testing.assert_allclose(encoder.encode(TEXTS[:1])[0], expected / np.linalg.norm(expected), atol=1e-6)
    assert encoder.dim == 8 and not encoder.encode(["", "\u2603"])[0].any()
    np.save(folder / "projection.npy", projection[:, :7])
    with pytest.raises(UserError, match="holds float32"):
        load_query_encoder(folder)


def test_the_prompt_is_put_before_the_text(tmp_path: Path) -> None:
    plain = load_query_encoder(write_serving(tmp_path / "plain", random_table()))
    prompted = load_query_encoder(write_serving(tmp_path / "prompted", random_table(), prompt="query: "))
    np.testing.assert_array_equal(prompted.encode(["sum"]), plain.encode(["query: sum"]))
    assert not np.allclose(prompted.encode(["sum"]), plain.encode(["sum"]))


def test_a_folder_that_is_not_what_it_says_is_refused(tmp_path: Path) -> None:
    for changes, message in (
        ({"format": "pickle"}, "pickle"), ({"precision": "int4"}, "int4"), ({"precision": "int8"}, "scales.npy"),
        ({"format": "onnx"}, "encoder.onnx"), ({"dim": 9}, r"\(n, 9\)"),
    ):  # fmt: skip
        folder = write_serving(tmp_path / "serving", random_table(), **changes)
        with pytest.raises(UserError, match=f"{message}.*dvc repro"):
            load_query_encoder(folder)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    for name, content in (
        ("serving.json", '{"format": "table"}'), ("serving.json", None), ("tokenizer.json", "{}"),
        ("tokenizer.json", None), ("table.npy", "no array"), ("encoder.onnx", "no graph"),
    ):  # fmt: skip
        kind = "onnx" if name.endswith(".onnx") else "table"
        path = write_serving(tmp_path / "serving", random_table(), format=kind) / name
        path.unlink() if content is None else path.write_text(content)
        with pytest.raises(UserError, match=name):
            load_query_encoder(path.parent)

"""Queries to embeddings on the latency path: tokenizers, numpy and onnxruntime, without torch.

`serving.json` beside the model says what to load: `format` (table or onnx), `precision` (int8, mixed or fp32), `dim`,
`max_length` in tokens (null = no limit), `normalise`, `prompt` (put before each query) and `pad_id`; of a table the
`width` of its rows, which `projection.npy` brings to `dim` if it is another; and, for the checks of a release,
`pooling`.
"""

import math
import re
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np
import onnxruntime
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from slimtower.common.errors import UserError, line
from slimtower.common.files import read_json

REMEDY = "release the student again: `dvc repro` (or `make demo`)"
TABLE_FILES = {"fp32": ["table.npy"], "int8": ["table.npy", "scales.npy"]}
PROJECTION = "projection.npy"  # of a table with narrow rows
ONNX_FILES = {
    "fp32": ["encoder.onnx"],
    "int8": ["encoder.int8.onnx"],
    "mixed": ["encoder.mixed.onnx"],  # int8, but for some products in fp32
}
# Texts that a graph reads at once. int8 graphs scale activations by the largest of the batch: one by one, a text's
# embedding does not depend on its neighbours, and is as quick.
_BATCH = {"fp32": 8, "int8": 1, "mixed": 1}
_REMEMBERED = 100_000  # words whose pieces are kept
_WORD_LETTERS = 40  # longer words are cut into pieces each time: who posts them could fill the memory
_WORD = r"[A-Za-z0-9]+|[^A-Za-z0-9\s]"
_ASCII_WORD = re.compile(_WORD)
_WORD_OR_END = re.compile(_WORD + r"|\n")
_END = -1  # in place of a token id: a text ends
_CHUNK_TEXTS, _CHUNK_LETTERS = 4096, 1_000_000  # of texts whose tokens are looked up at once
_GATHERED = 288  # rows of a table that are gathered at once: they stay in the processor's cache


class QueryEncoder(Protocol):
    dim: int
    token_ids: "TokenIds"
    """Ids of the tokens that it reads of a text."""

    def encode(self, texts: list[str]) -> np.ndarray:
        """Embeddings of the texts, float32 `(len(texts), dim)`."""


class _Pieces(dict[str, list[int]]):
    """Token ids of each word; a word that is not there is split, and remembered if there is room."""

    def __init__(self, model: models.Model) -> None:
        super().__init__({"\n": [_END]})
        self._model = model

    def __missing__(self, word: str) -> list[int]:
        ids = [piece.id for piece in self._model.tokenize(word)]
        if len(self) < _REMEMBERED and len(word) <= _WORD_LETTERS:
            self[word] = ids
        return ids


class TokenIds:
    """Token ids of texts, equal to the tokenizer's own.

    BERT's rules cut ASCII text into words that are split apart from each other, so their pieces can be remembered;
    that is several times faster than the tokenizer. Every other text and tokenizer goes through the tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int | None, *, special: bool, prompt: str = "") -> None:
        """`special` adds the tokens that the tokenizer puts around a text; they count for `max_length`, as `prompt`'s.

        `prompt` is put before each text.
        """
        tokenizer.no_padding()
        if max_length is None:
            tokenizer.no_truncation()
        else:
            tokenizer.enable_truncation(max_length)
        self._tokenizer, self._special, self._prompt = tokenizer, special, prompt
        self._before, self._after = _around(tokenizer) if special else ([], [])
        self._room = None if max_length is None else max_length - len(self._before) - len(self._after)
        model = tokenizer.model
        self._pieces = _Pieces(model)
        self._lower = getattr(tokenizer.normalizer, "lowercase", False)
        added = tokenizer.get_added_tokens_decoder().values()
        self._by_word = (
            isinstance(tokenizer.normalizer, normalizers.BertNormalizer)
            and isinstance(tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
            and isinstance(model, models.WordPiece)
            and not any(token.normalized for token in added)  # those are sought in the normalised text
        )
        sought = "|".join(re.escape(token.content) for token in added) if self._by_word else ""
        self._added = re.compile(sought) if sought else None

    def __call__(self, text: str) -> list[int]:
        """Ids of one text."""
        text = self._prompt + text
        if not self._has_words(text):
            return self._tokenizer.encode(text, add_special_tokens=self._special).ids
        pieces = self._pieces
        ids: list[int] = []
        for word in _ASCII_WORD.findall(text.lower() if self._lower else text):
            ids += pieces[word]
        if self._room is not None:
            del ids[self._room :]
        return [*self._before, *ids, *self._after] if self._special else ids

    def spans(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids of many texts in one array, and where each text's ids start and how many they are, `(len(texts),)` each.

        Of a reader without the tokens that the tokenizer puts around a text.
        """
        assert not self._special
        prompted = [self._prompt + text for text in texts] if self._prompt else texts
        slow: list[int] = []
        if not self._has_words("".join(prompted)):
            slow = [row for row, text in enumerate(prompted) if not self._has_words(text)]
        quick = list(prompted)
        for row in slow:
            quick[row] = ""
        joined = "".join(f"{text}\n" for text in quick)
        words = _WORD_OR_END.findall(joined.lower() if self._lower else joined)
        ids = np.fromiter(chain.from_iterable(map(self._pieces.__getitem__, words)), np.int32)
        (ends,) = np.nonzero(ids == _END)
        starts = np.zeros(len(texts), dtype=np.int64)
        starts[1:] = ends[:-1] + 1
        counts = ends - starts
        if self._room is not None:
            np.minimum(counts, self._room, out=counts)
        if slow:
            slow_ids = [self(texts[row]) for row in slow]
            counts[slow] = [len(text_ids) for text_ids in slow_ids]
            starts[slow] = len(ids) + np.cumsum(counts[slow]) - counts[slow]
            ids = np.concatenate([ids, np.fromiter(chain.from_iterable(slow_ids), np.int32)])
        return ids, starts, counts

    def _has_words(self, text: str) -> bool:
        """Whether a text can be cut into words whose pieces are remembered."""
        return (
            self._by_word
            and text.isascii()
            and text.isprintable()
            and not (self._added is not None and self._added.search(text))
        )


class TableEncoder:
    """The mean of one vector a token, normalised where the student is; a text without tokens is all zeros."""

    def __init__(
        self,
        token_ids: TokenIds,
        table: np.ndarray,
        scales: np.ndarray | None,
        projection: np.ndarray | None = None,
        *,
        normalise: bool,
    ) -> None:
        """Rows of `table` `(vocabulary, width)` in float32, or in int8 with their `scales` `(vocabulary,)`.

        The mean of a text's rows is multiplied with `projection` `(width, dim)`; none = it is the embedding.
        """
        self.dim = int((table if projection is None else projection).shape[1])
        self.token_ids, self._table, self._scales, self._normalise = token_ids, table, scales, normalise
        self._projection = projection

    def encode(self, texts: list[str]) -> np.ndarray:
        """Embeddings of the texts, float32 `(len(texts), dim)`."""
        if len(texts) == 1:
            return self._encode_one(texts[0])[None]
        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        first = letters = 0
        for row, text in enumerate(texts):
            if row > first and (row - first == _CHUNK_TEXTS or letters + len(text) > _CHUNK_LETTERS):
                self._encode_many(texts[first:row], vectors[first:row])
                first, letters = row, 0
            letters += len(text)
        self._encode_many(texts[first:], vectors[first:])
        return vectors

    def _encode_many(self, texts: list[str], vectors: np.ndarray) -> None:
        """Write embeddings into `vectors` `(len(texts), dim)`; texts with equally many tokens are summed together."""
        ids, starts, counts = self.token_ids.spans(texts)
        if ids.max(initial=0) >= len(self._table):
            raise IndexError(f"token {ids.max()} has no row: the table has {len(self._table)}")
        if not counts.any():
            return
        by_count = np.argsort(counts, kind="stable")
        present, begins = np.unique(counts[by_count], return_index=True)
        room = max(_GATHERED, int(present[-1]))
        # gathered into the same memory again and again: to take new memory would be longer work than the sums
        codes = np.empty((room, self._table.shape[1]), dtype=self._table.dtype)
        rows = codes if self._scales is None else np.empty(codes.shape, dtype=np.float32)
        for count, members in zip(present.tolist(), np.split(by_count, begins[1:]), strict=True):
            step = room // max(count, 1)
            for at in range(0, len(members) if count else 0, step):
                chosen = members[at : at + step]
                block = ids[starts[chosen, None] + np.arange(count)]
                self._table.take(block.ravel(), axis=0, out=codes[: block.size], mode="clip")
                of_texts = rows[: block.size].reshape(*block.shape, -1)
                if self._scales is None:
                    totals = np.add.reduce(of_texts, axis=1)
                else:
                    np.copyto(rows[: block.size], codes[: block.size])
                    totals = (self._scales.take(block)[:, None, :] @ of_texts)[:, 0]
                self._write(vectors, chosen, totals, count)

    def _encode_one(self, text: str) -> np.ndarray:
        """An embedding `(dim,)` in a few microseconds: with as few calls of numpy as will do."""
        if not (ids := self.token_ids(text)):
            return np.zeros(self.dim, dtype=np.float32)
        if self._scales is None:
            total = np.add.reduce(self._table.take(ids, axis=0), axis=0)
        else:
            total = self._scales.take(ids) @ self._table.take(ids, axis=0).astype(np.float32)
        if self._projection is not None:
            total = total @ self._projection
        if divisor := math.sqrt(total.dot(total)) if self._normalise else len(ids):
            total /= np.float32(divisor)
        return total

    def _write(self, vectors: np.ndarray, rows: np.ndarray, totals: np.ndarray, count: int) -> None:
        """Put embeddings made of `totals` `(texts, width)`, each of `count` tokens, into their rows."""
        if self._projection is not None:
            totals = totals @ self._projection
        if not self._normalise:
            vectors[rows] = totals / np.float32(count)
            return
        lengths = np.sqrt(np.vecdot(totals, totals))
        lengths[lengths == 0] = 1
        vectors[rows] = totals / lengths[:, None]


class OnnxEncoder:
    """A graph from token ids to embeddings, pooling and normalisation included."""

    def __init__(self, token_ids: TokenIds, model: Path, *, dim: int, pad_id: int, threads: int, batch: int) -> None:
        """Open the graph, which is to read `batch` texts at once; UserError when onnxruntime cannot."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's errors have no common class
            reason = line(error)[:200]
            raise UserError(f"{model}: onnxruntime cannot load it ({reason}); {REMEDY}") from None
        self.dim, self.token_ids, self._pad_id, self._batch = dim, token_ids, pad_id, batch
        self._outputs = [self._session.get_outputs()[0].name]

    def encode(self, texts: list[str]) -> np.ndarray:
        """Embeddings of the texts, float32 `(len(texts), dim)`; texts of like length share a batch."""
        rows = [self.token_ids(text) for text in texts]
        if len(rows) == 1:
            return self._run(np.array(rows, dtype=np.int64))
        vectors = np.zeros((len(rows), self.dim), dtype=np.float32)
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        for start in range(0, len(order), self._batch):
            chosen = order[start : start + self._batch]
            ids = np.full((len(chosen), len(rows[chosen[-1]])), self._pad_id, dtype=np.int64)
            mask = np.zeros_like(ids)
            for position, row in enumerate(chosen):
                ids[position, : len(rows[row])] = rows[row]
                mask[position, : len(rows[row])] = 1
            vectors[chosen] = self._run(ids, mask)
        return vectors

    def _run(self, ids: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        """Embeddings of token ids `(batch, length)`; no mask = no padding."""
        mask = np.ones(ids.shape, dtype=np.int64) if mask is None else mask
        embeddings: np.ndarray = self._session.run(self._outputs, {"input_ids": ids, "attention_mask": mask})[0]
        return embeddings


def load_query_encoder(folder: Path, threads: int = 1) -> QueryEncoder:
    """Open a release's folder `serving`; UserError if a file is missing or is not what serving.json says."""
    serving = read_json(folder / "serving.json")
    layouts = {"table": TABLE_FILES, "onnx": ONNX_FILES}
    try:
        kind, dim, max_length = serving["format"], serving["dim"], serving["max_length"]
        normalise, prompt, pad_id = serving["normalise"], serving["prompt"], serving["pad_id"]
        precision = serving["precision"]
    except KeyError as error:
        raise UserError(f"{folder / 'serving.json'}: lacks {error}; {REMEDY}") from None
    if kind not in layouts or precision not in layouts[kind]:
        supported = ", ".join(f"{name} {variant}" for name, files in layouts.items() for variant in files)
        raise UserError(
            f"{folder / 'serving.json'}: cannot read format {kind!r} {precision!r} (known: {supported}); {REMEDY}"
        )
    width = serving.get("width", dim)  # releases from before narrow tables do not say it
    for name in [*layouts[kind][precision], "tokenizer.json", *[PROJECTION] * (width != dim)]:
        if not (folder / name).is_file():
            raise UserError(f"{folder / name}: not found, but serving.json names it; {REMEDY}")
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # tokenizers raises bare exceptions
        raise UserError(f"{folder / 'tokenizer.json'}: cannot be read ({error}); {REMEDY}") from None
    token_ids = TokenIds(tokenizer, max_length, special=kind == "onnx", prompt=prompt)
    if kind == "onnx":
        model = folder / ONNX_FILES[precision][0]
        return OnnxEncoder(token_ids, model, dim=dim, pad_id=pad_id, threads=threads, batch=_BATCH[precision])
    is_int8 = precision == "int8"
    table = _array(folder / "table.npy", "int8" if is_int8 else "float32", (None, width))
    scales = _array(folder / "scales.npy", "float32", (len(table),)) if is_int8 else None
    projection = None if width == dim else _array(folder / PROJECTION, "float32", (width, dim))
    return TableEncoder(token_ids, table, scales, projection, normalise=normalise)


def _array(path: Path, dtype: str, shape: tuple[int | None, ...]) -> np.ndarray:
    """A file's array, mapped rather than read; UserError unless it has this type and shape, None being any length."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError) as error:
        raise UserError(f"{path}: not a numpy array ({error}); {REMEDY}") from None
    expected = tuple(actual if length is None else length for actual, length in zip(array.shape, shape, strict=False))
    if array.dtype != dtype or array.ndim != len(shape) or array.shape != expected:
        named = str(shape).replace("None", "n")
        raise UserError(f"{path}: holds {array.dtype} {array.shape}, serving.json says {dtype} {named}; {REMEDY}")
    return np.asarray(array)  # a plain view: take() on a memmap costs twice as much


def _around(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Ids that the tokenizer puts before and behind a text."""
    encoded = tokenizer.encode("a")
    mask, ids = encoded.special_tokens_mask, encoded.ids
    first, last = mask.index(0), len(mask) - mask[::-1].index(0)
    return ids[:first], ids[last:]


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: half a surrogate pair cannot."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def check_text(text: object, name: str) -> str:
    """The text. TypeError if it is no str, ValueError if it holds half a surrogate pair; both name the argument."""
    if not isinstance(text, str):
        raise TypeError(f"{name} is of type {type(text).__name__}; give a str")
    if not is_unicode(text):
        raise ValueError(f"{name} holds half a surrogate pair, which is no character; decode the text as UTF-8 first")
    return text


def check_texts(texts: Iterable[str], name: str) -> list[str]:
    """The texts as a list, each checked. TypeError for one str or bytes: its letters would count as texts."""
    if isinstance(texts, str | bytes | bytearray) or not isinstance(texts, Iterable):
        raise TypeError(f"{name} is of type {type(texts).__name__}; give a list of str")
    return [check_text(text, f"{name}[{position}]") for position, text in enumerate(texts)]

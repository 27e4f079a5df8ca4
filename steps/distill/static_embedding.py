"""Static embeddings: the teacher's vector of each token, weighed, and rows for frequent words and pairs of words."""

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.pre_tokenizers import Split
from torch import Tensor, nn
from torch.nn import functional

from slimtower.common.errors import UserError
from steps.distill.cut_vocabulary import cut_tokenizer, used_tokens
from steps.distill.starts import StaticEncoder
from steps.distill.student import Student
from steps.distill.tokens import Tokens, tokenize
from steps.encoders.precision import device

_PIECES = 512  # of a phrase, at most
_MIN_COUNT = 2  # occurrences that a phrase needs: the row of one seen once would overfit to its only text
_WORDS = Split(Regex(r"\w+"), behavior="removed", invert=True)  # where added tokens match, whatever the pre-tokenizer
_BEFORE = "qzxj"  # no phrase
_TRIED = 8
_BLOCK = 65_536  # vectors


def inverse_document_frequency(tokens: Tokens, vocabulary: int) -> np.ndarray:
    """`log(1 + N / (1 + n_t))` for each of the `(vocabulary,)` tokens; N texts, of which n_t hold token t."""
    owner = np.repeat(np.arange(len(tokens)), np.diff(tokens.offsets))
    pairs = np.unique(owner * np.int64(vocabulary) + tokens.ids)
    frequency = np.bincount(pairs % vocabulary, minlength=vocabulary)
    return np.log1p(len(tokens) / (1.0 + frequency))


class StaticStudent(Student):
    """One vector a token and their mean: a student without a transformer.

    While it trains, the row of a phrase is what it adds to the rows of its pieces and of the words within it, and a
    learned weight multiplies each row. `finish` puts all of that into the rows; embeddings of texts stay the same.
    """

    pads = False

    def __init__(self, tower: SentenceTransformer, pieces: Tokens, *, learned_weights: bool = False) -> None:
        """`tower` begins with the table; `pieces` are what its tokens consist of."""
        super().__init__(tower)
        self.pieces = pieces
        self._table: Any = tower[0]  # learned weights lie in it, so that checkpoints hold them
        ones = torch.ones(len(pieces), device=self.token_rows().device)
        self._table.register_parameter("weights", nn.Parameter(ones) if learned_weights else None)

    def tokenize(self, texts: list[str], max_length: int) -> Tokens:
        return tokenize(texts, self.tower.tokenizer, max_length, special=False).opened(self.pieces)

    def embed(self, tokens: Tokens, rows: np.ndarray) -> Tensor:
        pieces = [tokens.row(row) for row in rows]
        starts = np.cumsum([0] + [len(piece) for piece in pieces[:-1]])
        divisors = tokens.lengths(rows) if tokens.sizes is None else tokens.sizes[rows]
        arrays = (np.concatenate(pieces).astype(np.int64), starts, divisors.astype(np.float32))
        ids, offsets, sizes = (torch.from_numpy(values).to(self.tower.device) for values in arrays)
        weights = None if self._table.weights is None else self._table.weights[ids]
        rows_of = self._table.embedding.weight
        total = functional.embedding_bag(ids, rows_of, offsets, mode="sum", per_sample_weights=weights)
        features: dict[str, Tensor] = {"sentence_embedding": total / sizes[:, None]}
        return self._embedding_of(features, start=1)

    def token_rows(self) -> nn.Parameter:
        rows: nn.Parameter = self._table.embedding.weight
        return rows

    def finish(self) -> None:
        """Put pieces and weights into the rows: from here on the tower is plain."""
        with torch.no_grad():
            rows = self._table.embedding.weight
            if self._table.weights is not None:
                rows.mul_(self._table.weights[:, None])
            ids, offsets = (torch.from_numpy(array).to(rows.device) for array in (self.pieces.ids, self.pieces.offsets))
            rows.copy_(functional.embedding_bag(ids.long(), rows, offsets[:-1].long(), mode="sum"))
        self._table.register_parameter("weights", None)


def static_embedding(
    teacher: SentenceTransformer,
    embed: Path,
    texts: list[str],
    params: StaticEncoder,
    max_length: int,
    vocabulary_texts: Iterable[str] | None = None,
) -> StaticStudent:
    """A table of the teacher's tokens, or of those that `vocabulary_texts` need, and of frequent phrases of `texts`."""
    rows = np.load(embed / "tokens.npy")
    tokenizer: Tokenizer = teacher.tokenizer._tokenizer
    if vocabulary_texts is not None:
        token_ids = used_tokens(tokenizer, vocabulary_texts)
        tokenizer, rows = cut_tokenizer(tokenizer, token_ids), rows[token_ids]
    if params.token_weights != "uniform":
        tokens = tokenize(texts, tokenizer, max_length, special=False)
        rows = rows * inverse_document_frequency(tokens, len(rows))[:, None]
    phrases = frequent_phrases(texts, tokenizer, params.added_words, params.added_pairs)
    extended = with_phrases(tokenizer, phrases, first_id=len(rows))
    pieces = _pieces(phrases, tokenizer, len(rows))
    rows = np.concatenate([rows, np.zeros((len(phrases), rows.shape[1]), rows.dtype)])
    directions = principal_directions(embed, params.width) if params.width else None
    tower = table_tower(teacher, extended, rows, directions)
    return StaticStudent(tower, pieces, learned_weights=params.token_weights == "learned")


def _pieces(phrases: list[str], tokenizer: Tokenizer, first_id: int) -> Tokens:
    """A token of the teacher's is itself; a phrase is its pieces, the added words within it, and itself."""
    number = {phrase: first_id + index for index, phrase in enumerate(phrases)}
    pieces = tokenize([f" {phrase}" for phrase in phrases], tokenizer, _PIECES, special=False)
    parts = [[token] for token in range(first_id)]
    for index, phrase in enumerate(phrases):
        words = [number[word] for word in phrase.split(" ") if word in number and word != phrase]
        parts.append([*pieces.row(index).tolist(), *words, number[phrase]])
    ends = np.cumsum([0] + [len(part) for part in parts])
    return Tokens(np.array([piece for part in parts for piece in part]), ends)


def principal_directions(embed: Path, width: int) -> np.ndarray:
    """Orthonormal `(dim, width)`, along which the teacher's vectors are longest; UserError unless `width` < `dim`."""
    vectors = np.load(embed / "alignment.npy", mmap_mode="r")
    if width >= vectors.shape[1]:
        raise UserError(
            f"distill.student: static.width is {width}, but the teacher has {vectors.shape[1]} dimensions; name fewer,"
            " or 0 for as many"
        )
    moments = np.zeros((vectors.shape[1],) * 2)
    for start in range(0, len(vectors), _BLOCK):
        block = vectors[start : start + _BLOCK].astype(np.float64)
        moments += block.T @ block
    return np.ascontiguousarray(np.linalg.eigh(moments).eigenvectors[:, ::-1][:, :width])


def table_tower(
    teacher: SentenceTransformer, tokenizer: Any, rows: np.ndarray, directions: np.ndarray | None = None
) -> SentenceTransformer:
    """The mean of rows `(vocabulary, dim)` as a tower; with `directions` `(dim, width)` a narrow table and a map."""
    if directions is not None:
        rows = rows @ directions
    modules: list[nn.Module] = [StaticEmbedding(tokenizer, embedding_weights=torch.from_numpy(rows).float())]
    if directions is not None:
        dim, width = directions.shape
        linear = Dense(width, dim, bias=False, activation_function=nn.Identity())
        with torch.no_grad():
            linear.linear.weight.copy_(torch.from_numpy(directions))
        modules.append(linear)
    if any(isinstance(module, Normalize) for module in teacher):
        modules.append(Normalize())
    return SentenceTransformer(modules=modules, device=device(), similarity_fn_name=teacher.similarity_fn_name)


def frequent_phrases(texts: list[str], tokenizer: Tokenizer, words: int, pairs: int) -> list[str]:
    """At most so many words that are not one token already, then so many pairs of words, the most frequent of each.

    They are as the tokenizer normalises them, with a single space in a pair. No pair begins with a single letter:
    behind each word that ends with it, the tokenizer would try that pair and miss another. UserError if there are none.
    """
    if not words and not pairs:
        return []
    single: Counter[str] = Counter()
    double: Counter[str] = Counter()
    for text in texts:
        normal = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
        spans = [span for span in _WORDS.pre_tokenize_str(normal) if span[0].isalnum()]
        single.update(word for word, _ in spans)
        double.update(
            f"{left} {right}"
            for (left, (_, end)), (right, (start, _)) in pairwise(spans)
            if normal[end:start] == " " and len(left) > 1
        )
    phrases = _new(_frequent(single), tokenizer)[:words] + _frequent(double)[:pairs]
    if not phrases:
        raise UserError(
            "distill.student: added_words and added_pairs: the alignment texts hold no word twice that is not one token"
            " of the teacher's already, and no pair twice; set both to 0"
        )
    return phrases


def _frequent(counts: Counter[str]) -> list[str]:
    phrases = [phrase for phrase, count in counts.items() if count >= _MIN_COUNT]
    return sorted(phrases, key=lambda phrase: (-counts[phrase], phrase))


def _new(words: list[str], tokenizer: Tokenizer) -> list[str]:
    """Those that are no token of the vocabulary, neither as they are nor as one is written behind a space."""
    vocabulary = tokenizer.get_vocab()
    words = [word for word in words if word not in vocabulary]
    pieces = tokenize([f" {word}" for word in words], tokenizer, 2, special=False)
    rows = (pieces.row(index).tolist() for index in range(len(words)))
    return [
        word
        for word, row in zip(words, rows, strict=True)
        if len(row) > 1 or tokenizer.decode(row).strip() != word  # not known is one token as well
    ]


def with_phrases(tokenizer: Tokenizer, phrases: list[str], first_id: int) -> Tokenizer:
    """The tokenizer with phrases as tokens from `first_id`, the longest taken; UserError if it reads them otherwise."""
    copy: Tokenizer = Tokenizer.from_str(tokenizer.to_str())
    copy.add_tokens([AddedToken(phrase, single_word=True, lstrip=True, normalized=True) for phrase in phrases])
    ids = {phrase: copy.token_to_id(phrase) for phrase in phrases}
    if list(ids.values()) != list(range(first_id, first_id + len(phrases))):
        raise UserError(
            f"distill.student: the teacher's table has {first_id} rows, but its tokenizer gives the next token number"
            f" {ids[phrases[0]]}; set added_words and added_pairs to 0"
        )
    tried = phrases[:_TRIED] + [phrase for phrase in phrases if " " in phrase][:_TRIED]
    encoded = tokenize([_BEFORE, *(f"{_BEFORE} {phrase}" for phrase in tried)], copy, 64, special=False)
    for index, phrase in enumerate(tried, start=1):
        if encoded.row(index).tolist() != [*encoded.row(0).tolist(), ids[phrase]]:
            raise UserError(
                f"distill.student: the teacher's tokenizer does not read the added phrase {phrase!r} as one token;"
                " set added_words and added_pairs to 0"
            )
    return copy

"""BM25, the lexical baseline (Robertson & Zaragoza 2009; Lucene's variant as bm25s implements it)."""

import logging
import re
import unicodedata
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import bm25s
import numpy as np
from bm25s.stopwords import STOPWORDS_EN

from slimtower.common.unicode_norm import as_read, characters, undotted, words_in

TOKENIZER, OLDEST = 4, 3  # 3 told ligatures and half-width kana from the letters that they are
_WORD = re.compile(r"\b\w\w+\b")
_STOP_WORDS = frozenset(STOPWORDS_EN)

logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets DEBUG, and any handler prints each index that it builds


class Bm25:
    """BM25 over document texts, k1 = 1.5 and b = 0.75, English stop words removed.

    Of Chinese, Japanese, Thai, Lao, Khmer and Burmese pairs of neighbouring characters are the terms; a query of a
    single character finds all pairs that hold it. Texts count as they are read (slimtower/common/unicode_norm.py).
    """

    def __init__(self, doc_ids: Sequence[str], texts: Sequence[str]) -> None:
        engine = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
        # with ids, whose order is that of the texts: bm25s numbers bare tokens by a set, another in each process
        vocabulary: dict[str, int] = {}
        ids = [[vocabulary.setdefault(term, len(vocabulary)) for term in _terms(text, TOKENIZER)] for text in texts]
        if not vocabulary:  # no document has a word of two letters
            ids, vocabulary = [[0]] * len(texts), {"": 0}  # a term that no query has
        engine.index(bm25s.tokenization.Tokenized(ids, vocabulary), show_progress=False)
        self._adopt(list(doc_ids), engine, TOKENIZER)

    def _adopt(self, doc_ids: list[str], engine: bm25s.BM25, tokenizer: int) -> None:
        self.doc_ids, self._engine, self._tokenizer = doc_ids, engine, tokenizer

    @property
    def documents(self) -> int:
        """Number of documents that were indexed."""
        return int(self._engine.scores["num_docs"])

    def save(self, folder: Path) -> None:
        """Write the index, without the ids, to `folder`: numpy arrays and JSON, the same bytes for the same texts."""
        self._engine.save(folder, show_progress=False)

    @classmethod
    def open(cls, folder: Path, doc_ids: list[str], tokenizer: int = TOKENIZER) -> "Bm25":
        """Open what `save` wrote, mapped into memory; `doc_ids` and `tokenizer` are those that it was built with."""
        engine = bm25s.BM25.load(folder, mmap=True, allow_pickle=False, show_progress=False)
        for name in ("data", "indices", "indptr"):
            engine.scores[name] = np.asarray(engine.scores[name])  # a plain view: quicker than a memmap
        opened = cls.__new__(cls)
        opened._adopt(doc_ids, engine, tokenizer)
        return opened

    def search(self, texts: Sequence[str], k: int) -> tuple[list[np.ndarray], list[list[str]]]:
        """Scores and document ids of up to `k` hits a text, best first; a document without a shared term is no hit."""
        scores, rows = self.rows(texts, k)
        return scores, [[self.doc_ids[row] for row in row_hits.tolist()] for row_hits in rows]

    def rows(self, texts: Sequence[str], k: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The same with the documents' row numbers in place of their ids."""
        all_scores, all_rows = [], []
        for text in texts:
            scores = self._scores(text)
            hits = np.flatnonzero(scores > 0)
            if k < len(hits):
                hits = hits[scores[hits] >= np.partition(scores[hits], -k)[-k]]
            best = hits[np.argsort(-scores[hits], kind="stable")][:k]
            all_scores.append(scores[best].astype(np.float32))
            all_rows.append(best)
        return all_scores, all_rows

    def scores(self, text: str, rows: np.ndarray) -> np.ndarray:
        """Scores of a text with the documents of some rows: float32 `(len(rows),)`, 0 without a shared term."""
        selected: np.ndarray = self._scores(text)[rows].astype(np.float32)
        return selected

    def _scores(self, text: str) -> np.ndarray:
        all_terms = _terms(text, self._tokenizer)
        terms = [term for term in all_terms if term in self._engine.vocab_dict]
        if self._tokenizer > OLDEST and all(len(characters(term)) == 1 for term in terms):
            terms += [pair for term in all_terms for pair in self._pairs_of(term)]
        scores: np.ndarray = self._engine.get_scores(terms) if terms else np.zeros(self.documents, dtype=np.float32)
        return scores

    def _pairs_of(self, term: str) -> list[str]:
        """The pairs that hold a single character; none of another term."""
        return self._pairs.get(term, []) if len(characters(term)) == 1 else []

    @cached_property
    def _pairs(self) -> dict[str, list[str]]:
        """The terms of two characters that hold a character, by it."""
        pairs: dict[str, list[str]] = {}
        for term in self._engine.vocab_dict:
            if len(of_term := characters(term)) == 2:
                for character in dict.fromkeys(of_term):
                    pairs.setdefault(character, []).append(term)
        return pairs


def _terms(text: str, tokenizer: int) -> list[str]:
    if text.isascii():
        terms = _WORD.findall(text.lower())
    else:
        terms = words_in(undotted(as_read(text, one_form=tokenizer > OLDEST)).lower(), _marked_word())
    return [term for term in terms if term not in _STOP_WORDS]


@lru_cache(maxsize=1)
def _marked_word() -> re.Pattern[str]:
    """As `_WORD`, with combining marks in words: the standard library's `\\w` knows none, and serving has no other."""
    planes = (range(0x300, 0x1F000), range(0xE0100, 0xE01F0))
    marks = "".join(chr(code) for plane in planes for code in plane if unicodedata.category(chr(code))[0] == "M")
    return re.compile(rf"\w[\w{marks}]+")

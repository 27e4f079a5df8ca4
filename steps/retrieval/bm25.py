"""BM25, the lexical baseline (Robertson & Zaragoza 2009; Lucene's variant as bm25s implements it)."""

from collections.abc import Sequence

import bm25s
import numpy as np


class Bm25:
    """BM25 over document texts, k1 = 1.5 and b = 0.75, English stop words removed."""

    def __init__(self, doc_ids: Sequence[str], texts: Sequence[str]) -> None:
        self.doc_ids = list(doc_ids)
        self._engine = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
        self._engine.index(_tokens(texts), show_progress=False)

    def search(self, texts: Sequence[str], k: int) -> tuple[list[np.ndarray], list[list[str]]]:
        """Scores and document ids of up to `k` hits a text, best first; a document without a shared term is no hit."""
        all_scores, all_ids = [], []
        for tokens in _tokens(texts):
            known = [token for token in tokens if token in self._engine.vocab_dict]
            scores = self._engine.get_scores(known) if known else np.zeros(len(self.doc_ids), dtype=np.float32)
            hits = np.flatnonzero(scores > 0)
            best = hits[np.argsort(-scores[hits], kind="stable")][:k]
            all_scores.append(scores[best].astype(np.float32))
            all_ids.append([self.doc_ids[position] for position in best])
        return all_scores, all_ids


def _tokens(texts: Sequence[str]) -> list[list[str]]:
    tokens = bm25s.tokenize(list(texts), stopwords="en", return_ids=False, show_progress=False)
    return [list(line) for line in tokens]

"""Query planner `occlusion`: a term is as important as the query's embedding changes when the term is left out."""

from collections.abc import Iterator

import numpy as np

from slimtower.common.unicode_norm import as_read, undotted
from steps.core.progress import progress
from steps.core.texts import lowered_places
from steps.encoders.bases import resolve_base
from steps.encoders.towers import encode, load_tower
from steps.mine.term_table import shares

_WINDOW_BATCHES = 64  # batches encoded together: what fits in memory, and what `encode` sorts by length
_DECIMALS = 4  # the last bits of an embedding depend on the platform and on what else is in the batch


class OcclusionPlanner:
    """Importances by occlusion with a frozen tower.

    The tower is to be the *base* encoder that training starts from, never the trained teacher: the teacher learns from
    what is mined, and would be made of its own judgements.
    """

    def __init__(self, model: str, batch_size: int, max_length: int) -> None:
        """Load `model` (bundled name, folder or hub name) to read at most `max_length` tokens; UserError when it fails.

        `batch_size` is the number of texts encoded at once. A tower that reads less than `max_length` keeps its limit.
        """
        self.batch_size = batch_size
        self.tower = load_tower(resolve_base(model))
        if hasattr(self.tower[0], "auto_model"):  # a table of tokens reads all of a text
            self.tower.max_seq_length = min(max_length, self.tower.max_seq_length or max_length)

    def importances(self, texts: list[str]) -> list[dict[str, float]]:
        """Importance of each distinct term of each text, float64; those of a text sum to 1 but for rounding.

        The change of a term is 1 - cos(e(q), e(q without all its occurrences)), clipped at 0, its importance the share
        of the sum of changes; equal shares where nothing changes. A term beyond `max_length` changes nothing.
        """
        importance_by_text: dict[str, dict[str, float]] = {}
        distinct = list(dict.fromkeys(texts))
        for window in self._windows(distinct):
            importance_by_text |= self._of_window(window)
        return [importance_by_text[text] for text in texts]

    def _windows(self, texts: list[str]) -> Iterator[dict[str, dict[str, str]]]:
        window: dict[str, dict[str, str]] = {}
        size = 0
        for text in progress(texts, len(texts), "occlusion"):
            window[text] = occluded(text)
            size += len(window[text]) + 1
            if size >= _WINDOW_BATCHES * self.batch_size:
                yield window
                window, size = {}, 0
        yield window

    def _of_window(self, window: dict[str, dict[str, str]]) -> dict[str, dict[str, float]]:
        several = {text: without for text, without in window.items() if len(without) > 1}
        distinct = dict.fromkeys(variant for text, without in several.items() for variant in (text, *without.values()))
        row = {text: number for number, text in enumerate(distinct)}
        vectors = _normalised(encode(self.tower, list(distinct), "query", batch_size=self.batch_size))
        importance_by_text = {text: dict.fromkeys(without, 1.0) for text, without in window.items()}
        for text, without in several.items():
            similar = vectors[[row[variant] for variant in without.values()]] @ vectors[row[text]]
            changes = np.maximum(1.0 - similar, 0.0)
            importance_by_text[text] = {
                term: round(share, _DECIMALS)
                for term, share in shares(dict(zip(without, changes.tolist(), strict=True))).items()
            }
        return importance_by_text


def occluded(text: str) -> dict[str, str]:
    """Each distinct term of a text, in order -> the text, as it is read, without any of the term's occurrences."""
    text = as_read(text)
    lowered = undotted(text).lower()
    origin = [at for at, character in enumerate(undotted(text)) for _ in character.lower()]  # some lower to two
    origin.append(len(text))
    spans: dict[str, list[tuple[int, int]]] = {}
    for start, end in lowered_places(lowered):
        spans.setdefault(lowered[start:end], []).append((origin[start], origin[end - 1] + 1))
    return {term: _without(text, spans[term]) for term in spans}


def _without(text: str, spans: list[tuple[int, int]]) -> str:
    starts = [0, *(end for _, end in spans)]
    ends = [*(start for start, _ in spans), len(text)]
    return " ".join("".join(text[start:end] for start, end in zip(starts, ends, strict=True)).split())


def _normalised(vectors: np.ndarray) -> np.ndarray:
    """Rows of length 1 in float64, `(n, dim)`; a row of zeros stays one, and is unlike everything."""
    exact = vectors.astype(np.float64)
    return exact / np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), np.finfo(np.float64).tiny)

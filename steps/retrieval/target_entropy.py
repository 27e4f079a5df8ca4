"""Whether a teacher's scores of a text's documents have something to teach: neither flat nor one-hot."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import brentq
from scipy.special import entr, softmax

FLAT, ONE_HOT, TARGET_ENTROPY = 0.95, 0.05, 0.5  # of a distribution's entropy to that of an even one
_COLDEST, _HOTTEST = 1e-4, 1e4  # temperatures that may be suggested, of scores whose mean deviation in a text is 1


@dataclass(frozen=True)
class TeacherTargets:
    """A teacher's distributions over the documents of a text, softmax(scores / temperature), by their entropies.

    Entropies are divided by log k: 1 is flat, 0 one-hot. `entropy` and `largest_share` are means over the texts at the
    temperature `at`. `temperature` makes the mean entropy 0.5; there `flat` and `one_hot` are shares of the texts above
    0.95 and below 0.05. None where all texts have equal scores.
    """

    documents: int
    entropy: float
    largest_share: float
    temperature: float | None
    flat: float
    one_hot: float
    at: float
    verdict: Literal["useful", "flat", "one-hot", "uneven", "constant"]

    @property
    def hopeless(self) -> bool:
        """Whether no temperature serves."""
        return self.verdict in ("constant", "uneven")

    def warning(self, teacher: str) -> str | None:
        """One line where a student that learns at `at` learns nothing, or no more than from labels; else None."""
        subject = f"over {self.documents} documents of a text {teacher}'s distribution"
        measured = f"(mean entropy {self.entropy:.2f} of that of equal shares; largest share {self.largest_share:.2f})"
        if self.verdict == "constant":
            return (
                f"{subject} is flat at any temperature, as many scores are equal: train this teacher, or leave it out"
            )
        if self.verdict == "uneven":
            return (
                f"{subject} is flat for {self.flat:.0%} of the texts and one-hot for {self.one_hot:.0%} even"
                f" at temperature {self.temperature:.2g}: no one temperature serves; train this teacher"
                " longer, or leave it out"
            )
        knob = f"set teacher_temperature: {self.temperature:.2g}"
        advice = f"{knob} in the losses that learn its scores (mean entropy {TARGET_ENTROPY})"
        if self.verdict == "flat":
            return f"{subject} is flat at temperature {self.at:.2g} {measured}: there is nothing to learn; {advice}"
        if self.verdict == "one-hot":
            return (
                f"{subject} is one-hot at temperature {self.at:.2g} {measured}: it says no more than a label; {advice}"
            )
        return None


def check_teacher_targets(scores: np.ndarray, at: float = 1.0) -> TeacherTargets | None:
    """Judge scores `(texts, k)` of texts with their documents, learned at the temperature `at`; None for k < 2."""
    if not len(scores) or scores.shape[1] < 2:
        return None
    scores = scores.astype(np.float64)
    entropies, largest = _entropies(scores, at), softmax(scores / at, axis=1).max(axis=1)
    shared = {"documents": scores.shape[1], "entropy": float(entropies.mean()), "at": at}
    shared["largest_share"] = float(largest.mean())
    if (temperature := suggested_temperature(scores)) is None:
        return TeacherTargets(**shared, temperature=None, flat=1.0, one_hot=0.0, verdict="constant")
    there = _entropies(scores, temperature)
    flat, one_hot = float((there > FLAT).mean()), float((there < ONE_HOT).mean())
    verdict: Literal["useful", "flat", "one-hot", "uneven"] = "useful"
    if flat + one_hot >= 0.5:
        verdict = "uneven"
    elif entropies.mean() > FLAT:
        verdict = "flat"
    elif entropies.mean() < ONE_HOT:
        verdict = "one-hot"
    return TeacherTargets(**shared, temperature=temperature, flat=flat, one_hot=one_hot, verdict=verdict)


def layer_targets(scores: np.ndarray, at: float = 1.0, layers: Sequence[int] = ()) -> dict[int, TeacherTargets]:
    """`check_teacher_targets` of scores `(texts, k, layers)` by layer, from 1: of all, or of those numbered from 0."""
    chosen = layers or range(scores.shape[2] if scores.ndim == 3 else 0)
    targets = {layer + 1: check_teacher_targets(scores[:, :, layer], at) for layer in chosen}
    return {layer: figures for layer, figures in targets.items() if figures}


def layers_warning(targets: Mapping[int, TeacherTargets], teacher: str) -> str | None:
    """One line where at least half of the layers teach nothing at the temperature `at`; else None."""
    bad = {layer: figures for layer, figures in targets.items() if figures.verdict != "useful"}
    if not bad or 2 * len(bad) < len(targets):
        return None
    first = next(iter(bad.values()))
    listing = "; ".join(
        f"{kind}: {', '.join(str(layer) for layer, figures in bad.items() if figures.verdict == kind)}"
        for kind in sorted({figures.verdict for figures in bad.values()})
    )
    line = (
        f"layers of {teacher} teach nothing at temperature {first.at:.2g} over {first.documents} documents of a text"
        f" ({listing})"
    )
    temperatures = [figures.temperature for figures in targets.values() if figures.temperature]
    if any(figures.hopeless for figures in bad.values()) or max(temperatures) > 10 * min(temperatures):
        advice = "pair others, or leave them out" if len(bad) < len(targets) else "leave them out"
        return f"{line}: no one temperature serves; {advice}"
    return f"{line}: set teacher_temperature: {math.exp(np.mean(np.log(temperatures))):.2g} in layer_distillation"


def suggested_temperature(scores: np.ndarray, target: float = TARGET_ENTROPY) -> float | None:
    """The temperature at which the mean entropy of the texts' distributions is `target` times that of equal shares.

    Of texts that tell their documents apart, or, if that is out of reach, of those that also tell the best apart from
    the next, as copies do not; None if most do not tell any apart, or if none is left.
    """
    telling = scores[scores.max(axis=1) > scores.min(axis=1)]
    if 2 * len(telling) < len(scores):
        return None
    unit = math.log(float(telling.std(axis=1).mean()))
    low, high = unit + math.log(_COLDEST), unit + math.log(_HOTTEST)

    def excess(log_temperature: float) -> float:
        return float(_entropies(telling, math.exp(log_temperature)).mean()) - target

    if excess(low) > 0:
        telling = telling[_entropies(telling, math.exp(low)) < target]
        if not len(telling):
            return None
    return math.exp(brentq(excess, low, high, xtol=1e-4))


def _entropies(scores: np.ndarray, temperature: float) -> np.ndarray:
    """Entropy of each row's softmax, divided by that of equal shares, `(texts,)`."""
    entropies: np.ndarray = entr(softmax(scores / temperature, axis=1)).sum(axis=1) / math.log(scores.shape[1])
    return entropies


class Sample:
    """Scores, or whatever is by texts, of at most `limit` of them, evenly taken from all `texts`."""

    def __init__(self, texts: int, limit: int = 10_000) -> None:
        self.stride, self.seen, self.rows = max(1, -(-texts // limit)), 0, list[np.ndarray]()

    def add(self, scores: np.ndarray) -> None:
        """Take from the next texts, `(texts, ...)`."""
        self.rows.append(scores[-self.seen % self.stride :: self.stride].copy())
        self.seen += len(scores)

    def all(self) -> np.ndarray:
        """What was taken, `(n, ...)`."""
        return np.concatenate(self.rows) if self.rows else np.zeros((0, 0), dtype=np.float32)

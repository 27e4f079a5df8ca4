"""Whether an exported encoder still is the model it was made from: by cosine, and by nDCG@10 where quantised."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from steps.core.errors import UserError

DEPTH = 10


@dataclass(frozen=True)
class Parity:
    """What export and quantisation changed.

    Cosines are to the PyTorch model. `ndcg` is the mean nDCG@10 on dev queries over the exact index by the model, its
    fp32 export and the encoder that is served; losses are shares of it, negative where something was gained:
    `export_loss` from model to export, `quantisation_loss` from there to what is served. All three are None where there
    are no judged dev queries.
    """

    texts: int
    exported_cosine_min: float
    served_cosine_min: float
    served_cosine_mean: float
    ndcg: dict[str, float] | None
    export_loss: float | None
    quantisation_loss: float | None

    def as_dict(self) -> dict[str, object]:
        """Field name -> value."""
        return asdict(self)


def check_parity(
    texts: Sequence[str],
    reference: np.ndarray,
    exported: np.ndarray,
    served: np.ndarray,
    *,
    minimum_cosine: float,
    maximum_loss: float,
    ndcg: Callable[[np.ndarray], float] | None = None,
) -> Parity:
    """Compare the texts' embeddings `(texts, dim)` by the model, its fp32 export and the encoder that is served.

    `ndcg` scores such embeddings on the dev queries. UserError when the fp32 export of a text is further from the
    model than `minimum_cosine` allows, or when export and quantisation together lose more than `maximum_loss`.
    """
    export_cosines, served_cosines = cosines(exported, reference), cosines(served, reference)
    worst = int(np.nan_to_num(export_cosines, nan=-2.0).argmin())
    if not export_cosines[worst] >= minimum_cosine:  # also catches NaN
        raise UserError(
            f"release.parity_cosine: the fp32 export of {texts[worst]!r} has cosine {export_cosines[worst]:.6f} to the"
            f" model's embedding, below {minimum_cosine}; the export is wrong: use another release.format,"
            " or report the model"
        )
    values = losses = None
    if ndcg is not None:
        vectors = {"model": reference, "exported": exported, "served": served}
        values = {name: ndcg(each) for name, each in vectors.items()}
        losses = {
            "export": relative_loss(values["model"], values["exported"]),
            "quantisation": relative_loss(values["exported"], values["served"]),
        }
        total = relative_loss(values["model"], values["served"])
        if not total <= maximum_loss:
            raise UserError(
                f"release.parity_ndcg_loss: serving loses {total:.2%} of nDCG@10 on dev ({values['model']:.4f} to"
                f" {values['served']:.4f}), more than {maximum_loss:.2%}: export cost {losses['export']:.2%},"
                f" quantisation cost {losses['quantisation']:.2%}; set release.precision: fp32"
            )
    return Parity(
        texts=len(texts),
        exported_cosine_min=float(export_cosines[worst]),
        served_cosine_min=float(served_cosines.min()),
        served_cosine_mean=float(served_cosines.mean()),
        ndcg=values,
        export_loss=losses["export"] if losses else None,
        quantisation_loss=losses["quantisation"] if losses else None,
    )


@dataclass(frozen=True)
class Unjudged:
    """What stands in for nDCG@10 on a data set without judged dev queries: cosines of served texts to the student."""

    reason: str
    texts: int
    served_cosine_mean: float
    served_cosine_min: float

    def as_dict(self) -> dict[str, object]:
        """Field name -> value."""
        return asdict(self)


def check_unjudged(dataset: str, reference: np.ndarray, served: np.ndarray, *, minimum_mean: float) -> Unjudged:
    """Compare a data set's sample texts as the model embeds them and as they are served, `(texts, dim)`.

    UserError when the mean cosine is below `minimum_mean`, or there is no text.
    """
    if not len(reference):
        raise UserError(f"{dataset!r}: no query and no document has a text to compare encoders with; leave it out")
    close = cosines(served, reference)
    mean, reason = float(close.mean()), "no dev query of this data set is judged"
    if not mean >= minimum_mean:  # also catches NaN
        raise UserError(
            f"release.served_cosine: on {len(close)} texts of {dataset!r}, what serves has mean cosine {mean:.4f} to"
            f" the student, below {minimum_mean}; nDCG@10 cannot tell what that costs, as {reason}: set"
            " release.precision: fp32, or judge dev queries"
        )
    return Unjudged(reason, len(close), mean, float(close.min()))


def cosines(served: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """Cosine of each row of `served` `(n, dim)` with the same row of `reference`, float64 `(n,)`.

    1 where both are zero, 0 where one is. UserError when the shapes differ.
    """
    if served.shape != reference.shape:
        raise UserError(
            f"parity: embeddings are {served.shape}, the model's {reference.shape}; export the student again"
        )
    left, right = served.astype(np.float64), reference.astype(np.float64)
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    products = (left * right).sum(axis=1)
    both_zero = ~left.any(axis=1) & ~right.any(axis=1)
    return np.where(both_zero, 1.0, products / np.where(lengths == 0, 1.0, lengths))


def relative_loss(before: float, after: float) -> float:
    """Share of `before` that is gone in `after`; 0 where there was nothing to lose."""
    return (before - after) / before if before else 0.0


def ndcg_at_10(run: Mapping[str, Sequence[str]], qrels: Mapping[str, Mapping[str, int]]) -> np.ndarray:
    """nDCG@10 of each query of `qrels`, float64 `(queries,)` in its order, as trec_eval computes it.

    `run[query]` are document ids, best first; a query without hits, or without relevant documents, counts 0.
    """
    discounts = 1 / np.log2(np.arange(2, DEPTH + 2))
    values = np.zeros(len(qrels))
    for row, (query, grades) in enumerate(qrels.items()):
        gains = np.array([max(grades.get(doc, 0), 0) for doc in run.get(query, ())[:DEPTH]], dtype=np.float64)
        best = np.sort(np.array([max(grade, 0) for grade in grades.values()], dtype=np.float64))[::-1][:DEPTH]
        ideal = best @ discounts[: len(best)]
        values[row] = gains @ discounts[: len(gains)] / ideal if ideal else 0.0
    return values

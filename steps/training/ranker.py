"""Training of a cross encoder: the lists that it sees, the losses over them, and checkpoints to go on from."""

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from sentence_transformers import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss, LambdaLoss, ListNetLoss
from torch import Tensor, nn
from torch.nn import functional

from slimtower.common.errors import UserError
from steps.core.corpus import random_documents, texts_of
from steps.core.judged import read_judged_sets
from steps.core.tables import read_table
from steps.core.texts import fold
from steps.encoders.model_loading import prompt_of
from steps.training.checkpoint_files import keyed_folder
from steps.training.library_trainer import LossLog, WholeCheckpoints, shared_arguments
from steps.training.params import RankerTraining, of_no_weight
from steps.training.triplets import Turns, check_ids, draw_triplets, factorize, refused_queries

if TYPE_CHECKING:  # how runs are tracked changes no weight: checkpoints outlive it
    from steps.tracking.runs import Run

_UNTRAINED = {
    "dev_queries",
    "dev_documents",
    "max_queries",
    "checkpoint_steps",
}  # knobs that training does not follow from
_CODE = (__name__, "steps.retrieval.rankers")
RANDOM_NEGATIVES = 1  # documents of the same data set besides, taken for negatives
_SURE = 1e4  # ListNet's label of a positive: of its softmax over labels, 0 for the others, nothing is left for these


@dataclass(frozen=True)
class RankedList:
    """A training query, a document that is relevant to it, and some that are taken not to be; as texts."""

    query: str
    positive: str
    negatives: tuple[str, ...]
    chance: float = 1.0  # of its `Turns`, with `luck`: those of its most likely triplet
    luck: float = 0.0


@dataclass(frozen=True)
class ListChoice:
    """The lists to train on, how many triplets each source gave, and what was left out for which reason."""

    chosen: list[RankedList]
    by_source: dict[str, int]
    left_out: dict[str, int]
    hard_negatives: float = math.nan  # of a list, on average

    @property
    def negatives_per_positive(self) -> float:
        """Negatives of all lists per positive; nan without lists."""
        negatives = sum(len(ranked_list.negatives) for ranked_list in self.chosen)
        return negatives / len(self.chosen) if self.chosen else math.nan

    def mostly_unused(self, limit: int) -> str | None:
        """What says that the limit they were drawn by leaves more than half of the usable triplets out, else None."""
        used = sum(self.by_source.values())
        usable = used + self.left_out["not_drawn"]
        if used != limit or 2 * used >= usable:
            return None
        return (
            f"{used:,} of {usable:,} usable triplets train (max_triplets); raise it where there is time for more, 0"
            " takes all"
        )

    def fewer_negatives(self, requested: int) -> str | None:
        """What says that lists hold, to a tenth, fewer hard negatives than were asked for, else None."""
        if not round(self.hard_negatives, 1) < requested:  # nan where there are none
            return None
        return (
            f"lists hold {self.hard_negatives:.1f} hard negatives on average, fewer than the {requested} asked for"
            " (negatives); for more raise mine.negatives_per_positive"
        )


def choose_lists(triplets: pa.Table, queries: pa.Table, ingest: Path, params: RankerTraining) -> ListChoice:
    """The triplets that may train, as `draw_triplets` has it, and of these the negatives of each positive.

    A list has at most `negatives` of the triplets' negatives and RANDOM_NEGATIVES documents of its data set. Left out
    and counted as well: a negative that is a positive of the query elsewhere, or reads like one, negatives beyond the
    limit, and lists without a negative. UserError for ids that the tables in `ingest` do not hold.
    """
    query_ids, query_texts, datasets = (queries[name].to_pylist() for name in ("query_id", "text", "dataset"))
    queries_by_id = dict(zip(query_ids, zip(query_texts, datasets, strict=True), strict=True))
    check_ids("query_id", triplets["query_id"].unique().to_pylist(), queries_by_id, ingest)
    judged = {
        query_id: {doc_id for doc_id, grade in grades.items() if grade > 0}
        for judged_set in read_judged_sets(ingest, ["train"])
        for query_id, grades in judged_set.qrels.items()
    }
    hard, turn, positives, by_source, left_out = _draw_triplets(triplets, refused_queries(queries), judged, params)
    list_counts = Counter(queries_by_id[query_id][1] for query_id, _ in hard)
    counts = {dataset: lists * RANDOM_NEGATIVES for dataset, lists in list_counts.items()}
    easy = {dataset: iter(ids) for dataset, ids in random_documents(ingest, counts, params.seed).items()}
    lists: dict[tuple[str, str], list[str]] = {}
    for (query_id, positive), negatives in hard.items():
        hard_ids = list(dict.fromkeys(negatives))
        left_out["beyond_limit"] += len(hard_ids[params.negatives :])
        more = [next(easy[queries_by_id[query_id][1]]) for _ in range(RANDOM_NEGATIVES)]
        lists[query_id, positive] = list(dict.fromkeys([*hard_ids[: params.negatives], *more]))

    named = {doc for (query_id, _), negatives in lists.items() for doc in (*positives[query_id], *negatives)}
    texts = texts_of(ingest, named)
    check_ids("document", sorted(named), texts, ingest)
    chosen, hard_count = [], 0
    for (query_id, positive), negatives in lists.items():
        relevant = {fold(texts[doc_id]) for doc_id in positives[query_id]}
        doc_ids = [doc_id for doc_id in negatives if fold(texts[doc_id]) not in relevant]
        hard_ids = negatives[: min(params.negatives, len(set(hard[query_id, positive])))]
        hard_count += len(set(doc_ids) & set(hard_ids))
        negative_texts = tuple(texts[doc_id] for doc_id in doc_ids)
        left_out["negative_reads_like_positive"] += len(negatives) - len(negative_texts)
        left_out["list_without_negative"] += not negative_texts
        if negative_texts:
            chosen.append(
                RankedList(queries_by_id[query_id][0], texts[positive], negative_texts, *turn[query_id, positive])
            )
    average = hard_count / len(chosen) if chosen else math.nan
    return ListChoice(chosen, dict(sorted(by_source.items())), dict(left_out), average)


class _TripletDraw(NamedTuple):
    """Triplets that may train, by query and positive, with counts of all."""

    hard: dict[tuple[str, str], list[str]]  # negatives
    turn: dict[tuple[str, str], tuple[float, float]]  # chance and luck of the likeliest
    positives: dict[str, set[str]]  # of each of their queries, by any triplet or judgement
    by_source: Counter[str]
    left_out: Counter[str]


def _draw_triplets(
    triplets: pa.Table, refused: Mapping[str, str], judged: Mapping[str, set[str]], params: RankerTraining
) -> _TripletDraw:
    """Draw of the triplets that may train. A log has many: but for the drawn ones they are numbers."""
    query_ids, query = factorize(triplets["query_id"])
    sources, source = factorize(triplets["source"])
    both = [*triplets["positive_id"].chunks, *triplets["negative_id"].chunks]
    doc_ids, document = factorize(pa.chunked_array(both, pa.string()))
    positive, negative = document[: len(triplets)], document[len(triplets) :]
    positive_keys = np.unique(np.concatenate([query * len(doc_ids) + positive, _keys(judged, query_ids, doc_ids)]))
    listed = "negative_is_positive", np.isin(query * len(doc_ids) + negative, positive_keys)
    rows, turns, left_out = draw_triplets(triplets, (query_ids, query), (sources, source), refused, listed, params)
    positives: dict[str, set[str]] = {}
    for key in positive_keys[np.isin(positive_keys // max(1, len(doc_ids)), query[rows])].tolist():
        query_id = query_ids[key // len(doc_ids)]
        positives.setdefault(query_id, set(judged.get(query_id, ()))).add(doc_ids[key % len(doc_ids)])
    hard: dict[tuple[str, str], list[str]] = {}
    turn: dict[tuple[str, str], tuple[float, float]] = {}
    for row, chance, luck in zip(rows.tolist(), turns.chances.tolist(), turns.luck.tolist(), strict=True):
        pair = query_ids[query[row]], doc_ids[positive[row]]
        hard.setdefault(pair, []).append(doc_ids[negative[row]])
        turn[pair] = max(turn.get(pair, (0.0, 0.0)), (chance, luck))
    by_source = Counter(sources[code] for code in source[rows].tolist())
    return _TripletDraw(hard, turn, positives, by_source, Counter(left_out))


def _keys(judged: Mapping[str, set[str]], query_ids: list[str], doc_ids: list[str]) -> np.ndarray:
    """Each judged document of each query, where triplets name both, as one number."""
    position_of = {doc_id: number for number, doc_id in enumerate(doc_ids)}
    keys = [
        number * len(doc_ids) + position_of[doc_id]
        for number, query_id in enumerate(query_ids)
        for doc_id in judged.get(query_id, ())
        if doc_id in position_of
    ]
    return np.array(keys, dtype=np.int64)


def train_on_triplets(
    ranker: CrossEncoder,
    ingest: Path,
    mine: Path,
    params: RankerTraining,
    run: "Run",
    *,
    stage: str,
    section: str,
    advice: str,
    wrap: Callable[[nn.Module], nn.Module] = lambda loss: loss,
) -> tuple[dict[str, Any], Path]:
    """Train the ranker in place on lists of mined triplets, from the checkpoint that a killed run left, if any.

    Returns facts for the report, and the checkpoints' folder. `stage`, `section` and `advice` are for messages; `wrap`
    makes of the loss what is minimised. UserError without a usable triplet, or if the loss is not finite.
    """
    choice = choose_lists(read_table(mine, "triplets"), read_table(ingest, "queries"), ingest, params)
    if not choice.chosen:
        raise UserError(
            f"{mine / 'triplets.parquet'}: no usable triplet (left out: {choice.left_out}); give click logs or"
            f" judgements to ingest, or {advice}"
        )
    unused = choice.mostly_unused(params.max_triplets), of_no_weight(choice.left_out)
    for message in (*unused, choice.fewer_negatives(params.negatives)):
        if message:
            print(f"{stage}: {message}", file=sys.stderr)
    lists = (repr(astuple(ranked_list)) for ranked_list in choice.chosen)
    checkpoints = keyed_folder(stage, ranker, lists, params.model_dump(exclude=_UNTRAINED), _CODE)
    arguments = CrossEncoderTrainingArguments(
        **shared_arguments(params, checkpoints, _rows_a_step(params)),
        prompts=prompt_of(ranker),
    )
    trainer = RankerTrainer(
        model=ranker,
        args=arguments,
        train_dataset=rows(choice.chosen, params.loss),
        loss=wrap(objective(ranker, params, choice.negatives_per_positive)),
        callbacks=[LossLog(run, "ranker", section, "or set precision: fp32")],
        turns=turns_of_rows(choice.chosen, params.loss),
    )
    started = time.monotonic()
    trainer.train_on(checkpoints, stage, params.precision, params.max_length)
    run.metric("training_seconds", time.monotonic() - started)
    ranker.eval()
    facts = {
        "lists": len(choice.chosen),
        "lists_an_epoch": len(turns_of_rows(choice.chosen, "lambda").rows(0)),
        "negatives_per_positive": choice.negatives_per_positive,
        "positive_weight": choice.negatives_per_positive if params.loss == "bce" else None,
        "by_source": choice.by_source,
        "left_out": choice.left_out,
    }
    return facts, checkpoints


class RankerTrainer(WholeCheckpoints, CrossEncoderTrainer):
    """The library's trainer, with checkpoints that appear whole."""


def objective(ranker: CrossEncoder, params: RankerTraining, weight: float) -> nn.Module:
    """The loss of a batch of rows.

    `bce`: mean over pairs of `-(w y log s(x) + (1 - y) log(1 - s(x)))`, x the logit, s the sigmoid, y the label, w
    `weight`: negatives per positive, so that both classes weigh equal. `softmax`: mean over lists of
    `-log softmax_j(x)` of the positive (EmbedDistill, Eq. 8). `lambda`: LambdaLoss with the weights NDCG-Loss2++ over
    lists (Wang et al., "The LambdaLoss Framework for Ranking Metric Optimization", 2018, Sec. 4.3).
    """
    if params.loss == "bce":
        return BinaryCrossEntropyLoss(ranker, pos_weight=torch.tensor(weight, dtype=torch.float32))
    listwise = ListNetLoss if params.loss == "softmax" else LambdaLoss
    return listwise(ranker, mini_batch_size=-1)  # all lists of a batch in one forward pass


def rows(chosen: list[RankedList], loss: str) -> Dataset:
    """The lists as the loss reads them: a row for each pair (bce) or for each list, positives first."""
    if loss != "bce":
        relevant = _SURE if loss == "softmax" else 1.0
        return Dataset.from_dict(
            {
                "query": [ranked_list.query for ranked_list in chosen],
                "documents": [[ranked_list.positive, *ranked_list.negatives] for ranked_list in chosen],
                "labels": [[relevant] + [0.0] * len(ranked_list.negatives) for ranked_list in chosen],
            }
        )
    pairs = [(ranked_list.query, ranked_list.positive, 1.0) for ranked_list in chosen]
    pairs += [(ranked_list.query, negative, 0.0) for ranked_list in chosen for negative in ranked_list.negatives]
    queries, documents, labels = zip(*pairs, strict=True)
    return Dataset.from_dict({"query": queries, "document": documents, "label": labels})


def turns_of_rows(chosen: list[RankedList], loss: str) -> Turns:
    """In which epochs each of these `rows` trains: those of a list in the same ones, the likeliest list in all."""
    of_list = np.arange(len(chosen))
    if loss == "bce":
        of_list = np.concatenate([of_list, of_list.repeat([len(ranked_list.negatives) for ranked_list in chosen])])
    chances, luck = (
        np.array([getattr(ranked_list, name) for ranked_list in chosen])[of_list] for name in ("chance", "luck")
    )
    return Turns(chances / chances.max(), luck)


def _rows_a_step(params: RankerTraining) -> int:
    """Rows that make up `batch_size` pairs: a list has as many as it may have documents."""
    documents = 1 + params.negatives + RANDOM_NEGATIVES
    return params.batch_size if params.loss == "bce" else max(1, params.batch_size // documents)


class WithReconstruction(nn.Module):
    """A ranking loss, and `weight` times the reconstruction loss of the same batch (EmbedDistill, Sec. 4.2).

    The paper names no head that predicts: here it is the table of input embeddings, as in BERT's own pretraining.
    """

    def __init__(self, ranker: CrossEncoder, ranking: nn.Module, weight: float, base: str = "") -> None:
        """UserError when tokens are embedded in other dimensions than the network's states have."""
        super().__init__()
        self.model, self.ranking, self.weight = ranker, ranking, weight
        network: Any = ranker.model
        width, states = self.table.shape[1], network.config.hidden_size
        if width != states:
            raise UserError(
                f"teach.teacher: {base} embeds tokens in {width} dimensions, but its states have {states}, so none of"
                " them can tell its token; name another base, or set pooling: cls"
            )

    @property
    def table(self) -> Tensor:
        """The input embeddings, `(vocabulary, dim)`."""
        network: Any = self.model.model
        rows: Tensor = network.get_input_embeddings().weight
        return rows

    def forward(
        self, inputs: list[Any], labels: Any, prompt: str | None = None, task: str | None = None
    ) -> dict[str, Tensor]:
        """Both terms; their sum is minimised."""
        outputs: list[dict[str, Any]] = []
        hook = self.model[-1].register_forward_hook(lambda _, __, features: outputs.append(features))
        try:
            ranking = self.ranking(inputs, labels, prompt=prompt, task=task)
        finally:
            hook.remove()
        states, ids = [], []
        for features in outputs:
            is_text = features["text_tokens"].any(dim=0)
            states.append(features["token_embeddings"][is_text])
            ids.append(features["input_ids"][is_text])
        lost = reconstruction(torch.cat(states), torch.cat(ids), self.table)
        return {"ranking": ranking, "reconstruction": self.weight * lost}


def reconstruction(states: Tensor, ids: Tensor, table: Tensor) -> Tensor:
    """`-mean_t log softmax(table h_t)[id_t]`, a scalar: how likely tokens are, each by its own final embedding.

    `states` `(tokens, dim)`, `ids` `(tokens,)`, `table` `(vocabulary, dim)`; 0 without tokens.
    """
    if not len(ids):
        return states.sum() * 0
    logits = states.to(table.dtype) @ table.T
    return functional.cross_entropy(logits if logits.dtype == torch.float64 else logits.float(), ids)

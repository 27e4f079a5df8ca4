"""What the ranker is trained on, limits, what never trains; its losses and their gradients against their formulas."""

import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from pydantic import ValidationError
from rank_fakes import PARAMS, documents, queries, triplets, write_encoder
from teach_fakes import table
from torch import Tensor

from slimtower.common.errors import UserError
from steps.core.tables import write_table
from steps.retrieval.rankers import load_ranker, pair_scores
from steps.training import ranker as training
from steps.training.params import of_no_weight
from steps.training.ranker import ListChoice, RankedList, choose_lists, objective, turns_of_rows
from steps.training.ranker import rows as rows_of

LISTS = [
    RankedList("how to add records", "sum rows", ("sort all rows", "merge fields at once", "plot rows")),
    RankedList("how to order records", "sort rows", ("sum rows",)),
]
SIZES = [1 + len(ranked_list.negatives) for ranked_list in LISTS]


def choose(
    folder: Path,
    mined: list[dict[str, Any]],
    query_rows: list[dict[str, Any]] | None = None,
    corpus: list[dict[str, Any]] | None = None,
    judged: Sequence[dict[str, Any]] = (),
    random: int = 0,
    **knobs: Any,
) -> ListChoice:
    for name, rows in (
        ("corpus", corpus or documents()),
        ("queries", query_rows or queries()),
        ("qrels", list(judged)),
    ):
        write_table(folder, name, table(name, rows))
    params = PARAMS.model_copy(update={"negatives": 5} | knobs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "RANDOM_NEGATIVES", random)
        return choose_lists(table("triplets", mined), table("queries", query_rows or queries()), folder, params)


def more_negatives(row: dict[str, Any], *doc_ids: str) -> list[dict[str, Any]]:
    return [row | {"negative_id": doc_id} for doc_id in doc_ids]


def test_negatives_of_a_positive_come_together_up_to_the_limit(tmp_path: Path) -> None:
    row = triplets()[0]
    ids = [document["doc_id"] for document in documents()[4:8]]
    choice = choose(tmp_path, more_negatives(row, *ids, ids[0]), negatives=3)
    (ranked_list,) = choice.chosen
    assert (
        ranked_list.query == "how to add fields" and ranked_list.positive == "sum columns. to sum all columns at once"
    )
    assert len(set(ranked_list.negatives)) == 3 and choice.left_out["beyond_limit"] == 1
    assert choice.negatives_per_positive == 3.0


def test_random_negatives_are_of_the_same_data_set_and_no_positive(tmp_path: Path) -> None:
    corpus = documents() + [
        row | {"doc_id": f"e/{number}", "dataset": "e", "content": "elsewhere"}
        for number, row in enumerate(documents())
    ]
    choice = choose(tmp_path, triplets(), corpus=corpus, random=20)
    corpus_texts = {f"{row['title']}. {row['content']}" for row in documents()}
    for ranked_list in choice.chosen:
        assert (
            set(ranked_list.negatives) <= corpus_texts - {ranked_list.positive}
            and len(ranked_list.negatives) == len(set(ranked_list.negatives)) > 5
        )
    assert choice.chosen == choose(tmp_path, triplets(), corpus=corpus, random=20).chosen
    assert choice.chosen != choose(tmp_path, triplets(), corpus=corpus, random=20, seed=4).chosen


def test_what_is_judged_relevant_to_a_query_is_no_random_negative_of_it(tmp_path: Path) -> None:
    mined, ids = triplets()[:1], [row["doc_id"] for row in documents()]
    judged = [
        {"query_id": mined[0]["query_id"], "dataset": "d", "doc_id": doc_id, "grade": int(at > 5), "split": "train"}
        for at, doc_id in enumerate(ids)
    ]
    (ranked_list,) = choose(tmp_path, mined, judged=judged, random=30).chosen
    irrelevant = {f"{row['title']}. {row['content']}" for row in documents()[:6]}
    assert len(ranked_list.negatives) > 1 and set(ranked_list.negatives) <= irrelevant


def test_a_positive_of_the_query_or_what_reads_like_it_is_no_negative_of_it(tmp_path: Path) -> None:
    first = triplets()[0]
    second = first | {"positive_id": first["negative_id"], "negative_id": "d/plot-rows"}
    choice = choose(tmp_path, [first, second])
    assert choice.left_out["negative_is_positive"] == 1
    assert [ranked_list.negatives for ranked_list in choice.chosen] == [("plot rows. to plot all rows at once",)]
    corpus = documents()
    corpus[2] |= {"title": corpus[1]["title"].upper(), "content": corpus[1]["content"] + "!"}
    choice = choose(tmp_path, triplets()[:2], corpus=corpus)
    assert choice.left_out["negative_reads_like_positive"] == 1 and choice.left_out["list_without_negative"] == 1
    assert len(choice.chosen) == 1


def test_evaluation_queries_never_train(tmp_path: Path) -> None:
    query_rows = queries()
    query_rows[1]["text"] = "How to ADD records?!"  # query 0, a dev query, but for case and punctuation
    mined = triplets()
    mined[-1]["query_id"] = "d/q8"  # a dev query
    choice = choose(tmp_path, mined, query_rows)
    assert choice.left_out["evaluation_query"] == 1 and choice.left_out["not_a_train_query"] == 1
    evaluation = {row["text"] for row in queries() if row["split"] != "train"}
    assert not {ranked_list.query for ranked_list in choice.chosen} & {*evaluation, "How to ADD records?!"}
    assert len(choice.chosen) == len(mined) - 2


def test_triplets_are_drawn_by_weight_up_to_a_limit(tmp_path: Path) -> None:
    mined = [row | {"weight": float(number % 2)} for number, row in enumerate(triplets())]
    choice = choose(tmp_path, mined, max_triplets=5)
    assert len(choice.chosen) == 5 and choice.left_out["not_drawn"] == len(mined) - 5
    trained_queries = dict.fromkeys((ranked_list.query for ranked_list in choice.chosen), True)
    texts = {row["query_id"]: row["text"] for row in queries()}
    assert trained_queries.keys() <= {texts[row["query_id"]] for row in mined if row["weight"]}
    assert choice.by_source == {"click_one_hop": 5}


def test_a_source_counts_by_its_weight_and_not_at_all_at_zero(tmp_path: Path) -> None:
    mined = [row | {"source": ("click_one_hop", "judged")[number % 2]} for number, row in enumerate(triplets())]
    clicks, judged = len(mined[::2]), len(mined[1::2])
    without = choose(tmp_path, mined, source_weights={"judged": 0.0})
    assert without.by_source == {"click_one_hop": clicks} and without.left_out["source_weight_zero"] == judged
    halved = choose(tmp_path, mined, source_weights={"judged": 0.5})
    assert halved.by_source == {"click_one_hop": clicks, "judged": judged}
    chances = {ranked_list.query: ranked_list.chance for ranked_list in halved.chosen}
    texts_by_id = {row["query_id"]: row["text"] for row in queries()}
    assert {chances[texts_by_id[row["query_id"]]] for row in mined[1::2]} == {0.5}
    assert {chances[texts_by_id[row["query_id"]]] for row in mined[::2]} == {1.0}
    hops = [row | {"source": ("click_one_hop", "click_multi_hop")[number % 2]} for number, row in enumerate(mined)]
    alone = choose(tmp_path, hops, source_weights={})
    assert alone.by_source == {"click_one_hop": clicks}, "associated queries train where they are named alone"
    assert f"{judged:,} triplets" in (of_no_weight(alone.left_out) or "")
    named = choose(tmp_path, hops, source_weights={"click_multi_hop": 1.0})
    assert len(named.by_source) == 2 and of_no_weight(named.left_out) is None
    with pytest.raises(ValidationError, match="no source of triplets is named clicks"):
        type(PARAMS).model_validate(PARAMS.model_dump() | {"source_weights": {"clicks": 1.0}})


@pytest.mark.parametrize("loss", ["bce", "softmax", "lambda"])
def test_lists_of_a_lower_weight_train_by_turns_whole(tmp_path: Path, loss: str) -> None:
    mined = [row | {"weight": 0.5 + 0.5 * (number % 2)} for number, row in enumerate(triplets())]
    mined += [
        row | {"negative_id": reverse["negative_id"]} for row, reverse in zip(mined, reversed(mined), strict=True)
    ]
    choice = choose(tmp_path, mined)
    turns, data = turns_of_rows(choice.chosen, loss), rows_of(choice.chosen, loss)
    assert len(turns.chances) == len(data) and choice.left_out["not_drawn"] == 0
    weight = {(row["query_id"], row["positive_id"]): row["weight"] for row in mined}
    seen = [{data[int(row)]["query"] for row in turns.rows(epoch)} for epoch in range(2)]
    ids = {row["text"]: row["query_id"] for row in queries()}
    for query in {ranked_list.query for ranked_list in choice.chosen}:
        [list_weight] = {weight for (query_id, _), weight in weight.items() if query_id == ids[query]}
        assert sum(query in epoch_queries for epoch_queries in seen) == 2 * list_weight
    for epoch in range(2):
        sizes = [1 + len(ranked_list.negatives) for ranked_list in choice.chosen if ranked_list.query in seen[epoch]]
        assert len(turns.rows(epoch)) == (sum(sizes) if loss == "bce" else len(sizes))


def test_triplets_that_are_not_drawn_take_little_memory(tmp_path: Path) -> None:
    mined = pa.concat_tables([table("triplets", triplets())] * 2000)
    for name, rows in (("corpus", documents()), ("queries", queries()), ("qrels", [])):
        write_table(tmp_path, name, table(name, rows))
    tracemalloc.start()
    choice = choose_lists(mined, table("queries", queries()), tmp_path, PARAMS.model_copy(update={"max_triplets": 50}))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(choice.by_source.values()) == 50 and peak < 150 * mined.num_rows


@pytest.mark.parametrize("column", ["query_id", "positive_id", "negative_id"])
def test_an_unknown_id_is_named_with_its_fix(tmp_path: Path, column: str) -> None:
    mined = triplets()
    mined[3][column] = "d/nowhere"
    with pytest.raises(UserError, match="d/nowhere"):
        choose(tmp_path, mined)


def bce(logits: Tensor, weight: float) -> Tensor:
    """Mean of `-(w y log s(x) + (1 - y) log(1 - s(x)))` over pairs, of which the first of each list is relevant."""
    labels = torch.cat([torch.eye(size, dtype=torch.float64)[0] for size in SIZES])
    chance = 1 / (1 + torch.exp(-logits))
    return -(weight * labels * torch.log(chance) + (1 - labels) * torch.log(1 - chance)).mean()


def softmax(logits: Tensor) -> Tensor:
    """EmbedDistill, Eq. 8: mean of `log sum_j exp(s_j) - s_0` over lists whose first document alone is relevant."""
    return torch.stack(
        [torch.log(torch.exp(list_logits).sum()) - list_logits[0] for list_logits in logits.split(SIZES)]
    ).mean()


def discount(rank: int) -> float:
    return float(torch.log2(torch.tensor(1.0 + rank, dtype=torch.float64)))


def lambda_loss(logits: Tensor) -> Tensor:
    """NDCG-Loss2++ (Wang et al. 2018, Eq. 16 and 17), mu = 10, of lists whose first document alone is relevant.

    Mean of `(10 * delta_ij + rho_ij) * |G_i - G_j| * log2(1 + exp(s_j - s_i))` over pairs of i relevant and j not,
    rho_ij = |1/D_i - 1/D_j|, delta_ij = |1/D_|i-j| - 1/D_(|i-j|+1)|, D_r = log2(1 + r).
    """
    terms = []
    for scores in logits.split(SIZES):
        order = torch.argsort(-scores).tolist()
        first = order.index(0) + 1
        for lower_rank in range(1, len(scores)):
            rank = order.index(lower_rank) + 1
            gap = abs(first - rank)
            delta = abs(1 / discount(gap) - 1 / discount(gap + 1))
            rho = abs(1 / discount(first) - 1 / discount(rank))
            terms.append((10 * delta + rho) * torch.log2(1 + torch.exp(scores[lower_rank] - scores[0])))
    return torch.stack(terms).mean()


def of_pairs(logits: Tensor) -> Tensor:
    """Scores list by list in the order of the rows of `bce`: all positives first."""
    parts = logits.split(SIZES)
    return torch.cat(
        [torch.stack([list_logits[0] for list_logits in parts]), *[list_logits[1:] for list_logits in parts]]
    )


FORMULAS: dict[str, tuple[str, float, Callable[[Tensor], Tensor]]] = {
    "bce": ("bce", 1.0, lambda logits: bce(logits, 1.0)),
    "weighted bce": ("bce", 2.5, lambda logits: bce(logits, 2.5)),
    "softmax": ("softmax", 1.0, softmax),
    "lambda": ("lambda", 1.0, lambda_loss),
}


@pytest.mark.medium
@pytest.mark.parametrize("name", FORMULAS)
def test_a_loss_and_its_gradient_are_those_of_its_formula(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    kind, weight, formula = FORMULAS[name]
    ranker = load_ranker(write_encoder(tmp_path / "model"), 32, seed=1)
    data = rows_of(LISTS, kind)
    if kind == "bce":
        texts, labels = [data["query"][:], data["document"][:]], torch.tensor(data["label"][:])
        assert labels.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    else:
        texts, labels = (
            [data["query"][:], data["documents"][:]],
            [torch.tensor(list_labels) for list_labels in data["labels"]],
        )
    loss: Any = objective(ranker, PARAMS.model_copy(update={"loss": kind}), weight)
    pairs = [
        (ranked_list.query, text) for ranked_list in LISTS for text in (ranked_list.positive, *ranked_list.negatives)
    ]
    scores = torch.from_numpy(pair_scores(ranker, pairs, precision="fp32", batch_size=2)).double()
    assert loss(texts, labels).item() == pytest.approx(formula(scores).item(), rel=1e-4)

    generator = torch.Generator().manual_seed(3)
    leaf = torch.randn(sum(SIZES), dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(formula, leaf)
    copied_logits = leaf.detach().clone().requires_grad_()
    logits = of_pairs(copied_logits) if kind == "bce" else copied_logits
    monkeypatch.setattr(ranker, "forward", lambda *_: {"scores": logits})
    for value, scores in ((loss(texts, labels), copied_logits), (formula(leaf), leaf)):
        value.backward()
        assert value.item() == pytest.approx(formula(scores).item(), rel=1e-5)
    torch.testing.assert_close(copied_logits.grad, leaf.grad, rtol=1e-5, atol=1e-7)

"""Which triplets train: weights, limits, and what never may."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from teach_fakes import PARAMS, documents, queries, table, triplets, write_world

from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.errors import UserError
from slimtower.common.settings import validated
from steps.core.tables import write_table
from steps.core.texts import fold
from steps.teach.dev_comparison import dev_tasks
from steps.teach.kinds.dual_encoder import DualEncoder
from steps.teach.training_triplets import TripletChoice, choose_triplets, known_positives, turns_of
from steps.training.params import TripletTraining


def choose(
    mined: list,
    query_rows: list | None = None,
    limit: int = 1000,
    corpus: list | None = None,
    source_weights: dict[str, float] | None = None,
) -> TripletChoice:
    tables = (table("triplets", mined), table("queries", query_rows or queries()))
    with TemporaryDirectory() as ingest:
        write_table(Path(ingest), "corpus", table("corpus", corpus or documents()))
        params = TripletTraining(max_triplets=limit, seed=5, source_weights=source_weights or {})
        return choose_triplets(*tables, Path(ingest), params)


def test_a_query_that_reads_like_an_evaluation_query_never_trains() -> None:
    query_rows = queries()
    query_rows[1]["text"] = "How to ADD records?!"  # query 0, a dev query, but for case and punctuation
    choice = choose(triplets(), query_rows)
    assert choice.left_out["evaluation_query"] == 1
    assert all("records?!" not in triplet.query for triplet in choice.chosen)


def test_a_query_of_another_split_never_trains() -> None:
    mined = triplets()
    mined[0]["query_id"] = "d/q8"
    choice = choose(mined)
    assert choice.left_out["not_a_train_query"] == 1
    assert len(choice.chosen) == len(mined) - 1


def test_a_negative_that_reads_like_its_positive_is_left_out() -> None:
    corpus = documents()
    corpus[2] |= {"title": corpus[1]["title"].upper(), "content": corpus[1]["content"] + "!"}
    assert choose(triplets(), corpus=corpus).left_out["negative_reads_like_positive"] == 1


def test_an_unknown_id_is_named_with_its_fix() -> None:
    mined = triplets()
    mined[3]["negative_id"] = "d/nowhere"
    with pytest.raises(UserError, match="negative_id 'd/nowhere'"):
        choose(mined)


def test_documents_read_as_the_template_of_the_corpus_says(tmp_path: Path) -> None:
    rows = [row | {"topic": f"topic{at}"} for at, row in enumerate(documents())]
    write_table(tmp_path, "corpus", table("corpus", rows), metadata=DocumentTemplate("{topic}: {content}").metadata)
    chosen = choose_triplets(table("triplets", triplets()), table("queries", queries()), tmp_path, TripletTraining())
    texts = {f"{row['topic']}: {row['content']}".strip(" ") for row in rows}
    assert {text for triplet in chosen.chosen for text in (triplet.positive, triplet.negative)} <= texts
    dev_query = {"query_id": "q", "dataset": "d", "split": "dev"}
    write_table(tmp_path, "queries", table("queries", [dev_query | {"text": "text"}]))
    write_table(tmp_path, "qrels", table("qrels", [dev_query | {"doc_id": rows[0]["doc_id"], "grade": 1}]))
    [task] = dev_tasks(tmp_path, PARAMS.model_copy(update={"dev_documents": 3}))
    assert set(task.documents.values()) <= texts and len(task.documents) == 4


def test_too_few_queries_to_fill_a_batch_are_told() -> None:
    choice = choose([row | {"query_id": triplets()[0]["query_id"]} for row in triplets()])
    assert "1 different queries or positives fill no batch of 8, where none comes twice" in str(choice.too_few_texts(8))
    assert "about 12%" in str(choice.too_few_texts(8))
    assert choose(triplets()).too_few_texts(8) is None and choose(triplets()[:3]).too_few_texts(8) is None


def of_two_sources() -> list:
    """Forty times the triplets, every second of another source."""
    rows = [row | {"source": "click_one_hop" if number % 2 else "judged"} for number, row in enumerate(triplets())]
    return rows * 40


def test_a_factor_of_a_source_multiplies_the_weights_of_its_triplets() -> None:
    mined = of_two_sources()
    plain = choose(mined)
    assert plain.left_out["not_drawn"] == len(mined) - 1000  # all weigh 1
    halved = choose(mined, limit=0, source_weights={"click_one_hop": 0.5, "given": 3.0})
    count = {source: sum(row["source"] == source for row in mined) for source in ("judged", "click_one_hop")}
    assert halved.by_source == count
    for epoch in range(2):
        sources = Counter(halved.chosen[row].source for row in turns_of(halved.chosen).rows(epoch))
        assert sources["judged"] == count["judged"]
        assert sources["click_one_hop"] / count["click_one_hop"] == pytest.approx(0.5, abs=0.06)
    facts = halved.facts(2)
    assert facts["triplets_used"] == facts["triplets"] == len(mined)  # each of weight 0.5 in one epoch of two
    assert facts["triplets_an_epoch"] == pytest.approx(0.75 * len(mined), rel=0.05)


def test_a_source_of_weight_zero_is_left_out_and_counted() -> None:
    mined = of_two_sources()
    choice = choose(mined, limit=0, source_weights={"judged": 0.0})
    assert list(choice.by_source) == ["click_one_hop"]
    assert choice.left_out["source_weight_zero"] == sum(row["source"] == "judged" for row in mined)
    assert choice.left_out["not_drawn"] == 0


def test_a_choice_that_leaves_most_unused_says_so_with_its_reason() -> None:
    mined = triplets() * 4  # 140
    assert choose(mined, limit=70).mostly_unused(70, 1) is None
    assert choose(mined, limit=0).mostly_unused(0, 1) is None
    reason = choose(mined * 10, limit=69).mostly_unused(69, 1)
    assert (
        reason == "69 of 1,400 usable triplets train (max_triplets); raise it where there is time for more, 0 takes all"
    )
    mined[0]["weight"] = 50.0
    choice = choose(mined, limit=70)
    turns = turns_of(choice.chosen)
    epoch_size, used = len(turns.rows(0)), len({*turns.rows(0), *turns.rows(1), *turns.rows(2)})
    assert len(choice.chosen) == 140 and epoch_size < 20 and epoch_size < used < 40
    reason = str(choice.mostly_unused(70, 3))
    assert f"{epoch_size} of 140 usable triplets train in an epoch (each with a chance of its weight" in reason
    assert f"{used} of them in all 3; raise epochs" in reason


@pytest.mark.parametrize(
    ("weights", "complaint"),
    [
        ({"clicks": 1.0}, r"source_weights: no source of triplets is named clicks; they are click_one_hop, .*, given"),
        ({"judged": -1.0}, r"source_weights\.judged is -1\.0: input should be greater than or equal to 0"),
    ],
)
def test_source_weights_are_checked(weights: dict[str, float], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        validated(DualEncoder, PARAMS.model_dump() | {"source_weights": weights}, "params.yaml")


def test_what_was_clicked_is_a_known_positive_of_its_query(tmp_path: Path) -> None:
    ingest, _ = write_world(tmp_path)
    impression = {"session_id": "s", "query_id": "d/q1", "rank": 1, "timestamp": 0}
    log = [
        impression | {"doc_id": "d/sum-rows", "clicked": True},
        impression | {"doc_id": "d/sort-rows", "clicked": False},
    ]
    write_table(ingest, "impressions", table("impressions", log))
    positives = known_positives(table("triplets", triplets()), table("queries", queries()), ingest)
    assert "d/sum-rows" in positives[fold(queries()[1]["text"])]
    assert not any("d/sort-rows" in ids for query, ids in positives.items() if query == fold(queries()[1]["text"]))

"""The data check: what a later stage would miss is found from the tables of ingest alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cross_encoders import DUAL

from pipeline.data_check import check_data
from pipeline.params import Params, check_params
from pipeline.recipe import laid_over, overlay
from slimtower.common.errors import UserError
from slimtower.common.settings import read_mapping
from steps.core.tables import SCHEMAS, table_from_rows, write_table

ZERO_SHOT: dict[str, Any] = {"teach": {"teacher": {"dense": {"epochs": 0.0}}}}
TRAINED: dict[str, Any] = {"teach": {"teacher": {"dense": {"epochs": 1.0}}}}
LABELS = [{"kind": "label_softmax"}, {"kind": "embedding"}]
VECTORS = [{"kind": "embedding"}]


def params(*changes: Mapping[str, Any]) -> Params:
    raw = read_mapping(Path("params.yaml"))
    for change in changes:
        raw = overlay(raw, dict(change))
    return check_params(raw, "params.yaml")


def student(**changes: Any) -> dict[str, Any]:
    """One student, 1l, with some values changed."""
    return {"distill": {"students": ["1l"], "student": {"1l": changes}}}


def write(folder: Path, documents: int = 30, title: str = "title", **rows: list[tuple[Any, ...]]) -> Path:
    """Tables of ingest: `documents` of the data set `a`, and rows of others as tuples of their columns."""
    corpus = [(f"a/{at}", "a", title, "", f"content {at}") for at in range(documents)]
    other_tables = ("unlabelled_queries", "impressions", "relevance", "term_scores", "given_triplets")
    for name in ("corpus", "queries", "qrels", *other_tables):
        table_rows = corpus if name == "corpus" else rows.get(name, [])
        named = [dict(zip(SCHEMAS[name].names, row, strict=True)) for row in table_rows]
        write_table(folder, name, table_from_rows(name, named))
    return folder


def query(number: int, split: str) -> tuple[Any, ...]:
    return f"a/q{number}", "a", f"question {number}", split


def unlabelled(number: int) -> tuple[Any, ...]:
    return f"a/q{number}", "a", f"question {number}"


def judged(number: int, split: str) -> tuple[Any, ...]:
    return f"a/q{number}", "a", f"a/{number}", 1, split


def impression(number: int, *, clicked: bool) -> tuple[Any, ...]:
    return "s", f"a/q{number}", f"a/{number}", 1, clicked, 0


def test_a_corpus_alone_runs_and_is_told_what_it_goes_without(tmp_path: Path) -> None:
    assert check_data(params(), write(tmp_path)) == [
        "teach@dense: the data have no click log, no relevance table and no judged training query with candidates"
        " (candidates.searchers), so all-MiniLM-L6-v2 stays as it is",
        "distill: the data have no train queries or unlabelled queries, so students learn from the other texts",
        "evaluate: a has no judged test query, so the report says how close students are to the teacher instead;"
        " `make promote` will refuse: it compares judged answers",
    ]


def test_complete_data_need_no_line(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        queries=[query(1, "train"), query(2, "test")],
        unlabelled_queries=[unlabelled(3)],
        qrels=[judged(2, "test")],
        impressions=[impression(1, clicked=True), impression(1, clicked=False)],
    )
    assert check_data(params(student(labels="train", teacher_top_k=0, losses=LABELS)), folder) == []


ASKED = [query(1, "train"), query(2, "test")]
JUDGED: dict[str, Any] = {"queries": ASKED, "qrels": [judged(1, "train"), judged(2, "test")]}
UNTITLED: dict[str, Any] = {"title": " ", "queries": ASKED, "unlabelled_queries": [unlabelled(3)]}
SCORES = [("a/q1", f"a/{at}", float(at)) for at in range(12)]


@pytest.mark.parametrize(
    ("change", "tables", "untrained", "lacking"),
    [
        ({"generate": {"least_sources": 100}}, {}, True, "train queries or unlabelled queries"),
        ({}, JUDGED, False, "unlabelled queries"),
        ({"candidates": {"searchers": []}}, JUDGED, True, "unlabelled queries"),
        ({}, {"queries": [query(1, "train")], "given_triplets": [("a/q1", "a/1", "a/2")]}, False, "unlabelled queries"),
        (ZERO_SHOT, UNTITLED, False, "titles"),
        (student(labels="train", losses=LABELS), {"queries": ASKED, "relevance": SCORES}, False, "unlabelled queries"),
    ],
)
def test_what_trains_a_teacher_and_what_students_lack(
    change: dict[str, Any], tables: dict[str, Any], untrained: bool, lacking: str, tmp_path: Path
) -> None:
    lines = check_data(params(change), write(tmp_path, **tables))
    assert any(line.startswith("teach@dense: ") for line in lines) == untrained
    messages = [line for line in lines if line.startswith("distill: ")]
    assert messages == [f"distill: the data have no {lacking}, so students learn from the other texts"]


def test_limits_that_leave_most_of_the_data_unused_are_named(tmp_path: Path) -> None:
    folder = write(tmp_path, queries=[query(at, "train") for at in range(25)])
    limits = {"generate": {"max_queries": 12}, "embed": {"max_part_texts": 14}}
    lines = check_data(params(ZERO_SHOT, limits), folder)
    assert "generate: reads only 12 of 25 training queries (generate.max_queries)" in lines
    assert "embed: reads only 14 texts of each of these: 30 titles (embed.max_part_texts, 0 = all)" in lines
    off = {"generate": {"max_queries": 0}, "embed": {"max_part_texts": 0}}
    assert not any("max_" in line for line in check_data(params(ZERO_SHOT, off), folder))
    named = ((f"{at % 3}/{at}", str(at % 3), "title", "", "text") for at in range(30))
    rows = [dict(zip(SCHEMAS["corpus"].names, row, strict=True)) for row in named]
    write_table(folder, "corpus", table_from_rows("corpus", rows))  # three data sets of ten: a limit is of each
    assert not any("titles" in line for line in check_data(params(ZERO_SHOT, limits), folder))


def test_spans_that_make_up_for_missing_texts_are_texts_enough(tmp_path: Path) -> None:
    alone = {"distill": {"repeats": {"titles": 0.0, "sentences": 0.0}}}
    lines = check_data(params(ZERO_SHOT, alone), write(tmp_path))
    assert lines[0].startswith("distill: the data have no train queries or unlabelled queries, so")
    written = {"generate": {"max_queries": 5}}
    lines = check_data(params(ZERO_SHOT, alone, written), tmp_path)
    assert lines[0].startswith("distill: the data have no generated queries, train queries or unlabelled queries, so")
    off = {"embed": {"least_texts": 0}}
    with pytest.raises(UserError, match="the data give no text of generated_queries, spans, train_queries"):
        check_data(params(ZERO_SHOT, alone, off), tmp_path)


@pytest.mark.parametrize("recipe", ["beir15", "nanobeir"])
@pytest.mark.parametrize("parts", ["", "unlabelled_queries"])
def test_a_standard_protocol_trains_on_the_parts_that_it_reads(tmp_path: Path, recipe: str, parts: str) -> None:
    """Texts of the corpora alone, or none of them; the others are left out with a line."""
    path = Path(f"recipes/{recipe}.yaml")
    variables = {"PARTS": parts, "UNLABELLED": "queries.tsv"}
    laid = laid_over(read_mapping(Path("params.yaml")), path.read_text(encoding="utf-8"), variables, path)
    rows = {"unlabelled_queries": [unlabelled(at) for at in range(20)], "queries": [query(1, "test")]}
    lines = check_data(check_params(laid, recipe), write(tmp_path, **rows, qrels=[judged(1, "test")]))
    unread = "generated_queries, sentences, train_queries, titles" if parts else "generated_queries, train_queries"
    [message] = [line for line in lines if "embed.parts does not name" in line]
    assert f" name {', '.join(sorted(unread.split(', ')))}, so" in message


REQUIRED = {"distill": {"required_parts": ["titles", "unlabelled_queries"]}}
NO_PART = {"distill": {"repeats": {"titles": 0.0, "sentences": 0.0, "spans": 0.0}}}
UNREAD = {"distill": {"repeats": {"random_queries": 1.0}, "required_parts": ["random_queries"]}}
CLICKED = {"queries": [query(1, "train")], "impressions": [impression(1, clicked=True)]}
OF_THE_TEST = {
    "queries": [query(1, "test")],
    "impressions": [impression(1, clicked=True), impression(1, clicked=False)],
}
TEN_SCORES = {"queries": [query(1, "train")], "relevance": SCORES[:10]}


@pytest.mark.parametrize(
    ("change", "rows", "complaint"),
    [
        (student(labels="train", losses=LABELS), {}, r"distill\.student\.1l: label_softmax needs labels"),
        (
            student(then=[{"epochs": 1.0, "learning_rate": 1e-3, "losses": [{"kind": "label_binary"}]}]),
            {"queries": [query(1, "train")]},
            r"1l\.then\[0\]: label_binary needs labels, .* set labels: source and teacher_top_k",
        ),
        (
            student(labels="train", teacher_top_k=0, losses=[{"kind": "score_softmax"}]),
            {},
            "score_softmax has no candidate documents.*set teacher_top_k",
        ),
        (REQUIRED, {}, r"required_parts names unlabelled_queries, but the data give no such"),
        (NO_PART, {}, "the data give no text of generated_queries, train_queries, unlabelled_queries"),
        (UNREAD, {}, r"required_parts names random_queries, but embed\.parts does not"),
        (student(teacher_top_k=99), {}, r"1l\.teacher_top_k is 99, but embed\.neighbours is"),
        ({"mine": {"planner": "table"}}, {}, r"planner: 'table' needs term scores and ingest read none"),
        ({"index": {"factory": "IVF64,PQ8x4"}}, {}, r"'IVF64,PQ8x4' needs 64 vectors to train on, but 'a' has 30"),
        ({"index": {"factory": "OPQ8,IVF4,PQ8"}}, {}, "needs 256 vectors"),
        (
            TRAINED,
            CLICKED,
            r"dense\.epochs is 1, but the log of the training queries does not have both",
        ),
        (TRAINED, OF_THE_TEST, r"there is nothing to train on; set teach\.teacher\.dense\.epochs: 0"),
        (TRAINED, TEN_SCORES, "nor a query with more than 10 scores"),
        (
            {"teach": {"teachers": ["dense", "cross"], "teacher": {"cross": DUAL}}},
            {},
            r"teach\.teacher\.cross\.epochs is 1, but no triplet can be mined .* take cross off teach\.teachers",
        ),
    ],
)
def test_what_would_stop_a_later_stage_stops_the_check(
    tmp_path: Path, change: dict[str, Any], rows: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UserError, match=complaint):
        check_data(params(ZERO_SHOT, change), write(tmp_path, **rows))


def test_one_document_is_nothing_to_compare(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"score_softmax compares documents, but there is 1 in all"):
        check_data(params(ZERO_SHOT), write(tmp_path, documents=1))
    assert check_data(params(ZERO_SHOT, student(losses=VECTORS)), write(tmp_path, documents=1))

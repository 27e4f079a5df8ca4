"""Slices hold the queries that they say, from 20 on; perturbed queries are those that a seed gives."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from evaluate_fakes import params
from pydantic import ValidationError

from slimtower.common.errors import UserError
from steps.core.judged import JudgedSet
from steps.core.tables import table_from_rows, write_table
from steps.evaluate import slicing
from steps.evaluate.comparing import figures
from steps.evaluate.figures.perturbed import PERTURBATIONS, drawn_rows, perturbed_set
from steps.evaluate.judging import Folders
from steps.evaluate.slicing import (
    MIN_QUERIES,
    QueryFacts,
    asks,
    count_searches,
    count_words,
    names_of,
    negates,
    popularity,
    rare,
    read_user_slices,
    slice_queries,
    training_texts,
    unseen_share,
)


def judged(*texts: str) -> JudgedSet:
    ids = [f"q{row}" for row in range(len(texts))]
    return JudgedSet("api", "test", ids, list(texts), {query: {"d": 1} for query in ids})


def test_a_rare_name_is_one_word_that_is_both() -> None:
    assert names_of("Sort what Novartis and NIH sell") == ["novartis", "nih"] and names_of("All In Capitals") == []
    seen = {"novartis": 3, "nih": 60, "lists": 2, "sort": 90, "of": 90}
    facts = QueryFacts(seen, {}, {})
    texts = [*["sort of Novartis"] * MIN_QUERIES, *["sort lists of NIH"] * MIN_QUERIES]
    rows = {part.name: part.rows.tolist() for part in slice_queries(judged(*texts), facts, {})}
    assert rows["rare name"] == list(range(MIN_QUERIES))
    assert rows["rare word"] == rows["capitalised name"] == list(range(2 * MIN_QUERIES))


def test_head_and_torso_make_a_third_of_the_searches_each() -> None:
    # of 24 searches there are 6 before the queries of 4, less than a third; 14 before those of 3, 20 before that of 2
    assert popularity([6, 4, 4, 3, 3, 2, 1, 1]) == ["head", "head", "head", "torso", "torso", "tail", "tail", "tail"]
    assert popularity([5, 0]) == ["head", "tail"]


def test_a_slice_has_its_queries_and_a_small_one_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    queries = judged("sort 2 lists", "how not to sort lists of many things here", "sort lists", "do size checks fail")
    facts = QueryFacts({"sort": 9, "lists": 9}, {"q0": 5, "q1": 1}, {"q3": ["mine", "ours"], "q0": ["mine"]})
    monkeypatch.setattr(slicing, "MIN_QUERIES", 1)
    rows_by_name = {part.name: part.rows.tolist() for part in slice_queries(queries, facts, {"checks": "SIZE|fail"})}
    assert rows_by_name == {
        "up to 4 words": [0, 2, 3],
        "9 words and more": [1],
        "head": [0],
        "tail": [1, 2, 3],
        "all words seen": [2],
        "more than a quarter unseen": [0, 1, 3],
        "question": [1, 3],
        "no question": [0, 2],
        "negation": [1],
        "number": [0],
        "rare word": [1, 3],
        "checks": [3],
        "mine": [0, 3],
        "ours": [3],
    }
    without_log = {part.name for part in slice_queries(queries, QueryFacts({}, {}, {}), {})}
    assert not without_log & {"head", "torso", "tail"}
    monkeypatch.setattr(slicing, "MIN_QUERIES", 3)
    large = {name for name, rows in rows_by_name.items() if len(rows) >= 3}
    assert {part.name for part in slice_queries(queries, facts, {})} == large


def test_a_slice_of_the_users_has_a_name_of_its_own() -> None:
    queries = judged("sort 2 lists")
    for patterns, table in (({"number": "x"}, {}), ({}, {"q0": ["up to 4 words"]}), ({"mine": "x"}, {"q0": ["mine"]})):
        with pytest.raises(UserError, match=r"\['(number|up to 4 words|mine)'\] are slices already"):
            slice_queries(queries, QueryFacts({}, {}, table), patterns)
    for pattern in ({"open": "("}, {"a:b": "x"}):
        with pytest.raises(ValidationError):
            params(slices=pattern)


def test_training_texts_and_sessions_are_counted(tmp_path: Path) -> None:
    queries = [
        {"query_id": f"q{at}", "dataset": "a", "text": text, "split": split}
        for at, (text, split) in enumerate((("sort it", "train"), ("find it", "test")))
    ]
    write_table(tmp_path, "queries", table_from_rows("queries", queries))
    parts = {"titles": "Sort, sort them", "train_queries": "sort it", "generated_queries": "sort all"}
    aligned = [
        {"text_sha": "0", "text": text, "part": part, "role": "query", "source_id": "x"} for part, text in parts.items()
    ]
    write_table(tmp_path, "alignment_texts", table_from_rows("alignment_texts", aligned))
    generated = [
        {"query_id": f"q#{at}", "source_query_id": "q", "variant": at, "text": text, "sigma": 0.1, "mask_ratio": 0.3}
        for at, text in enumerate(("sort all", "a"))
    ]
    write_table(tmp_path, "generated_queries", table_from_rows("generated_queries", generated))
    texts = list(training_texts(Folders(*[tmp_path] * 6)))
    assert texts == ["Sort, sort them", "sort all", "a", "sort it"]  # each once, and those that are not aligned on
    assert count_words({"sort", "find"}, texts) == {"sort": 3, "find": 0}
    write_table(tmp_path, "alignment_texts", table_from_rows("alignment_texts", aligned[:1]))
    assert list(training_texts(Folders(*[tmp_path] * 6))) == ["Sort, sort them"], "no student reads the others"
    assert count_searches(tmp_path, ["q1"]) == {}
    impressions = [
        {"session_id": session, "query_id": query, "doc_id": doc, "rank": 1, "clicked": False, "timestamp": 0}
        for session, query, doc in (("s", "q1", "d"), ("s", "q1", "e"), ("t", "q1", "d"), ("u", "q0", "d"))
    ]
    write_table(tmp_path, "impressions", table_from_rows("impressions", impressions))
    assert count_searches(tmp_path, ["q1"]) == {"q1": 2}


@pytest.mark.parametrize(
    ("text", "question", "negation", "name"),
    [
        ("What is it", True, False, False),
        ("size of a list?", True, False, False),
        ("whatever is in it", False, False, False),
        ("arrays without copies", False, True, False),
        ("why doesn't it sort", True, True, False),
        ("notable knots", False, False, False),
        ("2 drugs of NIH", False, False, True),
    ],
)
def test_forms_of_a_query(text: str, question: bool, negation: bool, name: bool) -> None:
    assert (asks(text), negates(text), bool(names_of(text))) == (question, negation, name)


def test_a_users_table_is_text_and_its_rows_are_of_test_queries(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, between in (("own.csv", ","), ("own.tsv", "\t")):
        path = tmp_path / name
        rows = ["slice,query_id", "new,007", "NA,007", "new,7", "x,8"]
        path.write_text("\n".join(row.replace(",", between) for row in rows))
        assert read_user_slices(path, ["007", "7"]) == {"007": ["new", "NA"], "7": ["new"]}
        assert "'8'" in capsys.readouterr().err
        with pytest.raises(UserError, match=r"'007', name no test query"):
            read_user_slices(path, ["own/7"])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "not found"),
        (b"query,slice\n1,a\n", "lacks the column query_id"),
        ("query_id,slice\n1,caf\xe9\n".encode("latin-1"), "cannot be read"),
        (b"query_id,slice\n1,a\n2, \n", "a row has no slice"),
        (pa.table({"query_id": ["1"], "slice": [["a"]]}), "cannot be read"),
        (pa.table({"query_id": ["1", "2"], "slice": ["a", None]}), "a row has no slice"),
    ],
)
def test_a_users_table_that_cannot_be_read(tmp_path: Path, content: bytes | pa.Table | None, problem: str) -> None:
    path = tmp_path / ("own.parquet" if isinstance(content, pa.Table) else "own.csv")
    if isinstance(content, pa.Table):
        pq.write_table(content, path)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=f"slice_table: .*{problem}"):
        read_user_slices(path, "12")


def test_figures_are_means_and_a_bootstrap_of_their_ratio() -> None:
    generator = np.random.default_rng(0)
    teacher = generator.random(50)
    student = teacher * generator.uniform(0.7, 1.0, 50)
    shares = figures({"teacher": teacher, "2l": student, "same": teacher}, 2000, 3)
    assert shares["queries"] == 50
    assert shares["ndcg"] == pytest.approx({"teacher": teacher.mean(), "2l": student.mean(), "same": teacher.mean()})
    retention = shares["retention"]["2l"]
    assert retention["ratio"] == pytest.approx(student.mean() / teacher.mean())
    rows = np.random.default_rng(3).integers(0, 50, (2000, 50))
    expected = np.quantile([student[row].sum() / teacher[row].sum() for row in rows], [0.025, 0.975])
    assert [retention["ci95_low"], retention["ci95_high"]] == pytest.approx(expected)
    assert shares["retention"]["same"] == pytest.approx({"ratio": 1, "ci95_low": 1, "ci95_high": 1})
    assert figures({"teacher": np.zeros(3), "2l": np.ones(3)}, 100, 0)["retention"] == {}


def test_each_change_is_what_it_says() -> None:
    text = "sort a list of numbers in place"
    for seed in range(60):
        typed = PERTURBATIONS["typos"](text, np.random.default_rng(seed))
        changed = [(old, new) for old, new in zip(text.split(), typed.split(), strict=True) if old != new]
        assert len(changed) == 1, typed
        [(old, new)] = changed
        assert len(old) >= 4 and abs(len(new) - len(old)) <= 1
        assert sorted(new) == sorted(old) if len(new) == len(old) else set(new) <= set(old)
        shuffled = PERTURBATIONS["word_order"](text, np.random.default_rng(seed))
        assert shuffled != text and sorted(shuffled.split()) == sorted(text.split())
        prefix = PERTURBATIONS["prefix"](text, np.random.default_rng(seed))
        assert text.startswith(prefix) and 0.45 <= len(prefix) / len(text) <= 0.81
    assert [PERTURBATIONS[kind]("a", np.random.default_rng(0)) for kind in ("typos", "word_order", "prefix")] == [
        "a"
    ] * 3
    assert PERTURBATIONS["prefix"]("", np.random.default_rng(0)) == ""


def test_changes_depend_on_query_kind_and_seed_alone() -> None:
    queries = judged(*(f"sort the numbers of list {at}" for at in range(30)))
    sampled, all_rows = drawn_rows(30, 10, 5), np.arange(30)
    assert len(sampled) == 10 and (np.diff(sampled) > 0).all() and (drawn_rows(7, 10, 5) == np.arange(7)).all()
    few, many = (perturbed_set(queries, rows, "typos", 5) for rows in (sampled, all_rows))
    assert few.texts == [many.texts[row] for row in sampled]
    assert few.query_ids == [f"q{row}" for row in sampled] and set(few.qrels) == set(few.query_ids)
    assert perturbed_set(queries, all_rows, "typos", 6).texts != many.texts


def test_words_are_unseen_or_rare_as_training_texts_have_them() -> None:
    seen = {"sort": 6, "lists": 5, "of": 0, "zlib": 0}
    assert unseen_share("Sort of zlib lists", seen) == 0.5
    assert unseen_share("?", seen) == 0.0
    assert rare(["sort", "lists"], seen) and not rare(["sort", "of"], seen), "of two letters is no name"

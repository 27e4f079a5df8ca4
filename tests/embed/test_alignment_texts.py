"""Alignment texts: every part in turn, each text once, and never an evaluation query."""

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, get_args

import numpy as np
import pytest
from alignment import generated, pairs, query, texts_of

from steps.core.tables import Part
from steps.embed import alignment_texts
from steps.embed.alignment_texts import dataset_of, missing_texts
from steps.embed.derived_texts import query_words


def test_evaluation_queries_are_removed_from_every_part_and_counted() -> None:
    texts = texts_of(
        [query("t", "What is (are) Glaucoma ?", "test"), query("v", "dev query", "dev"),
         query("a", "what is are glaucoma", "train"), query("b", "kept query", "train"),
         query("p", "DEV query!")],
        ("What is (are) Glaucoma", "What is are glaucoma? Another sentence."),
    )  # fmt: skip
    assert pairs(texts) == [("train_queries", "kept query"), ("sentences", "Another sentence.")]
    assert {part: tally["evaluation_query"] for part, tally in texts.counts.items()} == {
        "train_queries": 1, "generated_queries": 0, "titles": 1, "sentences": 1, "unlabelled_queries": 1,
    }  # fmt: skip


def test_a_text_belongs_to_the_first_part_that_has_it() -> None:
    queries = [query("a", "Cumulative sum", "train"), query("b", "?!", "train"), query("p", "cumulative, SUM")]
    texts = texts_of(queries, ("cumulative sum", ""))
    assert texts.counts["train_queries"]["empty"] == 1
    assert pairs(texts) == [("train_queries", "Cumulative sum")]
    assert texts.counts["titles"]["repeated"] == texts.counts["unlabelled_queries"]["repeated"] == 1


def test_documents_are_their_first_words_and_a_sentence_that_is_all_of_one_belongs_to_them() -> None:
    long = " ".join(f"w{number}" for number in range(20))
    texts = texts_of([], ("A title", "One. Two."), ("", "All of it."), ("", long), parts=["documents", "sentences"])
    assert pairs(texts) == [
        ("documents", "A title. One. Two"), ("documents", "All of it."), ("documents", "w0 w1 w2 w3 w4 w5"),
        ("sentences", "One."), ("sentences", "Two."),
    ]  # fmt: skip
    query_too = texts_of([query("t", "all of it", "test")], ("", "All of it."), parts=["documents", "sentences"])
    assert pairs(query_too) == []


def test_evaluation_queries_are_compared_with_cut_texts_as_they_are_and_as_they_would_be_cut() -> None:
    long, short = "one two three four five six seven eight", "one two three four five six"
    texts = texts_of([query("t", long, "test")], ("", long.capitalize()), (short, ""))
    assert pairs(texts) == []
    assert texts.counts["sentences"]["evaluation_query"] == texts.counts["titles"]["evaluation_query"] == 1
    assert pairs(texts_of([query("t", short, "test")], ("", long))) == []


def test_of_a_script_without_spaces_a_character_counts_as_a_word() -> None:
    page = ("", "検索の結果を表示します。")
    assert pairs(texts_of([], page, parts=["documents"])) == [("documents", "検索の結果を")]
    assert pairs(texts_of([query("t", "検索の結果を、次に", "test")], page, parts=["documents"])) == []


def test_a_large_part_is_sampled_the_same_way_each_time() -> None:
    queries = [query(f"q{i}", f"query number {i}") for i in range(100)]
    first, second = (texts_of(queries, max_part_texts=10) for _ in range(2))
    assert pairs(first) == pairs(second)
    assert first.counts["unlabelled_queries"]["kept"] == 10 and first.counts["unlabelled_queries"]["not_drawn"] == 90
    assert pairs(first) != pairs(texts_of(queries, max_part_texts=10, seed=4))


def test_a_sample_of_sentences_is_read_again_as_it_was_counted() -> None:
    corpus = [("", " ".join(f"Sentence {n} of {document}. Common one." for n in range(4))) for document in range(20)]
    every = pairs(texts_of([], *corpus))
    texts = texts_of([], *corpus, max_part_texts=15)
    assert len(every) == 81 and texts.counts["sentences"] == {
        "kept": 15, "evaluation_query": 0, "repeated": 79, "empty": 0, "not_drawn": 66}  # fmt: skip
    assert [pair for pair in every if pair in pairs(texts)] == pairs(texts)
    for row in texts.table.to_pylist():
        document = row["text"].removesuffix(".").rpartition(" ")[2]
        assert row["source_id"] == ("one/d0" if document == "one" else f"one/d{document}")


def test_a_small_data_set_beside_a_large_one_gives_as_many_texts_as_alone() -> None:
    sets = [(name, n) for name, count in (("large", 200), ("small", 30)) for n in range(count)]
    corpus = [(f"{name}/d{n}", f"Title {n} of {name}", "", " ".join(f"{name}{n}x{k}" for k in range(12)))
              for name, n in sets]  # fmt: skip
    for least_texts, expected in ((0, {"large": 40, "small": 30}), (100, {"large": 100, "small": 100})):
        knobs: dict[str, Any] = {"parts": ["titles"], "max_part_texts": 40, "least_texts": least_texts}
        table, alone = (texts_of([], documents=documents, **knobs).table for documents in (corpus, corpus[200:]))
        assert Counter(map(dataset_of, table["source_id"].to_pylist())) == expected
        small = [row for row in table.to_pylist() if dataset_of(row["source_id"]) == "small"]
        assert small == alone.to_pylist()
    queries = [query(f"{name}/q{n}", f"{name} asks {n}", "train") for name, n in sets]
    table = texts_of(queries, max_part_texts=40).table
    assert Counter(map(dataset_of, table["source_id"].to_pylist())) == {"large": 40, "small": 30}
    assert missing_texts(["large/d1", "pool/q1"], [*corpus, ("third/d", "")], 3) == {"large": 1, "small": 2, "third": 2}


NEW = ["random_queries", "spans", "perturbed_queries"]
TRAIN = [query(f"q{i}", f"how many rows does frame {i} have", "train") for i in range(60)]
VARIANTS = generated(*((f"new query {i}", 0.1) for i in range(50)))
CORPUS = [(f"Title {i}", " ".join(f"word{i}x{n}" for n in range(30))) for i in range(40)]


def test_random_queries_are_as_many_as_generated_ones_and_no_longer_than_max_words() -> None:
    texts = texts_of(TRAIN, generated=VARIANTS, parts=["random_queries"])
    counts = texts.counts["random_queries"]
    assert counts["kept"] + counts["repeated"] == 50 and counts["kept"] >= 45
    assert {len(text.split()) for _, text in pairs(texts)} == {6}  # queries have seven words, and max_words is six
    assert set(texts.table["source_id"].to_pylist()) <= {row["query_id"] for row in VARIANTS}


def test_words_and_lengths_of_random_queries_follow_the_training_queries() -> None:
    queries = [query("a", "common", "train"), query("b", "common common rare", "train")]
    many = generated(*((f"new {i}", 0.1) for i in range(4000)))
    alignment = texts_of(queries, generated=many, parts=["random_queries"])
    every = {" ".join(text) for length in (1, 3) for text in product(("common", "rare"), repeat=length)}
    assert {text for _, text in pairs(alignment)} == every
    vocabulary = query_words(row["text"] for row in queries)
    texts = [vocabulary.random_query(Random(seed)).split() for seed in range(4000)]
    share = np.mean([word == "common" for text in texts for word in text])
    assert share == pytest.approx(3 / 4, abs=0.02)
    assert np.mean([len(text) == 1 for text in texts]) == pytest.approx(1 / 2, abs=0.03)


def test_words_are_those_of_most_documents_of_each_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment_texts, "WORDS", 3)
    documents = [
        ("one/a", "", "", "Rows and Rows and rows 10 x"),
        ("one/b", "", "", "and columns, zeros"),
        ("two/a", "", "", "東京都 Straße"),
    ]
    texts = texts_of([query("q", "columns", "test")], documents=documents, parts=["words"])
    found = [(row["source_id"], row["text"]) for row in texts.table.to_pylist()]
    assert found == [("one/", "and"), ("one/", "rows"), ("two/", "straße"), ("two/", "京都"), ("two/", "東京")]
    assert texts.counts["words"]["evaluation_query"] == 1


def test_spans_are_consecutive_words_of_their_document_as_long_as_training_queries() -> None:
    queries = [query("a", "two words", "train"), query("b", "and now four words", "train")]
    texts = texts_of(queries, *CORPUS, parts=["spans"], spans_per_document=5, max_words=96)
    counts = texts.counts["spans"]
    assert counts["kept"] + counts["repeated"] == 5 * len(CORPUS)
    lengths = Counter(len(text.split()) for _, text in pairs(texts))
    assert all(length in (2, 4) or length > 12 for length in lengths) and min(lengths[2], lengths[4]) > 50
    starts = set()
    for row in texts.table.to_pylist():
        title, content = CORPUS[int(row["source_id"].removeprefix("one/d"))]
        document, span = f"{title}. {content}".split(), row["text"].split()
        matches = [at for at in range(len(document)) if document[at : at + len(span)] == span]
        assert len(matches) == 1
        starts.add((matches[0], len(document) - len(span)))
    assert min(starts)[0] == 0 and any(at == last for at, last in starts)  # both ends of documents occur


def test_every_training_query_is_perturbed_once_and_keeps_its_id() -> None:
    texts = texts_of(TRAIN, parts=["train_queries", "perturbed_queries"], max_words=48)
    assert texts.counts["perturbed_queries"] == {"kept": 60, "evaluation_query": 0, "repeated": 0, "empty": 0}
    rows = texts.table.to_pylist()
    assert [row["source_id"] for row in rows[60:]] == [row["query_id"] for row in TRAIN]
    assert all(new["text"] != old["text"] for old, new in zip(rows[:60], rows[60:], strict=True))
    same = sum(new["text"].lower() == old["text"].lower() for old, new in zip(rows[:60], rows[60:], strict=True))
    assert 5 <= same <= 28  # a quarter of them in another case


@pytest.mark.parametrize("order", [["train_queries", "perturbed_queries"], ["perturbed_queries", "train_queries"]])
def test_a_perturbation_of_case_alone_repeats_nothing_and_its_repetition_does(order: list[str]) -> None:
    queries = [query("a", "Cumulative Sum", "train"), query("b", "Cumulative Sum", "train")]
    texts = texts_of(queries, parts=order, case_share=1.0)
    variants = [text for part, text in pairs(texts) if part == "perturbed_queries"]
    assert variants and set(variants) <= {"cumulative sum", "CUMULATIVE SUM"} and len(variants) == len(set(variants))
    assert texts.counts["perturbed_queries"]["repeated"] == 2 - len(variants)
    assert [text for part, text in pairs(texts) if part == "train_queries"] == ["Cumulative Sum"]


def test_a_text_that_is_there_to_the_letter_is_no_new_perturbation_nor_one_of_a_later_part() -> None:
    queries = [query("a", "abs", "train"), query("b", "ABS"), query("c", "Abs")]
    texts = texts_of(queries, parts=["perturbed_queries", "unlabelled_queries"])
    (variant,) = (text for part, text in pairs(texts) if part == "perturbed_queries")
    assert variant in {"ABS", "Abs"}
    assert [text for part, text in pairs(texts) if part == "unlabelled_queries"] == [
        {"ABS": "Abs", "Abs": "ABS"}[variant]
    ]
    assert texts_of([query("a", "42", "train")], parts=["perturbed_queries"]).counts["perturbed_queries"] == {
        "kept": 0, "evaluation_query": 0, "repeated": 1, "empty": 0}  # fmt: skip


@pytest.mark.parametrize("extra", ["", " and words after the cut of it"])
def test_no_perturbation_of_a_query_that_equals_an_evaluation_query_is_kept(extra: str) -> None:
    leaking = [query(f"q{i}", f"What is (are) glaucoma in number {i}{extra}", "train") for i in range(6)]
    tests = [query(f"t{i}", f"what is are Glaucoma in, number {i}{extra}", "test") for i in range(6)]
    texts = texts_of([*leaking, *tests], parts=["perturbed_queries"])
    assert pairs(texts) == [] and texts.counts["perturbed_queries"]["evaluation_query"] == 6


def test_a_typo_that_makes_an_evaluation_query_is_removed() -> None:
    (typo,) = texts_of([query("a", "glaucoma", "train")], parts=["perturbed_queries"], case_share=0.0).table["text"]
    queries = [query("a", "glaucoma", "train"), query("t", typo.as_py().upper(), "test")]
    texts = texts_of(queries, parts=["perturbed_queries"], case_share=0.0)
    assert pairs(texts) == []
    assert texts.counts["perturbed_queries"] == {"kept": 0, "evaluation_query": 1, "repeated": 0, "empty": 0}


def test_evaluation_queries_are_removed_from_random_queries_and_spans() -> None:
    queries = [query("a", "sum", "train"), query("t", "Sum!", "test")]
    texts = texts_of(queries, generated=VARIANTS, parts=["random_queries"])
    assert pairs(texts) == [] and texts.counts["random_queries"]["evaluation_query"] == 50
    queries = [query("a", "two words", "train"), query("t", "ONE, two", "test"), query("v", "three four", "dev")]
    texts = texts_of(queries, ("", "one two three four"), parts=["spans"], spans_per_document=60)
    short = [text for _, text in pairs(texts) if len(text.split()) == 2]
    assert short == ["two three"], "neither of the evaluation queries"
    counts = texts.counts["spans"]
    assert counts["evaluation_query"] > 20 and sum(counts.values()) == 60


def test_a_text_made_from_one_source_depends_on_no_other_source() -> None:
    def derived(queries: list[dict[str, str]], *corpus: tuple[str, str]) -> dict[tuple[str, str], str]:
        texts = texts_of(queries, *corpus, parts=["spans", "perturbed_queries"])
        return {(row["part"], row["source_id"]): row["text"] for row in texts.table.to_pylist()}

    fewer, all_of_them = derived(TRAIN[10:], *CORPUS[:30]), derived(TRAIN, *CORPUS)
    same = [all_of_them[key] == text for key, text in fewer.items()]
    assert len(same) == 80 and all(same)


@pytest.mark.medium
def test_another_process_makes_the_same_texts() -> None:
    code = (
        "import json, test_alignment_texts as here;"
        "print(json.dumps(here.pairs(here.texts_of("
        "here.TRAIN, *here.CORPUS, generated=here.VARIANTS, parts=here.NEW))))"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = os.environ | {"PYTHONHASHSEED": "5", "PYTHONPATH": paths}
    there = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    here = pairs(texts_of(TRAIN, *CORPUS, generated=VARIANTS, parts=NEW))
    assert [tuple(pair) for pair in json.loads(there.stdout)] == here


@pytest.mark.parametrize("part", get_args(Part))
def test_nothing_to_take_texts_from_gives_no_texts(part: str) -> None:
    texts = texts_of([], parts=[part])
    assert pairs(texts) == []
    assert texts.counts == {part: {"kept": 0, "evaluation_query": 0, "repeated": 0, "empty": 0}}


@pytest.mark.parametrize("changes", [{"parts": ["spans"]}, {"parts": ["titles"], "least_texts": 5}])
def test_spans_are_of_the_text_that_the_template_makes(changes: dict[str, Any]) -> None:
    for template, named in (("{title}. {content}", False), ("{topic} {content}", True)):
        texts = texts_of(TRAIN, ("one", "two"), template=template, **changes)
        assert pairs(texts) and any("topic0" in text for _, text in pairs(texts)) == named

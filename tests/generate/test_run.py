"""The stage `generate` as a whole, on forty queries."""

from collections import Counter
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from generate_fakes import PARAMS, TEXTS, VERBS, queries, random_bart, save_denoiser, write_bart, write_world
from recorder import Recorder
from rows import row as row_of
from rows import write_rows
from teach_fakes import write_tower

import steps.generate.run as stage
from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.core.corpus import corpus_columns
from steps.core.tables import read_table, table_from_rows, write_table
from steps.core.texts import fold
from steps.encoders.towers import load_tower
from steps.generate import denoiser, writer
from steps.generate.denoiser import Denoiser, Variants
from steps.generate.params import GenerateParams
from steps.generate.run import (
    SIGMAS,
    Source,
    content_overlap,
    corpus_sample,
    filter_texts,
    from_documents,
    query_like,
    source_cosines,
)
from steps.tracking.runs import NullRun, Run


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tower(tmp_path_factory.mktemp("judge") / "model")


def generate(ingest: Path, output: Path, judge: Path, run: Run | None = None, **changes: Any) -> Path:
    params = GenerateParams.model_validate(PARAMS.model_dump() | {"judge": str(judge)} | changes)
    stage.run(ingest, output, params, run or NullRun())
    return output


@pytest.mark.slow
def test_the_small_bart_learns_to_write_new_queries(tmp_path: Path, judge: Path) -> None:
    ingest, run = write_world(tmp_path), Recorder()
    output = generate(ingest, tmp_path / "generate", judge, run)
    assert run.of("loss")[-1] < run.of("loss")[0] / 2
    rows = read_table(output, "generated_queries").to_pylist()
    report = read_json(output / "report.json")
    assert report["queries"] == len(rows) >= 15
    sources = {row["query_id"]: row["text"] for row in queries() if row["split"] == "train"}
    folded = [fold(row["text"]) for row in rows]
    assert len(set(folded)) == len(folded)
    assert not set(folded) & {fold(row["text"]) for row in queries()}
    for row in rows:
        assert row["query_id"] == f"{row['source_query_id']}#{row['variant']}"
        assert row["source_query_id"] in sources
        assert row["sigma"] == pytest.approx(SIGMAS[row["variant"]])
    assert [row["query_id"] for row in rows] == sorted(row["query_id"] for row in rows)
    for entry in report["sigmas"]:
        assert entry["written"] == len(TEXTS) == entry["kept"] + sum(entry["dropped"].values())
        assert entry["content_word_overlap"] > 0.2  # variants of their sources, not any text
        assert 0.1 <= entry["masked_share"] < 0.3
    again = generate(ingest, tmp_path / "again", judge)
    for name in ("generated_queries.parquet", "report.json"):
        assert (again / name).read_bytes() == (output / name).read_bytes()


@pytest.mark.medium
def test_models_that_cannot_serve_are_refused_before_anything_is_trained(
    tmp_path: Path, judge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "train_denoiser", lambda *_: pytest.fail("trained for nothing"))
    bart = random_bart()
    save_denoiser(bart, tmp_path / "bart")
    bart.tokenizer.mask_token = None
    save_denoiser(bart, tmp_path / "no mask")
    bart_folder, nowhere = str(tmp_path / "bart"), str(tmp_path / "nowhere")
    for changes, constant, why in (
        ({"model": str(tmp_path / "no mask")}, "", "no mask or padding token"),
        ({"model": nowhere}, "", "cannot be loaded .* generate.model"),
        ({"document_model": nowhere, "least_sources": 60}, "", "cannot be loaded .* generate.document_model"),
        ({"judge": nowhere}, "", "nowhere: cannot be loaded"),
        ({"model": bart_folder}, "MAX_TOKENS", r"generate\.model: .* has 256 positions, but reads 257"),
        ({"document_model": bart_folder, "least_sources": 60}, "DOCUMENT_TOKENS", "256 positions, but reads 257"),
    ):
        with monkeypatch.context() as patch, pytest.raises(UserError, match=why):
            if constant:
                patch.setattr(denoiser if constant == "MAX_TOKENS" else writer, constant, 257)
            generate(write_world(tmp_path), tmp_path / "generate", **{"judge": judge} | changes)
        assert not (tmp_path / "generate").exists()


@pytest.mark.medium
def test_two_models_that_write_the_same_query_give_it_once(
    tmp_path: Path, judge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "write_variants", lambda _, texts, *__: Variants(["the same"] * len(texts), 0.1))
    monkeypatch.setattr(stage, "write_queries", lambda _, texts, *__: ["The same!", *["another"] * (len(texts) - 1)])
    folder = str(write_bart(tmp_path / "bart"))
    changes = {"model": folder, "document_model": folder, "least_sources": 44, "round_trip": 0}
    output = generate(write_world(tmp_path), tmp_path / "generate", judge, **changes)
    assert read_table(output, "generated_queries")["text"].to_pylist() == ["the same", "another"]


def test_a_planted_leak_is_removed_and_counted(tmp_path: Path, judge: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leaking(denoiser: Denoiser, texts: list[str], sigma: float, seed: int, params: GenerateParams) -> Variants:
        written = [f"{text} quickly {sigma}" for text in texts]
        written[4] = "MERGE all the rows, of a disk"  # the test query
        return Variants(written, 0.1)

    monkeypatch.setattr(stage, "write_variants", leaking)
    folder = write_bart(tmp_path / "bart")
    output = generate(write_world(tmp_path), tmp_path / "generate", judge, model=str(folder))
    report = read_json(output / "report.json")
    assert [entry["dropped"]["evaluation_query"] for entry in report["sigmas"]] == [1, 1]
    rows = read_table(output, "generated_queries").to_pylist()
    assert Counter(row["variant"] for row in rows) == {0: 39, 1: 39}
    assert all("disk" not in row["text"] for row in rows)


@pytest.mark.medium
def test_evaluation_queries_train_nothing_and_seed_nothing(
    tmp_path: Path, judge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query_rows = queries()
    query_rows[0]["text"] = "Merge all the rows of a disk."  # a train query that reads like the test query
    seen: list[str] = []

    def listening(texts: list[str], params: GenerateParams, run: Run) -> Denoiser:
        seen.extend(texts)
        return random_bart()

    monkeypatch.setattr(stage, "train_denoiser", listening)
    output = generate(write_world(tmp_path, query_rows), tmp_path / "generate", judge)
    assert "To sum is to work on a file." in seen
    assert not {fold(text) for text in seen} & {"merge all the rows of a disk", "sum all the images of a disk"}
    sources = {row["source_query_id"] for row in read_table(output, "generated_queries").to_pylist()}
    assert query_rows[0]["query_id"] not in sources


@pytest.mark.parametrize(
    ("changes", "note"),
    [({}, "no training query"), ({"max_queries": 0, "least_sources": 9}, "generate.max_queries is 0")],
)
def test_without_sources_the_table_is_empty_and_the_report_says_why(
    tmp_path: Path, judge: Path, changes: dict[str, int], note: str
) -> None:
    ingest = write_world(tmp_path, [row for row in queries() if row["split"] != "train"])
    output = generate(ingest, tmp_path / "generate", judge, **changes)
    assert len(read_table(output, "generated_queries")) == 0
    assert note in read_json(output / "report.json")["note"]


def test_the_corpus_is_read_a_few_times_where_few_documents_have_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "To sum rows is to work on a file."
    rows = [(f"d/{number}", "d", "x", "", long if number % 500 == 0 else "y") for number in range(8000)]
    write_rows(tmp_path, "corpus", rows)
    reads = 0

    def counted(*arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        return corpus_columns(*arguments)

    monkeypatch.setattr(stage, "corpus_columns", counted)
    sources = stage.from_documents(tmp_path, set(), 50, 3, whole_documents=False)
    assert len(sources) == 1 and reads <= 2 * 5, "ids and texts, as often as 8 doubles, and once more"


def test_a_source_that_the_model_cannot_read_whole_is_left_out(
    tmp_path: Path, judge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its beginning would pass for a new query."""
    long = " ".join(f"sum{number} all the rows" for number in range(20))
    monkeypatch.setattr(stage, "train_denoiser", lambda *_: random_bart())
    monkeypatch.setattr(stage, "write_variants", lambda denoiser, texts, *_: Variants([t[:9] for t in texts], 0.1))
    ingest = write_world(tmp_path, [*queries()[:3], row_of("queries", "d/long", "d", long, "train")])
    output = generate(ingest, tmp_path / "generate", judge)
    rows = read_table(output, "generated_queries").to_pylist()
    assert rows and "d/long" not in {line["source_query_id"] for line in rows}
    assert read_json(output / "report.json")["too_long"] == 1


@pytest.mark.medium
def test_the_small_bart_trains_on_no_more_queries_than_it_may(
    tmp_path: Path, judge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training_texts: list[list[str]] = []

    def noted(texts: list[str], *_: object) -> Denoiser:
        training_texts.append(texts)
        return random_bart()

    monkeypatch.setattr(stage, "train_denoiser", noted)
    monkeypatch.setattr(stage, "CORPUS_TEXTS", 0)
    ingest = write_world(tmp_path / "ingest")
    for number, (max_queries, seed) in enumerate(((0, 3), (40, 3), (10, 3), (10, 4))):
        generate(ingest, tmp_path / str(number), judge, small={"max_queries": max_queries}, seed=seed)
    every, enough, sample, other_seed = training_texts
    assert every == enough and sorted(every) == sorted(TEXTS)
    assert len(sample) == len(other_seed) == 10 and sample != other_seed
    assert sample == [text for text in every if text in sample]


@pytest.mark.medium
def test_documents_make_up_for_missing_queries(tmp_path: Path, judge: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_small_table(folder: Path, name: str) -> pa.Table:
        assert name != "corpus", "it is never read as a whole"
        return read_table(folder, name)

    monkeypatch.setattr(stage, "read_table", read_small_table)
    ingest = write_world(tmp_path, queries()[:3] + queries()[-2:])
    changes = {"model": str(write_bart(tmp_path / "bart")), "least_sources": 7, "max_queries": 2}
    output = generate(ingest, tmp_path / "generate", judge, **changes)
    report, rows = read_json(output / "report.json"), read_table(output, "generated_queries").to_pylist()
    assert (report["sources"], report["documents"], report["sources_not_drawn"]) == (7, 5, 1)
    assert report["model"] == changes["model"] and report["queries"] == len(rows) > 0
    query_ids = {row["query_id"] for row in queries()[:3]}
    assert {row["source_query_id"] for row in rows} <= query_ids | {""}
    used = {row["query_id"].partition("#")[0] for row in rows if not row["source_query_id"]}
    assert used <= {f"d/{verb}" for verb in VERBS} and len(used) >= 3
    assert len({row["query_id"] for row in rows}) == len(rows)


def test_the_sample_of_the_corpus_is_of_its_texts_whatever_their_order() -> None:
    rows = [(f"the title of number {number}", f"It says number {number} here. Too short.") for number in range(50)]
    evaluation = {fold("The title of number 7")}
    every = corpus_sample(rows, evaluation, 200, 3)
    assert sorted(every) == sorted(
        text for row in rows for text in (row[0], row[1].partition(" Too")[0]) if fold(text) not in evaluation
    )
    sample = corpus_sample(rows, evaluation, 9, 3)
    assert sample == every[:9] == corpus_sample([*rows[::-1], *rows], evaluation, 9, 3)
    assert sample != corpus_sample(rows, evaluation, 9, 4)
    assert corpus_sample(rows, evaluation, 0, 3) == [] == corpus_sample([], evaluation, 9, 3)


def in_memory(corpus: pa.Table, evaluation: set[str], limit: int, seed: int, *, whole_documents: bool) -> list[Source]:
    """What `from_documents` gives, from a sorted list of all documents."""
    rows = sorted(corpus.to_pylist(), key=lambda row: sha256(f"{seed} {row['doc_id']}".encode()).hexdigest())
    sources: dict[str, Source] = {}
    for turn in range(99):
        for row in rows:
            title, topic, content = row["title"], row["topic"], row["content"]
            texts = [DocumentTemplate().text(title, topic, content)] if whole_documents else query_like(title, content)
            if new := [text for text in texts if fold(text) not in {"", *evaluation, *sources}]:
                text = Random(f"{seed} {row['doc_id']} {turn}").choice(new)
                sources[fold(text)] = Source(f"{row['doc_id']}#document{turn or ''}", text)
            if len(sources) == limit:
                return list(sources.values())
    return list(sources.values())


@pytest.mark.medium
@pytest.mark.parametrize("fewest", [1, 7, 1000])
@pytest.mark.parametrize("whole_documents", [False, True])
def test_documents_are_drawn_a_few_at_a_time_as_from_all_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fewest: int, whole_documents: bool
) -> None:
    monkeypatch.setattr(stage, "_FEWEST", fewest)
    contents = [
        "Sum all the images of a disk.", "Too short.", "Green tea is a fine tea. Black tea is a tea. Short.", "",
    ]  # fmt: skip
    rows = [
        row_of("corpus", f"d/{at}", "d", ["", f"On {at // 9} kinds of tea"][at % 2], "", contents[at % 4])
        for at in range(80)
    ]
    corpus, evaluation = table_from_rows("corpus", rows), {"sum all the images of a disk"}
    write_table(tmp_path, "corpus", corpus)
    for limit in (1, 2, 5, 11, 40, 300):
        for seed in (3, 4):
            expected = in_memory(corpus, evaluation, limit, seed, whole_documents=whole_documents)
            assert from_documents(tmp_path, evaluation, limit, seed, whole_documents=whole_documents) == expected


@pytest.mark.medium
def test_a_model_that_reads_documents_takes_their_place(tmp_path: Path, judge: Path) -> None:
    bart = random_bart()
    bart.tokenizer.mask_token = None  # nothing is masked in a document
    save_denoiser(bart, tmp_path / "writer")
    ingest = write_world(tmp_path, queries()[-2:])
    changes = {"document_model": str(tmp_path / "writer"), "least_sources": 6, "round_trip": 0}
    output = generate(ingest, tmp_path / "generate", judge, **changes)
    report = read_json(output / "report.json")
    rows = read_table(output, "generated_queries").to_pylist()
    expected = {"model": str(tmp_path / "writer"), "read": 6, "queries": len(rows), "not_found": 0}
    assert expected.items() <= report["document_model"].items()
    assert (report["model"], report["sigmas"]) == ("", [])  # no BART was trained
    assert len(rows) > 0 and {(row["sigma"], row["mask_ratio"], row["variant"]) for row in rows} == {(0.0, 0.0, 0)}
    again = generate(ingest, tmp_path / "again", judge, **changes)
    assert (again / "generated_queries.parquet").read_bytes() == (output / "generated_queries.parquet").read_bytes()
    filtered = generate(ingest, tmp_path / "filtered", judge, **changes | {"round_trip": 1})
    round_trips = read_table(filtered, "generated_queries").to_pylist()
    assert len(round_trips) < len(rows) and all(row in rows for row in round_trips)  # gibberish rarely does


def test_a_whole_document_is_what_the_template_makes_of_it_and_scripts_without_spaces_have_sentences(
    tmp_path: Path,
) -> None:
    metadata = DocumentTemplate("{content} / {title}").metadata
    rows = [row_of("corpus", "d/1", "d", "边界层", "", "边界层是层流的。升力下降见图。")]
    write_table(tmp_path, "corpus", table_from_rows("corpus", rows), metadata=metadata)
    [document] = from_documents(tmp_path, set(), 20, 3, whole_documents=True)
    assert document.text == "边界层是层流的。升力下降见图。 / 边界层"
    sentences = from_documents(tmp_path, set(), 9, 3, whole_documents=False)
    assert sorted(source.text for source in sentences) == ["升力下降见图。", "边界层是层流的。"]


def test_each_reason_is_found_and_counted() -> None:
    texts = ["", " ?! ", "Sum the ROWS.", "merge rows of a disk!", "sort files", "plot rows", "Plot rows", "draw a map"]
    sources = ["a", "b", "sum the rows", "merge rows", "sort lists", "plot columns", "plot images", "draw maps"]
    filtered = filter_texts(
        texts, sources, evaluation={"merge rows of a disk"}, existing={"sort files", "sum the rows"}
    )
    assert filtered.selected == [5, 7]
    assert filtered.dropped == {
        0: "empty", 1: "empty", 2: "copy", 3: "evaluation_query", 4: "duplicate", 6: "duplicate"
    }  # fmt: skip
    assert filtered.counts() == {"empty": 2, "evaluation_query": 1, "copy": 1, "duplicate": 2}


def test_a_planted_evaluation_query_never_passes_whatever_its_spelling() -> None:
    leak = "Which drugs treat Type-2 diabetes?"
    spellings = [leak, leak.upper(), "which drugs treat type 2 diabetes", "Which  drugs treat Type‑2 diabetes ?"]
    filtered = filter_texts(spellings, ["source"] * 4, evaluation={fold(leak)}, existing=set())
    assert filtered.selected == []
    assert filtered.counts()["evaluation_query"] == 4


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("sum the rows", "sum of all rows", 2 / 3), ("Sum rows", "the ROWS, sum!", 1.0), ("sort", "merge", 0.0),
        ("the of", "and", 1.0), ("sort rows by name", "sort", 1 / 3),
    ],
)  # fmt: skip
def test_overlap_is_jaccard_over_content_words(first: str, second: str, expected: float) -> None:
    assert content_overlap(first, second) == pytest.approx(expected)
    assert content_overlap(second, first) == pytest.approx(expected)


def test_cosines_pair_each_variant_with_its_source_and_with_another(tmp_path) -> None:
    judge = load_tower(write_tower(tmp_path / "model"))
    texts = ["sum rows", "merge all tables at once", "how to draw images"]
    to_source, to_another = source_cosines(judge, texts, texts)
    np.testing.assert_allclose(to_source, 1.0, atol=1e-5)
    embedded = judge.encode(texts, convert_to_numpy=True).astype(np.float64)
    embedded /= np.linalg.norm(embedded, axis=1, keepdims=True)
    np.testing.assert_allclose(to_another, [embedded[row] @ embedded[row - 1] for row in range(3)], atol=1e-5)

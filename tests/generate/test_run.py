"""The stage `generate` as a whole, on forty queries."""

from collections import Counter
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from generate_fakes import PARAMS, SMALL, TEXTS, VERBS, queries, random_bart, save_denoiser, write_bart, write_world
from pydantic import ValidationError
from recorder import Recorder
from teach_fakes import write_tower

import steps.generate.run as stage
import steps.generate.sources as sources
from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.core.tables import read_table, table_from_rows, write_table
from steps.core.texts import fold
from steps.generate import denoiser
from steps.generate.denoiser import Denoiser, Variants
from steps.generate.params import GenerateParams
from steps.generate.run import SIGMAS
from steps.generate.sources import Source, corpus_sample, from_documents, query_like
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
def test_a_pretrained_folder_takes_the_small_barts_place(tmp_path: Path, judge: Path) -> None:
    folder = write_bart(tmp_path / "bart")
    output = generate(write_world(tmp_path), tmp_path / "generate", judge, model=str(folder))
    report = read_json(output / "report.json")
    assert report["model"] == str(folder)
    assert report["queries"] == len(read_table(output, "generated_queries")) > 0


@pytest.mark.medium
def test_a_folder_without_a_mask_token_is_refused(tmp_path: Path, judge: Path) -> None:
    bart = random_bart()
    bart.tokenizer.mask_token = None
    bart.model.save_pretrained(str(tmp_path / "bart"))
    bart.tokenizer.save_pretrained(str(tmp_path / "bart"))
    with pytest.raises(UserError, match=r"generate.model .* has no mask or padding token"):
        generate(write_world(tmp_path), tmp_path / "generate", judge, model=str(tmp_path / "bart"))


def test_a_missing_model_is_refused_with_the_fix(tmp_path: Path, judge: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: cannot be loaded .* generate.model .* facebook/bart-base"):
        generate(write_world(tmp_path), tmp_path / "generate", judge, model=str(tmp_path / "nowhere"))
    assert not (tmp_path / "generate").exists()


def test_a_missing_judge_is_refused_before_anything_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "train_denoiser", lambda *_: pytest.fail("trained for nothing"))
    with pytest.raises(UserError, match=r"model .*nowhere: cannot be loaded"):
        generate(write_world(tmp_path), tmp_path / "generate", tmp_path / "nowhere")


@pytest.mark.medium
def test_two_models_that_write_the_same_query_give_it_once(
    tmp_path: Path, judge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "write_variants", lambda _, texts, *__: Variants(["the same"] * len(texts), 0.1, 1.0))
    monkeypatch.setattr(stage, "write_queries", lambda _, texts, *__: ["The same!", *["another"] * (len(texts) - 1)])
    folder = str(write_bart(tmp_path / "bart"))
    changes = {"model": folder, "document_model": folder, "least_sources": 44}
    output = generate(write_world(tmp_path), tmp_path / "generate", judge, **changes)
    assert read_table(output, "generated_queries")["text"].to_pylist() == ["the same", "another"]


def test_a_planted_leak_is_removed_and_counted(tmp_path: Path, judge: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leaking(denoiser: Denoiser, texts: list[str], sigma: float, seed: int, params: GenerateParams) -> Variants:
        written = [f"{text} quickly {sigma}" for text in texts]
        written[4] = "MERGE all the rows, of a disk"  # the test query
        return Variants(written, 0.1, 1.0)

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
    asked = queries()
    asked[0]["text"] = "Merge all the rows of a disk."  # a train query that reads like the test query
    seen: list[str] = []

    def listening(texts: list[str], params: GenerateParams, run: Run) -> Denoiser:
        seen.extend(texts)
        return random_bart()

    monkeypatch.setattr(stage, "train_denoiser", listening)
    output = generate(write_world(tmp_path, asked), tmp_path / "generate", judge)
    assert "To sum is to work on a file." in seen
    assert not {fold(text) for text in seen} & {"merge all the rows of a disk", "sum all the images of a disk"}
    sources = {row["source_query_id"] for row in read_table(output, "generated_queries").to_pylist()}
    assert asked[0]["query_id"] not in sources


@pytest.mark.parametrize("changes", [{}, {"max_queries": 0, "least_sources": 9}])
def test_without_sources_the_table_is_empty_and_the_report_says_why(
    tmp_path: Path, judge: Path, changes: dict[str, int]
) -> None:
    ingest = write_world(tmp_path, [row for row in queries() if row["split"] != "train"])
    output = generate(ingest, tmp_path / "generate", judge, **changes)
    assert len(read_table(output, "generated_queries")) == 0
    assert "no training query" in read_json(output / "report.json")["note"]


@pytest.mark.medium
def test_a_sample_of_the_sources_is_drawn_by_seed(tmp_path: Path, judge: Path) -> None:
    folder = write_bart(tmp_path / "bart")
    ingest = write_world(tmp_path)
    changes = {"model": str(folder), "max_queries": 7}
    reports = [read_json(generate(ingest, tmp_path / name, judge, **changes) / "report.json") for name in "ab"]
    assert reports[0] == reports[1]
    assert (reports[0]["sources"], reports[0]["sources_not_drawn"]) == (7, 33)


@pytest.mark.medium
def test_the_small_bart_trains_on_no_more_queries_than_it_may(
    tmp_path: Path, judge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[list[str]] = []

    def noted(texts: list[str], *_: object) -> Denoiser:
        read.append(texts)
        return random_bart()

    monkeypatch.setattr(stage, "train_denoiser", noted)
    monkeypatch.setattr(stage, "CORPUS_TEXTS", 0)
    ingest = write_world(tmp_path / "ingest")
    for place, (most, seed) in enumerate(((0, 3), (40, 3), (10, 3), (10, 4))):
        small = SMALL.model_copy(update={"max_queries": most})
        generate(ingest, tmp_path / str(place), judge, small=small, seed=seed)
    every, enough, some, others = read
    assert every == enough and sorted(every) == sorted(TEXTS)
    assert len(some) == len(others) == 10 and some != others
    assert some == [text for text in every if text in some]


@pytest.mark.medium
def test_documents_make_up_for_missing_queries(tmp_path: Path, judge: Path) -> None:
    ingest = write_world(tmp_path, queries()[:3] + queries()[-2:])
    changes = {"model": str(write_bart(tmp_path / "bart")), "least_sources": 8}
    output = generate(ingest, tmp_path / "generate", judge, **changes)
    report, rows = read_json(output / "report.json"), read_table(output, "generated_queries").to_pylist()
    assert (report["sources"], report["documents"]) == (8, 5)
    asked = {row["query_id"] for row in queries()[:3]}
    assert {row["source_query_id"] for row in rows} <= asked | {""}
    read = {row["query_id"].partition("#")[0] for row in rows if not row["source_query_id"]}
    assert read <= {f"d/{verb}" for verb in VERBS} and len(read) >= 3
    assert len({row["query_id"] for row in rows}) == len(rows)


def test_the_sample_of_the_corpus_is_of_its_texts_whatever_their_order() -> None:
    rows = [(f"the title of number {number}", f"It says number {number} here. Too short.") for number in range(50)]
    evaluation = {fold("The title of number 7")}
    every = corpus_sample(rows, evaluation, 200, 3)
    assert sorted(every) == sorted(
        text for row in rows for text in (row[0], row[1].partition(" Too")[0]) if fold(text) not in evaluation
    )
    some = corpus_sample(rows, evaluation, 9, 3)
    assert some == every[:9] == corpus_sample([*rows[::-1], *rows], evaluation, 9, 3)
    assert some != corpus_sample(rows, evaluation, 9, 4)
    assert corpus_sample(rows, evaluation, 0, 3) == [] == corpus_sample([], evaluation, 9, 3)


def in_memory(corpus: pa.Table, evaluation: set[str], limit: int, seed: int, *, whole: bool) -> list[Source]:
    """What `from_documents` gives, from a sorted list of all documents."""
    rows = sorted(corpus.to_pylist(), key=lambda row: sha256(f"{seed} {row['doc_id']}".encode()).hexdigest())
    found: dict[str, Source] = {}
    for turn in range(99):
        for row in rows:
            title, topic, content = row["title"], row["topic"], row["content"]
            texts = [DocumentTemplate().text(title, topic, content)] if whole else query_like(title, content)
            if new := [text for text in texts if fold(text) not in {"", *evaluation, *found}]:
                text = Random(f"{seed} {row['doc_id']} {turn}").choice(new)
                found[fold(text)] = Source(f"{row['doc_id']}#document{turn or ''}", text)
            if len(found) == limit:
                return list(found.values())
    return list(found.values())


@pytest.mark.medium
@pytest.mark.parametrize("fewest", [1, 7, 1000])
@pytest.mark.parametrize("whole", [False, True])
def test_documents_are_drawn_a_few_at_a_time_as_from_all_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fewest: int, whole: bool
) -> None:
    monkeypatch.setattr(sources, "_FEWEST", fewest)
    contents = [
        "Sum all the images of a disk.",
        "Too short.",
        "Green tea is a fine tea. Black tea is a tea. Short.",
        "",
    ]
    rows = [
        {"doc_id": f"d/{number}", "dataset": "d", "title": ["", f"On {number // 9} kinds of tea"][number % 2],
         "topic": "", "content": contents[number % 4]}
        for number in range(80)
    ]  # fmt: skip
    corpus, evaluation = table_from_rows("corpus", rows), {"sum all the images of a disk"}
    write_table(tmp_path, "corpus", corpus)
    for limit in (1, 2, 5, 11, 40, 300):
        for seed in (3, 4):
            expected = in_memory(corpus, evaluation, limit, seed, whole=whole)
            assert from_documents(tmp_path, evaluation, limit, seed, whole_documents=whole) == expected


def test_the_corpus_is_never_read_as_a_whole(tmp_path: Path, judge: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(folder: Path, name: str) -> pa.Table:
        assert name != "corpus"
        return read_table(folder, name)

    monkeypatch.setattr(stage, "read_table", read)
    ingest = write_world(tmp_path, queries()[:3])
    changes = {"model": str(write_bart(tmp_path / "bart")), "least_sources": 8}
    assert read_json(generate(ingest, tmp_path / "generate", judge, **changes) / "report.json")["documents"] == 5


def test_a_document_gives_its_title_or_a_sentence_and_no_evaluation_query(tmp_path: Path) -> None:
    def drawn(table: pa.Table, limit: int, whole: bool = False, metadata: dict[str, str] | None = None) -> list[Source]:
        write_table(tmp_path, "corpus", table, metadata=metadata)
        return from_documents(tmp_path, evaluation, limit, 3, whole_documents=whole)

    corpus = table_from_rows(
        "corpus",
        [
            {
                "doc_id": f"d/{number}",
                "dataset": "d",
                "title": f"On {number} kinds of tea",
                "topic": "",
                "content": content,
            }
            for number, content in enumerate(["Sum all the images of a disk.", "Too short.", "Green tea is a tea."] * 9)
        ],
    )
    evaluation = {"sum all the images of a disk"}
    found = drawn(corpus, 20)
    texts = [source.text for source in found]
    assert len(found) == 20 == len({fold(text) for text in texts}) and not {fold(text) for text in texts} & evaluation
    assert drawn(corpus, 20) == found
    every = drawn(corpus, 99)  # in turns, until none is new
    assert len(every) == 28 == len({source.name for source in every}) and "Green tea is a tea." in {
        s.text for s in every
    }
    more = pa.concat_tables([corpus.slice(5), corpus.slice(0, 5)])
    assert drawn(more, 20) == found  # whatever the order of the documents
    [whole] = drawn(corpus.slice(2, 1), 20, whole=True)
    assert whole.text.startswith("On 2 kinds of tea") and "Green tea" in whole.text
    [whole] = drawn(corpus.slice(2, 1), 20, whole=True, metadata=DocumentTemplate("{content} / {title}").metadata)
    assert whole.text == "Green tea is a tea. / On 2 kinds of tea"


@pytest.mark.medium
def test_a_model_that_reads_documents_takes_their_place(tmp_path: Path, judge: Path) -> None:
    bart = random_bart()
    bart.tokenizer.mask_token = None  # nothing is masked in a document
    save_denoiser(bart, tmp_path / "writer")
    ingest = write_world(tmp_path, queries()[-2:])
    changes = {"document_model": str(tmp_path / "writer"), "least_sources": 6}
    output = generate(ingest, tmp_path / "generate", judge, **changes)
    report = read_json(output / "report.json")
    rows = read_table(output, "generated_queries").to_pylist()
    assert report["document_model"] == {"model": str(tmp_path / "writer"), "read": 6, "queries": len(rows)}
    assert (report["model"], report["sigmas"]) == ("", [])  # no BART was trained
    assert len(rows) > 0 and {(row["sigma"], row["mask_ratio"], row["variant"]) for row in rows} == {(0.0, 0.0, 0)}
    again = generate(ingest, tmp_path / "again", judge, **changes)
    assert (again / "generated_queries.parquet").read_bytes() == (output / "generated_queries.parquet").read_bytes()


def test_documents_in_a_script_without_spaces_give_sources(tmp_path: Path) -> None:
    row = {"doc_id": "d/1", "dataset": "d", "title": "边界层", "topic": "", "content": "边界层是层流的。升力下降见图。"}
    write_table(tmp_path, "corpus", table_from_rows("corpus", [row]))
    found = from_documents(tmp_path, set(), 9, 3, whole_documents=False)
    assert sorted(source.text for source in found) == ["升力下降见图。", "边界层是层流的。"]


def test_a_missing_document_model_is_refused_with_the_fix(tmp_path: Path, judge: Path) -> None:
    changes = {"document_model": str(tmp_path / "nowhere"), "least_sources": 6}
    with pytest.raises(UserError, match=r"nowhere: cannot be loaded .* generate.document_model .* doc2query"):
        generate(write_world(tmp_path, []), tmp_path / "generate", judge, **changes)


@pytest.mark.medium
@pytest.mark.parametrize(("knob", "constant"), [("model", "MAX_TOKENS"), ("document_model", "DOCUMENT_TOKENS")])
def test_more_tokens_than_a_model_has_positions_are_refused(
    tmp_path: Path, judge: Path, knob: str, constant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {knob: str(write_bart(tmp_path / "bart")), "least_sources": 3}
    ingest = write_world(tmp_path, queries()[-2:])
    monkeypatch.setattr(denoiser, constant, 257)
    with pytest.raises(UserError, match=rf"generate\.{knob}: .*bart has 256 positions, but reads 257 tokens; name"):
        generate(ingest, tmp_path / "generate", judge, **given)


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"heads \(5\) must divide d_model \(64\)"):
        GenerateParams.model_validate(PARAMS.model_dump() | {"small": PARAMS.small.model_dump() | {"heads": 5}})


@pytest.mark.parametrize("changes", [{"least_sources": 0}, {"least_sources": 9, "max_queries": 0}])
def test_a_document_model_that_would_read_nothing_is_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="document_model reads nothing while least_sources or max_queries is 0"):
        GenerateParams.model_validate(PARAMS.model_dump() | {"document_model": "x"} | changes)

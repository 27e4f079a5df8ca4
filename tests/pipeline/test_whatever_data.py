"""Whatever data people have, the pipeline ends with its result: students, index, search and a report."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from embedding_server import KEY, serving, tower_reader
from endpoint_fakes import endpoint_params
from whole_run import params_of, run_all, texts, write_beir, write_click_log

from pipeline.params import Params
from slimtower.common.errors import UserError
from slimtower.search import search
from slimtower.serving.choice import release_folder
from steps.distill.initialisation import _word_pieces
from steps.encoders.towers import load_tower
from steps.evaluate.summary import results_table
from steps.promote.run import run as promote

pytestmark = pytest.mark.medium

Write = Callable[[Path], dict[str, Any]]
SLOW = pytest.mark.slow  # one kind of data is enough for `make test`
NIGHTLY = [SLOW, pytest.mark.nightly]
ABSENT = "generated_queries, train_queries"
TRAIN_AND_TEST = {"train": slice(20, 60), "test": slice(20)}


def corpus(folder: Path) -> dict[str, Any]:
    return {"DATA": write_beir(folder, queries=False)}


def judged_for_the_test(folder: Path) -> dict[str, Any]:
    return {"DATA": write_beir(folder, judged={"test": slice(40)})}


def queries(folder: Path) -> dict[str, Any]:
    return {"DATA": write_beir(folder)}


def click_log(folder: Path) -> dict[str, Any]:
    return {"DATA": write_click_log(folder), "TEST_FROM": "2026-01-20", "EPOCHS": "1.0", "recipe": "click_log.yaml"}


def untitled(folder: Path) -> dict[str, Any]:
    return {"DATA": write_beir(folder, judged=TRAIN_AND_TEST, titles=False)}


def two(folder: Path) -> dict[str, Any]:
    first = write_beir(folder / "first", judged=TRAIN_AND_TEST, part=slice(80))
    second = write_beir(folder / "second", queries=False, part=slice(80, None))
    sources = [{"name": path.name, "kind": "beir", "path": str(path)} for path in (first, second)]
    return {"DATA": folder, "changes": {"ingest": {"sources": sources}}}


def params(source: dict[str, Any], tower: Path) -> Params:
    recipe, changes = source.pop("recipe", "beir.yaml"), source.pop("changes", {})
    return params_of(recipe, tower, changes, **{name: str(value) for name, value in source.items()})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "expected", "absent", "judged", "unjudged"),
    [
        pytest.param(corpus, "no queries, nothing judged", ABSENT + ", unlabelled_queries", [], ["own"], marks=SLOW),
        (judged_for_the_test, "40 test judgements", ABSENT, ["own"], []),
        pytest.param(queries, "unlabelled), nothing judged", ABSENT, [], ["own"], marks=NIGHTLY),
        pytest.param(click_log, "test judgements by clicks", "unlabelled_queries", ["log"], [], marks=SLOW),
        pytest.param(untitled, "20 test judgements", "titles", ["own"], [], marks=NIGHTLY),
        pytest.param(two, "documents, no queries, nothing judged", "", ["first"], ["second"], marks=NIGHTLY),
    ],
    ids=["corpus", "test_judgements", "queries", "click_log", "untitled", "two_data_sets"],
)
def test_the_pipeline_ends_with_its_result(
    write: Write,
    expected: str,
    absent: str,
    judged: list[str],
    unjudged: list[str],
    tmp_path: Path,
    tiny_tower: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = run_all(tmp_path, params(write(tmp_path / "given"), tiny_tower))
    captured = capsys.readouterr()
    assert expected in captured.out
    foretold = [line for line in lines if line.startswith("distill: ")]
    assert [part for part in absent.split(", ") if part and part.replace("_", " ") not in foretold[0]] == []
    assert len(foretold) == bool(absent)
    assert (f"distill: left out: {absent} (it has no texts)" in captured.err) == bool(absent)
    assert any("no judged test query" in line for line in lines) == bool(unjudged)

    metrics = json.loads((tmp_path / "reports/metrics.json").read_text())
    assert list(metrics["datasets"]) == judged and list(metrics["closeness"]) == unjudged
    assert set(metrics["latency"]) == {"teacher", "static", "1l"}
    assert metrics["choice"]["student"] in {"static", "1l"}
    assert (metrics["choice"]["ndcg"] is None) == (not judged)
    for dataset in unjudged:
        assert 0.5 < metrics["closeness"][dataset]["1l"]["cosine"] <= 1
        assert "corpus" not in metrics["closeness_texts"][dataset]
    page, table = (tmp_path / "reports/report.html").read_text(), results_table(tmp_path / "reports")
    for dataset in unjudged:
        assert f"No test query of {dataset} is judged" in page and f"No test query of {dataset} is judged" in table

    search("join two paths", release_folder(tmp_path, ""), None, 3, tmp_path / "data/ingest")
    assert len([line for line in capsys.readouterr().out.splitlines() if line.startswith((" 1", " 2", " 3"))]) == 3
    if not judged:
        policy = params(write(tmp_path / "given"), tiny_tower).promote
        with pytest.raises(UserError, match="no test query is judged, so no floor can be checked"):
            promote(tmp_path / "data/ingest", tmp_path / "reports", tmp_path / "models/release", policy)


@SLOW
def test_a_teacher_behind_an_api_ends_with_its_report(
    tmp_path: Path, tiny_tower: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLANTED_KEY", KEY)
    data = judged_for_the_test(tmp_path / "given")
    words = [text for _, summary, rest in texts() for text in (summary, rest)]
    _word_pieces(words, 300).save_pretrained(tmp_path / "tokenizer")  # each of its tokens is asked for
    with serving(tower_reader(load_tower(tiny_tower))) as server:
        tokenizer = {"tokenizer": str(tmp_path / "tokenizer")}
        patient = {"batch_texts": 32, "timeout_s": 60.0}  # other tests compute beside it
        rented = endpoint_params(server.url, patient, **tokenizer).model_dump()
        changes = {
            "candidates": {"searchers": []},
            "teach": {"teachers": ["rented"], "index": "rented", "teacher": {"rented": rented}},
            "distill": {"students": ["static"]},
        }
        run_all(tmp_path, params(data | {"changes": changes}, tiny_tower))
    assert re.search(r"evaluate: queries: \d+ texts to ask tiny for, about", capsys.readouterr().err)
    metrics = json.loads((tmp_path / "reports/metrics.json").read_text())
    assert set(metrics["latency"]) == {"teacher", "static"} and metrics["retention"]["static"]
    assert set(metrics["sizes"]) == {"static"}, "of the teacher only a tokenizer is here"
    page, summary = ((tmp_path / "reports" / name).read_text() for name in ("report.html", "report.md"))
    assert "<b>tiny</b> as published, without further training" in page
    for text in (page, summary):
        assert re.search(r"The query side has [\d.]+\u00a0.B. The teacher is behind an API", text)
    assert page.count("its time is that of requests, which nothing here computes") == 3
    assert " MB instead of" not in summary.replace("\u00a0", " ")
    assert "teacher" in results_table(tmp_path / "reports")

"""What the search command prints, and how it refuses."""

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from evaluate_fakes import FakeRelease, write_inputs

from slimtower import search
from slimtower.__main__ import main as slimtower
from slimtower.common.errors import UserError
from slimtower.common.files import write_json
from slimtower.search import check_query
from slimtower.serving.choice import release_folder
from slimtower.serving.release import Hit, load_release


class TitledRelease(FakeRelease):
    """The fake with titles, the first word of a document."""

    def answers(self, dataset: str, texts: list[str], vectors: np.ndarray, k: int) -> list[list[Hit]]:
        scores, ids = self.search(dataset, vectors, k)
        titles = {doc_id: text.split()[0] for doc_id, text in self.documents_by_set[dataset].items()}
        return [
            [Hit(doc_id, float(score), titles[doc_id]) for doc_id, score in zip(*line, strict=True)]
            for line in zip(ids, scores, strict=True)
        ]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    release = TitledRelease(write_inputs(tmp_path))
    monkeypatch.setattr(search, "load_release", lambda folder: release)
    for student in ("2l", "static"):
        write_json(tmp_path / "models/release" / student / "manifest.json", {})
    return tmp_path


def ask(project: Path, dataset: str = "") -> None:
    search.search("matrix number10", project / "models/release/2l", dataset, 3, project / "ingest")


def test_prints_hits_best_first_with_title_snippet_and_times(project: Path, capsys) -> None:
    ask(project)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["1", lines[0].split()[1], "matrix"]
    assert lines[1].strip() == "about the matrix of kind number10"
    scores = [float(line.split()[1]) for line in lines[:-1:2]]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert re.search(r"2l on api: \S+ ms from text to hits, \S+ ms of it encoding \(median of 20 calls", lines[-1])


@pytest.mark.medium
def test_a_release_that_fuses_shows_fused_hits_and_says_so(hybrid: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = hybrid / "models/release/static"
    search.search("how to sum the axis 23", folder, "", 3, hybrid / "data/ingest")
    lines = capsys.readouterr().out.splitlines()
    expected = load_release(folder).query("how to sum the axis 23", 3)
    entries = [line.split(maxsplit=1) for line in lines[:-1:2]]
    assert entries == [[str(rank), hit.title] for rank, hit in enumerate(expected, start=1)]  # no scores that mislead
    assert "static with BM25 on one: " in lines[-1]


def test_a_release_is_searched_without_the_corpus_that_made_it(project: Path, capsys) -> None:
    (project / "ingest" / "corpus.parquet").unlink()
    ask(project)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[:-1]] == ["matrix"] * 3


def test_a_hit_without_a_title_shows_its_id() -> None:
    assert search.entry(1, Hit("api/d1", 0.5, ""), "", "d1", 80, scored=True).split() == ["1", "0.5000", "api/d1"]
    hostile = search.entry(1, Hit("d", 0.5, "a\x1b]52;c;eA==\x07b"), "c\x1b[2J\x9bd\u200de", "d", 80, scored=True)
    assert "\x1b" not in hostile and "\x9b" not in hostile and "d\u200de" in hostile  # no commands to a terminal


def test_mistakes_are_named_before_anything_is_loaded(project: Path) -> None:
    latin = "caf\udce9"  # as Python reads an argument in Latin-1
    for query, k, message in (("  ", 5, "query is empty"), ("words", 0, "k is 0"), (latin, 5, "not UTF-8")):
        with pytest.raises(UserError, match=message):
            check_query(query, k)
    with pytest.raises(UserError, match="'9l' is not released; choose one of 2l, static"):
        release_folder(project, "9l")
    assert release_folder(project, "static") == project / "models/release/static"


def test_the_evaluations_choice_is_searched_where_no_student_is_named(project: Path) -> None:
    metrics = project / "reports/metrics.json"
    os.utime(project / "models/release/static/manifest.json", (2e9, 2e9))  # the newest is not what counts
    # the second as evaluate wrote it before it chose
    for evaluated in (None, {"datasets": {}}, {"choice": {"student": None}}, {"choice": {"student": "4l"}}):
        if evaluated:
            write_json(metrics, evaluated)
        with pytest.raises(UserError, match=r"name a student .*: 2l, static"):
            release_folder(project, "")
    write_json(metrics, {"choice": {"student": "2l"}})
    assert release_folder(project, "").name == "2l"
    assert release_folder(project, "static").name == "static"


def test_a_release_is_searched_wherever_it_lies(project: Path, monkeypatch, capsys) -> None:
    (project / "models/release/2l").rename(project / "elsewhere")
    search.main(["--release", str(project / "elsewhere"), "--k", "1", "matrix number10"])
    assert "elsewhere on api: " in capsys.readouterr().out
    with pytest.raises(UserError, match="leave --student and --recipe out"):
        search.main(["--release", "elsewhere", "--student", "2l", "matrix"])


def test_the_time_is_the_median_of_warm_calls(project: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    calls: list[float] = []
    clock = iter(range(10**6))
    monkeypatch.setattr(search.time, "perf_counter", lambda: next(clock) / 1e3 if len(calls) > 5 else next(clock))
    release = search.load_release(project)
    monkeypatch.setattr(release, "encode", lambda queries: calls.append(0) or np.eye(1, 64, dtype=np.float32))
    monkeypatch.setattr(search, "load_release", lambda folder: release)
    ask(project)
    assert len(calls) > 20
    assert "2.0 ms from text to hits, 1.0 ms of it encoding" in capsys.readouterr().out  # the first took seconds


def test_commands_of_the_pipeline_are_handed_to_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, line: started.append(line[1:]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["slimtower", "run"])
    with pytest.raises(SystemExit, match="3"):
        slimtower()  # no checkout
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline/__main__.py").touch()
    for words in ("promote --student 2l", "rollback --name mine", "run embed", "run recipes/x.yaml DATA=d"):
        monkeypatch.setattr(sys, "argv", ["slimtower", *words.split()])
        slimtower()
    assert [" ".join(line) for line in started] == [
        "-m steps.promote --student 2l",
        "-m steps.promote --rollback --name mine",
        "-m pipeline embed",
        "-m pipeline.recipe recipes/x.yaml DATA=d",
    ]

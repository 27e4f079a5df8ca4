"""One set of defaults on many corpora: what is read, what is compared, and the summary."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench import any_corpus
from bench.any_corpus import (
    CLS_DOT,
    cls_dot_teacher,
    compared,
    joined,
    read_corpora,
    recipe_of,
    summary,
)
from bench.disguise import COUNTED, PLAIN
from bench.disguise import Corpus as Undisguised
from bench.kinds import KINDS
from bench.tables.cells import Cell
from pipeline.params import Params
from pipeline.recipe import laid_over
from pipeline.weights import MODELS
from slimtower.common.errors import UserError
from slimtower.common.settings import read_mapping, validated
from steps.distill.params import StudentParams
from steps.encoders.towers import load_tower
from steps.evaluate.comparing import p_value


def test_the_files_corpora_name_changes_and_students_that_exist() -> None:
    corpora = read_corpora()
    described = read_mapping(Path("params.yaml"))["distill"]["student"]
    assert set(corpora.students) <= set(described)
    changes = {change.partition("=")[0] for corpus in corpora.corpora.values() for change in corpus.changes}
    assert changes <= {*PLAIN, *COUNTED}
    sources = {
        half: {source for corpus in corpora.corpora.values() if corpus.half == half for source in corpus.source}
        for half in ("disguises", "choosing", "reporting")
    }
    assert set().union(*sources.values()) == {*KINDS, "scifact", "medquad", "demo"}
    assert not sources["reporting"] & (sources["choosing"] | sources["disguises"])
    teachers = {corpus.teacher for corpus in corpora.corpora.values()}
    assert teachers <= {"", CLS_DOT, *(weights.base for weights in MODELS.values())}
    for label in corpora.labels.values():
        for student, change in label.items():
            assert StudentParams.model_validate(described[student] | change)
            assert any(described[student].get(key) != value for key, value in change.items())


def test_a_labels_changes_reach_the_student_whose_queries_are_kept_by_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {1: {"a": [0.4, 0.2], "b": [0.9]}, 2: {"a": [0.5, 0.3], "b": [0.5]}}
    trained = []

    def cell(cell: Cell, pipeline: object) -> tuple[dict[str, object], bool]:
        trained.append(cell.params.student["bench"].epochs)
        return {"scores": {"0": {"test": scores[cell.params.seed]}}, "steps": 3, "stage_seconds": 1.0}, False

    monkeypatch.setattr(any_corpus, "measured", cell)
    run = validated(Params, read_mapping(Path("params.yaml")), "params.yaml").distill
    teacher = {"test": {"a": [0.5, 0.5], "b": [1.0]}}
    for change in ({}, read_corpora().labels["before"]["static"]):
        student = any_corpus.student_line("c", "static", SimpleNamespace(params=run), teacher, [1, 2], change)  # type: ignore[arg-type]
    assert trained == ["auto", "auto", 20.0, 20.0]
    assert student["by_query"]["test"] == {"a": pytest.approx([0.45, 0.25]), "b": pytest.approx([0.7])}
    retained = student["retention"]["test"]  # data sets count alike, whatever their numbers of queries
    by_seed = [(0.6 + 0.9) / 2, (0.8 + 0.5) / 2]
    assert retained["values"] == pytest.approx(by_seed) and retained["by_set"] == pytest.approx({"a": 0.7, "b": 0.7})
    assert (retained["mean"], retained["sd"]) == pytest.approx((0.7, np.std(by_seed, ddof=1)))


def row(seeds: list[int], *values: float, **more: object) -> dict[str, object]:
    """What is on record of a student."""
    sd = float(np.std(values, ddof=1)) if len(values) > 1 else None
    retained = {"mean": float(np.mean(values)), "sd": sd, "values": list(values)}
    return {"seeds": seeds, "retention": {"test": retained},
            "steps": 100.0 * seeds[0], "stage_seconds": 10.0 * seeds[0],
            "git_commit": f"of {seeds[0]}", "machine": {"cores": 2}, **more}  # fmt: skip


def test_other_seeds_join_those_on_record() -> None:
    older = row([1], 0.9, against={"p": 0.2})
    del older["retention"]["test"]["values"]  # type: ignore[attr-defined]
    result = joined(older, row([2, 3], 0.96, 0.99, held_out_ndcg=0.8))
    assert result["seeds"] == [1, 2, 3] and result["retention"]["test"]["values"] == [0.9, 0.96, 0.99]
    assert result["retention"]["test"]["mean"] == pytest.approx(0.95)
    assert result["retention"]["test"]["sd"] == pytest.approx(np.std([0.9, 0.96, 0.99], ddof=1))
    assert result["steps"] == pytest.approx((100 + 2 * 200) / 3)
    assert result["against"] == {"p": 0.2, "seeds": [1]} and result["git_commit"] == "of 2"
    assert result["joined"] == [{"seeds": [1], "git_commit": "of 1", "machine": {"cores": 2}}]
    assert joined(result, row([2, 3], 0.96, 0.99)) == result  # each call of the bench records all that it has
    again = joined(result, row([4], 0.97))
    assert again["retention"]["test"]["values"] == [0.9, 0.96, 0.99, 0.97] and len(again["joined"]) == 2
    assert joined(result, row([3], 0.5)) == row([3], 0.5)  # a seed measured again: nothing of before counts
    older["retention"]["test"]["by_set"] = {"a": 0.95, "b": 0.85}  # type: ignore[index]
    newer = row([2, 3], 0.8, 0.7)
    newer["retention"]["test"]["by_set"] = {"a": 0.80, "b": 0.70}  # type: ignore[index]
    by_set = joined(older, newer)["retention"]["test"]["by_set"]
    assert by_set == pytest.approx({"a": (0.95 + 2 * 0.8) / 3, "b": (0.85 + 2 * 0.7) / 3})
    unknown = row([5, 6], 0.9, 0.8)
    del unknown["retention"]["test"]["values"]  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="no values by seed"):
        joined(unknown, row([7], 0.9))


def test_the_summary_names_the_worst_corpus_and_the_longest_training() -> None:
    def line(retained: float, seconds: float, foretold: float) -> dict[str, object]:
        row = {"retention": {"test": {"mean": retained}}, "stage_seconds": seconds, "expected_retention": foretold}
        return {"students": {"static": row}}

    figures = summary({"a": line(0.9, 5.0, 0.93), "b": line(0.8, 3.0, 0.76)}, ["static"])["static"]
    assert figures == {
        "corpora": 2,
        "mean": pytest.approx(0.85),
        "worst": 0.8,
        "worst_corpus": "b",
        "longest_seconds": 5.0,
        "forecast_rms": pytest.approx(((0.03**2 + 0.04**2) / 2) ** 0.5),
    }


def test_a_comparison_is_paired_by_query_and_counts_data_sets_alike() -> None:
    def line(large: list[float], small: list[float], **other_students: object) -> dict[str, Any]:
        student = {"by_query": {"test": {"large": large, "small": small}}, "retention": {"test": {"mean": 0.9}}}
        return {"corpus": "x", "students": {"1l": student, **other_students}}

    new = line([0.6, 0.6, 0.61, 0.6] * 25, [0.1, 0.11], new={"by_query": {"test": {"large": [], "small": []}}})
    compared("a", new, {"a": line([0.5] * 100, [0.5, 0.5])})
    figures = new["students"]["1l"]["against"]
    large, small = np.array([0.1, 0.1, 0.11, 0.1] * 25), np.array([-0.4, -0.39])
    assert figures["difference"] == pytest.approx((large.mean() + small.mean()) / 2) and figures["difference"] < 0
    assert figures["p"] == pytest.approx(p_value([large, small])) and figures["retention"] == 0.9
    assert "against" not in new["students"]["new"]
    json.dumps(figures)
    with pytest.raises(UserError, match="another corpus"):
        compared("a", new | {"corpus": "y"}, {"a": line([0.5], [0.5])})


@pytest.mark.medium
def test_the_changed_teacher_compares_by_dot_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(any_corpus, "FOLDER", tmp_path)
    tower = load_tower(cls_dot_teacher())
    vectors = tower.encode(["one text", "another, longer text about cats"])
    assert tower.similarity_fn_name == "dot" and abs(np.linalg.norm(vectors, axis=1) - 1).max() > 0.1


def test_a_recipe_with_another_teacher_is_whole_without_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(any_corpus, "cls_dot_teacher", lambda: Path("folder: of/it"))
    params = read_mapping(Path("params.yaml"))
    filled, named, generated = (
        validated(Params, laid_over(params, recipe_of({"own": Path("data")}, *arguments), {}, Path("r.yaml")), "r.yaml")
        for arguments in ((CLS_DOT,), ("a-base",), ("", 2000))
    )
    assert filled.ingest.unlabelled_queries == "" and filled.generate.least_sources == 0
    assert generated.generate.least_sources == 2000
    assert filled.teach.teacher["dense"].base.endswith("folder: of/it")  # type: ignore[attr-defined]
    assert named.teach.teacher["dense"].base == "a-base"  # type: ignore[attr-defined]


def test_the_command_keeps_what_it_measured_and_compares_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def line(
        name: str, corpus: object, sources: object, students: list[str], seeds: list[int], changes: dict[str, object]
    ) -> dict[str, object]:
        row = {"seeds": seeds, "git_commit": "one", "retention": {"test": {"mean": 0.9}}, "stage_seconds": 2.0,
               "by_query": {"test": {"own": [0.1, 0.5, 0.3]}}}  # fmt: skip
        return {"corpus": name, "students": {student: dict(row) for student in students}}

    monkeypatch.setattr(any_corpus, "measure", line)
    monkeypatch.setattr(any_corpus, "read_source", lambda name: Undisguised([], {}, {}))
    monkeypatch.setattr(any_corpus, "FOLDER", tmp_path / "kept")
    monkeypatch.setattr(any_corpus, "RESULTS", tmp_path / "results")
    (tmp_path / "kept").mkdir()
    (tmp_path / "pool").touch()
    monkeypatch.setenv("UNLABELLED", str(tmp_path / "pool"))
    for words in (
        "before --only scifact,scifact_500", "before --students static", "before --students 1l",
        "after --against before",
    ):  # fmt: skip
        monkeypatch.setattr("sys.argv", ["any_corpus", *words.split()])
        any_corpus.main()
    retained = json.loads((tmp_path / "kept" / "before.json").read_text())
    halves = {name: corpus.half for name, corpus in read_corpora().corpora.items()}
    assert set(retained) == {name for name, half in halves.items() if half != "reporting"}
    assert set(retained["scifact"]["students"]) == {"static", "1l", "2l"}
    assert retained["scifact"]["students"]["static"]["by_query"]
    before = json.loads((tmp_path / "results" / "before.json").read_text())
    measured = {student: row["corpora"] for student, row in before["summary"]["disguises"].items()}
    assert measured == {"static": 16, "1l": 16, "2l": 2}
    assert before["summary"]["disguises"]["static"]["verdict"] == "mean below 97%, worst below 94%"
    (tmp_path / "kept" / "before.json").unlink()  # another machine: what is on record stays
    monkeypatch.setattr("sys.argv", ["any_corpus", "before", "--only", "scifact_dot", "--students", "2l"])
    any_corpus.main()
    before = json.loads((tmp_path / "results" / "before.json").read_text())
    figures = before["summary"]["disguises"]
    assert figures["2l"]["corpora"] == 3 and figures["static"]["corpora"] == 16
    rows = json.loads((tmp_path / "results" / "after.json").read_text())["corpora"]["scifact"]["students"]
    assert rows["static"]["against"]["difference"] == 0 and rows["2l"]["against"]["p"] == 1
    output = capsys.readouterr().out
    assert "by_query" not in rows["static"] and "worst 90.0%" in output and "reporting, " not in output
    uncommitted = {"scifact": {"corpus": "scifact", "students": {"2l": {"git_commit": "one+dirty"}}}}
    with pytest.raises(UserError, match="uncommitted"):
        any_corpus.record("other", read_corpora(), uncommitted, {"disguises"})
    assert not (tmp_path / "results" / "other.json").exists()
    monkeypatch.setattr("sys.argv", ["any_corpus", "after", "--half", "reporting"])
    any_corpus.main()
    output = capsys.readouterr().out
    assert "reporting, static: mean 90.0%" in output and "disguises, " not in output and "choosing, " not in output
    retained = json.loads((tmp_path / "kept" / "after.json").read_text())
    assert set(retained) == set(halves)

"""One set of defaults on many corpora: what is read, what is compared, and the summary."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bench import any_corpus
from bench.any_corpus import (
    Bars,
    Corpus,
    changed_teacher,
    check,
    compared,
    embedded,
    joined,
    read_corpora,
    read_source,
    recipe_of,
    retention,
    summary,
    verdict,
)
from bench.disguise import COUNTED, PLAIN
from bench.disguise import Corpus as Undisguised
from bench.kinds import KINDS
from bench.tables.cells import Cell
from pipeline.params import Params
from pipeline.recipe import laid_over
from slimtower.common.errors import UserError
from slimtower.common.settings import read_mapping, validated
from steps.distill.params import StudentParams
from steps.encoders.towers import load_tower
from steps.evaluate.comparing import p_value


def test_the_files_corpora_name_changes_and_students_that_exist() -> None:
    asked = read_corpora()
    described = read_mapping(Path("params.yaml"))["distill"]["student"]
    assert set(asked.students) <= set(described)
    changes = {change.partition("=")[0] for corpus in asked.corpora.values() for change in corpus.changes}
    assert changes <= {*PLAIN, *COUNTED}
    sources = {
        half: {source for corpus in asked.corpora.values() if corpus.half == half for source in corpus.source}
        for half in ("disguises", "choosing", "reporting")
    }
    assert set().union(*sources.values()) == {*KINDS, "scifact", "medquad", "demo"}
    assert not sources["reporting"] & (sources["choosing"] | sources["disguises"])
    for label in asked.labels.values():
        for student, change in label.items():
            assert StudentParams.model_validate(described[student] | change)
            assert any(described[student].get(key) != value for key, value in change.items())


def test_a_labels_changes_reach_the_student_that_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []

    def cell(cell: Cell, pipeline: object) -> tuple[dict[str, object], bool]:
        trained.append(cell.params.student["bench"].epochs)
        return {"scores": {"0": {"test": {"a": [0.4, 0.2]}}}, "steps": 3, "stage_seconds": 1.0}, False

    monkeypatch.setattr(any_corpus, "measured", cell)
    run = validated(Params, read_mapping(Path("params.yaml")), "params.yaml").distill
    pipeline = SimpleNamespace(params=run)
    for change in ({}, read_corpora().labels["before"]["static"]):
        any_corpus.student_line("c", "static", pipeline, {"test": {"a": [0.5, 0.5]}}, [1, 2], change)  # type: ignore[arg-type]
    assert trained == ["auto", "auto", 20.0, 20.0]


def test_retention_is_a_share_of_the_mean_over_seeds() -> None:
    seeds = [{"test": {"a": [0.4, 0.2]}}, {"test": {"a": [0.5, 0.3]}}]
    retained = retention(seeds, {"test": {"a": [0.5, 0.5]}}, "test")
    assert retained["mean"] == pytest.approx(0.7) and retained["sd"] == pytest.approx(0.1 * 2**0.5)


def test_data_sets_count_alike_in_retention_whatever_their_numbers_of_queries() -> None:
    seeds = [{"test": {"a": [0.4, 0.2], "b": [0.9]}}, {"test": {"a": [0.5, 0.3], "b": [0.5]}}]
    retained = retention(seeds, {"test": {"a": [0.5, 0.5], "b": [1.0]}}, "test")
    assert retained["values"] == pytest.approx([(0.6 + 0.9) / 2, (0.8 + 0.5) / 2])
    assert retained["by_set"] == pytest.approx({"a": 0.7, "b": 0.7})


def test_a_students_queries_are_kept_by_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {1: {"a": [0.4, 0.2], "b": [0.9]}, 2: {"a": [0.6, 0.2], "b": [0.7]}}

    def cell(cell: Cell, pipeline: object) -> tuple[dict[str, object], bool]:
        return {"scores": {"0": {"test": scores[cell.params.seed]}}, "steps": 3, "stage_seconds": 1.0}, False

    monkeypatch.setattr(any_corpus, "measured", cell)
    run = validated(Params, read_mapping(Path("params.yaml")), "params.yaml").distill
    teacher = {"test": {"a": [0.5, 0.5], "b": [1.0]}}
    result = any_corpus.student_line("c", "static", SimpleNamespace(params=run), teacher, [1, 2], {})  # type: ignore[arg-type]
    assert result["by_query"]["test"] == {"a": pytest.approx([0.5, 0.2]), "b": pytest.approx([0.8])}


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
    unknown = row([5, 6], 0.9, 0.8)
    del unknown["retention"]["test"]["values"]  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="no values by seed"):
        joined(unknown, row([7], 0.9))


def test_joined_rows_keep_each_data_sets_mean_over_all_seeds() -> None:
    older, newer = row([1], 0.9), row([2, 3], 0.8, 0.7)
    older["retention"]["test"]["by_set"] = {"a": 0.95, "b": 0.85}  # type: ignore[index]
    newer["retention"]["test"]["by_set"] = {"a": 0.80, "b": 0.70}  # type: ignore[index]
    retained = joined(older, newer)["retention"]["test"]
    assert retained["by_set"] == pytest.approx({"a": (0.95 + 2 * 0.8) / 3, "b": (0.85 + 2 * 0.7) / 3})
    assert retained["mean"] == pytest.approx(np.mean(list(retained["by_set"].values())))


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


def test_a_verdict_names_the_bars_that_are_missed() -> None:
    bars = Bars(mean=0.97, worst=0.94, minutes=15)
    assert verdict({"mean": 0.97, "worst": 0.94, "longest_seconds": 900.0}, bars) == "OK"
    missed = verdict({"mean": 0.98, "worst": 0.93, "longest_seconds": 901.0}, bars)
    assert missed == "worst below 94%, more than 15 minutes"


def test_a_comparison_is_paired_by_query() -> None:
    draw = np.random.default_rng(2)
    before = draw.random(50)
    old = {"students": {"1l": {"by_query": {"test": {"a": before.tolist()}}, "retention": {"test": {"mean": 0.9}}}}}
    after = before + 0.1 + 0.01 * draw.random(50)
    students = {"1l": {"by_query": {"test": {"a": after.tolist()}}}, "new": {"by_query": {"test": {"a": []}}}}
    row = {"corpus": "x", "students": students}
    compared("a", row, {"a": old | {"corpus": "x"}})
    figures = row["students"]["1l"]["against"]
    assert figures["retention"] == 0.9 and figures["p"] < 1e-9
    assert figures["difference"] == pytest.approx(float((after - before).mean()))
    assert "against" not in row["students"]["new"]
    json.dumps(figures)


def test_data_sets_count_alike_in_a_comparison() -> None:
    def line(large: list[float], small: list[float]) -> dict[str, object]:
        student = {"by_query": {"test": {"large": large, "small": small}}, "retention": {"test": {"mean": 0.9}}}
        return {"corpus": "x", "students": {"1l": student}}

    new = line([0.6, 0.6, 0.61, 0.6] * 25, [0.1, 0.11])
    compared("a", new, {"a": line([0.5] * 100, [0.5, 0.5])})
    figures = new["students"]["1l"]["against"]  # type: ignore[index]
    large, small = np.array([0.1, 0.1, 0.11, 0.1] * 25), np.array([-0.4, -0.39])
    assert figures["difference"] == pytest.approx((large.mean() + small.mean()) / 2) and figures["difference"] < 0
    assert figures["p"] == pytest.approx(p_value([large, small]))


def test_another_corpus_is_not_compared() -> None:
    with pytest.raises(UserError, match="a: was another corpus"):
        compared("a", {"corpus": "x", "students": {}}, {"a": {"corpus": "y", "students": {}}})


@pytest.mark.medium
def test_the_changed_teacher_compares_by_dot_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(any_corpus, "FOLDER", tmp_path)
    tower = load_tower(changed_teacher("cls_dot"))
    vectors = tower.encode(["one text", "another, longer text about cats"])
    assert tower.similarity_fn_name == "dot" and abs(np.linalg.norm(vectors, axis=1) - 1).max() > 0.1


def test_a_recipe_with_a_changed_teacher_is_whole_without_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(any_corpus, "changed_teacher", lambda name: Path("folder: of") / name)
    params = read_mapping(Path("params.yaml"))
    filled = validated(
        Params, laid_over(params, recipe_of({"own": Path("data")}, "cls_dot"), {}, Path("r.yaml")), "r.yaml"
    )
    assert filled.ingest.unlabelled_queries == "" and filled.generate.least_sources == 0
    asked = validated(
        Params, laid_over(params, recipe_of({"own": Path("data")}, "", 2000), {}, Path("r.yaml")), "r.yaml"
    )
    assert asked.generate.least_sources == 2000
    assert filled.teach.teacher["dense"].base.endswith("folder: of/cls_dot")  # type: ignore[attr-defined]


def test_a_single_data_set_is_named_as_in_the_recipe_and_several_by_their_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = []

    def run(words: list[str]) -> SimpleNamespace:
        recipes.append(Path(words[3]).read_text(encoding="utf-8"))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(any_corpus, "FOLDER", tmp_path)
    monkeypatch.setattr(any_corpus.subprocess, "run", run)
    monkeypatch.setattr(any_corpus, "open_pipeline", lambda folder: folder)
    sources = {name: Undisguised([("1", "", f"Of {name}.")], {}, {}) for name in ("cats", "dogs")}
    for names in (["cats"], ["cats", "dogs"]):
        corpus = Corpus(title="Pets", source=names, changes=["lower"])
        assert embedded("pets", corpus, sources) == Path("runs/any_pets")  # type: ignore[comparison-overlap]
    params = read_mapping(Path("params.yaml"))
    alone, both = (
        validated(Params, laid_over(params, text, {}, Path("r.yaml")), "r.yaml").ingest.sources for text in recipes
    )
    assert [source.name for source in alone] == ["own"] and [source.name for source in both] == ["cats", "dogs"]
    assert [json.loads((Path(source.path) / "corpus.jsonl").read_text())["text"] for source in (*alone, both[1])] == [  # type: ignore[attr-defined]
        "of cats .",
        "of dogs .",
    ]


def test_a_source_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA", str(tmp_path))
    with pytest.raises(UserError, match="has no folder scifact"):
        read_source("scifact")
    monkeypatch.setenv("UNLABELLED", str(tmp_path / "pool.tsv.gz"))
    with pytest.raises(UserError, match=r"UNLABELLED=.*pool\.tsv\.gz"):
        check(["medquad_pool"], ["static"], "", read_corpora())


def test_nothing_is_measured_before_all_sources_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def source(name: str) -> Undisguised:
        if name == "medquad":
            raise UserError("no medquad")
        return Undisguised([], {}, {})

    monkeypatch.setattr(any_corpus, "read_source", source)
    monkeypatch.setattr(any_corpus, "measure", lambda *words: pytest.fail("it measures"))
    monkeypatch.setattr("sys.argv", ["any_corpus", "after", "--only", "scifact,medquad_500"])
    with pytest.raises(UserError, match="no medquad"):
        any_corpus.main()


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
    some = ["before", "--only", "scifact,scifact_500"]
    for words in (
        some,
        ["before", "--students", "static"],
        ["before", "--students", "1l"],
        ["after", "--against", "before"],
    ):
        monkeypatch.setattr("sys.argv", ["any_corpus", *words])
        any_corpus.main()
    retained = json.loads((tmp_path / "kept" / "before.json").read_text())
    halves = {name: corpus.half for name, corpus in read_corpora().corpora.items()}
    assert set(retained) == {name for name, half in halves.items() if half != "reporting"}
    assert set(retained["scifact"]["students"]) == {"static", "1l", "2l"}
    assert retained["scifact"]["students"]["static"]["by_query"]
    before = json.loads((tmp_path / "results" / "before.json").read_text())
    assert {student: row["corpora"] for student, row in before["summary"]["disguises"].items()} == {
        "static": 16,
        "1l": 16,
        "2l": 2,
    }
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
    monkeypatch.setattr("sys.argv", ["any_corpus", "after", "--half", "reporting"])
    any_corpus.main()
    output = capsys.readouterr().out
    assert "reporting, static: mean 90.0%" in output and "disguises, " not in output and "choosing, " not in output
    retained = json.loads((tmp_path / "kept" / "after.json").read_text())
    assert set(retained) == set(halves)

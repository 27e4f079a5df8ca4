"""Tables of distilled students: what is expected of them, what is concluded, and what a cell depends on."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from stages import distill_params

from bench.distillation import left_out
from bench.tables.cells import PAPER, STUDENT, Cell, make_cell, scaled, student_of
from bench.tables.cells import distill_params as with_student
from bench.tables.expected import Claim, Entry, Row, Table, read_expected
from bench.tables.pipeline import Pipeline
from bench.tables.report import judged_again, unseen_retention
from bench.tables.verdicts import Measured, failures, judged, judgement, near, row_of, worst_of
from pipeline.recipe import laid_over
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from slimtower.common.settings import read_mapping
from steps.distill.losses.base import Need
from steps.distill.params import DistillParams, StudentParams

ROOT = Path(__file__).parents[2]
EXPECTED = ROOT / "bench/expected.yaml"


def pipeline(**properties: Any) -> Pipeline:
    """A pipeline of which some things are known without files."""
    run = Pipeline(Path("nowhere"))
    run.__dict__.update(properties)
    return run


def line(name: str, *seeds: dict[str, list[float]], row: Row | None = None, seconds: float = 10.0) -> Measured:
    """A row of the table by its test nDCG@10 of each seed and data set."""
    cell = {
        "student": {"start": {"static": {}}},
        "drawn": {},
        "training_seconds": 8.0,
        "stage_seconds": seconds,
        "texts_seen": 100,
        "texts_per_second": 10.0,
        "validation_cosine": 0.9,
        "parameters": 5,
        "bytes": 20,
    }
    scores = [{"test": seed, "dev": seed} for seed in seeds]
    row = row or Row(description="a row")
    return Measured(Entry(name, name, row, 0), scores, [cell] * len(seeds))


def table(**changes: Any) -> Table:
    return Table.model_validate({"description": "x", "tolerance": 0.01, "rows": {"a": {"description": "a"}}} | changes)


def test_a_figure_is_judged_by_its_distance_to_what_was_expected_and_the_worst_counts() -> None:
    values = (0.95, 0.97, 0.941, 0.979, 0.939, 0.981)
    assert [near(value, 0.96, 0.01) for value in values] == ["OK", "OK", "OKish", "OKish", "FAIL", "FAIL"]
    assert near(0.5, None, 0.01) == worst_of([]) == "new"
    assert worst_of(["OK", "new", "OKish"]) == "OKish"
    assert worst_of(["FAIL", "OKish", "OK"]) == "FAIL"
    assert worst_of(["new", "OK"]) == "OK"


TEACHER = {"test": {"big": [0.5, 1.0, 0.6], "small": [0.2, 0.4]}, "dev": {"big": [0.5, 1.0, 0.6], "small": [0.2, 0.4]}}


def test_a_row_holds_ratios_of_means_and_means_of_ratios() -> None:
    seeds = [{"big": [0.5, 0.8, 0.5], "small": [0.2, 0.1]}, {"big": [0.4, 0.9, 0.5], "small": [0.3, 0.4]}]
    row = row_of(line("a", *seeds), TEACHER, table())
    big = [1.8 / 2.1, 1.8 / 2.1]
    small = [0.3 / 0.6, 0.7 / 0.6]
    by_seed = [(first + second) / 2 for first, second in zip(big, small, strict=True)]
    assert row["retention"]["by_seed"] == pytest.approx(by_seed)
    assert row["retention"]["mean"] == pytest.approx(np.mean(by_seed))
    assert row["retention"]["sd"] == pytest.approx(np.std(by_seed, ddof=1))
    assert row["worst"] == {"dataset": "small", "retention": pytest.approx(np.mean(small))}
    assert row["ratio_of_means"] == pytest.approx((0.6 + 0.25) / (0.7 + 0.3))
    assert row["datasets"]["big"]["ndcg"] == pytest.approx(0.6)
    assert row["dev"]["mean"] == pytest.approx(np.mean(by_seed))
    assert row["against_teacher"]["difference"] == pytest.approx((-0.1 - 0.05) / 2)
    by_set = {name: test["difference"] for name, test in row["against_teacher"]["datasets"].items()}
    assert by_set == pytest.approx({"big": -0.1, "small": -0.05})
    assert row["verdict"] == "new"
    assert row_of(line("a", seeds[0]), TEACHER, table())["retention"]["sd"] is None


@pytest.mark.parametrize(
    ("minimum", "within", "seconds", "failed"),
    [(0.9, 0.1, 900, []), (0.96, 0.1, 900, ["minimum"]), (0.9, 0.04, 900, ["worst"]), (0.9, 0.1, 899, ["seconds"])],
)
def test_a_promise_holds_mean_worst_set_and_time(minimum, within, seconds, failed) -> None:
    student = {"big": [0.5, 1.0, 0.6], "small": [0.18, 0.36]}  # keeps 100 % and 90 %
    row = Row(description="a", minimum=minimum)
    record = row_of(line("a", student, row=row, seconds=900), TEACHER,
                  table(tolerance=0.0, worst_within=within, seconds=float(seconds)))  # fmt: skip
    assert [kind for kind, verdict in record["verdicts"].items() if verdict == "FAIL"] == failed
    assert bool(failures({"a": record}, [])) == bool(failed)


def test_queries_with_documents_of_training_queries_are_told_from_others() -> None:
    student = line("it", {"one": [0.5, 0.2, 0.9], "two": [0.4]}, {"one": [0.7, 0.4, 0.9], "two": [0.6]})
    teacher = {"one": [0.8, 0.5, 1.0], "two": [0.25]}
    retention = unseen_retention(student, teacher, {"one": np.array([True, True, False]), "two": np.array([False])})
    assert retention["one"] == {"queries": 2, "retention": pytest.approx((0.6 + 0.3) / (0.8 + 0.5))}
    assert retention["two"] == {"queries": 0, "retention": None}


def test_a_claim_is_a_paired_test_over_queries_with_seeds_averaged() -> None:
    generator = np.random.default_rng(1)
    worse = [{"one": generator.random(50).tolist()} for _ in range(2)]
    better = [{"one": (np.array(seed["one"]) + 0.02 + 0.1 * generator.random(50)).tolist()} for seed in worse]
    lines = {"better": line("better", *better), "worse": line("worse", *worse)}
    verdict = judged(Claim(order=["better", "worse"], paper="Table 1"), lines)
    ours = [np.mean([seed["one"] for seed in side], axis=0) for side in (better, worse)]
    assert verdict["p"] == pytest.approx(stats.ttest_rel(*ours).pvalue)
    assert verdict["difference"] == pytest.approx((ours[0] - ours[1]).mean())
    assert verdict["verdict"] == "OK"
    back = judged(Claim(order=["worse", "better"], paper="Table 1"), lines)
    assert back["verdict"] == "FAIL" and failures({}, [back])
    explained = judged(Claim(order=["worse", "better"], paper="Table 1", differs="looked into"), lines)
    assert explained["verdict"] == "FAIL" and not failures({}, [explained])
    assert judged(Claim(order=["better", "better"], paper="x"), lines)["verdict"] == "OKish"
    more = {"large": [0.5] * 90 + [0.6] * 10, "small": [0.1, 0.2, 0.3]}  # data sets count alike
    less = {"large": [0.5] * 100, "small": [0.4, 0.4, 0.5]}
    verdict = judged(Claim(order=["b", "w"], paper="x"), {"b": line("b", more), "w": line("w", less)})
    assert (verdict["difference"], verdict["verdict"]) == (pytest.approx((0.01 - 0.7 / 3) / 2), "FAIL")


def test_a_claim_may_be_that_nothing_is_lost() -> None:
    claim = Claim(order=["b", "w"], says="no worse", p=0.01, paper="x")
    for difference, p, verdict in (
        (0.01, 0.001, "OK"), (0.0, 1.0, "OK"), (-0.01, 0.3, "OKish"), (-0.01, 0.04, "OKish"), (-0.01, 0.009, "FAIL")
    ):  # fmt: skip
        judged_claim = judgement(claim, {"difference": difference, "p": p})
        assert (judged_claim["verdict"], judged_claim["says"], judged_claim["limit"]) == (verdict, "no worse", 0.01)
        assert bool(failures({}, [judged_claim])) == (verdict == "FAIL")


def test_a_claim_may_be_about_dev_queries() -> None:
    scores = {"b": {"test": {"one": [0.1, 0.1]}, "dev": {"one": [0.5, 0.6, 0.9]}},
              "w": {"test": {"one": [0.9, 0.8]}, "dev": {"one": [0.4, 0.4, 0.8]}}}  # fmt: skip
    lines = {name: replace(line(name), scores=[by_split]) for name, by_split in scores.items()}
    on_dev = judged(Claim(order=["b", "w"], split="dev", paper="x"), lines)
    assert (on_dev["split"], on_dev["difference"]) == ("dev", pytest.approx(0.4 / 3)) and "dev" not in on_dev
    on_test = judged(Claim(order=["b", "w"], paper="x"), lines)
    assert "split" not in on_test and on_test["difference"] == pytest.approx(-0.75)
    assert on_test["dev"] == {name: on_dev[name] for name in ("difference", "p", "verdict")}
    assert (on_test["verdict"], on_test["dev"]["verdict"]) == ("FAIL", "OKish")


def test_the_13_subsets_of_six_layers() -> None:
    layers = [scaled(subset, 6) for subset in PAPER]
    assert layers == [
        [1, 2, 3, 4], [0, 1, 4, 5], [0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5],
        [0, 4], [0, 5], [1, 4], [1, 5],
        [0], [1], [4], [5],
    ]  # fmt: skip
    assert [scaled(subset, 12) for subset in PAPER] == list(PAPER)
    assert [scaled(subset, 24)[-1] for subset in PAPER if 11 in subset] == [23] * sum(11 in subset for subset in PAPER)
    assert scaled([1, 4, 7, 10], 24) == [1, 8, 15, 22]


@pytest.mark.medium
def test_the_papers_recipes_are_presets_that_a_table_measures() -> None:
    expected = read_expected(EXPECTED)
    measured = [student for table in expected.tables.values() for student in described(table)]
    assert {name.partition("_")[0] for name in expected.presets} == {"query", "embeddistill", "scalingnote", "lead"}
    for name, preset in expected.presets.items():
        assert preset in measured, name


def described(table: Table) -> list[StudentParams]:
    """The students of a table whose rows describe one, for a teacher of six layers."""
    run = pipeline(depth=6)
    rows = [row for row in table.rows.values() if isinstance(row.student, dict)]
    return [StudentParams.model_validate(student_of(run, table, row)) for row in rows]


@pytest.mark.medium
def test_every_student_of_the_file_can_be_distilled() -> None:
    run = distill_params(student={"static": STATIC, "1l": TWO, "2l": TWO, "4l": TWO})
    teacher_run = pipeline(params=run, depth=6)
    for name, expected_table in read_expected(EXPECTED).tables.items():
        for row in expected_table.rows.values():
            if row.student is not None:
                params = with_student(run, student_of(teacher_run, expected_table, row), {"titles": 1.0}, 5, 3)
                assert (params.seed, params.validation_texts, list(params.student)) == (3, 5, [STUDENT]), name


STATIC = {"start": {"static": {}}, "losses": [{"kind": "embedding", "distance": "cosine"}], "epochs": 1.0,
          "batch_size": 8, "learning_rate": 0.1, "warmup_ratio": 0.1}  # fmt: skip
TWO = {"start": {"layers": [0, -1]}, "losses": [{"kind": "embedding", "distance": "l2"}], "epochs": 1.0,
       "batch_size": 8, "learning_rate": 1e-3, "warmup_ratio": 0.1}  # fmt: skip
COSINE = [{"kind": "embedding", "distance": "cosine"}]


def test_a_row_is_laid_over_the_table_and_a_subset_over_both() -> None:
    repeats = {"titles": 2.5, "spans": 0.0}
    run = pipeline(params=distill_params(repeats=repeats), depth=6, parts=PARTS)
    common_table = table(common=TWO)
    assert make_cell(run, common_table, common_table.rows["a"], 1).params.repeats == {"titles": 2.5}, "as in the run"
    fresh = {"fresh": {"layers": 1, "dim": 16, "heads": 2, "vocabulary": 0}}
    laid = student_of(run, common_table, Row(description="x", student={"start": fresh, "losses": COSINE}))
    assert laid == TWO | {"start": fresh, "losses": COSINE}, "nothing of the table's start and losses is left"
    assert student_of(run, common_table, Row(description="x", subset=[0, 11])) == TWO | {"start": {"layers": [0, 5]}}
    named = student_of(run, common_table, Row(description="x", student="2l"))
    assert named == distill_params().student["2l"].model_dump()
    with pytest.raises(UserError, match="9l"):
        student_of(run, common_table, Row(description="x", student="9l"))
    with pytest.raises(UserError, match=r"losses\.0\.embedding\.distanse"):
        with_student(
            distill_params(), TWO | {"losses": [{"kind": "embedding", "distanse": "l2"}]}, {"titles": 1.0}, 5, 3
        )


PARTS = np.repeat(["titles", "train_queries", "sentences"], [700, 60, 240])


@pytest.mark.parametrize("texts_seen", [250, 700])
def test_every_part_gives_the_share_that_was_asked_for(texts_seen: int) -> None:
    run = pipeline(parts=PARTS)
    mixture = {"titles": 1.0, "train_queries": 1.0, "sentences": 0.5, "unlabelled_queries": 0.0}
    repeats = run.repeats(mixture, 100, 50, 1)
    assert set(repeats) == {"titles", "train_queries", "sentences"}
    counts_by_part = run.drawn(distill_params(repeats=repeats, validation_texts=50, seed=1), 0.0, texts_seen)
    epoch = {part: counts["an_epoch"] for part, counts in counts_by_part.items()}
    assert epoch == {"titles": 100, "train_queries": 100, "sentences": 50}
    assert counts_by_part["train_queries"]["different"] <= 60
    assert (counts_by_part["titles"]["different"] == 100) == (texts_seen == 250)
    assert run.missing(mixture | {"unlabelled_queries": 1.0, "spans": 0.0}) == ["unlabelled_queries"]


def params(student: dict[str, Any] = TWO, **changes: Any) -> DistillParams:
    repeats = changes.pop("repeats", {"titles": 1.0})
    return with_student(distill_params(**changes), student, repeats, 5, changes.get("seed", 3))


def test_a_cell_is_known_by_all_that_it_depends_on() -> None:
    teacher_run = pipeline(digest="a")
    key = Cell(params()).key(teacher_run)
    assert key == Cell(params()).key(teacher_run)
    other_keys = {
        Cell(params(TWO | {"learning_rate": 2e-3})).key(teacher_run),
        Cell(params(repeats={"titles": 0.5})).key(teacher_run),
        Cell(params(seed=4)).key(teacher_run),
        Cell(params(max_length=16)).key(teacher_run),
        Cell(params(precision="bf16")).key(teacher_run),
        Cell(params(), dims=(8,)).key(teacher_run),
        Cell(params()).key(pipeline(digest="b")),
    }
    assert len(other_keys | {key}) == 8
    run = distill_params(student={"static": STATIC, "2l": TWO | {"losses": COSINE}})
    assert Cell(with_student(run, TWO, {"titles": 1.0}, 5, 3)).key(teacher_run) == key, "another student"


def test_a_cell_depends_on_the_scores_that_its_student_learns_or_the_teacher_that_trains_along(tmp_path: Path) -> None:
    run = Pipeline(tmp_path)
    run.__dict__["digest"] = "a"
    layered = {"losses": [{"kind": "layer_distillation", "layers": 1, "teacher": "other"}]}
    moving = {"teacher_top_k": 2, "targets": "joint", "losses": [{"kind": "score_kl", "teacher": "late"}]}
    scored = Cell(params(TWO | {"teacher_top_k": 2, "losses": [{"kind": "score_softmax", "teacher": "other"}]}))
    with pytest.raises(UserError, match="other"):
        scored.key(run)
    assert (run.unscored(TWO | moving), run.untaught(TWO | moving), run.untaught(TWO)) == ([], ["late"], [])
    scores = tmp_path / "data/score/other/scores.parquet"
    weights = tmp_path / "models/teach/late/tower/model.safetensors"
    keys = []
    for content in ("one", "two"):
        for file in (scores, weights):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        keys.append([cell.key(run) for cell in (scored, Cell(params(TWO | moving)), Cell(params()))])
    assert [old != new for old, new in zip(*keys, strict=True)] == [True, True, False]
    assert (run.untaught(TWO | moving), run.unscored(layered)) == ([], ["other"])
    assert run.unscored(scored.params.student[STUDENT].model_dump()) == []
    scores.with_name("layers.npy").write_text("scores of layers")
    assert run.unscored(layered) == [] and scored.key(run) != keys[1][0]


@pytest.mark.medium
def test_a_row_of_a_teacher_that_the_run_lacks_or_that_is_too_shallow_is_left_out() -> None:
    rows = {name: row.model_dump() for name, row in read_expected(EXPECTED).tables["lead_joint"].rows.items()}
    reasons = left_out(pipeline(params=distill_params(), depth=6), table(rows=rows))
    assert set(reasons) == {"late", "late.without_joint", "late.frozen", "cross", "cross.without_joint"}
    deep = {"a": {"description": "a", "subset": [0, 11]}, "b": {"description": "b", "subset": [0, 1, 10, 11]}}
    assert set(left_out(pipeline(params=distill_params(), depth=3), table(rows=deep))) == {"b"}, "it is too shallow"


@pytest.mark.medium
@pytest.mark.parametrize("name", ["scifact", "medquad", "demo"])
def test_a_label_free_table_uses_no_judgement(name: str) -> None:
    phases = [
        phase for student in described(read_expected(EXPECTED).tables[f"label_free_{name}"]) for phase in student.phases
    ]
    assert all(phase.labels == "pseudo" or not phase.needs(Need.CANDIDATES) for phase in phases)
    assert not any(phase.needs(Need.LABELS) for phase in phases)


@pytest.mark.medium
def test_a_table_with_other_rows_or_claims_is_not_judged_again() -> None:
    [path] = [path for path in WRITTEN if path.stem == "layers"]
    recorded = read_json(path)
    today = read_expected(EXPECTED).tables["layers"]
    rows = today.rows | {"new": next(iter(today.rows.values()))}
    claims = [*today.claims, Claim(order=[*recorded["rows"]][:2], paper="x")]
    on_dev = [claim.model_copy(update={"split": "dev"}) for claim in today.claims]
    for change in ({"rows": rows}, {"claims": claims}, {"claims": on_dev}):
        changed = today.model_copy(update=change)
        with pytest.raises(UserError, match="measured with other rows or claims; measure it again"):
            judged_again(recorded, changed)


WRITTEN = sorted((ROOT / "bench/results/distillation").glob("*.json"))


def recipe_students(recipe: Path) -> dict[str, StudentParams]:
    """The students of params.yaml with a recipe laid over it."""
    params = laid_over(read_mapping(ROOT / "params.yaml"), recipe.read_text(), {"DATA": "data"}, recipe)
    return DistillParams.model_validate(params["distill"]).student


@pytest.mark.medium
@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.stem)
def test_written_tables_are_of_what_is_expected_today(path: Path) -> None:
    expected = read_expected(EXPECTED)
    recorded = read_json(path)
    table = expected.tables[recorded["table"]]
    assert recorded["seeds"] == (table.seeds or expected.seeds)
    entries = {entry.name: entry for entry in table.entries()}
    assert {*recorded["rows"], *recorded["left_out"]} == set(entries)
    assert judged_again(recorded, table) == recorded, f"run `python -m bench.distillation {path.stem} --judge`"
    assert [claim["order"] for claim in recorded["claims"]] == [claim.order for claim in table.claims]
    for name, row in recorded["rows"].items():
        named = entries[name].row.student
        if isinstance(named, str):
            student = recipe_students(ROOT / f"recipes/{Path(table.run).name}.yaml")[named]
        else:
            student = StudentParams.model_validate(student_of(pipeline(depth=6), table, entries[name].row))
        assert StudentParams.model_validate(row["student"]) == student, "measured with other parameters"

"""Tables of teachers by what they are trained on: what is read, planned, kept, compared and written."""

from argparse import Namespace
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import yaml
from rank_fakes import PARAMS as RANKER
from rank_fakes import liked, write_rank_world
from scipy import stats
from stages import write_ingest, write_mine
from teach_fakes import PARAMS as TEACHER

from bench.tables.pipeline import Pipeline
from bench.teachers import __main__ as bench
from bench.teachers import cells as cells_module
from bench.teachers.beside_ranker import beside_ranker
from bench.teachers.cells import key, scored
from bench.teachers.described import Table, read_tables
from bench.teachers.mined import Mined, Plan, plans
from bench.teachers.summary import difference, summary, verdicts
from slimtower.common.errors import UserError
from slimtower.common.files import write_json
from slimtower.common.settings import read_mapping
from steps.core.tables import SCHEMAS, write_table
from steps.encoders.towers import encode, load_tower
from steps.rank.quality import measure

ROOT = Path(__file__).parents[2]
GIVEN = {"DATA": "somewhere"}
UNTRAINED: dict[str, Any] = {"teach": {"teacher": {"dense": {"epochs": 0.0}}}}


def rows(**described: dict[str, Any]) -> dict[str, Any]:
    """A table's rows, zero_shot in front."""
    every = {"zero_shot": UNTRAINED, **described}
    return {name: {"description": name} | row for name, row in every.items()}


def table(common: dict[str, Any] | None = None, recipe: str = "", **described: dict[str, Any]) -> Table:
    """A table with zero_shot and other rows."""
    return Table.model_validate(
        {"description": "-", "recipe": recipe, "common": common or {}, "rows": rows(**described)}
    )


def cell(*by_set: list[float], triplets: int = 5, seconds: float = 2.0, split: str = "test") -> dict[str, Any]:
    """What a seed gives: nDCG@10 of the queries of data sets 0, 1, ..."""
    times = {"training_seconds": seconds, "stage_seconds": seconds + 1, "seconds": seconds + 2}
    scores = {split: {str(number): values for number, values in enumerate(by_set)}}
    return {"scores": scores, "triplets": triplets, "by_source": {"judged": triplets}, **times}


def test_every_row_of_the_file_is_params_and_rows_that_mine_alike_share_a_run() -> None:
    tables = read_tables(Path("bench/teachers.yaml")).tables
    assert set(tables) == {"demo", "medquad", "scifact"}
    for name, table_of_file in tables.items():
        planned = plans(name, table_of_file, GIVEN)
        shared = [row for row, plan in planned.items() if plan.run == f"teachers_{name}_zero_shot"]
        changed = [row for row, its in table_of_file.rows.items() if its.candidates or its.mine or its.rank]
        assert changed and set(shared) == set(table_of_file.rows) - set(changed)
        assert len({plan.run for plan in planned.values()}) == 1 + len(changed)
        teachers = [str(plan.teacher.model_dump()) for plan in planned.values() if plan.run.endswith("zero_shot")]
        assert len(set(teachers)) == len(teachers), "no two rows of one run are the same teacher"
    arguments = Namespace(table="demo", only="judged,clicks", seeds="4")
    _, chosen, seeds = bench.chosen(arguments, read_tables(Path("bench/teachers.yaml")))
    assert chosen == ["zero_shot", "clicks", "judged"] and seeds == [4], "what they are held against is first"


def test_a_row_is_laid_over_the_tables_and_that_over_the_recipe() -> None:
    common = {"mine": {"max_associations": 3}, "teach": {"teacher": {"dense": {"epochs": 2.0, "batch_size": 4}}}}
    batch = {"teach": {"teacher": {"dense": {"batch_size": 8}}}}
    same, different = ({"mine": {"max_associations": number}} for number in (3, 4))
    teachers = table(common, "recipes/beir.yaml", a=batch, same=same, other=different)
    row_plans = plans("t", teachers, GIVEN)
    teacher = row_plans["a"].teacher.model_dump()
    assert (teacher["epochs"], teacher["batch_size"], teacher["max_triplets"]) == (2.0, 8, 0), "row, table, recipe"
    assert [plan.run for plan in row_plans.values()] == ["teachers_t_zero_shot"] * 3 + ["teachers_t_other"]
    recipe = yaml.safe_load(row_plans["other"].recipe)
    assert recipe["mine"] == {"max_positives": 0, "max_associations": 4} and recipe["ingest"]["sources"][0][
        "path"
    ] == str(Path("somewhere").resolve())
    assert recipe["ingest"]["unlabelled_queries"] == "", "a variable that is not given is no missing value"
    plain = Path("recipes/beir.yaml").read_text().replace("${EPOCHS:-0.0}", "0.0")
    assert recipe["teach"] == yaml.safe_load(plain)["teach"], "mining needs no teacher"
    untrained = Plan(TEACHER.model_copy(update={"epochs": 0.0}), "r", "{}")
    assert untrained.seeded(1) == untrained.seeded(2), "a seed makes no other teacher of one that is not trained"
    assert Plan(TEACHER, "r", "{}").seeded(5) == TEACHER.model_copy(update={"seed": 5})


def test_a_row_is_means_over_queries_then_data_sets_then_seeds() -> None:
    draw = np.random.default_rng(3)
    seeds = [[draw.random(7).tolist(), draw.random(31).tolist()] for _ in range(3)]
    row = summary([cell(*sets, seconds=seconds) for sets, seconds in zip(seeds, (1.0, 2.0, 6.0), strict=True)])
    by_seed = [sum(sum(values) / len(values) for values in sets) / 2 for sets in seeds]
    mean = sum(by_seed) / 3
    sd = (sum((value - mean) ** 2 for value in by_seed) / 2) ** 0.5
    assert row["test"]["by_seed"] == pytest.approx(by_seed, abs=1e-12)
    assert row["test"]["ndcg"] == pytest.approx(mean, abs=1e-12)
    assert row["test"]["sd"] == pytest.approx(sd, abs=1e-12)
    assert row["test"]["datasets"]["1"] == pytest.approx(sum(sum(sets[1]) for sets in seeds) / 93, abs=1e-12)
    assert (row["training_seconds"], row["triplets"]) == (3.0, 5)
    assert summary([cell([0.5, 1.0])])["test"]["sd"] is None


def test_a_difference_is_paired_by_query_with_seeds_averaged_first() -> None:
    draw = np.random.default_rng(4)
    before, after = draw.random((3, 40)), draw.random((3, 40)) + 0.1
    cells, baseline_cells = ([cell(row.tolist()) for row in scores] for scores in (after, before))
    expected = stats.ttest_rel(after.mean(axis=0), before.mean(axis=0))
    test = difference(cells, baseline_cells)["test"]
    assert test["difference"] == pytest.approx(float((after - before).mean()), abs=1e-12)
    assert test["p"] == pytest.approx(float(expected.pvalue), rel=1e-9)
    assert difference(cells, cells)["test"] == {"difference": 0.0, "p": 1.0}
    for incomparable in (cell([0.1, 0.2, 0.3]), cell([0.1, 0.2], split="dev")):
        with pytest.raises(UserError, match="other test queries"):
            difference([cell([0.1, 0.2])], [incomparable])


def claimed(*claims: dict[str, Any], **changes: Any) -> Table:
    """A table with the rows a and b, and claims."""
    described_rows = {"a": {"expected": 0.5}, "b": {"against": ["a"]}}
    described = {"description": "-", "tolerance": 0.01, "rows": rows(**described_rows), "claims": [*claims]}
    return Table.model_validate(described | changes)


def measured_by(claimed_table: Table, **values: np.ndarray) -> dict[str, Any]:
    """The table as it is written, of nDCG@10 of each row's test queries."""
    cells = {name: [cell(scores.tolist()) | {"machine": {}, "git_commit": "x"}] for name, scores in values.items()}
    return bench.finished("t", claimed_table, cells, defaultdict(lambda: SimpleNamespace(rankers={})), {}, [1])


def test_claims_and_expectations_have_verdicts_that_are_written_and_judged_again() -> None:
    draw = np.random.default_rng(6)
    base = draw.random(60) * 0.4 + 0.25
    values = {"zero_shot": base, "a": base + 0.05 + 0.02 * draw.normal(size=60), "b": base + 0.3 * draw.normal(size=60)}
    better = {"order": ["a", "zero_shot"], "p": 0.01, "paper": "x"}
    harmless = {"order": ["b", "a"], "says": "no worse", "paper": "y"}
    claimed_table = claimed(better, harmless)
    result = measured_by(claimed_table, **values)
    p = stats.ttest_rel(values["a"], base).pvalue
    gain, chance = float((values["b"] - values["a"]).mean()), stats.ttest_rel(values["b"], values["a"]).pvalue
    first, second = result["claims"]
    assert (first["verdict"], first["limit"], first["p"]) == ("OK", 0.01, pytest.approx(p)) and p < 0.01
    assert second["difference"] == pytest.approx(gain) and second["says"] == "no worse"
    assert second["verdict"] == ("OK" if gain >= 0 else "FAIL" if chance < 0.05 else "OKish")
    mean = float(values["a"].mean())
    expected = "OK" if abs(mean - 0.5) <= 0.01 else "OKish" if abs(mean - 0.5) <= 0.02 else "FAIL"
    assert [result["rows"][name]["verdict"] for name in values] == ["new", expected, "new"]
    settled = claimed(
        better, harmless, rows=claimed_table.model_dump()["rows"] | {"a": {"description": "a", "expected": mean}}
    )
    with_expected = claimed_table.model_copy(update={"expected": {"a": mean}})
    assert verdicts(result, with_expected)["rows"] == verdicts(result, settled)["rows"], (
        "a table's own comes before its rows'"
    )
    bench.conclude("t", verdicts(result, settled))
    assert verdicts(verdicts(result, settled), claimed_table) == result

    against = claimed({"order": ["zero_shot", "a"], "paper": "x"})
    lost = measured_by(against, zero_shot=base, a=values["a"])
    assert lost["claims"][0]["difference"] == pytest.approx(-first["difference"]), "from the other side"
    with pytest.raises(UserError, match=r"bench\.teachers t: FAIL for zero_shot is not above a"):
        bench.conclude("t", lost)
    explained = [against.claims[0].model_copy(update={"differs": "as it should"})]
    bench.conclude("t", verdicts(lost, against.model_copy(update={"claims": explained})))
    part = measured_by(claimed_table, zero_shot=base, b=values["b"])
    assert part["claims"] == [], "of rows that were not measured nothing is claimed"
    with pytest.raises(UserError, match="measure it again"):
        verdicts(result, claimed({"order": ["b", "a"], "split": "dev", "paper": "x"}))


@pytest.fixture
def small(tmp_path: Path) -> Mined:
    """A run whose tables a test wrote: two data sets, a triplet for each training query."""
    write_ingest(tmp_path / "data/ingest")
    for name in ("impressions", "relevance"):
        write_table(tmp_path / "data/ingest", name, SCHEMAS[name].empty_table())
    write_mine(tmp_path / "data/mine/relevance")
    return Mined(Pipeline(tmp_path))


@pytest.mark.medium
def test_scores_are_of_exact_search_over_the_whole_data_set(small: Mined, tiny_tower: Path) -> None:
    tower, pipeline = load_tower(tiny_tower), small.pipeline
    scores_by_split = scored(tower, pipeline, "fp32")
    documents = encode(tower, pipeline.document_texts(), "document").astype(np.float64)
    assert {(item.split, item.dataset) for item in pipeline.judged_sets} == {("test", "one"), ("dev", "two")}
    for item in pipeline.judged_sets:
        chosen, ids = pipeline.corpus[item.dataset]
        queries = encode(tower, item.texts, "query").astype(np.float64)
        expected = []
        for query, values in zip(item.query_ids, queries @ documents[chosen].T, strict=True):
            ranked = [ids[row] for row in np.argsort(-values)[:10]]
            right = [ranked.index(doc) for doc in item.qrels[query] if doc in ranked]
            expected.append(sum(1 / np.log2(rank + 2) for rank in right))
        assert scores_by_split[item.split][item.dataset] == pytest.approx(expected, abs=1e-5)


@pytest.mark.medium
def test_a_teacher_is_held_against_the_pairs_on_which_its_runs_ranker_is_measured(
    tiny_tower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rank_world(tmp_path / "data", qrels=liked()[1])
    tower, pipeline = load_tower(tiny_tower), Pipeline(tmp_path)
    assert beside_ranker(tower, pipeline) is None, "the run has no ranker"
    params = RANKER.model_copy(update={"base": str(tiny_tower), "max_length": 64})
    raw = read_mapping(Path("params.yaml"))
    raw["rank"] = {"rankers": ["cross"], "ranker": {"cross": params.model_dump()}}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(raw))
    write_json(tmp_path / "data/rank/cross/report.json", {})
    figures = beside_ranker(tower, pipeline)
    assert figures is not None

    def cosines(_: object, pairs: list[tuple[str, str]], **__: object) -> np.ndarray:
        query_vectors, document_vectors = (
            tower.encode(list(side)).astype(np.float64) for side in zip(*pairs, strict=True)
        )
        return np.einsum("nd,nd->n", query_vectors, document_vectors)

    monkeypatch.setattr("steps.rank.quality.pair_scores", cosines)
    ranked = measure(cast(Any, None), tmp_path / "data/ingest", tmp_path / "data/candidates", params, base_embeds=True)
    assert ranked is not None and ranked["auc"]["against_judged"] > 0
    assert figures["auc"] == pytest.approx(ranked["auc"]["mean"]) == pytest.approx(ranked["auc"]["base"])
    assert figures["ndcg_reranked"] == pytest.approx(ranked["ndcg_reranked"])


@pytest.mark.medium
def test_a_cell_is_known_by_all_that_its_figures_depend_on(
    small: Mined, tiny_tower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = TEACHER.model_copy(update={"base": str(tiny_tower)})
    digest = key(teacher, small)
    assert key(teacher, Mined(Pipeline(tmp_path))) == digest
    other_digests = {key(teacher.model_copy(update=change), small) for change in ({"seed": 9}, {"epochs": 1.0})}
    write_table(tmp_path / "data/mine/relevance", "triplets", SCHEMAS["triplets"].empty_table())
    other_digests.add(key(teacher, Mined(Pipeline(tmp_path))))
    monkeypatch.setitem(cells_module._CODE, type(teacher).__module__, ["other code"])
    other_digests.add(key(teacher, small))
    assert len(other_digests | {digest}) == 5

"""What the teacher was before: measured over the whole corpus, once, and compared with the teacher query by query."""

import json
import math
import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evaluate_fakes import RULE, FakeRelease, evaluate, fake_systems, folders_of, params, write_inputs
from scipy.stats import ttest_rel
from sentence_transformers import SentenceTransformer
from towers import other_weights

from slimtower.common.document_texts import FIELDS, DocumentTemplate
from slimtower.common.errors import UserError
from slimtower.common.files import write_json
from steps.core.judged import JudgedSet, read_judged_sets
from steps.core.tables import read_table, table_from_rows, write_table
from steps.encoders import vector_cache
from steps.evaluate import other_teachers as module
from steps.evaluate import run as stage
from steps.evaluate.cache import measure_all
from steps.evaluate.comparing import is_gain
from steps.evaluate.gains import gain_lines, gains
from steps.evaluate.measuring import Result, Task, measure_other
from steps.evaluate.other_teachers import open_earlier
from steps.evaluate.params import SPLITS
from steps.evaluate.scoring import Scored
from steps.evaluate.systems import Other, Systems, dense_search
from steps.tracking.runs import NullRun

TEMPLATE = "{title} | {topic}: {content}"
DIM = 32


@pytest.fixture
def world(tmp_path: Path, tiny_tower: Path) -> Path:
    """The inputs of `evaluate` with topics and less obvious answers, and a teacher that was two towers before."""
    write_inputs(tmp_path)
    rows = read_table(tmp_path / "ingest", "corpus").to_pylist()
    rows = [row | {"topic": "" if at % 3 else "how to"} for at, row in enumerate(rows)]
    corpus = table_from_rows("corpus", rows)
    write_table(tmp_path / "ingest", "corpus", corpus, metadata=DocumentTemplate(TEMPLATE).metadata)
    judged = read_table(tmp_path / "ingest", "qrels").to_pylist()
    for row in judged:
        dataset, number = row["query_id"].split("/q")
        row["doc_id"] = f"{dataset}/d{(int(number) + 10) % 30}"  # of the same topic, and another number
    write_table(tmp_path / "ingest", "qrels", table_from_rows("qrels", judged))
    shutil.copytree(tiny_tower, tmp_path / "teach/earlier/base")
    other_weights(tiny_tower, tmp_path / "teach/earlier/round_0", seed=5)
    write_json(tmp_path / "teach/earlier/towers.json", ["base", "round_0"])
    write_json(tmp_path / "embed/report.json", {"computed_in": "fp32"})
    return tmp_path


def opened(root: Path, dim: int = DIM, students: Collection[str] = ()) -> list[Other]:
    return open_earlier(folders_of(root), dim, students)


def task_of(root: Path) -> Task:
    return Task(read_judged_sets(root / "ingest", SPLITS), [], params())


def by_hand(root: Path, tower: Path, judged: JudgedSet, dim: int) -> list[float]:
    """nDCG@10 of each query: every document of the data set read by sentence-transformers and ranked in float64."""
    model = SentenceTransformer(str(tower), device="cpu")
    documents = [row for row in read_table(root / "ingest", "corpus").to_pylist() if row["dataset"] == judged.dataset]
    texts = [
        f"{row['title']} | {row['topic']}: {row['content']}" if row["topic"] else f"{row['title']}: {row['content']}"
        for row in documents
    ]

    def embed(batch: list[str]) -> np.ndarray:
        vectors = model.encode(batch).astype(np.float64)[:, :dim]
        return vectors if dim == DIM else vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    scores = embed(judged.texts) @ embed(texts).T
    ndcg = []
    for query, row in zip(judged.query_ids, scores, strict=True):
        best = [documents[at]["doc_id"] for at in np.argsort(-row)[:10]]
        grades = judged.qrels[query]
        ideal = sum(1 / math.log2(rank + 2) for rank in range(min(10, len(grades))))
        ndcg.append(sum(1 / math.log2(best.index(doc) + 2) for doc in grades if doc in best) / ideal)
    return ndcg


@pytest.mark.medium
@pytest.mark.parametrize("dim", [DIM, 12])
def test_a_tower_searches_the_whole_corpus_as_a_float64_ranking_does(world: Path, dim: int, tmp_path: Path) -> None:
    task = task_of(world)
    assert len(task.judged) == 4
    for name, system in zip(("base", "round_0"), opened(world, dim), strict=True):
        (folder := tmp_path / f"result {name}").mkdir()
        result = measure_other(system, task, folder / "runs")
        assert result.name == system.name == name
        assert [path.name for path in folder.iterdir()] == ["runs"], "no vectors are kept with the result"
        for scored, judged in zip(result.scored, task.judged, strict=True):
            expected = by_hand(world, world / "teach/earlier" / name, judged, dim)
            assert scored.judged == judged and 0 < np.mean(expected) < 1
            np.testing.assert_allclose(scored.values["nDCG@10"], expected, atol=1e-12)


def with_earlier(root: Path, earlier: list[Other]) -> Systems:
    release: Any = FakeRelease(write_documents(root))
    systems = fake_systems(root, release.documents_by_set, **{"static": 1, "2l": 4})
    return replace(systems, earlier=earlier)


def write_documents(root: Path) -> dict[str, dict[str, str]]:
    documents: dict[str, dict[str, str]] = {"api": {}, "med": {}}
    for row in read_table(root / "ingest", "corpus").to_pylist():
        documents[row["dataset"]][row["doc_id"]] = f"{row['title']} {row['content']}"
    return documents


def no_reading(*_: object, **__: object) -> None:
    raise AssertionError("reads a text")


@pytest.mark.medium
def test_what_was_measured_or_read_is_not_again(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = measure_all(with_earlier(world, opened(world)), task_of(world))
    assert first.measured == ["bm25", "base", "round_0", "teacher", "static", "2l"]
    assert not {"base", "round_0"} & {*first.latencies, *first.timed}
    assert {path.name for path in first.runs} >= {f"{data}.base.run" for data in ("api", "med")}
    with monkeypatch.context() as patch:
        for name in ("load_tower", "encode", "best_documents"):
            patch.setattr(module, name, no_reading)
        patch.setattr(vector_cache, "encode_with_lengths", no_reading)
        again = measure_all(with_earlier(world, opened(world)), task_of(world))
        assert (again.measured, again.timed) == ([], [])
        for name in ("base", "round_0"):
            for before, after in zip(first.results[name].scored, again.results[name].scored, strict=True):
                assert all(
                    np.array_equal(before.values[measure], after.values[measure]) for measure in params().measures
                )
    # other judgements are other results, over vectors that are there
    qrels = read_table(world / "ingest", "qrels")
    write_table(world / "ingest", "qrels", qrels.slice(1))
    monkeypatch.setattr(vector_cache, "encode_with_lengths", no_reading)
    assert {"base", "round_0"} < {*measure_all(with_earlier(world, opened(world)), task_of(world)).measured}


@pytest.mark.medium
def test_content_follows_from_tower_corpus_and_how_it_is_read(world: Path) -> None:
    contents = {system.content for system in opened(world)}
    contents |= {system.content for system in opened(world, dim=12)}
    write_json(world / "embed/report.json", {"computed_in": "bf16"})
    contents |= {system.content for system in opened(world)}
    table = read_table(world / "ingest", "corpus")
    write_table(world / "ingest", "corpus", table, metadata=DocumentTemplate("{content}").metadata)
    contents |= {system.content for system in opened(world)}
    assert len(contents) == 8


@pytest.mark.medium
def test_a_killed_reading_goes_on_where_it_was(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHARD", 8)
    batch_sizes: list[int] = []
    encode = vector_cache.encode_with_lengths

    def interrupted(tower: Any, texts: list[str], *rest: Any, **knobs: Any) -> Any:
        batch_sizes.append(len(texts))
        if len(batch_sizes) == 3:
            raise KeyboardInterrupt
        return encode(tower, texts, *rest, **knobs)

    monkeypatch.setattr(vector_cache, "encode_with_lengths", interrupted)
    systems = with_earlier(world, opened(world)[:1])
    with pytest.raises(KeyboardInterrupt):
        measure_all(systems, task_of(world))
    measurements = measure_all(systems, task_of(world))
    assert measurements.measured == ["base", "teacher", "static", "2l"]
    texts = {tuple(row[name] for name in FIELDS) for row in read_table(world / "ingest", "corpus").to_pylist()}
    assert sum(batch_sizes) == len(texts) + 8, "only the shard that it was in is read twice"


@pytest.mark.medium
def test_where_nothing_is_judged_no_tower_reads_anything(tmp_path: Path) -> None:
    systems = fake_systems(tmp_path, write_inputs(tmp_path, judged=()), **{"static": 1, "2l": 4})
    systems = replace(systems, earlier=[Other("base", "x", no_reading)])  # type: ignore[arg-type]
    evaluate(systems, tmp_path)
    metrics = json.loads((tmp_path / "reports/metrics.json").read_text())
    assert metrics["gain"] == metrics["gain_dev"] == metrics["gain_overall"] == {}


@pytest.mark.medium
def test_a_tower_that_is_gone_and_one_named_as_a_student_are_errors(world: Path) -> None:
    assert [system.name for system in opened(world, students=["static"])] == ["base", "round_0"]
    towers = world / "teach/earlier/towers.json"
    names = towers.read_text()
    towers.write_text("[]")  # of a teacher that was not trained
    assert opened(world) == []
    towers.write_text(names)
    with pytest.raises(UserError, match=r"evaluate\.earlier_towers: .*'base'; rename the student"):
        opened(world, students=["static", "base"])
    shutil.rmtree(world / "teach/earlier/round_0")
    with pytest.raises(UserError, match=r"earlier/round_0: not found; run `dvc pull`"):
        opened(world)


def judged_result(name: str, values: dict[tuple[str, str], list[float]]) -> Result:
    return Result(
        name,
        [
            Scored(
                JudgedSet(dataset, split, [str(at) for at in range(len(scores))], [], {}), {"nDCG@10": np.array(scores)}
            )
            for (dataset, split), scores in values.items()
        ],
    )


def test_data_sets_count_alike_and_test_decides_without_dev() -> None:
    teacher = {("a", "test"): [0.5, 0.9], ("b", "test"): [0.2, 0.4, 0.6, 0.6]}
    base = {("a", "test"): [0.4, 0.7], ("b", "test"): [0.1, 0.4, 0.7, 0.7]}
    parts = gains(judged_result("teacher", teacher), {"base": judged_result("base", base)})
    assert parts["gain_dev"] == {}
    differences = np.array([0.1, 0.2]), np.array([0.1, 0.0, -0.1, -0.1])
    error = math.sqrt(sum(difference.var(ddof=1) / len(difference) for difference in differences))
    mean, p_value = parts["gain_overall"]["base"].values()
    assert mean == pytest.approx((0.15 - 0.025) / 2)
    assert 0.05 < p_value < 1 and (0.15 - 0.025) / error < 3
    assert gains(judged_result("teacher", teacher), {})["gain_overall"] == {}


@pytest.mark.parametrize(
    ("difference", "p_value", "tower", "warned"),
    [
        (0.1, 0.01, "base", False),
        (0.1, 0.06, "base", False),
        (0.0, 1.0, "base", True),
        (-0.1, 0.9, "base", True),
        (0.001, 0.9, "round_0", False),
        (-0.001, 0.9, "round_0", False),
        (-0.01, 0.04, "round_0", True),
    ],
)
def test_a_line_warns_where_training_did_not_help(difference: float, p_value: float, tower: str, warned: bool) -> None:
    quality = {"a": {"teacher": {"nDCG@10": 0.5}, tower: {"nDCG@10": 0.5 - difference}}}
    overall = {tower: {"difference": difference, "p_value": p_value}}
    [line] = gain_lines({"datasets": quality, "datasets_dev": quality, "gain_overall": overall})
    assert ("WARNING" in line) == warned and f"{0.5 - difference:.4f} on dev" in line
    assert is_gain(difference, p_value) == ((difference, p_value) == (0.1, 0.01))


def fake_earlier(documents: dict[str, dict[str, str]], **words_read: int) -> list[Other]:
    """Towers that read so many words of a query."""

    def search_in(release: Any) -> Any:
        return lambda datasets, scratch: dense_search(release.encode, release)

    return [
        Other(name, f"reads {words}", search_in(FakeRelease(documents, words))) for name, words in words_read.items()
    ]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("earlier")
    documents = write_inputs(root)
    systems = fake_systems(root, documents, **{"static": 1, "2l": 4})
    systems = replace(systems, earlier=fake_earlier(documents, base=1, round_0=50))
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("SLIMTOWER_CACHE", str(root / "cache"))
        return evaluate(systems, root)


@pytest.mark.medium
def test_metrics_and_per_query_values_have_every_tower(reports: Path) -> None:
    metrics = json.loads((reports / "metrics.json").read_text())
    models = {"bm25", "base", "round_0", "teacher", "static", "2l"}
    assert set(metrics["datasets"]["api"]) == set(metrics["datasets_dev"]["med"]) == models
    assert set(metrics["latency"]) == {"teacher", "static", "2l"} and set(metrics["retention"]) == {"static", "2l"}
    values: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in read_table(reports, "per_query").to_pylist():
        if row["measure"] == "nDCG@10":
            values.setdefault((row["dataset"], row["split"], row["model"]), {})[row["query_id"]] = row["value"]
    for key, split in (("gain", "test"), ("gain_dev", "dev")):
        for dataset in ("api", "med"):
            after, before = (
                np.array([value for _, value in sorted(values[dataset, split, model].items())])
                for model in ("teacher", "base")
            )
            gain = metrics[key][dataset]["base"]
            assert set(gain) == {"difference", "p_value", "wins", "ties", "losses"}
            assert gain["p_value"] == pytest.approx(ttest_rel(after, before).pvalue)
            assert gain["difference"] == pytest.approx(after.mean() - before.mean())
            assert metrics[key][dataset]["round_0"] | {"ties": 0} == {
                "difference": 0, "p_value": 1, "wins": 0, "ties": 0, "losses": 0,
            }  # fmt: skip
    assert metrics["gain_overall"]["base"]["difference"] == pytest.approx(
        np.mean([row["base"]["difference"] for row in metrics["gain_dev"].values()])
    )


@pytest.mark.slow
def test_the_teacher_itself_as_an_earlier_tower_is_equal_to_it_over_the_real_index(
    released: Path, tiny_tower: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(released, root := tmp_path / "project")
    teach = root / "models/teach/dense"
    shutil.copytree(teach / "tower", teach / "earlier/base")
    other_weights(tiny_tower, teach / "earlier/round_0", seed=5)
    write_json(teach / "earlier/towers.json", ["base", "round_0"])
    for folder in (root / "data/ingest", root / "data/mine/relevance", root / "data/generate", teach):
        write_json(folder / "report.json", {"base": "a"})
    data = (root / "data" / name for name in ("ingest", "mine/relevance", "embed", "generate"))
    releases = {name: root / "models/release" / name for name in ("static", "2l")}
    folders = (*data, teach, root / "models/distill")
    stage.run(*folders, releases, root / "reports", params(earlier_towers=True), RULE, NullRun())
    metrics = json.loads((root / "reports/metrics.json").read_text())
    for models in (metrics["datasets"]["one"], metrics["datasets_dev"]["two"]):
        assert models["base"] == pytest.approx(models["teacher"], abs=1e-6)
        assert models["round_0"] != models["teacher"]
    assert metrics["gain_overall"]["base"] == {"difference": pytest.approx(0), "p_value": 1}
    assert "evaluate: Teacher against base" in (output := capsys.readouterr().out)
    assert "WARNING: the trained teacher is not better than its base" in output

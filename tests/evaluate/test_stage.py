"""The stage from folders to reports, over fake models."""

import csv
import io
import json
import re
from pathlib import Path

import ir_measures
import numpy as np
import pyarrow.compute as pc
import pytest
from evaluate_fakes import bag_of_words, fake_systems, params, write_inputs
from evaluate_fakes import evaluate as evaluate_in
from pydantic import ValidationError
from recorder import Recorder

from slimtower.common.errors import UserError
from slimtower.common.files import sha256_file, write_json
from steps.core.judged import read_judged_sets
from steps.core.tables import read_table, write_table
from steps.evaluate import run as stage
from steps.evaluate.judging import Folders
from steps.evaluate.measuring import Task, measure_teacher
from steps.evaluate.report import read_background
from steps.evaluate.scoring import write_hits
from steps.evaluate.summary import results_table, summary
from steps.evaluate.systems import Systems, remembering
from steps.evaluate.verdict import headline
from steps.tracking.runs import Run

KNOWN = {"static": 1, "2l": 4}  # words of a query that a student reads


def evaluate(
    root: Path,
    run: Run | None = None,
    systems: Systems | None = None,
    judged: tuple[str, ...] = ("api", "med"),
    dev: bool = True,
    **changes: object,
) -> Path:
    """Run the stage with a teacher that reads whole queries and students that read less of them."""
    documents = write_inputs(root, judged=judged, dev=dev)
    return evaluate_in(systems or fake_systems(root, documents, **KNOWN), root, params(**changes), run)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("evaluate")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("SLIMTOWER_CACHE", str(root / "cache"))
        monkeypatch.setenv("SLIMTOWER_GIT_COMMIT", "abc123")
        return evaluate(root)


@pytest.mark.medium
def test_metrics_have_the_documented_keys(reports: Path) -> None:
    metrics = json.loads((reports / "metrics.json").read_text())
    assert set(metrics) == {
        "datasets", "datasets_dev", "retention", "significance", "latency", "sizes", "indexes", "serving", "geometry",
        "queries", "audit", "settings", "choice", "closeness", "closeness_texts", "gain", "gain_dev", "gain_overall",
        "fused", "slices", "perturbed", "proposition", "space", "effort", "semantic_ids",
        "retention_by_set", "shares", "against_teacher", "agreement", "as_one", "as_one_dev", "seeds", "served",
        "verdict", "like_for_like", "lexical", "releases",
    }  # fmt: skip
    for part in ("datasets", "datasets_dev"):
        assert set(metrics[part]) == {"api", "med"}
        for models in metrics[part].values():
            assert set(models) == {"bm25", "teacher", "static", "2l"}
            assert all(set(values) == set(params().measures) for values in models.values())
    assert set(metrics["retention"]) == {"static", "2l"}
    assert set(metrics["retention"]["2l"]) == {"mean_of_ratios", "ratio_of_means", "worst", "ci95_low", "ci95_high"}
    assert set(metrics["latency"]) == {"teacher", "static", "2l"}
    assert all(0 < value["p50_ms"] <= value["p99_ms"] and value["qps"] > 0 for value in metrics["latency"].values())
    assert set(metrics["significance"]["api"]["2l"]) == {"p_value", "wins", "ties", "losses"}
    assert metrics["indexes"]["api"]["flat"]["bytes"] == 1000
    assert metrics["indexes"]["api"]["ann"]["bytes"] == 100
    assert metrics["serving"]["api"]["2l"]["lost"] == pytest.approx(0)
    assert metrics["sizes"] == {"teacher": {"bytes": 1_000_000}, "static": {"bytes": 123_456}, "2l": {"bytes": 123_456}}
    # an alignment text, a generated and a mined query; 20 dev and test queries in each of two data sets
    assert metrics["audit"] == {"checked_texts": 3, "evaluation_queries": 40, "leaks": 0}
    assert metrics["queries"]["api"] == {"test": 10, "dev": 10}
    assert metrics["closeness"] == metrics["closeness_texts"] == {}
    assert metrics["gain"] == metrics["gain_dev"] == metrics["gain_overall"] == {}
    assert {row["answer"] for row in metrics["verdict"]["api"].values()} <= {"yes", "no", "cannot tell"}
    assert metrics.pop("verdict")["api"]["static"]["queries"] == metrics.pop("lexical")["api"]["queries"] == 10
    assert metrics["choice"].pop("replacing") == []
    for name in ("geometry", "proposition", "space", "effort", "semantic_ids"):
        assert metrics[name] == {}, "an analysis that nobody named"
    names = {metrics["choice"].pop(key) for key in ("student", "runner_up", "best", "reason")}
    assert names == {"static", "2l", "best mean nDCG@10 on dev"}
    assert set(metrics.pop("releases")) == {"static", "2l"}
    assert all(isinstance(value, int | float) for value in _leaves(metrics)), "only numbers differ usefully"


def _leaves(value: object) -> list[object]:
    return [leaf for item in value.values() for leaf in _leaves(item)] if isinstance(value, dict) else [value]


def test_the_page_says_whose_judgements_are_clicks(tmp_path: Path) -> None:
    write_json(tmp_path / "report.json", {"base": "b"})
    for clicked in (True, False):
        ingest = tmp_path / str(clicked)
        entry = {"judgements_from_clicks": True} if clicked else {}
        write_json(ingest / "report.json", {"simulated": True, "datasets": {"log": entry}})
        background = read_background(Folders(ingest, *[tmp_path] * 5), [])
        assert background.judged_by_clicks == (["log"] if clicked else [])


def test_only_what_is_simulated_is_called_so(tmp_path: Path) -> None:
    """By data set, and of mined triplets those of clicks alone; a source that gave none is not explained."""
    sessions = {name: {"sessions": {"simulated": is_simulated}} for name, is_simulated in (("a", True), ("b", False))}
    rows = {"click_one_hop": 3, "click_multi_hop": 0, "judged": 5, "given": 2, "relevance_one_hop": 1}
    write_json(tmp_path / "report.json", {"base": "b", "rows": rows})
    for names, note in (("ab", " (simulated in a)"), ("a", " (simulated)"), ("b", "")):
        ingest = tmp_path / names
        write_json(
            ingest / "report.json", {"simulated": "a" in names, "datasets": {name: sessions[name] for name in names}}
        )
        background = read_background(Folders(ingest, *[tmp_path] * 5), [])
        assert background.simulated == (["a"] if "a" in names else [])
        assert [source for source, _ in background.sources] == ["click one hop", "judged", "relevance one hop", "given"]
        assert background.sources[0][1].startswith(f"the positive was clicked{note}; the negative was shown")
        assert "simulated" not in str(background.sources[1:])
        assert not any("simulated" in name for name, _ in background.stages["Ingestion"] if "·" not in name)


@pytest.mark.medium
def test_per_query_values_average_to_the_metrics(reports: Path) -> None:
    metrics = json.loads((reports / "metrics.json").read_text())
    rows = read_table(reports, "per_query").to_pylist()
    assert len(rows) == 2 * 20 * 4 * len(params().measures)  # data sets x queries x models x measures
    chosen = [
        row["value"]
        for row in rows
        if (row["dataset"], row["split"], row["model"], row["measure"]) == ("med", "dev", "static", "RR@10")
    ]
    assert len(chosen) == 10
    assert metrics["datasets_dev"]["med"]["static"]["RR@10"] == pytest.approx(np.mean(chosen))


def test_run_files_are_trec_and_score_what_was_measured(reports: Path) -> None:
    metrics = json.loads((reports / "metrics.json").read_text())
    names = {path.name for path in (reports / "runs").iterdir()}
    assert names == {f"{d}.{m}.run" for d in ("api", "med") for m in ("bm25", "teacher", "static", "2l")}
    path = reports / "runs" / "api.static.run"
    lines = [line.split(" ") for line in path.read_text().splitlines()]
    assert all(len(line) == 6 and line[1] == "Q0" and line[5] == "static" for line in lines)
    assert {line[0] for line in lines} == {f"q{number}" for number in range(0, 30, 3)}
    assert not any("/" in line[2] for line in lines)
    assert [int(line[3]) for line in lines[:10]] == list(range(1, 11))
    qrels = [ir_measures.Qrel(f"q{number}", f"d{number}", 1) for number in range(0, 30, 3)]
    again = ir_measures.calc_aggregate([ir_measures.nDCG @ 10], qrels, ir_measures.read_trec_run(str(path)))
    assert again[ir_measures.nDCG @ 10] == pytest.approx(metrics["datasets"]["api"]["static"]["nDCG@10"])


def test_run_lines_rank_ties_as_trec_eval_does_and_keep_scores_exactly() -> None:
    file, third = io.StringIO(), np.float32(1 / 3)
    write_hits(file, "s", ["s/q"], ([np.array([third, third, 0.5], np.float32)], [["s/a", "s/b", "s/c"]]), "tag", 2)
    lines = file.getvalue().splitlines()
    assert [line.split()[2:4] for line in lines] == [["c", "1"], ["b", "2"]]
    assert np.float32(lines[1].split()[4]) == third


def test_frontier_has_one_row_a_model_with_an_encoder(reports: Path) -> None:
    with (reports / "frontier.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert set(rows[0]) == {"model", "p50_ms", "retention", "ndcg"}
    assert {row["model"] for row in rows} == {"teacher", "static", "2l"}
    assert next(float(row["retention"]) for row in rows if row["model"] == "teacher") == 1


def test_report_is_self_contained_and_says_what_it_must(reports: Path) -> None:
    page = (reports / "report.html").read_text()
    assert not re.search(r"<(script|link|img|iframe)\b", page)
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!#|https://arxiv\.org/)", page), "a paper's link loads nothing"
    assert not re.search(r"url\((?!#|\s*#)[^)]*\)|@import|https?://(?!www\.w3\.org/|arxiv\.org/)", page)
    assert page.count("<svg") == 2, "the frontier, for screens and for phones"
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert "The search sessions of api are simulated: no\nperson clicked there. The judgements" in page
    assert "13 s" in page, "training time of 2l, from its distillation report"


def test_a_pull_request_is_told_the_verdict_the_figures_and_where_students_lose(reports: Path) -> None:
    metrics = json.loads((reports / "metrics.json").read_text())
    share = metrics["retention"]["2l"]["mean_of_ratios"]
    written, page = ((reports / name).read_text() for name in ("report.md", "report.html"))
    body, _, source = written.rpartition("\n\nFrom ")
    assert body == summary(metrics, "2l").rstrip()
    digests = {name: sha256_file(reports.parent / f"ingest/{name}.parquet")[:12] for name in ("queries", "qrels")}
    tables = f"queries {digests['queries']}; qrels {digests['qrels']}"
    assert source == f"commit abc123; {tables}; release of static reads 1; release of 2l reads 4.\n"
    assert f'<footer class="small muted">{source.rstrip()[:-1]}</footer>' in page
    markdown = summary(metrics, "2l")
    first = headline(metrics)[0]
    assert markdown.startswith(f"- **{first}**\n") and "20 queries" in markdown
    assert f"**2l** keeps **{100 * share:.1f}\u00a0%** of the teacher's nDCG@10" in markdown
    assert first in page
    low = {"ratio": 0.9, "ci95_low": 0.85, "ci95_high": 0.95}
    high = {"ratio": 0.99, "ci95_low": 0.97, "ci95_high": 1.01}
    metrics["slices"] = {
        "api": {
            "<script>|": {"queries": 5, "retention": {"2l": low, "static": high}},
            "short": {"queries": 5, "retention": {"2l": high, "static": low}},
            "kept": {"queries": 5, "retention": {"2l": high, "static": high}},
            "all": {"queries": 10, "retention": {"2l": low, "static": low}},
        }
    }
    rows = [line.split(" | ") for line in summary(metrics, "2l").splitlines() if line.endswith(") |")]
    assert [row[0] for row in rows] == [r"| &lt;script>\|", "| short"]
    assert rows[0][1:3] == ["5", "90.0\u00a0% (85.0 – 95.0)"]


@pytest.mark.slow
def test_an_analysis_is_measured_and_shown_where_it_is_named(tmp_path: Path) -> None:
    reports = evaluate(tmp_path, analyses=["geometry", "proposition", "space", "effort"])
    metrics, page = json.loads((reports / "metrics.json").read_text()), (reports / "report.html").read_text()
    for row in metrics["geometry"].values():
        assert row["static"]["query_term"] > row["2l"]["query_term"] > 0, "one word of a query places it less well"
        assert row["2l"]["pairs_p05"] <= row["2l"]["pairs_p50"] <= row["2l"]["pairs_p95"]
    section = page.split("<h3>Distance to the teacher</h3>")[1].split("</details>")[0]
    for student, distances in metrics["geometry"]["med"].items():
        cells = [f"{distances['query_term']:.3f}"]
        cells += [f"{distances[f'pairs_{name}']:+.3f}" for name in ("mean", "p05", "p50", "p95")]
        pattern = r"\s*".join(f"<td[^>]*>{re.escape(cell)}</td>" for cell in ("med", student, *cells))
        assert re.search(pattern, section)
        assert f">{student}</text>" in section, "a panel of its own"
    assert {row["knob"] for models in metrics["effort"].values() for row in models.values()} == {"nprobe"}
    assert all(set(models) == {"static", "2l"} for models in metrics["proposition"].values())
    assert set(metrics["space"]["api"]["teacher"]) < set(metrics["space"]["api"]["2l"])
    with pytest.raises(ValidationError, match="'geometri' is none of"):
        params(analyses=["geometri"])


def test_the_teacher_reads_no_evaluation_query_twice_but_to_be_timed(tmp_path: Path) -> None:
    texts_read: list[str] = []

    def encode(texts: list[str]) -> np.ndarray:
        texts_read.extend(texts)
        return bag_of_words(texts)

    systems = fake_systems(tmp_path, write_inputs(tmp_path), encode)
    task = Task(read_judged_sets(tmp_path / "ingest", ["test", "dev"]), [], params())
    measure_teacher(systems.teacher, task, tmp_path / "runs", remembering(systems.teacher.encode))
    assert len(texts_read) == len(set(texts_read)) == 40


@pytest.mark.medium
def test_the_best_on_dev_is_chosen_and_everything_tells_it(tmp_path: Path) -> None:
    run = Recorder()
    reports = evaluate(tmp_path, budget_ms=1e4, run=run)
    metrics = json.loads((reports / "metrics.json").read_text())
    choice, dev = metrics["choice"], metrics["datasets_dev"]
    means = {name: np.mean([models[name]["nDCG@10"] for models in dev.values()]) for name in ("2l", "static")}
    assert (choice["student"], choice["runner_up"], choice["over_budget"]) == ("2l", "static", {})
    assert choice["ndcg"] == pytest.approx(means["2l"])
    assert choice["difference"] == pytest.approx(means["2l"] - means["static"])
    assert choice["p50_ms"] == metrics["latency"]["2l"]["p50_ms"]
    assert (run.tags["slimtower.choice"], run.tags["slimtower.runner_up"]) == ("2l", "static")
    assert run.last["times_as_fast"] == pytest.approx(metrics["served"]["teacher"]["p50_ms"] / choice["p50_ms"])
    assert run.files == ["metrics.json", "report.html", "report.md", "frontier.csv"]
    page = (reports / "report.html").read_text()
    for text in (
        "Chosen: 2l, the best of 2 within 10000 ms a query",
        "Runner-up: static",
        "budget 10000 ms<",
        "(chosen)",
    ):
        assert text in page
    assert "Chosen: 2l, the best of 2 within 10000 ms a query" in results_table(reports)


@pytest.mark.medium
def test_a_budget_that_nobody_meets_is_told_and_stops_nothing(tmp_path: Path) -> None:
    run = Recorder()
    reports = evaluate(tmp_path, budget_ms=1e-7, run=run)
    choice = json.loads((reports / "metrics.json").read_text())["choice"]
    assert choice["student"] is None and run.tags["slimtower.choice"] == "none"
    fastest = min(choice["over_budget"], key=choice["over_budget"].get)
    line = f"No student is within evaluate.budget_ms (1e-07); the fastest, {fastest}, needs"
    page = (reports / "report.html").read_text()
    assert line in page and line in results_table(reports) and "(chosen)" not in page


@pytest.mark.medium
def test_nothing_but_the_outputs_remains_and_a_rerun_replaces_them(tmp_path: Path) -> None:
    first = evaluate(tmp_path)
    stale = first / "runs" / "gone.run"
    stale.write_text("left by an earlier run")
    evaluate(tmp_path)
    assert {path.name for path in first.iterdir()} == {
        "metrics.json", "report.html", "report.md", "frontier.csv", "per_query.parquet", "slices.parquet", "runs",
    }  # fmt: skip
    assert not stale.exists()


@pytest.mark.medium
def test_a_failure_leaves_no_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise UserError("no")

    monkeypatch.setattr(stage, "write_report", broken)
    with pytest.raises(UserError):
        evaluate(tmp_path)
    assert list((tmp_path / "reports").iterdir()) == []


@pytest.mark.medium
def test_quality_is_byte_identical_on_a_rerun(tmp_path: Path, reports: Path) -> None:
    again = evaluate(tmp_path)
    for name in ("per_query.parquet", "runs/api.teacher.run", "runs/med.bm25.run"):
        assert (again / name).read_bytes() == (reports / name).read_bytes()


@pytest.mark.medium
def test_without_dev_the_report_still_stands(tmp_path: Path) -> None:
    reports = evaluate(tmp_path, dev=False)
    metrics = json.loads((reports / "metrics.json").read_text())
    assert metrics["datasets_dev"] == {}
    test = metrics["datasets"]
    assert metrics["choice"]["ndcg"] == pytest.approx(np.mean([models["2l"]["nDCG@10"] for models in test.values()]))
    assert "as there are no dev queries" in (reports / "report.html").read_text()
    page = (reports / "report.html").read_text()
    assert 'class="case"' not in page and "No cases of api, med: they have no dev queries" in page


@pytest.mark.medium
def test_a_data_set_on_which_the_teacher_finds_nothing_is_named_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def encode(texts: list[str]) -> np.ndarray:  # of med the least like a query comes first
        return bag_of_words(texts) * np.array([[-1 if "med" in text.lower() else 1] for text in texts])

    reports = evaluate(tmp_path, systems=fake_systems(tmp_path, write_inputs(tmp_path), encode, **KNOWN))
    metrics = json.loads((reports / "metrics.json").read_text())
    assert metrics["datasets"]["med"]["teacher"]["nDCG@10"] == 0 < metrics["datasets"]["med"]["2l"]["nDCG@10"]
    assert set(metrics["retention_by_set"]) == set(metrics["verdict"]) == {"api"}
    assert metrics["retention"]["2l"]["mean_of_ratios"] == metrics["retention_by_set"]["api"]["2l"]["ratio"]
    warning = "The teacher's nDCG@10 on med is 0, so retention and verdict leave it out: check its judgements"
    page = (reports / "report.html").read_text()
    for text in (capsys.readouterr().out, (reports / "report.md").read_text(), results_table(reports)):
        assert warning in text
    assert warning.replace("'", "&#39;") in page and "nan" not in page


@pytest.mark.medium
def test_judged_for_choosing_alone_is_said_to_be_not_tested(tmp_path: Path) -> None:
    documents = write_inputs(tmp_path)
    table = read_table(tmp_path / "ingest", "qrels")
    write_table(tmp_path / "ingest", "qrels", table.filter(pc.field("split") != "test"))
    reports = evaluate_in(fake_systems(tmp_path, documents, **KNOWN), tmp_path, params())
    markdown, page = ((reports / name).read_text() for name in ("report.md", "report.html"))
    assert "no test query is judged." in markdown and "closest" not in markdown.split("\n\n")[0]
    assert "nan" not in page + markdown


@pytest.mark.medium
def test_where_nothing_is_judged_the_closest_to_the_teacher_is_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = evaluate(tmp_path, judged=())
    metrics = json.loads((reports / "metrics.json").read_text())
    assert {path.name for path in reports.iterdir()} == {
        "metrics.json", "report.html", "report.md", "frontier.csv", "per_query.parquet", "slices.parquet", "runs",
    }  # fmt: skip
    assert [path.name for path in (reports / "runs").iterdir()] == ["README.md"]
    of_quality = ("datasets", "datasets_dev", "retention", "retention_by_set", "significance", "against_teacher")
    assert all(metrics[key] == {} for key in (*of_quality, "agreement", "shares", "serving", "geometry", "queries"))
    assert metrics["closeness_texts"] == {name: {"sentences": 20} for name in ("api", "med")}
    close = {name: [row[name]["overlap"] for row in metrics["closeness"].values()] for name in ("2l", "static")}
    choice = metrics["choice"]
    assert (choice["student"], choice["runner_up"], choice["ndcg"]) == ("2l", "static", None)
    assert choice["overlap"] == pytest.approx(np.mean(close["2l"]))
    assert choice["overlap"] > choice["runner_up_overlap"]
    assert choice["reason"] == "closest to the teacher by the mean overlap of their top 10, as nothing is judged"
    assert "bm25" not in metrics["latency"] and metrics["latency"]["2l"]["p50_ms"] > 0
    assert set(metrics["indexes"]["med"]["ann"]) == {"bytes", "p50_ms"}
    assert read_table(reports, "per_query").num_rows == 0
    with (reports / "frontier.csv").open() as file:
        assert {(row["retention"], row["ndcg"]) for row in csv.DictReader(file)} == {("", "")}
    page, table = (reports / "report.html").read_text(), results_table(reports)
    sentence = (
        "No test query of api is judged: this says how close students are to the teacher, not how good its hits are."
    )
    assert sentence in page and sentence in table
    assert "20 sentences that trained no student" in page
    assert "**2l** was chosen: closest to the teacher by the mean" in (reports / "report.md").read_text()
    assert "nan" not in page + table
    assert "Chosen: 2l, the closest to the teacher of 2, " in page and "Chosen: 2l, the closest to the" in table
    assert "api: no test query is judged; measures closeness to the teacher on 20 sentences" in capsys.readouterr().out


@pytest.mark.medium
def test_a_judged_data_set_decides_beside_one_that_is_not(tmp_path: Path) -> None:
    reports = evaluate(tmp_path, judged=("api",))
    metrics = json.loads((reports / "metrics.json").read_text())
    assert set(metrics["datasets"]) == {"api"} and set(metrics["closeness"]) == {"med"}
    assert metrics["choice"]["reason"] == "best mean nDCG@10 on dev"
    assert set(metrics["indexes"]) == {"api", "med"}
    page, table = (reports / "report.html").read_text(), results_table(reports)
    assert "No test query of med is judged" in page and "No test query of med is judged" in table
    assert "Quality against speed" in page and "api (test queries)" in table


@pytest.mark.medium
def test_forums_of_one_kind_count_as_one(tmp_path: Path) -> None:
    names = ("med", "cqadupstack-api", "cqadupstack-web")
    documents = write_inputs(tmp_path, names, judged=names)
    evaluate_in(fake_systems(tmp_path, documents, **KNOWN), tmp_path)
    metrics = json.loads((tmp_path / "reports/metrics.json").read_text())
    parts = [metrics["datasets"][name]["2l"]["nDCG@10"] for name in names[1:]]
    assert metrics["as_one"]["cqadupstack"]["2l"]["nDCG@10"] == pytest.approx(np.mean(parts))
    assert set(metrics["retention_by_set"]) == {"med", "cqadupstack"}
    dev = [metrics["datasets_dev"][name]["2l"]["nDCG@10"] for name in names]
    assert metrics["choice"]["ndcg"] == pytest.approx(dev[0] / 2 + dev[1] / 4 + dev[2] / 4)
    page, table = (tmp_path / "reports/report.html").read_text(), results_table(tmp_path / "reports")
    assert "cqadupstack (test queries)" in table and "cqadupstack-api" not in table
    assert '<h4>cqadupstack <span class="muted small">20 test queries' in page


def test_a_table_of_an_older_format_is_refused(tmp_path: Path, reports: Path) -> None:
    metrics = json.loads((reports / "metrics.json").read_text())
    metrics["settings"].pop("version")
    write_json(tmp_path / "metrics.json", metrics)
    with pytest.raises(UserError, match=r"metrics\.json: of another version of the format; run `dvc repro evaluate`"):
        results_table(tmp_path)


def test_a_release_without_a_data_set_is_named(tmp_path: Path) -> None:
    systems = fake_systems(tmp_path, write_inputs(tmp_path, ("api",)), static=1)
    with pytest.raises(UserError, match=r"'static'.*'med'"):
        evaluate(tmp_path, systems=systems)


def test_what_an_earlier_stage_left_out_is_an_error(tmp_path: Path) -> None:
    systems = fake_systems(tmp_path, write_inputs(tmp_path), static=1, gone=2)
    with pytest.raises(UserError, match=r"distill/gone/report\.json: not found; run `dvc repro`"):
        evaluate(tmp_path, systems=systems)

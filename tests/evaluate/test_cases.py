"""Cases and slices on the page: the right queries, both lists of hits, and no text that a browser would run."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from evaluate_fakes import evaluate, fake_systems, params, write_inputs

from steps.core.judged import JudgedSet
from steps.core.tables import read_table, write_table
from steps.evaluate import slicing
from steps.evaluate.figures import perturbed
from steps.evaluate.insight import choose_cases
from steps.evaluate.scoring import Scored

KNOWN = {"static": 1, "2l": 2}
EVIL = "<script>alert(1)</script>"


def scored(ndcg: list[float], reciprocal: list[float]) -> Scored:
    ids = [f"q{number}" for number in range(len(ndcg))]
    judged = JudgedSet("s", "dev", ids, [f"text {name}" for name in ids], {})
    return Scored(judged, {"nDCG@10": np.array(ndcg), "uncut RR": np.array(reciprocal)})


def test_cases_are_the_largest_drops_and_then_the_largest_gains_with_ranks() -> None:
    teacher = scored([1.0, 0.5, 0.8, 0.2, 0.3, 0.0], [1.0, 1 / 3, 1 / 2, 1 / 9, 1 / 5, 0.0])
    student = scored([0.0, 0.4, 0.1, 0.9, 0.3, 0.1], [0.0, 1 / 4, 1 / 60, 1.0, 1 / 5, 1 / 20])
    cases = [
        (case.way, case.row, case.teacher_rank, case.student_rank) for case in choose_cases([teacher], [student], 2)
    ]
    assert cases == [("lost", 0, 1, None), ("lost", 2, 2, 60), ("gained", 3, 9, 1), ("gained", 5, None, 20)]
    assert choose_cases([teacher], [teacher], 2) == [] == choose_cases([teacher], [student], 0)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents whose titles and contents are markup, a query too; slices of three queries count."""
    root = tmp_path_factory.mktemp("cases")
    documents = write_inputs(root)
    for name, column in (("corpus", "title"), ("corpus", "content"), ("queries", "text")):
        table = read_table(root / "ingest", name)
        texts = [f"{text} {EVIL}" for text in table[column].to_pylist()]
        column_index = table.column_names.index(column)
        write_table(root / "ingest", name, table.set_column(column_index, table.schema.field(column), [texts]))
    settings = params(slices={"of graphs": "(?i)GRAPH|matrix"})
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("SLIMTOWER_CACHE", str(root / "cache"))
        for module in (slicing, perturbed):
            monkeypatch.setattr(module, "MIN_QUERIES", 2)
        return evaluate(fake_systems(root, documents, **KNOWN), root, settings)


@pytest.mark.medium
def test_both_lists_are_shown_and_markup_of_texts_is_text(reports: Path) -> None:
    page = (reports / "report.html").read_text()
    assert "<script" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    best = json.loads((reports / "metrics.json").read_text())["choice"]["student"]  # of equals the faster
    cases = page.split('<details class="case"')[1:]
    assert len(cases) >= 3
    for case in cases:
        sides = re.findall(r"<div><p class=\"small\"><b>(.*?)</b>.*?<ol>(.*?)</ol>", case, re.DOTALL)
        assert [who for who, _ in sides] == ["teacher", best]
        for _, hits in sides:
            items = re.findall(r'<li class="(\w+)"><b>(.*?)</b>\n<span class="small">(.*?)</span>', hits)
            assert len(items) == 5
            assert all(title.endswith("&lt;script&gt;alert(1)&lt;/script&gt;") for _, title, _ in items)
            assert {(kind, judgement) for kind, _, judgement in items} <= {
                ("relevant", "relevant"),
                ("other", "not judged"),
            }


@pytest.mark.medium
def test_slices_and_changes_are_those_of_the_values_by_query(reports: Path) -> None:
    metrics = json.loads((reports / "metrics.json").read_text())
    values: dict[tuple[str, str], float] = {
        (row["query_id"], row["model"]): row["value"]
        for row in read_table(reports, "per_query").to_pylist()
        if (row["split"], row["measure"]) == ("test", "nDCG@10")
    }
    table = read_table(reports, "slices").to_pylist()
    of_graphs = [row["query_id"] for row in table if (row["dataset"], row["slice"]) == ("api", "of graphs")]
    assert of_graphs == ["api/q0", "api/q21"], "tests are every third query, of ten topics in turn"
    for dataset, rows in metrics["slices"].items():
        assert "of graphs" in rows
        for name, row in rows.items():
            ids = [member["query_id"] for member in table if (member["dataset"], member["slice"]) == (dataset, name)]
            assert row["queries"] == len(ids) >= 2
            means = {model: np.mean([values[query, model] for query in ids]) for model in ("teacher", *KNOWN)}
            assert row["ndcg"] == pytest.approx(means)
            for model, share in row["retention"].items():
                assert share["ratio"] == pytest.approx(means[model] / means["teacher"])
                assert share["ci95_low"] <= share["ratio"] <= share["ci95_high"]
    assert set(metrics["perturbed"]) == {"api", "med"}
    for changes in metrics["perturbed"].values():
        assert set(changes) == {"typos", "word_order", "prefix"}
        assert {row["queries"] for row in changes.values()} == {10}
        order = changes["word_order"]
        assert order["ndcg"]["teacher"] == order["unchanged"]["teacher"], "a bag of words"
    page = (reports / "report.html").read_text()
    percentage = f"{metrics['slices']['med']['of graphs']['retention']['2l']['ratio'] * 100:.1f}\u00a0%"
    assert percentage in re.split(r"<td[^>]*>of graphs<", page)[-1].split("</tr>")[0]

"""Two releases over a query log: measures and intervals against hand cases, who may judge, and the command."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from teach_fakes import write_tower

from bench import replay as bench
from bench.replay import MEASURES, check_judge, compared, measured, ranker_judge, read_queries, table_judge
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from slimtower.common.fingerprints import Fingerprint
from steps.core.tables import read_table


def test_shares_are_of_the_hits_that_there_are() -> None:
    hits = {"many": [f"d{number}" for number in range(20)], "few": ["d0", "d7"], "none": []}
    relevant = {
        (text, doc_id): doc_id in ("d0", "d1", "d2", "d9", "d19") for text, ids in hits.items() for doc_id in ids
    }
    values = measured(hits, relevant)
    assert values["irrelevant@4"].tolist() == [1 / 4, 1 / 2, 0]
    assert values["irrelevant@20"].tolist() == [15 / 20, 1 / 2, 0]
    assert values["fewer_than_5"].tolist() == [0, 1, 1], "five relevant ones are not fewer than five"
    hits["many"].insert(0, "gone")  # from the corpus: it counts for nothing
    again = measured(hits, relevant | {("many", "gone"): None})
    assert {name: shares.tolist() for name, shares in again.items()} == {name: values[name].tolist() for name in values}


def test_a_query_counts_as_often_as_it_was_asked() -> None:
    counts = np.array([9.0, 1.0, 5.0])
    before = {name: np.array([1.0, 0.0, 0.2]) for name in MEASURES}
    after = {name: np.array([0.5, 1.0, 0.2]) for name in MEASURES}
    row = compared(before, after, counts)["irrelevant@4"]
    assert (row["before"], row["after"]) == pytest.approx(((9 + 1) / 15, (4.5 + 1 + 1) / 15))
    assert row["difference"] == pytest.approx(-3.5 / 15)
    assert -0.5 <= row["ci95_low"] < row["difference"] < row["ci95_high"] <= 1
    same = compared(before, before, counts)["irrelevant@20"]
    assert same["ci95_low"] == same["difference"] == same["ci95_high"] == 0


def test_a_log_is_a_file_of_lines_or_that_of_a_service(tmp_path: Path) -> None:
    (tmp_path / "queries.txt").write_text("a mean\n\n sum \na mean\n")
    assert read_queries(tmp_path / "queries.txt") == {"a mean": 2, "sum": 1}
    for day, texts in (("2026-01-01", ["a mean", "sum"]), ("2026-01-02", ["sum"])):
        folder = tmp_path / f"log/api/queries/dt={day}"
        folder.mkdir(parents=True)
        (folder / "x.jsonl").write_text("".join(json.dumps({"user_query": text}) + "\n" for text in texts))
    assert read_queries(tmp_path / "log/api") == {"a mean": 1, "sum": 2}
    (tmp_path / "one.txt").write_text("a mean\n")
    with pytest.raises(UserError, match="holds 1 queries"):
        read_queries(tmp_path / "one.txt")
    with pytest.raises(UserError, match="no such file or folder"):
        read_queries(tmp_path / "absent")


def test_a_pair_that_nobody_judged_is_irrelevant(tmp_path: Path) -> None:
    (tmp_path / "judged.tsv").write_text("query\tdoc_id\tgrade\na\td1\t2\na\td2\t0.5\n")
    assert table_judge(tmp_path / "judged.tsv")([("a", "d1"), ("a", "d2"), ("b", "d1")]) == [True, False, False]
    (tmp_path / "judged.csv").write_text("query,doc_id\na,d1\n")
    with pytest.raises(UserError, match=r"--judgements: .* lacks the column grade"):
        table_judge(tmp_path / "judged.csv")


@pytest.mark.medium
def test_the_runs_own_teacher_may_not_judge_another_model_may(released: Path, tmp_path: Path) -> None:
    teacher = next(released.glob("models/teach/*/tower"))
    with pytest.raises(UserError, match="which labelled or taught; name another cross encoder"):
        ranker_judge(str(teacher), released, 0.5)
    judge = str(write_tower(tmp_path / "judge"))
    pairs = [("sum", doc_id) for doc_id in read_table(released / "data/ingest", "corpus")["doc_id"].to_pylist()[:3]]
    for threshold, relevant in ((0.0, True), (1.0, False)):  # every probability lies between
        assert ranker_judge(judge, released, threshold)(pairs) == [relevant] * 3
    assert ranker_judge(judge, released, 0.0)([pairs[0], ("sum", "gone"), pairs[1]]) == [True, None, True]
    assert ranker_judge(judge, released, 0.0)([("sum", "gone")]) == [None]


@pytest.mark.parametrize("named", ["cross-encoder/some-L6", "Cross-Encoder/some-L6@" + "a" * 40, "weights"])
def test_what_the_runs_ranker_began_as_may_not_judge(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").mkdir()
    raw = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    raw["rank"]["ranker"]["cross"]["base"] = (
        str(tmp_path / "weights") if named == "weights" else "cross-encoder/some-L6"
    )
    monkeypatch.setattr(bench, "resolve_base", lambda name: name)  # as for one on the hub that is not fetched here
    monkeypatch.setattr(bench, "fingerprint", lambda folder: Fingerprint(str(folder), "", ""))
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(yaml.safe_dump(raw))
    check_judge(named, tmp_path)  # that ranker is described, but no part of the run
    raw["rank"]["rankers"], raw["candidates"]["searchers"] = ["cross"], ["bm25"]
    Path("params.yaml").write_text(yaml.safe_dump(raw))
    with pytest.raises(UserError, match="is what cross began as, which labelled or taught"):
        check_judge(named, tmp_path)
    check_judge("cross-encoder/another", tmp_path)
    with pytest.raises(UserError, match="is what dense began as"):
        check_judge("sentence-transformers/all-MiniLM-L6-v2", tmp_path)


@pytest.mark.medium
def test_two_releases_are_replayed_by_a_table(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    qrels = [row for row in read_table(released / "data/ingest", "qrels").to_pylist() if row["split"] == "test"]
    texts = {row["query_id"]: row["text"] for row in read_table(released / "data/ingest", "queries").to_pylist()}
    dataset = min(row["dataset"] for row in qrels)
    rows = [(texts[row["query_id"]], row["doc_id"]) for row in qrels if row["dataset"] == dataset]
    (tmp_path / "log.txt").write_text("\n".join(text for text, _ in rows))
    (tmp_path / "judged.tsv").write_text("query\tdoc_id\tgrade\n" + "".join(f"{q}\t{d}\t1\n" for q, d in rows))
    (tmp_path / "data").symlink_to(released / "data")
    monkeypatch.chdir(tmp_path)
    folders = [str(released / "models/release" / name) for name in ("static", "2l")]
    words = ["--queries", "log.txt", "--judgements", "judged.tsv", "--dataset", dataset]
    monkeypatch.setattr(sys, "argv", ["bench.replay", *folders, *words])
    bench.main()
    report = read_json(tmp_path / "reports/replay.json")
    assert report["searches"] == len(rows) and report["releases"]["before"] != report["releases"]["after"]
    assert report["measures"]["fewer_than_5"]["before"] == 1, "one relevant document a query"
    assert 0.75 <= report["measures"]["irrelevant@4"]["after"] <= 1
    assert "irrelevant@20" in capsys.readouterr().out

"""Whether embeddings of pairs collapse: the measures by hand, the choice of pairs, and the figure."""

import sys
from pathlib import Path

import numpy as np
import pytest
from rank_fakes import write_encoder
from stages import write_ingest

from bench import collapse as bench
from bench.collapse import Pairs, chosen_pairs, collapse, effective_rank
from bench.tables.expected import Expected
from slimtower.common.errors import UserError
from slimtower.common.files import read_json, write_json
from steps.retrieval.rankers import dual_pooled, load_ranker, pair_embeddings

GRID = Pairs([("", "")] * 8, np.repeat([0, 1], 4), np.array([True, False] * 4))


def test_the_effective_rank_counts_directions() -> None:
    assert effective_rank(np.diag([2.0, 2, 2])) == pytest.approx(3)
    shares = np.array([3, 1]) / 4
    assert effective_rank(np.diag([3.0, 1, 0])) == pytest.approx(np.prod(shares**-shares))
    assert effective_rank(np.zeros((2, 2))) == 0


def test_two_points_of_relevant_and_other_pairs_are_told_from_a_point_a_query() -> None:
    by_relevance = collapse(np.where(GRID.relevant, 1.0, -1.0)[:, None], GRID)
    assert by_relevance.effective_rank == pytest.approx(2) and by_relevance.same_relevance == 0
    assert by_relevance.same_query > 1
    by_query = collapse(GRID.query[:, None].astype(float), GRID)
    assert by_query.same_query == 0 and by_query.same_relevance > 0.5
    spread = collapse(np.random.default_rng(0).normal(size=(8, 5)), GRID)
    assert spread.effective_rank > 2.5 and 0.5 < spread.same_query < 1.5


@pytest.mark.medium
def test_teachers_are_measured_on_every_query_with_every_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ingest = write_ingest(tmp_path / "data/ingest")
    pairs = chosen_pairs(ingest, 6, seed=1)
    assert len(set(pairs.texts)) == 72 and pairs.relevant.sum() == 6
    assert [len({text for text, _ in pairs.texts}), len({text for _, text in pairs.texts})] == [6, 12]
    assert pairs.relevant.reshape(6, 12)[:, 0].all()  # of each query first
    for (query, document), is_relevant in zip(pairs.texts, pairs.relevant.tolist(), strict=True):
        assert is_relevant == (query.rpartition(" ")[2] in document.split())  # the number of both
    with pytest.raises(UserError, match="no data set has 50 judged dev queries"):
        chosen_pairs(ingest, 50, seed=1)

    base = write_encoder(tmp_path / "model")
    rankers = {"cls": load_ranker(base, 32), "dual": dual_pooled(str(base), "segments", 1.0, 32)}
    for name, ranker in rankers.items():
        ranker.save_pretrained(str(tmp_path / "models/teach" / name / "tower"), create_model_card=False)
        write_json(tmp_path / "models/teach" / name / "report.json", {"kind": "cross_encoder"})
    for name, value in {"RESULTS": tmp_path, "RUN": tmp_path, "DRAWS": 2}.items():
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr(sys, "argv", ["bench.collapse", "cls,dual", "--run", str(tmp_path)])
    bench.main()
    result = read_json(tmp_path / "collapse.json")
    assert (result["pairs"], result["draws"]) == (72, 2) and set(result["teachers"]) == {"cls", "dual"}
    first_rank, second_rank = (
        collapse(pair_embeddings(rankers["cls"], draw.texts, precision="fp32", batch_size=32), draw).effective_rank
        for draw in (chosen_pairs(ingest, 6, seed) for seed in (1, 2))
    )
    rank = result["teachers"]["cls"]["effective_rank"]
    assert rank["first"] == pytest.approx(first_rank, rel=1e-3)
    assert rank["mean"] == pytest.approx((first_rank + second_rank) / 2, rel=1e-3) and 1 < rank["mean"] < 72
    assert rank["sd"] == pytest.approx(abs(first_rank - second_rank) / 2**0.5, rel=0.05, abs=1e-3)
    assert (tmp_path / "collapse.svg").read_text().count("effective rank") == 2
    assert "new   dual: effective rank of the distances" in capsys.readouterr().out

    expected = {"effective_rank": {tmp_path.name: {"cls": 60.0, "dual": rank["mean"]}}}
    aim = Expected.model_validate({"seeds": [1], "tables": {}, "collapse": expected})
    monkeypatch.setattr(bench, "read_expected", lambda _: aim)
    monkeypatch.setattr(bench, "RUN", tmp_path / "another")
    with pytest.raises(UserError, match="FAIL for cls"):
        bench.main()
    assert (tmp_path / f"collapse.{tmp_path.name}.json").is_file()

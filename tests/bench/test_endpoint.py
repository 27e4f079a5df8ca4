"""The demo behind a published server: its parts, with the tests' own server in the other's place."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from embedding_server import KEY, serving, tower_reader
from endpoint_fakes import endpoint_params

from bench.endpoint import compared, counting, read_retention, recipe, teachers
from pipeline.params import check_params
from pipeline.recipe import overlay
from slimtower.common.files import write_json
from steps.encoders.towers import encode, load_tower
from steps.endpoint.module import PROBES
from steps.teach.endpoint import teach
from steps.teach.kinds.base import Inputs
from steps.tracking.runs import NullRun


@pytest.mark.parametrize("name", ["here", "served"])
def test_both_recipes_are_valid_params_of_one_student(name: str) -> None:
    raw = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    described = recipe(teachers(1, "now")[name])
    params = check_params(overlay(raw, yaml.safe_load(yaml.safe_dump(described))), "endpoint.yaml")
    assert params.distill.students == ["static"] and params.teach.teachers == [params.teach.index] == ["model"]


def taught(url: str, started: str, folder: Path) -> None:
    """The served teacher of a start."""
    reads = {
        role: reads_of_role
        for role, reads_of_role in teachers(1, started)["served"].items()
        if role in ("query", "document")
    }
    teach(Inputs(*[folder / started] * 3), folder / started, endpoint_params(url, **reads), NullRun())


@pytest.mark.medium
def test_the_proxy_passes_on_what_it_counts_whatever_the_role(
    tiny_tower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_KEY", KEY)
    texts = ["one text", "another text", "one text"]
    with serving(tower_reader(load_tower(tiny_tower))) as server:
        monkeypatch.setattr(server, "keyless", True)
        with counting(0, server.url.removesuffix("/v1")) as proxy:
            url = f"http://127.0.0.1:{proxy.server_address[1]}/v1"
            taught(url, "now", tmp_path)
            assert proxy.figures() == {"requests": 1, "refused": 0, "texts": 0, "again": 0}  # the probes
            tower = load_tower(tmp_path / "now/tower")
            vectors = encode(tower, texts, "query")
            np.testing.assert_allclose(vectors, load_tower(tiny_tower).encode(texts), atol=1e-6)
            encode(load_tower(tmp_path / "now/tower"), texts[:1], "query")  # kept
            encode(tower, texts[:1], "document")  # paid for as a query
            assert (proxy.figures()["texts"], proxy.figures()["again"]) == (2, 0)
            taught(url, "later", tmp_path)
            encode(load_tower(tmp_path / "later/tower"), texts[:1], "document")  # a start of its own pays again
            proxy.asked.update([PROBES[0]])
            assert (proxy.figures()["texts"], proxy.figures()["again"]) == (3, 1)


def test_retentions_are_compared_in_points(tmp_path: Path) -> None:
    for name, ratio in (("a", 0.951), ("b", 0.957)):
        scores = {"teacher": {"nDCG@10": 0.7}, "static": {"nDCG@10": 0.7 * ratio}}
        retention = {"static": {"ratio_of_means": ratio, "ci95_low": ratio - 0.01, "ci95_high": ratio + 0.01}}
        write_json(tmp_path / name / "reports/metrics.json", {"datasets": {"api": scores}, "retention": retention})
    a, b = read_retention(tmp_path / "a"), read_retention(tmp_path / "b")
    assert compared(a, b)["points"] == pytest.approx(0.6) and not compared(a, b)["within"]
    assert compared(a, a)["within"] and a["teacher_ndcg"] == 0.7 and b["ci95_high"] == pytest.approx(96.7)

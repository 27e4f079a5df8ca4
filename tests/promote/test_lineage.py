"""What a version was made of: the path through dvc.lock that leads to its release, and no leftovers of other times."""

from typing import Any

from steps.promote.lineage import upstream


def stage(outs: dict[str, str], deps: dict[str, str]) -> dict[str, Any]:
    return {
        kind: [{"path": path, "md5": md5} for path, md5 in items.items()]
        for kind, items in (("outs", outs), ("deps", deps))
    }


STAGES = {
    "ingest": stage({"data/ingest": "i"}, {"sources.json": "s", "steps/core": "c"}),
    "mine": stage({"data/mine": "old"}, {"data/ingest": "old"}),  # renamed since
    "mine@click": stage({"data/mine/click": "mc"}, {"data/ingest": "i", "data/ingest/impressions.parquet": "x"}),
    "teach": stage({"models/teach": "t"}, {"data/mine/click": "mc"}),
    "learn": stage({"models/teach": "old"}, {"data/other": "o"}),  # the name that teach once had
    "other": stage({"data/other": "o"}, {}),
    "distill@2l": stage({"models/distill/2l": "d"}, {"models/teach": "t"}),
    "distill@1l": stage({"models/distill/1l": "d1"}, {"models/teach": "t"}),
    "release@2l": stage({"models/release/2l": "r"}, {"models/distill/2l": "d"}),
    "release@gone": stage({"models/release/gone": "g"}, {"models/distill/gone": "dg"}),
    "evaluate": stage({"reports/metrics.json": "m"}, {"models/release": "rr", "models/distill": "dd"}),
}


def test_upstream_is_what_the_release_was_made_from_with_its_evaluation() -> None:
    found = upstream(STAGES, ["release@2l", "evaluate"])
    assert list(found) == ["ingest", "mine@click", "teach", "distill@2l", "release@2l", "evaluate"]
    assert found["teach"] is STAGES["teach"]


def test_a_dependency_may_be_inside_or_around_an_output() -> None:
    inside = {"a": stage({"data/a": "1"}, {}), "b": stage({"out": "2"}, {"data/a/table.parquet": "3"})}
    around = {"a": stage({"data/a": "1"}, {}), "b": stage({"out": "2"}, {"data": "3"})}
    beside = {"a": stage({"data/a": "1"}, {}), "b": stage({"out": "2"}, {"data/ab": "3"})}
    assert [list(upstream(stages, ["b"])) for stages in (inside, around, beside)] == [["a", "b"], ["a", "b"], ["b"]]

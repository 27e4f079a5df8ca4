"""Section `rank`: the tracked one is valid, and every mistake says what to do."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from slimtower.common.errors import UserError
from slimtower.common.settings import load_section, validated
from steps.rank.params import RankParams

TRACKED = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))["rank"]


def changed(**knobs: Any) -> dict[str, Any]:
    return TRACKED | {"ranker": {"cross": TRACKED["ranker"]["cross"] | knobs}}


def test_the_tracked_section_names_no_ranker_and_describes_one() -> None:
    params = load_section("rank", RankParams)
    assert params.rankers == [] and params.described("cross").kind == "cross_encoder"
    with pytest.raises(UserError, match=r"rank\.ranker has no 'gone'; it describes \['cross'\]"):
        params.described("gone")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (TRACKED | {"rankers": ["cross", "cross"]}, r"triplets are mined from one; name one, or none: \[\]"),
        (TRACKED | {"rankers": ["gone"]}, r"rankers names \['gone'\], but ranker has \['cross'\]; describe it there"),
        (TRACKED | {"rankers": ["../x"]}, "a name is"),
        (changed(base="models/teach/dense/tower"), "would be made of its own judgements; name the weights"),
        (changed(loss="hinge"), r"loss is 'hinge'"),
        (changed(kind="rules"), r"kind is 'rules'"),
    ],
)
def test_a_mistake_is_named(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        validated(RankParams, raw, "params.yaml")

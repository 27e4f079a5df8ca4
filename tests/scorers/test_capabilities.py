"""What the params say that a kind of teacher can do is what its scorer does."""

import importlib
from pathlib import Path
from pkgutil import iter_modules

import pytest

from slimtower.common.errors import UserError
from slimtower.common.files import write_json
from steps import scorers
from steps.rank.params import CrossEncoderParams
from steps.scorers import open_network, open_reranker
from steps.scorers.base import Scorer
from steps.teach.kinds import kinds

KINDS = {kind.model_fields["kind"].annotation.__args__[0]: kind for kind in kinds()}
FILES = {module.name for module in iter_modules(scorers.__path__)} - {"base", "documents"}


def scorer(kind: str) -> type[Scorer]:
    members = vars(importlib.import_module(f"steps.scorers.{kind}")).values()
    classes = [member for member in members if isinstance(member, type) and issubclass(member, Scorer)]
    (scoring,) = [member for member in classes if getattr(member, "kind", "") == kind]
    return scoring


def test_each_kind_that_scores_has_a_scorer_and_no_other_has_one() -> None:
    assert {name for name, kind in KINDS.items() if "scores" in kind.gives} == FILES
    assert CrossEncoderParams.gives == KINDS["cross_encoder"].gives


@pytest.mark.parametrize("name", sorted(FILES))
def test_capabilities_are_what_the_scorer_does(name: str) -> None:
    gives, scoring = KINDS[name].gives, scorer(name)
    assert ("layers" in gives) == scoring.layered == (scoring.layer_scores is not Scorer.layer_scores)
    assert ("pairs" in gives) == (scoring.pair_embeddings is not Scorer.pair_embeddings)
    assert ("joint" in gives) == (scoring.network.__func__ is not Scorer.network.__func__)


@pytest.mark.parametrize(
    ("kind", "opens", "message"),
    [
        ("endpoint", "reranker", "re-ranks nothing"),
        ("endpoint", "network", "does not train along"),
        ("dual_encoder", "network", "does not train along"),
        ("rules", "reranker", "does not score"),
        (None, "network", "does not score"),
    ],
)
def test_what_a_kind_cannot_do_is_an_error(tmp_path: Path, kind: str | None, opens: str, message: str) -> None:
    (tmp_path / "tower").mkdir()
    write_json(tmp_path / "report.json", {"kind": kind})
    with pytest.raises(UserError, match=message):
        if opens == "network":
            open_network(tmp_path, 8, 8)
        else:
            open_reranker(tmp_path, tmp_path / "scratch", "fp32", 8)

"""What the commands choose, print and refuse."""

import builtins
from pathlib import Path

import numpy as np
import pytest
import yaml

from steps.core.errors import TransientError, UserError
from steps.deploy import run as commands
from steps.deploy.belonging import EF, tune
from steps.deploy.contents import Asked
from steps.deploy.deployment import alias_of
from steps.deploy.engines import opened
from steps.deploy.params import DeployParams, registered_name
from steps.serving.release import Hit


@pytest.mark.parametrize("to", ["", "engine", "mysql://host/db", "qdrant:", "s3://bucket/engine.db"])
def test_an_engine_that_nobody_knows_is_refused(to: str) -> None:
    with pytest.raises(UserError, match=r"give postgresql://.*Milvus Lite"), opened(to):
        pass


def test_a_client_that_is_not_installed_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *given, **named):
        if name == "qdrant_client":
            raise ModuleNotFoundError("No module named 'qdrant_client'", name=name)
        return real(name, *given, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"needs qdrant_client; run `make setup-all`"), opened("http://host:6333"):
        pass


@pytest.mark.medium
def test_an_engine_out_of_reach_may_be_tried_again_and_no_password_is_told() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(TransientError) as caught, opened("postgresql://me:hush-hush@127.0.0.1:9/db"):
        pass
    assert "hush-hush" not in str(caught.value) and "run it again" in str(caught.value)


def test_aliases_are_names_that_every_engine_takes() -> None:
    assert alias_of("slimtower", "api-docs.v2") == "slimtower_api_docs_v2"
    longer = [alias_of("slimtower", "x" * 60 + last) for last in "ab"]
    assert longer[0] != longer[1] and {len(alias) for alias in longer} == {48}
    with pytest.raises(UserError, match="would both be called slimtower_a_b"):
        commands._aliases("slimtower", ["a-b", "a.b"])


def test_params_of_the_tracked_file_hold_and_links_rise() -> None:
    tracked = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))["deploy"]
    assert DeployParams.model_validate(tracked).m[0] == 16
    with pytest.raises(ValueError, match="must rise"):
        DeployParams.model_validate(tracked | {"m": [32, 16]})
    assert registered_name() == "slimtower"


class Rising:
    """Finds a hit more with each ef, up to some number of ten."""

    def __init__(self, most: int) -> None:
        self.most = most

    def search(self, name: str, vectors: np.ndarray, k: int, ef: int) -> list[list[Hit]]:
        found = min(EF.index(ef) + 4, self.most)
        return [[Hit(str(number), 1.0, "") for number in range(found)]]


def test_the_smallest_ef_that_reaches_the_target_is_chosen() -> None:
    asked = Asked(np.zeros((1, 2)), "dev queries", [frozenset(map(str, range(10)))], 1.0)
    assert tune(Rising(10), "x", asked, 0.6) == (EF[2], 0.6, True)
    assert tune(Rising(7), "x", asked, 0.9) == (EF[3], 0.7, False)  # out of reach: no more than it brings

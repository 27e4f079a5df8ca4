"""A student from stored document vectors alone: the same weights, and no document is read but those compared."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from whole_run import params_of, run_ingest, write_beir

from bench import given_vectors
from pipeline.params import load_params
from slimtower.common.files import read_json
from slimtower.common.settings import read_mapping
from steps.core.tables import SCHEMAS, write_table
from steps.tracking.runs import NullRun

pytestmark = pytest.mark.medium


def bring_up(project: Path, cache: Path) -> None:
    """`ingest`, `teach`, `embed` and `distill` of the student, with caches of their own."""
    from steps.distill.run import run as distill
    from steps.embed.run import run as embed
    from steps.teach.run import run as teach

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIMTOWER_CACHE", str(cache))
        params, run = load_params(project / "params.yaml"), NullRun()
        ingest, mine = run_ingest(project, params), project / "data/mine/relevance"
        (project / "data/score").mkdir(parents=True, exist_ok=True)
        for name, folder in (("triplets", mine), ("generated_queries", project / "data/generate")):
            write_table(folder, name, SCHEMAS[name].empty_table())
        teacher = project / "models/teach/dense"
        teach(ingest, mine, teacher, params.teach.described("dense"), run)
        embed(ingest, project / "data/generate", teacher, project / "data/embed", params.embed, run)
        places = (ingest, mine, project / "data/embed", project / "data/score", teacher)
        distill("static", *places, project / "models/distill/static", params.distill, run)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steps.embed.given_vectors.CHECKED_DOCUMENTS", 5)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_tower: Path) -> Path:
    """The run of a recipe."""
    folder = tmp_path_factory.mktemp("scifact")
    shares = {"train": slice(0, 40), "test": slice(40, 60)}
    data = write_beir(folder / "data-set", judged=shares)
    changes: dict[str, Any] = {"distill": {"students": ["static"]}}
    params = params_of("scifact.yaml", tiny_tower, changes, DATA=str(data))
    run = folder / "run"
    run.mkdir()
    (run / "params.yaml").write_text(yaml.safe_dump(params.model_dump()))
    bring_up(run, folder / "cache")
    return run


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_student_is_the_same_and_no_document_is_read_again(
    finished: Path, in_a_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(given_vectors, "measure", _measured(given_vectors.measure, bring_up))
    monkeypatch.setattr("sys.argv", ["given_vectors", str(finished)])
    given_vectors.main()
    found = read_json(given_vectors.RESULT)
    assert found["compared"]["documents"] == 5 and found["documents"] > 60
    assert (found["embedded_besides"], found["same_student"]) == (0, True)
    assert found["git_commit"] and found["machine"]["cores"] and found["student"]["of_the_run"]
    assert "5 compared, 0 embedded besides; the student is the same" in capsys.readouterr().out
    given = in_a_folder / ".cache/given_vectors"
    told = read_mapping(given / "project/params.yaml")["ingest"]["document_vectors"]["scifact"]
    assert told["kind"] == "files" and not np.array_equal(
        np.load(told["path"]), np.load(finished / "data/embed/documents.npy")
    )


def test_documents_that_are_read_and_another_student_are_told(finished: Path, in_a_folder: Path) -> None:
    def without(project: Path, cache: Path) -> None:
        params = read_mapping(project / "params.yaml")
        params["ingest"].pop("document_vectors")
        params["distill"]["seed"] += 1
        (project / "params.yaml").write_text(yaml.safe_dump(params))
        bring_up(project, cache)

    found = given_vectors.measure(finished, in_a_folder / "given", without)
    assert found["embedded_besides"] > 60 and not found["same_student"] and found["compared"] is None


def _measured(measure: Callable[..., dict[str, Any]], bring: Callable[[Path, Path], None]) -> Callable[..., Any]:
    return lambda run, folder: measure(run, folder, bring)

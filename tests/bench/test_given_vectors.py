"""A student from stored document vectors alone: the same weights, and no document is read but those compared."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from rows import write_rows
from stages import run_stage
from whole_run import params_of, run_ingest, write_beir

from bench import given_vectors
from pipeline.params import load_params
from slimtower.common.files import read_json
from slimtower.common.settings import read_mapping

pytestmark = pytest.mark.medium


def bring_up(project: Path, cache: Path) -> None:
    """`ingest`, `teach`, `embed` and `distill` of the student, with caches of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIMTOWER_CACHE", str(cache))
        params = load_params(project / "params.yaml")
        run_ingest(project, params)
        (project / "data/score").mkdir(parents=True, exist_ok=True)
        write_rows(project / "data/mine/relevance", "triplets")
        write_rows(project / "data/generate", "generated_queries")
        run_stage("teach", project, project / "models/teach/dense", params.teach.described("dense"))
        run_stage("embed", project, project / "data/embed", params.embed)
        run_stage("distill", project, project / "models/distill/static", params.distill, student="static")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steps.embed.given_vectors.CHECKED_DOCUMENTS", 5)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_tower: Path) -> Path:
    """The run of a recipe."""
    folder = tmp_path_factory.mktemp("scifact")
    shares = {"train": slice(0, 40), "test": slice(40, 60)}
    data = write_beir(folder / "data-set", judged=shares)
    parts = ["train_queries", "sentences", "unlabelled_queries"]  # no whole documents, which would be read as texts
    changes: dict[str, Any] = {"distill": {"students": ["static"]}, "embed": {"parts": parts}}
    params = params_of("scifact.yaml", tiny_tower, changes, DATA=str(data))
    run = folder / "run"
    run.mkdir()
    (run / "params.yaml").write_text(yaml.safe_dump(params.model_dump()))
    bring_up(run, folder / "cache")
    return run


@pytest.mark.slow
def test_the_student_is_the_same_and_no_document_is_read_again(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(given_vectors, "measure", partial(given_vectors.measure, bring_up=bring_up))
    monkeypatch.setattr("sys.argv", ["given_vectors", str(finished)])
    given_vectors.main()
    result = read_json(given_vectors.RESULT)
    assert result["compared"]["documents"] == 5 and result["documents"] > 60
    assert (result["embedded_besides"], result["same_student"]) == (0, True)
    assert result["git_commit"] and result["machine"]["cores"] and result["student"]["of_the_run"]
    copy = tmp_path / ".cache/given_vectors"
    source = read_mapping(copy / "project/params.yaml")["ingest"]["document_vectors"]["scifact"]
    vectors = np.load(finished / "data/embed/documents.npy")
    assert source["kind"] == "files" and not np.array_equal(np.load(source["path"]), vectors)


def test_documents_that_are_read_and_another_student_are_told(finished: Path, tmp_path: Path) -> None:
    def without(project: Path, cache: Path) -> None:
        params = read_mapping(project / "params.yaml")
        params["ingest"].pop("document_vectors")
        params["distill"]["seed"] += 1
        (project / "params.yaml").write_text(yaml.safe_dump(params))
        bring_up(project, cache)

    result = given_vectors.measure(finished, tmp_path / "given", without)
    assert result["embedded_besides"] > 60 and not result["same_student"] and result["compared"] is None

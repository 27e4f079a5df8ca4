"""Document vectors that were given are compared with the teacher's before anything trains."""

from pathlib import Path

import numpy as np
import pytest
from embedding_server import KEY, serving, tower_reader
from endpoint_fakes import endpoint_params
from whole_run import params_of, run_ingest, write_beir

from pipeline.given_vectors import check_given_vectors
from pipeline.params import Params
from slimtower.common.errors import UserError
from steps.core.corpus import CorpusTexts, corpus_columns
from steps.encoders.towers import encode, load_tower

pytestmark = pytest.mark.medium


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steps.embed.given_vectors.CHECKED_DOCUMENTS", 5)


def write_given(root: Path, tower: Path, data: Path) -> Params:
    """Params of a run that is given each document's vector of the tower, as files below `root`."""
    plain = params_of("scifact.yaml", tower, DATA=str(data))
    ingest = run_ingest(root / "plain", plain)
    vectors = encode(load_tower(tower), list(CorpusTexts(ingest)), "document")
    ids = [doc_id.partition("/")[2] for (doc_id,) in corpus_columns(ingest, ["doc_id"])]
    np.save(root / "stored.npy", vectors)
    (root / "stored.txt").write_text("".join(f"{doc_id}\n" for doc_id in ids))
    described = {"kind": "files", "path": str(root / "stored.npy"), "ids": str(root / "stored.txt")}
    [source] = plain.ingest.sources
    changes = {"ingest": {"document_vectors": {source.name: described}}}
    return params_of("scifact.yaml", tower, changes, DATA=str(data))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_beir(tmp_path_factory.mktemp("given") / "data-set", judged={"train": slice(0, 40)})


def test_they_are_compared_with_what_the_teacher_will_be(tiny_tower: Path, data: Path, tmp_path: Path) -> None:
    params = write_given(tmp_path, tiny_tower, data)
    assert "5 of the given document vectors compared with those of dense: mean cosine 1.000" in check_given_vectors(
        params, run_ingest(tmp_path, params)
    )
    with pytest.raises(UserError, match="not found; name the vectors in ingest"):
        check_given_vectors(params, tmp_path / "plain/data/ingest")
    np.save(tmp_path / "stored.npy", np.roll(np.load(tmp_path / "stored.npy"), 1, axis=0))  # of other documents
    with pytest.raises(UserError, match=r"not the teacher's vectors of these documents: .*the ids are shuffled"):
        check_given_vectors(params, run_ingest(tmp_path / "spoilt", params))


def test_of_a_rented_teacher_the_sample_is_asked_for_once(
    tiny_tower: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLANTED_KEY", KEY)
    with serving(tower_reader(load_tower(tiny_tower))) as server:
        params = write_given(tmp_path, tiny_tower, data)
        params.teach.teacher["dense"] = endpoint_params(server.url)
        ingest = run_ingest(tmp_path, params)
        check_given_vectors(params, ingest)
        assert "sample of the given document vectors: 5 texts to ask tiny for" in capsys.readouterr().err
        paid = len(server.bodies)
        check_given_vectors(params, ingest)
        assert "texts to ask" not in capsys.readouterr().err
        assert len(server.bodies) - paid <= 2  # probes

"""An adapter: a frozen encoder and a linear map that gives an index of another model this encoder's scores."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from stages import FAST, distill_params, run_distill, run_release, run_score, sources_of
from towers import other_weights, write_other_teacher, write_static

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from slimtower.serving.query_encoder import load_query_encoder
from steps.core.corpus import CorpusTexts
from steps.distill.initialisation import adapted
from steps.encoders.towers import load_tower

pytestmark = pytest.mark.medium


def test_the_map_fits_the_new_models_scores_and_trains_alone(embedded: Path, tiny_tower: Path, tmp_path: Path) -> None:
    other_weights(tiny_tower, tmp_path / "new", seed=5)  # compares by inner product
    student = adapted(str(tmp_path / "new"), load_tower(tiny_tower), sources_of(embedded), distill_params())
    assert [type(module) for module in student] == [Transformer, Pooling, Dense, Normalize]
    assert [name for name, weight in student.named_parameters() if weight.requires_grad] == ["2.linear.weight"]

    new = SentenceTransformer(str(tmp_path / "new"), device="cpu")
    texts = list(CorpusTexts(embedded / "data/ingest"))
    index = np.load(embedded / "data/embed/documents.npy").astype(np.float64)
    anew = new.encode(texts).astype(np.float64)
    centred = index - index.mean(axis=0)
    ridge = np.sqrt(1e-3 * centred.var(axis=0).mean() * len(index)) * np.eye(32)
    best = np.linalg.lstsq(np.vstack([centred, ridge]), np.vstack([anew - anew.mean(axis=0), 0 * ridge]))[0]
    map_ = student[2].linear.weight.detach().double().numpy()
    assert np.linalg.norm(map_) == pytest.approx(np.sqrt(32))
    np.testing.assert_allclose(map_, best * np.sqrt(32) / np.linalg.norm(best), atol=1e-3)

    queries = new.encode(texts[:9]).astype(np.float64)
    student.save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    scores = SentenceTransformer(str(tmp_path / "saved"), device="cpu").encode(texts[:9]) @ index.T
    for ours, theirs in zip(scores, queries @ (index @ best).T, strict=True):
        assert np.corrcoef(ours, theirs)[0, 1] > 0.9999


def test_documents_that_all_have_one_vector_are_told(embedded: Path, tiny_tower: Path, tmp_path: Path) -> None:
    """Nothing but duplicates, or one document."""
    other_weights(tiny_tower, tmp_path / "new", seed=5)
    alike = sources_of(embedded)
    vars(alike)["documents"] = np.repeat(np.asarray(alike.documents[:1]), len(alike.documents), axis=0)
    with pytest.raises(UserError, match=r"^distill\.student: adapter .*all \d+ documents"):
        adapted(str(tmp_path / "new"), load_tower(tiny_tower), alike, distill_params())


def test_over_an_index_of_its_own_it_is_the_encoder_itself(embedded: Path, tiny_tower: Path) -> None:
    tower = load_tower(tiny_tower)
    student = adapted(str(tiny_tower), tower, sources_of(embedded), distill_params())
    texts = list(CorpusTexts(embedded / "data/ingest"))
    index = np.load(embedded / "data/embed/documents.npy")
    ours, theirs = (encoder.encode(texts) @ index.T for encoder in (student, tower))
    assert (ours.argmax(axis=1) == theirs.argmax(axis=1)).all()


@pytest.mark.slow
def test_an_adapter_is_distilled_and_released_as_every_student(
    embedded: Path, tiny_tower: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = embedded / "models/teach/other"
    write_other_teacher(tiny_tower, new, seed=5)
    run_score(embedded, "other")
    learned = {"losses": [{"kind": "score_kl", "teacher": "other"}], "teacher_top_k": 4, "learning_rate": 1e-2}
    student = FAST | {"start": {"adapter": str(new / "tower")}} | learned
    folder = run_distill(embedded, "adapter", distill_params(students=["adapter"], student={"adapter": student}))
    assert "the teacher's ten nearest" not in capsys.readouterr().err, "it is to rank as another teacher does"
    report = read_json(folder / "report.json")
    assert (report["start"], report["base"]) == ("adapter", str(new / "tower"))
    trained, before = load_tower(folder / "query_encoder"), load_tower(new / "tower")
    for ours, theirs in zip(trained[0].parameters(), before[0].parameters(), strict=True):
        assert torch.equal(ours, theirs)
    start = adapted(str(new / "tower"), load_tower(tiny_tower), sources_of(embedded), distill_params())
    assert not torch.allclose(trained[2].linear.weight, start[2].linear.weight, atol=1e-3)
    served = load_query_encoder(run_release(embedded, "adapter") / "serving").encode(["sum of the axis"])
    assert (served @ trained.encode(["sum of the axis"]).T).item() > 0.99


REFUSED: dict[str, Callable[[SentenceTransformer], object]] = {  # by a word of what is said of it
    "truncate_dim": lambda tower: setattr(tower, "truncate_dim", 8),
    "euclidean": lambda tower: setattr(tower, "similarity_fn_name", "euclidean"),
    "prompt": lambda tower: tower.prompts.update(query="query: "),
}


@pytest.mark.parametrize("defect", [*REFUSED, "no transformer"])
def test_an_encoder_that_no_map_can_serve_is_refused(
    embedded: Path, tiny_tower: Path, tmp_path: Path, defect: str
) -> None:
    teacher, encoder = load_tower(tiny_tower), load_tower(tiny_tower)
    if defect in REFUSED:
        REFUSED[defect](encoder)
        encoder.save_pretrained(str(tmp_path / "encoder"), create_model_card=False)
    else:
        write_static(tmp_path / "encoder", ["sum"])
    with pytest.raises(UserError, match=rf"encoder.*{defect}"):
        adapted(str(tmp_path / "encoder"), teacher, sources_of(embedded), distill_params())

"""The kind `late_interaction`: its model, its loss, and the stage on a tiny one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from late_fakes import LATE
from recorder import Recorder, killed_at
from safetensors.torch import load_file
from sentence_transformers import MultiVectorEncoder
from teach_fakes import documents, write_tower, write_world

import steps.teach.late_interaction_training as training
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.retrieval.late_interaction import load_late_interaction, max_similarities, token_vectors
from steps.teach.contrastive_training import InBatch
from steps.teach.late_interaction import late_interaction_model
from steps.teach.run import run as teach
from steps.teach.training_triplets import TextTriplet
from steps.tracking.runs import NullRun, Run

pytestmark = pytest.mark.medium


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_tower(tmp_path / "model")


def train(folder: Path, base: Path, run: Run | None = None, name: str = "teach", **changes: Any) -> Path:
    ingest, mine = write_world(folder)
    params = LATE.model_validate(LATE.model_dump() | {"base": str(base)} | changes)
    teach(ingest, mine, folder / name, params, run or NullRun())
    return folder / name


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state = load_file(folder / "tower/model.safetensors")
    return state | load_file(folder / "tower/1_Dense/model.safetensors")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("micro_batch", ["", "3"])
def test_the_loss_is_the_softmax_over_all_documents_of_the_batch(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, micro_batch: str, masked: bool
) -> None:
    monkeypatch.setenv("SLIMTOWER_MICRO_BATCH", micro_batch)
    model = late_interaction_model(LATE.model_copy(update={"base": str(base)})).double()
    texts = {"query": ["how to add records", "tally", "sketch arrays", "pick frames"]}
    texts |= {"positive": [row["content"] for row in documents()[:4]]}
    texts |= {"negative": [row["content"] for row in documents()[9:13]]}
    features = [
        model.preprocess(column, task="query" if name == "query" else "document") for name, column in texts.items()
    ]
    rows = [
        TextTriplet(*text, "judged", f"p{at}", f"n{at}", "d")
        for at, text in enumerate(zip(*texts.values(), strict=True))
    ]
    in_batch = InBatch(rows, {"tally": {"p0", "n3"}} if masked else {})
    value = training.objective(model, 0.5, in_batch)(features, torch.tensor(in_batch.numbers))
    value.backward()
    gradient = model[0].auto_model.get_input_embeddings().weight.grad.clone()  # type: ignore[union-attr]
    model.zero_grad()

    def alone(text: str, role: str) -> torch.Tensor:
        return model(model.preprocess([text], task=role), task=role)["token_embeddings"][0]

    query_vectors = [alone(text, "query") for text in texts["query"]]
    near, far = ([alone(text, "document") for text in texts[name]] for name in ("positive", "negative"))

    def formula(*vectors: torch.Tensor) -> torch.Tensor:
        """In float64; the library sums in float32."""
        terms = []
        for row in range(4):
            scores = (
                torch.stack([(vectors[row] @ document.T).max(dim=1).values.sum() for document in vectors[4:]]) / 0.5
            )
            counted = [at for at in range(8) if not (masked and row == 1 and at in (0, 7))]
            terms.append(torch.log(torch.exp(scores[counted]).sum()) - scores[row])
        return torch.stack(terms).mean()

    expected = formula(*query_vectors, *near, *far)
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(model[0].auto_model.get_input_embeddings().weight.grad, gradient, rtol=1e-4, atol=1e-6)  # type: ignore[union-attr]
    vectors = [vector.detach().requires_grad_() for vector in (*query_vectors, *near, *far)]
    assert torch.autograd.gradcheck(formula, vectors, fast_mode=True)


def test_an_encoder_gives_each_token_a_unit_vector_with_or_without_linear_layer(base: Path) -> None:
    text = documents()[0]["content"]
    for dim in (0, 8):
        model = late_interaction_model(LATE.model_copy(update={"base": str(base), "dim": dim}))
        [vectors] = token_vectors(model, [text], "document", precision="fp32", batch_size=4)
        assert vectors.shape == (len(text.split()) + 2, dim or 16)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    torch.manual_seed(9)
    again = late_interaction_model(LATE.model_copy(update={"base": str(base), "dim": 8}))
    assert torch.equal(again[1].linear.weight, model[1].linear.weight)  # type: ignore[union-attr]


@pytest.mark.slow
def test_training_beats_the_base_and_reads_as_plain_sentence_transformers(
    tmp_path: Path, base: Path, own_cache: Path
) -> None:
    run = Recorder()
    output = train(tmp_path, base, run, epochs=8.0, learning_rate=5e-3, temperature=0.2, checkpoint_steps=50)
    assert run.losses[len(run.losses)] < 0.7 * run.losses[1]
    report = read_json(output / "report.json")
    assert report["kind"] == "late_interaction" and report["dim"] == 8
    assert report["comparison"]["ndcg_teacher"] > report["comparison"]["ndcg_base"]
    assert not list(own_cache.rglob("checkpoint-*"))
    plain = MultiVectorEncoder(str(output / "tower"), device="cpu")
    query_tokens = plain.encode_query(["how to add records"])[0].numpy().astype(np.float64)
    answers = [
        answer.numpy().astype(np.float64) for answer in plain.encode_document([r["content"] for r in documents()])
    ]
    scores = [
        sum(max(float(token @ answer_token) for answer_token in answer) for token in query_tokens) for answer in answers
    ]
    np.testing.assert_allclose(max_similarities(query_tokens, answers), scores, rtol=1e-5)
    assert max(len(answer) for answer in answers) <= LATE.max_document_length
    again = train(tmp_path, output / "tower", name="again", epochs=0.0, dim=0)
    assert all(torch.equal(tensor, weights(again)[name]) for name, tensor in weights(output).items())


@pytest.mark.usefixtures("dropout")
@pytest.mark.slow
def test_a_killed_training_continues_to_the_same_weights(tmp_path: Path, base: Path, own_cache: Path) -> None:
    expected = train(tmp_path, base, name="whole", dev_queries=0)

    with killed_at(6, training):
        train(tmp_path, base, name="killed", dev_queries=0)
    assert not (tmp_path / "killed").exists()
    assert [path.name for path in own_cache.rglob("checkpoint-*")] == ["checkpoint-4"]
    run = Recorder()
    resumed = train(tmp_path, base, run, name="killed", dev_queries=0)
    assert min(run.losses) == 5
    for name, tensor in weights(expected).items():
        torch.testing.assert_close(weights(resumed)[name], tensor, rtol=0, atol=1e-6)


def test_what_does_not_fit_is_said(tmp_path: Path, base: Path) -> None:
    with pytest.raises(UserError, match=r"max_document_length is 65, .* 64 positions"):
        train(tmp_path, base, max_document_length=65)
    with pytest.raises(UserError, match=r"model .*gone: cannot be loaded"):
        train(tmp_path, tmp_path / "gone")
    late_interaction_model(LATE.model_copy(update={"base": str(base)})).save_pretrained(str(tmp_path / "late"))
    assert load_late_interaction(tmp_path / "late").get_embedding_dimension() == 8
    with pytest.raises(UserError, match=r"dim is 4, .* 0 or 8"):
        train(tmp_path, tmp_path / "late", dim=4)
    assert not (tmp_path / "teach").exists()
    (base / "config.json").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(UserError, match=r"model .*cannot be loaded"):
        train(tmp_path, base)

"""The stage `teach` as a whole, on a tiny tower."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from recorder import Recorder, killed_at
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from teach_fakes import PARAMS, documents, queries, table, triplets, write_tower, write_world
from towers import write_static
from transformers import (
    PreTrainedModel,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
)

import steps.teach.contrastive_training as contrastive_training
from slimtower.common.errors import UserError
from slimtower.common.files import read_json, sha256_file
from steps.core.tables import write_table
from steps.encoders.towers import encode, load_tower, positions_of
from steps.teach.contrastive_training import cut_to_tokens
from steps.teach.dev_comparison import compare
from steps.teach.dual_encoder import limit_length
from steps.teach.kinds.dual_encoder import DualEncoder
from steps.teach.run import run as teach
from steps.tracking.runs import NullRun, Run


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIMTOWER_CACHE", str(tmp_path / "cache"))
    return write_tower(tmp_path / "model")


def train(folder: Path, base: Path, run: Run | None = None, name: str = "teach", **changes: Any) -> Path:
    ingest, mine = write_world(folder)
    output = folder / name
    params = DualEncoder.model_validate(PARAMS.model_dump() | {"base": str(base)} | changes)
    teach(ingest, mine, output, params, run or NullRun())
    return output


def embeddings(folder: Path) -> np.ndarray:
    texts = [row["content"] for row in documents()]
    return encode(load_tower(folder), texts, "document")


@pytest.mark.medium
def test_epochs_zero_saves_the_base_as_it_is(tmp_path: Path, base: Path) -> None:
    ingest, _ = write_world(tmp_path)
    output = tmp_path / "teach"
    params = PARAMS.model_copy(update={"base": str(base), "epochs": 0.0})
    teach(ingest, tmp_path / "never mined", output, params, NullRun())
    assert sha256_file(base / "model.safetensors") == sha256_file(output / "tower" / "model.safetensors")
    np.testing.assert_array_equal(embeddings(base), embeddings(output / "tower"))
    assert load_tower(output / "tower").max_seq_length == PARAMS.max_document_length
    assert read_json(output / "report.json")["comparison"] is None
    assert [path.name for path in (output / "earlier").iterdir()] == ["towers.json"]
    assert read_json(output / "earlier/towers.json") == []


@pytest.mark.medium
def test_a_model_has_one_fingerprint_however_it_is_loaded(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers saves in tokenizer_config.json whether the hub could be reached."""
    fingerprints = set()
    for offline in (False, True):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
        fingerprints.add(read_json(train(tmp_path / str(offline), base, epochs=0.0) / "report.json")["fingerprint"])
    assert len(fingerprints) == 1


@pytest.mark.medium
def test_a_loss_that_is_no_number_stops_the_stage(tmp_path: Path, base: Path) -> None:
    tower = load_tower(base)
    with torch.no_grad():
        tower[0].auto_model.get_input_embeddings().weight.fill_(float("nan"))
    tower.save_pretrained(str(tmp_path / "broken"), create_model_card=False)
    with pytest.raises(UserError, match=r"loss is nan at step 1; lower learning_rate"):
        train(tmp_path, tmp_path / "broken", dev_queries=0)
    assert not (tmp_path / "teach").exists()


def test_without_log_and_relevance_table_the_base_stays_as_it_is(
    tmp_path: Path, base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ingest, mine = write_world(tmp_path, mined=[])
    for name in ("impressions", "relevance"):
        write_table(ingest, name, table(name, []))
    params = PARAMS.model_copy(update={"base": str(base)})
    teach(ingest, mine, tmp_path / "teach", params, NullRun())
    report = read_json(tmp_path / "teach" / "report.json")
    assert report["epochs"] == 0 and "no click log, no relevance table and no judged" in report["note"]
    assert sha256_file(base / "model.safetensors") == sha256_file(tmp_path / "teach/tower/model.safetensors")
    assert f"keeps {base} as it is, a zero-shot teacher" in capsys.readouterr().err


def test_no_triplet_of_a_log_is_an_error_that_names_the_fix(tmp_path: Path, base: Path) -> None:
    ingest, mine = write_world(tmp_path, mined=[])
    impression = {"session_id": "s", "query_id": "q", "doc_id": "d", "rank": 1, "clicked": False, "timestamp": 0}
    write_table(ingest, "impressions", table("impressions", [impression]))
    params = PARAMS.model_copy(update={"base": str(base)})
    with pytest.raises(UserError, match=r"triplets.parquet: no usable triplet.*epochs: 0"):
        teach(ingest, mine, tmp_path / "teach", params, NullRun())


def saved(base: Path, folder: Path, **changes: Any) -> Path:
    """The tower with changed settings."""
    tower = load_tower(base)
    for name, value in changes.items():
        setattr(tower, name, value)
    tower.save_pretrained(str(folder), create_model_card=False)
    return folder


def static(base: Path, folder: Path) -> Path:
    return write_static(folder, ["add"])


def far(base: Path, folder: Path) -> Path:
    return saved(base, folder, similarity_fn_name="euclidean")


def short(base: Path, folder: Path) -> Path:
    """Vectors are cut behind Normalize: the index would compare what is not of unit length."""
    return saved(base, folder, truncate_dim=8)


def mixed(base: Path, folder: Path) -> Path:
    modules = [load_tower(base)[0], Pooling(16, ("cls", "mean"))]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder), create_model_card=False)
    return folder


@pytest.mark.parametrize(
    ("make", "changes", "complaint"),
    [
        (saved, {"max_document_length": 65}, r"teach.teacher: max_document_length is 65, but .* has 64 positions"),
        (saved, {"loss": PARAMS.loss.model_dump() | {"dims": [4, 16, 99]}},
         r"loss\.dims has \[16, 99\], but .* has 16 dimensions, .*; name smaller ones"),
        (static, {}, r"base .* is no transformer; take an encoder"),
        (far, {}, "compares by euclidean"),
        (short, {}, r"cuts its vectors to 8 dimensions .*set index\.dim: 8"),
        (mixed, {"pooling": "cls"}, r"base .* has no pooling of one kind to set; set pooling: auto"),
    ],
)  # fmt: skip
def test_a_base_that_cannot_be_the_teacher_is_refused(
    tmp_path: Path, base: Path, make: Any, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UserError, match=complaint):
        train(tmp_path, make(base, tmp_path / "changed"), epochs=0.0, **changes)


@pytest.mark.parametrize("network", [XLMRobertaModel, XLMRobertaForSequenceClassification])
def test_positions_that_begin_behind_the_paddings_are_fewer(network: type[PreTrainedModel]) -> None:
    config = XLMRobertaConfig(
        vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4,
        max_position_embeddings=66, pad_token_id=1,
    )  # fmt: skip
    model: Any = network(config)
    assert positions_of(model) == 64
    model(torch.full((1, 64), 3))  # as it says
    tower: Any = SimpleNamespace(auto_model=model)
    params = PARAMS.model_copy(update={"max_document_length": 65})
    with pytest.raises(UserError, match=r"max_document_length is 65, .* 64 positions"):
        limit_length([tower], params)  # type: ignore[arg-type]


@pytest.mark.usefixtures("dropout")
@pytest.mark.medium
def test_triplets_of_half_the_weight_train_in_every_second_epoch_also_after_a_kill(tmp_path: Path, base: Path) -> None:
    mined = [row | {"weight": 1.0 if number % 2 else 0.5} for number, row in enumerate(triplets())]
    ingest, mine = write_world(tmp_path, mined=mined)
    changes = {"base": str(base), "dev_queries": 0, "max_triplets": 0, "checkpoint_steps": 1}
    teacher_params = PARAMS.model_copy(update=changes)
    seen_queries: list[str] = []

    class Reader(contrastive_training.ContrastiveTrainer):
        def training_step(self, model: Any, inputs: Any, *rest: Any) -> torch.Tensor:
            seen_queries.extend(self.model.tokenizer.batch_decode(inputs["query_input_ids"], skip_special_tokens=True))
            return super().training_step(model, inputs, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contrastive_training, "ContrastiveTrainer", Reader)
        teach(ingest, mine, tmp_path / "whole", teacher_params, NullRun())
    texts = {row["query_id"]: row["text"] for row in queries()}
    times = Counter(seen_queries)
    repeated = sum(times[texts[row["query_id"]]] - int(2 * row["weight"]) for row in mined)
    assert all(times[texts[row["query_id"]]] >= int(2 * row["weight"]) for row in mined) and repeated <= 8  # a batch
    report = read_json(tmp_path / "whole/report.json")
    assert report["triplets_used"] == len(mined) > report["triplets_an_epoch"]
    with killed_at(6, contrastive_training):  # in the second epoch
        teach(ingest, mine, tmp_path / "killed", teacher_params, NullRun())
    run = Recorder()
    teach(ingest, mine, tmp_path / "killed", teacher_params, run)
    assert min(run.losses) == 6
    expected, two = (load_file(tmp_path / name / "tower/model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(tensor, two[name]) for name, tensor in expected.items())


@pytest.mark.medium
def test_a_cosine_tower_without_normalisation_gets_it(tmp_path: Path, base: Path) -> None:
    tower = load_tower(base)
    bare = SentenceTransformer(modules=[tower[0], tower[1]], device="cpu", similarity_fn_name="cosine")
    bare.save_pretrained(str(tmp_path / "bare"), create_model_card=False)
    output = train(tmp_path, tmp_path / "bare", epochs=0.0)
    lengths = np.linalg.norm(embeddings(output / "tower"), axis=1)
    np.testing.assert_allclose(lengths, 1.0, atol=1e-5)


@pytest.mark.medium
@pytest.mark.parametrize(("pooling", "expected"), [("cls", 0), ("last", -1), ("mean", None), ("auto", None)])
def test_pooling_can_be_set(tmp_path: Path, base: Path, pooling: str, expected: int | None) -> None:
    load_tower(base)[0].auto_model.save_pretrained(str(tmp_path / "bare"))
    load_tower(base).tokenizer.save_pretrained(str(tmp_path / "bare"))
    output = train(tmp_path, tmp_path / "bare", epochs=0.0, pooling=pooling)
    tower, network = load_tower(output / "tower"), load_tower(base)[0]
    with torch.inference_mode():
        for row in documents()[:3]:
            states = network(network.preprocess([row["content"]]))["token_embeddings"][0]
            state = states.mean(dim=0) if expected is None else states[expected]
            unit = (state / state.norm()).numpy()
            np.testing.assert_allclose(encode(tower, [row["content"]], "document")[0], unit, atol=1e-5)


LORA = {"rank": 4, "target_modules": ["query", "value"]}


@pytest.mark.usefixtures("dropout")
@pytest.mark.medium
def test_low_rank_matrices_train_and_go_on_after_a_kill(tmp_path: Path, base: Path) -> None:
    pytest.importorskip("peft")
    changes = {"epochs": 3.0, "learning_rate": 1e-2, "lora": LORA, "dev_queries": 0}
    undisturbed = train(tmp_path, base, name="whole", **changes)
    merged, before = (load_file(folder / "model.safetensors") for folder in (undisturbed / "tower", base))
    changed = {name.split(".")[-2] for name, weight in merged.items() if not torch.equal(weight, before[name])}
    assert merged.keys() == before.keys() and changed == {"query", "value"}
    with killed_at(5, contrastive_training):
        train(tmp_path, base, name="killed", **changes)
    [checkpoint] = (tmp_path / "cache").rglob("checkpoint-*/trained.pt")
    assert all("lora_" in name for name in torch.load(checkpoint, weights_only=True))
    run = Recorder()
    resumed = load_file(train(tmp_path, base, run, "killed", **changes) / "tower/model.safetensors")
    assert min(run.losses) == 5
    assert all(torch.equal(resumed[name], weight) for name, weight in merged.items())


@pytest.mark.medium
def test_recomputed_activations_train_the_same_weights_and_decay_others(tmp_path: Path, base: Path) -> None:
    trained_weights = []
    for name, changes in (("plain", {}), ("less", {"gradient_checkpointing": True}), ("decay", {"weight_decay": 0.5})):
        output = train(tmp_path, base, name=name, epochs=0.5, dev_queries=0, **changes)
        trained_weights.append(load_file(output / "tower/model.safetensors"))
    plain, less, decayed = trained_weights
    for name, weight in plain.items():
        torch.testing.assert_close(less[name], weight, rtol=0, atol=2e-4)
    shorter = {name for name, weight in plain.items() if decayed[name].norm() < (1 - 1e-4) * weight.norm()}
    assert "encoder.layer.0.output.dense.weight" in shorter
    assert not {name for name in shorter if name.endswith("LayerNorm.weight")}


def test_training_queries_are_cut_at_a_token(base: Path) -> None:
    texts = ["add all records at once", "add records"]
    assert cut_to_tokens(load_tower(base), texts, 3) == ["add all records", "add records"]


def test_comparison_is_a_one_sided_paired_t_test() -> None:
    base = {"a": 0.1, "b": 0.5, "c": 0.4, "d": 0.9}
    teacher = {"d": 1.0, "c": 0.7, "b": 0.6, "a": 0.3}
    gain = np.array([0.2, 0.1, 0.3, 0.1])
    statistic = gain.mean() / (gain.std(ddof=1) / 2)
    draws = np.random.default_rng(0).standard_t(3, size=2_000_000)
    comparison = compare(base, teacher)
    assert comparison["p_value"] == pytest.approx((draws > statistic).mean(), rel=0.02)
    assert comparison["ndcg_base"] == pytest.approx(0.475)
    assert comparison["ndcg_teacher"] == pytest.approx(0.65)
    assert comparison["teacher_beats_base"] is True
    assert compare(teacher, base)["teacher_beats_base"] is False
    assert compare(base, base)["p_value"] == 1.0

"""A model that is not what its folder says is refused in one line, whatever loads it; what may differ is loaded."""

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from generate_fakes import PARAMS
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Normalize
from sentence_transformers.base.modules.transformer import Transformer
from tiny_models import (
    NAMES,
    bart,
    bert,
    changed_json,
    changed_weights,
    cross_encoder,
    gpt2,
    llm,
    masked_language_model,
    narrower,
    prefixed,
    static,
    tower,
    without,
    without_tokenizer,
    write_tokenizer,
)  # fmt: skip
from transformers import AutoModel

from slimtower.common.errors import UserError
from steps.distill.initialisation import pretrained
from steps.distill.losses.attention import other_network
from steps.encoders.batch_check import check_tower_batches
from steps.encoders.model_loading import _say
from steps.encoders.towers import encode, load_tower
from steps.generate.denoiser import load_denoiser
from steps.generate.params import GenerateParams
from steps.generate.writer import load_writer
from steps.retrieval.late_interaction import load_late_interaction
from steps.retrieval.rankers import load_ranker
from steps.teach.late_interaction import is_late_interaction
from steps.teach.llm_tower import llm_tower

TEXTS = ["alpha beta", "sum rows", "plot the table"]
Load = Callable[[Path], Any]


def generate(folder: Path, knob: str) -> GenerateParams:
    return PARAMS.model_copy(update={knob: str(folder)})


def late(folder: Path) -> Path:
    modules: list[Any] = [Transformer(str(bert(folder / "network"))), Normalize(module_input_name="token_embeddings")]
    MultiVectorEncoder(modules=modules, device="cpu").save_pretrained(str(folder / "late"), create_model_card=False)
    return folder / "late"


def base_of_student(folder: Path) -> Any:
    return pretrained(str(folder), load_tower(tower(folder.parent / "teacher", bert(folder.parent / "network"))))


KINDS: dict[str, tuple[Callable[[Path], Path], Load, str]] = {  # its folder, what loads it, the prefix of its body
    "dual encoder": (bert, load_tower, ""),
    "cross encoder": (cross_encoder, load_ranker, "bert."),
    "late interaction": (late, load_late_interaction, ""),
    "llm": (llm, lambda folder: llm_tower(str(folder), 8, 0), "model."),
    "denoiser": (bart, lambda folder: load_denoiser(generate(folder, "model")), "model."),
    "causal writer": (llm, lambda folder: load_writer(generate(folder, "document_model")), "model."),
    "writer": (bart, lambda folder: load_writer(generate(folder, "document_model")), "model."),
    "base of a student": (bert, base_of_student, ""),
    "attention's teacher": (bert, lambda folder: other_network(folder, Any), ""),
}
pytestmark = pytest.mark.medium

PARTS = {  # an embedding and a matrix of its weights
    "dual encoder": ("word_embeddings", "encoder.layer.0.intermediate.dense.weight"),
    "cross encoder": ("word_embeddings", "encoder.layer.0.intermediate.dense.weight"),
    "llm": ("embed_tokens", "mlp.up_proj.weight"),
    "writer": ("shared", "encoder.layers.0.fc1.weight"),
}


def assert_refused(load: Load, folder: Path, *parts: str) -> None:
    """With an error of one line, which has these parts."""
    with pytest.raises(UserError) as caught:
        load(folder)
    message = str(caught.value)
    assert "\n" not in message and all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        *((kind, "prefix") for kind in KINDS),
        *((kind, "embedding") for kind in PARTS),
        *((kind, "shape") for kind in PARTS),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    tmp_path: Path, kind: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write, load, _ = KINDS[kind]
    folder = write(tmp_path / "model")
    embedding, matrix = PARTS.get(kind, ("", ""))
    change = {"prefix": prefixed("module."), "embedding": without(embedding), "shape": narrower(matrix)}[fault]
    changed_weights(folder, change)
    capsys.readouterr()
    expected = {
        "prefix": ["are missing", "begin with 'module.'"],
        "embedding": ["are missing", "embed"],
        "shape": [matrix, "has the shape", "by config.json"],
    }
    assert_refused(load, folder, folder.name, *expected[fault])
    assert "LOAD REPORT" not in capsys.readouterr().err


@pytest.mark.parametrize("prefix", ["_orig_mod.", "0.auto_model.", "question_encoder.bert_model."])
def test_each_wrapper_is_named(tmp_path: Path, prefix: str) -> None:
    folder = changed_weights(bert(tmp_path / "model"), prefixed(prefix))
    assert_refused(load_tower, folder, "of 39 weights are missing", repr(prefix))


@pytest.mark.parametrize("layers", [1, 3])
def test_a_network_of_other_depth_than_its_weights_is_refused(tmp_path: Path, layers: int) -> None:
    changed_json(bert(tmp_path / "model") / "config.json", num_hidden_layers=layers)
    defect = "missing" if layers == 3 else "have no place"
    assert_refused(load_tower, tmp_path / "model", defect, f"encoder.layer.{min(layers, 2)}.")


@pytest.mark.parametrize(
    ("write", "change"),
    [
        (bert, without("pooler")),
        (masked_language_model, dict),
        (cross_encoder, dict),
        (bert, lambda weights: weights | {"embeddings.position_ids": torch.arange(128)[None]}),
        (masked_language_model, lambda weights: weights | {"qa_outputs.weight": torch.zeros(2, 16)}),
    ],
)
def test_poolers_heads_and_buffers_may_differ(
    tmp_path: Path, write: Callable[[Path], Path], change: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = changed_weights(write(tmp_path / "model"), change)
    capsys.readouterr()
    ours = load_tower(folder)
    assert np.isfinite(encode(ours, TEXTS, "query")).all()
    assert "REPORT" not in capsys.readouterr().err
    weights = load_file(folder / "model.safetensors")
    name = "embeddings.word_embeddings.weight"
    expected = weights.get(name, weights.get(f"bert.{name}"))
    assert expected is not None and torch.equal(ours[0].auto_model.get_input_embeddings().weight, expected)


def test_an_adapter_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    base = bert(tmp_path / "base")
    torch.manual_seed(1)
    adapted = get_peft_model(
        AutoModel.from_pretrained(base, trust_remote_code=False),
        LoraConfig(r=2, target_modules=["query"], init_lora_weights=False),
    )
    adapted.save_pretrained(tmp_path / "adapter")
    write_tokenizer(tmp_path / "adapter")
    assert load_tower(tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    file.rename(tmp_path / "adapter" / "model.safetensors")
    changed_weights(tmp_path / "adapter", prefixed("module."))
    (tmp_path / "adapter" / "model.safetensors").rename(file)
    assert_refused(load_tower, tmp_path / "adapter", "lora_A")


@pytest.mark.parametrize("kind", ["dense prefixed", "dense shape", "static prefixed"])
def test_modules_with_weights_of_their_own(tmp_path: Path, kind: str) -> None:
    if kind == "static prefixed":
        folder = changed_weights(static(tmp_path / "model"), prefixed("module."))
    else:
        change = prefixed("module.") if "prefixed" in kind else narrower("linear.weight")
        folder = changed_weights(tower(tmp_path / "model", bert(tmp_path / "bert"), dense=8), change, "2_Dense")
    assert_refused(load_tower, folder, "cannot be loaded", "2_Dense" if "dense" in kind else "embedding")


@pytest.mark.parametrize("kind", ["missing folder", "no dimension", "another dimension", "dense of another"])
def test_configs_of_modules_that_lack_or_contradict(tmp_path: Path, kind: str) -> None:
    folder = tower(tmp_path / "model", bert(tmp_path / "bert"), dense=8)
    config = folder / "1_Pooling" / "config.json"
    expected = ["1_Pooling/config.json"]
    if kind == "missing folder":
        shutil.rmtree(config.parent)
    elif kind == "no dimension":
        changed_json(config, embedding_dimension=None, word_embedding_dimension=None)
    elif kind == "another dimension":
        name = next(name for name in json.loads(config.read_text()) if name.endswith("embedding_dimension"))
        changed_json(config, **{name: 24})
        expected += ["24", "16"]
    else:
        changed_json(folder / "2_Dense" / "config.json", in_features=24)
        expected = ["2_Dense", "24", "16"]
    assert_refused(load_tower, folder, *expected)


def empty(folder: Path) -> Path:
    """A tokenizer of special tokens alone."""
    write_tokenizer(folder)
    path = folder / "tokenizer.json"
    state = json.loads(path.read_text())
    state["model"]["vocab"] = {name: row for name, row in state["model"]["vocab"].items() if name.startswith("[")}
    path.write_text(json.dumps(state))
    return folder


@pytest.mark.parametrize(
    ("kind", "fault"),
    [("dual encoder", empty), *((kind, without_tokenizer) for kind in KINDS if kind != "attention's teacher")],
)
def test_a_model_without_a_vocabulary_is_refused(tmp_path: Path, kind: str, fault: Callable[[Path], Path]) -> None:
    write, load, _ = KINDS[kind]
    assert_refused(load, fault(write(tmp_path / "model")))


def test_words_that_are_read_as_one_token_are_no_vocabulary(tmp_path: Path) -> None:
    path = bert(tmp_path / "model") / "tokenizer.json"
    state = json.loads(path.read_text())
    state["normalizer"] = {"type": "Replace", "pattern": {"Regex": ".+"}, "content": "alpha"}
    path.write_text(json.dumps(state))
    with pytest.raises(UserError, match="no vocabulary"):
        load_tower(tmp_path / "model")


@pytest.mark.parametrize("kind", ["dual encoder", "cross encoder", "late interaction", "base of a student"])
def test_more_ids_than_rows_are_said_with_both_numbers(tmp_path: Path, kind: str) -> None:
    write, load, prefix = KINDS[kind]
    folder, rows = write(tmp_path / "model"), len(NAMES) - 4
    changed_json(folder / "config.json", vocab_size=rows)
    name = f"{prefix}embeddings.word_embeddings.weight"
    changed_weights(folder, lambda weights: weights | {name: weights[name][:rows].clone()})
    assert_refused(load, folder, f"ids up to {len(NAMES) - 1}", f"{rows} rows")


@pytest.mark.parametrize("write", [bert, gpt2])
def test_a_tokenizer_without_a_pad_token_takes_that_of_the_end(
    tmp_path: Path, write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _say.cache_clear()
    ours = load_tower(write(tmp_path / "model", pad_token=None))
    assert capsys.readouterr().err.count("'[SEP]'") == 1
    together = encode(ours, TEXTS, "document")
    alone = np.concatenate([encode(ours, [text], "document") for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    with pytest.raises(UserError, match="set pad_token"):
        load_tower(write(tmp_path / "other", pad_token=None, eos_token=None, sep_token=None))


@pytest.mark.parametrize("write", [bert, gpt2])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pooling", ["mean", "lasttoken"])
def test_vectors_that_depend_on_their_batch_are_refused(
    tmp_path: Path, write: Callable[[Path], Path], side: str, pooling: str
) -> None:
    network = write(tmp_path / "network")
    changed_json(network / "tokenizer_config.json", padding_side=side)
    ours = load_tower(tower(tmp_path / "tower", network, pooling))
    with nullcontext() if side == "right" else pytest.raises(UserError, match="padding_side: right"):
        check_tower_batches(ours, "teacher")


def test_left_padding_is_fine_where_positions_are_relative(tmp_path: Path) -> None:
    network = llm(tmp_path / "network")
    changed_json(network / "tokenizer_config.json", padding_side="left")
    check_tower_batches(load_tower(tower(tmp_path / "tower", network, "lasttoken")), "teacher")


def test_pointers_onnx_alone_and_a_lost_list_of_modules(tmp_path: Path) -> None:
    intact = tower(tmp_path / "whole", bert(tmp_path / "bert"))
    for name, message in (
        ("model.safetensors", "git lfs pull"), ("tokenizer.json", "git lfs pull"), ("modules.json", "modules.json"),
        ("model.safetensors", "ONNX alone"),
    ):  # fmt: skip
        folder = tmp_path / f"{name} {message}"
        shutil.copytree(intact, folder)
        (folder / name).unlink()
        if "lfs" in message:
            (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
        if "ONNX" in message:
            (folder / "onnx").mkdir()
            (folder / "onnx" / "model.onnx").write_bytes(b"x")
        assert_refused(load_tower, folder, message)


def test_a_late_interaction_model_without_its_modules_is_refused(tmp_path: Path) -> None:
    folder = late(tmp_path)
    (folder / "modules.json").unlink()
    assert is_late_interaction(str(folder))
    with pytest.raises(UserError, match=r"modules\.json"):
        load_late_interaction(folder)

"""A base whose tokenizer is written in Python alone is refused at once, for teachers of every kind and for students."""

from collections.abc import Callable
from pathlib import Path

import pytest
from endpoint_fakes import endpoint_params
from late_fakes import LATE
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from teach_fakes import PARAMS, write_world
from transformers import CTRLConfig, CTRLModel, CTRLTokenizer, EsmConfig, EsmModel, EsmTokenizer

from slimtower.common.errors import UserError
from steps.distill.initialisation import pretrained
from steps.encoders.towers import load_tower
from steps.teach.kinds.base import Teacher
from steps.teach.llm_tower import llm_tower
from steps.teach.run import run as teach
from steps.tracking.runs import NullRun


def write_tokenizer(folder: Path) -> None:
    """ESM's, which has no fast one."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["<cls>", "<pad>", "<eos>", "<unk>", "<mask>", "sum", "rows", "how", "to"]
    (folder / "words.txt").write_text("\n".join(words))
    EsmTokenizer(str(folder / "words.txt")).save_pretrained(folder)


def write_encoder(folder: Path) -> Path:
    write_tokenizer(folder / "esm")
    config = EsmConfig(
        vocab_size=9, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=64, pad_token_id=1, mask_token_id=4,
    )  # fmt: skip
    EsmModel(config).save_pretrained(folder / "esm")
    modules = [Transformer(str(folder / "esm")), Pooling(16), Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder / "tower"), create_model_card=False)
    return folder / "tower"


def dual(folder: Path, epochs: float) -> Teacher:
    return PARAMS.model_copy(update={"base": str(write_encoder(folder)), "epochs": epochs})


def late(folder: Path, epochs: float) -> Teacher:
    return LATE.model_copy(update={"base": str(write_encoder(folder)), "epochs": epochs})


def endpoint(folder: Path, _: float) -> Teacher:
    write_tokenizer(folder)
    return endpoint_params("http://127.0.0.1:9", tokenizer=str(folder))


@pytest.mark.parametrize("epochs", [0.0, 1.0])
@pytest.mark.parametrize("kind", [dual, late, endpoint])
def test_a_tokenizer_in_python_alone_is_refused(
    tmp_path: Path, kind: Callable[[Path, float], Teacher], epochs: float
) -> None:
    ingest, mine = write_world(tmp_path)
    with pytest.raises(UserError, match=r"^teach\.teacher: .* has no fast tokenizer.*tokenizer\.json"):
        teach(ingest, mine, tmp_path / "teach", kind(tmp_path / "model", epochs), NullRun())
    assert not (tmp_path / "teach").exists()


def test_so_is_that_of_a_language_model(tmp_path: Path) -> None:
    (tmp_path / "words.json").write_text('{"a": 0, "b": 1, "<unk>": 2}')
    (tmp_path / "merges.txt").write_text("#version\n")
    CTRLTokenizer(str(tmp_path / "words.json"), str(tmp_path / "merges.txt")).save_pretrained(tmp_path)
    CTRLModel(CTRLConfig(vocab_size=8, n_positions=64, n_embd=16, dff=16, n_layer=1, n_head=2)).save_pretrained(
        tmp_path
    )
    with pytest.raises(UserError, match=r"^teach\.teacher: base .* has no fast tokenizer"):
        llm_tower(str(tmp_path), 8, seed=1)


def test_so_is_that_of_a_students_base(tmp_path: Path, tiny_tower: Path) -> None:
    with pytest.raises(UserError, match=r"^distill\.student: base .* has no fast tokenizer"):
        pretrained(str(write_encoder(tmp_path)), load_tower(tiny_tower))

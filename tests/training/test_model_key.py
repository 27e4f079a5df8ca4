"""A training is continued with the model that it began with, and with no other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers

from steps.encoders.towers import load_tower
from steps.training.checkpoint_files import model_key
from steps.training.library_trainer import set_dropout

pytestmark = pytest.mark.medium


def _add(weight: Any) -> None:
    weight.data[7, 3] += 1


CHANGES: dict[str, Callable[[Any], object]] = {
    "pooling": lambda tower: setattr(tower[1], "pooling_mode", "cls"),
    "similarity": lambda tower: setattr(tower, "similarity_fn_name", "dot"),
    "prompt": lambda tower: tower.prompts.update(document="passage: "),
    "normalisation": lambda tower: tower.pop(2),
    "activation": lambda tower: setattr(tower[0].auto_model.config, "hidden_act", "relu"),
    "letters": lambda tower: setattr(tower.tokenizer.backend_tokenizer, "normalizer", None),
    "word": lambda tower: tower.tokenizer.add_tokens(["slimtower"]),
    "weight": lambda tower: _add(tower[0].auto_model.embeddings.word_embeddings.weight),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_model_has_another_key(tiny_tower: Path, change: Callable[[Any], object]) -> None:
    tower = load_tower(tiny_tower)
    before = model_key(tower)
    change(tower)
    assert model_key(tower) != before


@pytest.mark.usefixtures("dropout")
def test_a_model_keeps_its_key_wherever_it_lies_and_whatever_it_has_read(tiny_tower: Path, tmp_path: Path) -> None:
    tower = load_tower(tiny_tower)
    before = model_key(tower)
    tower.encode(["a few words", "one"])  # cuts and pads from now on
    set_dropout(tower)
    assert model_key(tower) == before
    tower.save_pretrained(str(tmp_path / "copy"), create_model_card=False)
    assert model_key(load_tower(tmp_path / "copy")) == before


def test_static_vectors_have_a_key_of_their_words() -> None:
    keys = set()
    for words in ("ab", "ba"):
        tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="a"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        module = StaticEmbedding(tokenizer, embedding_weights=np.eye(2, dtype=np.float32))
        keys.add(model_key(SentenceTransformer(modules=[module], device="cpu")))
    assert len(keys) == 2

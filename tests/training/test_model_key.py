"""A training is continued with the model that it began with, and with no other."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers

from steps.encoders.towers import load_tower
from steps.training.checkpoint_files import model_key
from steps.training.library_trainer import set_dropout

pytestmark = pytest.mark.medium


def _pooling(tower: SentenceTransformer) -> None:
    tower[1].pooling_mode = "cls"


def _similarity(tower: SentenceTransformer) -> None:
    tower.similarity_fn_name = "dot"


def _prompt(tower: SentenceTransformer) -> None:
    tower.prompts["document"] = "passage: "


def _normalisation(tower: SentenceTransformer) -> None:
    del tower[2]


def _activation(tower: SentenceTransformer) -> None:
    tower[0].auto_model.config.hidden_act = "relu"


def _letters(tower: SentenceTransformer) -> None:
    tower.tokenizer.backend_tokenizer.normalizer = None


def _word(tower: SentenceTransformer) -> None:
    tower.tokenizer.add_tokens(["slimtower"])


def _weight(tower: SentenceTransformer) -> None:
    tower[0].auto_model.embeddings.word_embeddings.weight.data[7, 3] += 1


@pytest.mark.parametrize(
    "change", [_pooling, _similarity, _prompt, _normalisation, _activation, _letters, _word, _weight]
)
def test_another_model_has_another_key(tiny_tower: Path, change: Callable[[SentenceTransformer], None]) -> None:
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

"""Towers made from another."""

from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from slimtower.common.files import write_json
from steps.encoders.towers import load_tower


def other_weights(source: Path, target: Path, seed: int) -> None:
    """The same network with other random weights, and its embeddings of any length."""
    tower = load_tower(source)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in tower.parameters():
            weight.add_(0.3 * weight.std() * torch.randn(weight.shape, generator=generator).to(weight))
    bare = SentenceTransformer(modules=[tower[0], tower[1]], device="cpu", similarity_fn_name="dot")
    bare.save_pretrained(str(target), create_model_card=False)


def write_other_teacher(source: Path, folder: Path, seed: int) -> Path:
    """What `teach` leaves of a dual encoder with other weights; returns the folder."""
    other_weights(source, folder / "tower", seed)
    write_json(folder / "report.json", {"kind": "dual_encoder"})
    return folder


def write_static(folder: Path, words: list[str]) -> Path:
    """A table of random vectors of these words, of any length, compared by cosine."""
    tokenizer = Tokenizer(WordLevel({word: row for row, word in enumerate([*words, "[UNK]"])}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    weights = torch.randn(len(words) + 1, 8, generator=torch.Generator().manual_seed(3)).exp()
    tower = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=weights)], device="cpu")
    tower.save_pretrained(str(folder), create_model_card=False)
    return folder


def write_wide(source: Path, folder: Path, width: int = 384) -> Path:
    """A small tower with a random projection behind it, so that its vectors are as long as a large one's."""
    tower = load_tower(source)
    torch.manual_seed(4)
    projection = Dense(tower.get_embedding_dimension() or 0, width, bias=False, activation_function=torch.nn.Identity())
    wide = SentenceTransformer(modules=[tower[0], tower[1], projection, Normalize()], device="cpu")
    wide.save_pretrained(str(folder), create_model_card=False)
    return folder

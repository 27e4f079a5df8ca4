"""What a transformer student starts from: every start embeds in the teacher's width and opens in plain libraries."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from transformers import AutoTokenizer, BertConfig, BertModel

from steps.core.errors import UserError
from steps.core.params.distill import Fresh
from steps.core.towers import load_tower
from steps.distill import starts
from steps.distill.starts import _word_pieces, fresh, layer_subset, pretrained
from steps.distill.students import TransformerStudent

TEXTS = ["how to sum the axis", "window", "a mean of a matrix over the last axis of a file", "the window of a graph"]
SUBSETS = [  # query-encoder alignment, Sec. 3.2: of twelve layers, the last ones by negative numbers too
    ([1, 4, 7, 10], [1, 4, -5, -2]),
    ([0, 1, 10, 11], [0, 1, -2, -1]),
    ([0, 1, 2, 3], [0, 1, 2, 3]),
    ([4, 5, 6, 7], [4, 5, -6, -5]),
    ([8, 9, 10, 11], [-4, -3, -2, -1]),
    ([0, 10], [0, -2]),
    ([0, 11], [0, -1]),
    ([1, 10], [1, -2]),
    ([1, 11], [1, -1]),
    ([0], [-12]),
    ([1], [-11]),
    ([10], [-2]),
    ([11], [-1]),
]


def write_bert(folder: Path, tokenizer: Path, width: int, layers: int, *, rows: int = 30522) -> Path:
    """A random BERT with mean pooling and without normalisation."""
    config = BertConfig(
        vocab_size=rows, hidden_size=width, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=2 * width
    )
    torch.manual_seed(3)
    BertModel(config).save_pretrained(folder / "bert")
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder / "bert")
    modules = [Transformer(str(folder / "bert"), max_seq_length=32), Pooling(width, "mean")]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder / "tower"), create_model_card=False)
    return folder / "tower"


@pytest.fixture(scope="module")
def deep(tiny_tower: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("deep"), tiny_tower, 8, 12)


def reopened(tower: SentenceTransformer, folder: Path) -> SentenceTransformer:
    """The tower as plain sentence-transformers reads it, after the check that both embed alike."""
    tower.save_pretrained(str(folder / "saved"), create_model_card=False)
    plain = SentenceTransformer(str(folder / "saved"), device="cpu")
    student = TransformerStudent(tower)
    with torch.inference_mode():
        tower.eval()
        embedded = student.embed(student.read(TEXTS, 32), np.arange(len(TEXTS))).numpy()
    np.testing.assert_allclose(plain.encode(TEXTS), embedded, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(embedded, axis=1), 1, atol=1e-5)
    assert embedded.shape == (len(TEXTS), 32)
    return plain


@pytest.mark.parametrize(("layers", "negative"), SUBSETS)
def test_the_papers_subsets_hold_the_layers_they_name(deep: Path, layers: list[int], negative: list[int]) -> None:
    teacher = load_tower(deep)[0].auto_model
    model = layer_subset(deep, negative)[0].auto_model
    assert model.config.num_hidden_layers == len(model.encoder.layer) == len(layers)
    for block, number in zip(model.encoder.layer, layers, strict=True):
        pairs = zip(block.parameters(), teacher.encoder.layer[number].parameters(), strict=True)
        assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    embeddings = zip(model.embeddings.parameters(), teacher.embeddings.parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in embeddings)


def test_a_subset_embeds_as_its_teacher_ends(tiny_tower: Path, tmp_path: Path) -> None:
    plain = reopened(layer_subset(tiny_tower, [0, -1]), tmp_path)
    assert [type(module) for module in plain] == [Transformer, Pooling, Normalize]


def test_a_base_of_another_width_is_projected(tiny_tower: Path, tmp_path: Path) -> None:
    base = write_bert(tmp_path / "base", tiny_tower, 16, 2)
    plain = reopened(pretrained(str(base), load_tower(tiny_tower)), tmp_path)
    assert [type(module) for module in plain] == [Transformer, Pooling, Dense, Normalize]
    assert isinstance(plain[2].activation_function, torch.nn.Identity)
    assert plain[2].linear.weight.shape == (32, 16)
    untouched = load_tower(base)[0].auto_model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(plain[0].auto_model.parameters(), untouched, strict=True))


def test_a_base_of_the_teachers_width_is_not_projected(tiny_tower: Path, deep: Path, tmp_path: Path) -> None:
    plain = reopened(pretrained(str(tiny_tower), load_tower(tiny_tower)), tmp_path)
    assert [type(module) for module in plain] == [Transformer, Pooling, Normalize]
    raw = load_tower(deep)  # its embeddings are compared as they are, so its student's are not normalised either
    student = pretrained(str(write_bert(tmp_path / "base", tiny_tower, 16, 1)), raw)
    assert [type(module) for module in student] == [Transformer, Pooling, Dense]


def test_a_base_that_is_no_transformer_is_refused(tiny_tower: Path, tmp_path: Path) -> None:
    from steps.distill.token_tables import table_tower

    teacher = load_tower(tiny_tower)
    table = table_tower(teacher, teacher.tokenizer, np.ones((30522, 32), dtype=np.float32))
    table.save_pretrained(str(tmp_path / "table"), create_model_card=False)
    with pytest.raises(UserError, match=r"base .*table: its first module is no transformer; use method: static"):
        pretrained(str(tmp_path / "table"), teacher)


def test_a_fresh_student_reads_its_own_vocabulary(tiny_tower: Path, tmp_path: Path) -> None:
    params = Fresh(layers=1, width=16, heads=2, vocabulary=60)
    plain = reopened(fresh(params, load_tower(tiny_tower), TEXTS * 3, 32), tmp_path)
    model, tokenizer = plain[0].auto_model, plain.tokenizer
    assert model.config.num_hidden_layers == 1 and model.config.hidden_size == 16
    assert len(tokenizer) == model.config.vocab_size <= 60
    assert tokenizer.tokenize("The WINDOW") == ["the", "window"]
    assert tokenizer.convert_ids_to_tokens(tokenizer("window")["input_ids"]) == ["[CLS]", "window", "[SEP]"]
    assert tokenizer("☂")["input_ids"][1] == tokenizer.unk_token_id


def test_a_fresh_student_starts_from_the_teachers_rows(tiny_tower: Path, tmp_path: Path) -> None:
    teacher = load_tower(tiny_tower)
    plain = reopened(fresh(Fresh(layers=2, width=16, heads=2, vocabulary=0), teacher, [], 32), tmp_path)
    assert plain.tokenizer.get_vocab() == teacher.tokenizer.get_vocab()
    rows = plain[0].auto_model.get_input_embeddings().weight.detach().numpy().astype(np.float64)
    source = teacher[0].auto_model.get_input_embeddings().weight.detach().numpy().astype(np.float64)
    centred = source - source.mean(axis=0)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    best = (left * values)[:, :16] @ (left * values)[:, :16].T[:, :200]  # inner products that 16 dimensions can keep
    found = rows @ rows[:200].T
    scale = (found * best).sum() / (best * best).sum()
    np.testing.assert_allclose(found, scale * best, atol=1e-4 * np.abs(found).max())


def test_rows_wider_or_more_than_the_teachers_fit(tiny_tower: Path, tmp_path: Path) -> None:
    padded = load_tower(write_bert(tmp_path / "padded", tiny_tower, 8, 1, rows=30528))
    student = fresh(Fresh(layers=1, width=16, heads=2, vocabulary=0), padded, [], 32)
    rows = student[0].auto_model.get_input_embeddings().weight
    assert rows.shape == (30522, 16)
    assert bool(torch.isfinite(rows).all())


def test_a_new_vocabulary_follows_from_its_texts_alone() -> None:
    texts = [first + second for first in TEXTS for second in "zyxwvut"]
    learned = [_word_pieces(texts, 80).get_vocab() for _ in range(5)]
    assert all(vocabulary == learned[0] for vocabulary in learned)
    assert len(learned[0]) == 80


def test_the_letters_of_a_new_vocabulary_are_the_most_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "_LETTERS", 3)
    vocabulary = _word_pieces(["abab cab", "ab ca dz"], 200).get_vocab()
    assert {piece.removeprefix("##")[:1] for piece in vocabulary if not piece.startswith("[")} == set("abc")

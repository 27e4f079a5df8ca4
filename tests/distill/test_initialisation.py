"""What a transformer student starts from: every start has the teacher's dimensions and opens in plain libraries."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Module
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from stages import distill_params
from towers import write_static
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertModel,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedModel,
    Qwen3Config,
    Qwen3Model,
)

from slimtower.common.errors import UserError
from steps.distill import initialisation
from steps.distill.initialisation import _word_pieces, fit_projection, fresh, layer_subset, pretrained
from steps.distill.sources import Sources
from steps.distill.starts import FreshEncoder
from steps.distill.students import TransformerStudent, untrained
from steps.encoders.precision import device
from steps.encoders.towers import encode, load_tower

pytestmark = pytest.mark.medium

TEXTS = ["how to sum the axis", "window", "a mean of a matrix over the last axis of a file", "the window of a graph"]
SUBSETS = [  # query-encoder alignment, Sec. 3.2: of twelve layers, the last ones by negative numbers too
    ([1, 4, 7, 10], [1, 4, -5, -2]),
    ([8, 9, 10, 11], [-4, -3, -2, -1]),
    ([0, 11], [0, -1]),
    ([0], [-12]),
]


def write_tower(folder: Path, model: PreTrainedModel, tokenizer: Path, *more: Module) -> Path:
    """A tower of the model and these modules; its linear layers are random."""
    model.save_pretrained(folder / "network")
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder / "network")
    modules = [
        Transformer(str(folder / "network"), max_seq_length=32),
        Pooling(model.config.hidden_size, "mean"),
        *more,
    ]
    SentenceTransformer(modules=modules, device="cpu").save_pretrained(str(folder / "tower"), create_model_card=False)
    return folder / "tower"


def write_bert(folder: Path, tokenizer: Path, width: int, layers: int, *, rows: int = 30522) -> Path:
    """A random BERT with mean pooling and without normalisation."""
    config = BertConfig(
        vocab_size=rows, hidden_size=width, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=2 * width
    )
    torch.manual_seed(3)
    return write_tower(folder, BertModel(config), tokenizer)


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
        raw = student.embed(student.tokenize(TEXTS, 32), np.arange(len(TEXTS)))
        embedded = student.normalised(raw).numpy()
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


def test_a_base_of_another_dim_is_projected(tiny_tower: Path, tmp_path: Path) -> None:
    base = write_bert(tmp_path / "base", tiny_tower, 16, 2)
    plain = reopened(pretrained(str(base), load_tower(tiny_tower)), tmp_path)
    assert [type(module) for module in plain] == [Transformer, Pooling, Dense, Normalize]
    assert isinstance(plain[2].activation_function, torch.nn.Identity)
    assert plain[2].linear.weight.shape == (32, 16)
    untouched = load_tower(base)[0].auto_model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(plain[0].auto_model.parameters(), untouched, strict=True))


def test_the_map_of_a_narrower_base_starts_where_its_vectors_are_nearest_to_the_teachers(
    tiny_tower: Path, tmp_path: Path
) -> None:
    base, teacher = write_bert(tmp_path / "base", tiny_tower, 16, 1), load_tower(tiny_tower)
    texts = [f"{word} of {number} windows" for number in range(12) for word in ("sum", "mean", "axis")]
    vectors = np.random.default_rng(4).standard_normal((len(texts), 32), dtype=np.float32)
    sources: Any = SimpleNamespace(strings=texts, vectors=vectors)
    params: Any = SimpleNamespace(seed=1, precision="fp32")
    student = pretrained(str(base), teacher)
    training = np.arange(12, 36)  # the first twelve train nobody, and so they fit nothing
    fit_projection(student, sources, training, params)
    texts, vectors = texts[12:], vectors[12:]
    base_vectors = np.column_stack([encode(load_tower(base), texts, "query"), np.ones(len(texts))]).astype(np.float64)
    damped = np.vstack([base_vectors, np.sqrt(1e-3 * (base_vectors**2).sum() / 17) * np.eye(17)])
    expected = base_vectors @ np.linalg.lstsq(damped, np.vstack([vectors, np.zeros((17, 32))]))[0]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(encode(student, texts, "query"), expected, atol=1e-3)
    alike = pretrained(str(tiny_tower), teacher)
    fit_projection(alike, sources, training, params)  # has no map
    np.testing.assert_array_equal(encode(alike, texts[:2], "query"), encode(teacher, texts[:2], "query"))


@pytest.mark.parametrize("bias", [True, False])
def test_a_map_that_a_base_came_with_is_its_own(tiny_tower: Path, tmp_path: Path, bias: bool) -> None:
    bare = load_tower(write_bert(tmp_path / "bare", tiny_tower, 16, 1))
    head = Dense(16, 32, bias=bias, activation_function=torch.nn.Tanh())
    base = SentenceTransformer(modules=[bare[0], bare[1], head], device="cpu")
    base.save_pretrained(str(tmp_path / "base"))
    student = pretrained(str(tmp_path / "base"), load_tower(tiny_tower))
    sources: Any = SimpleNamespace(strings=TEXTS, vectors=np.ones((len(TEXTS), 32), dtype=np.float32))
    params: Any = SimpleNamespace(seed=1, precision="fp32")
    fit_projection(student, sources, np.arange(len(TEXTS)), params)
    ours = encode(base, TEXTS, "query")
    ours /= np.linalg.norm(ours, axis=1, keepdims=True)
    np.testing.assert_allclose(encode(student, TEXTS, "query"), ours, atol=1e-5)


def test_a_base_of_the_teachers_dim_is_not_projected(tiny_tower: Path, deep: Path, tmp_path: Path) -> None:
    plain = reopened(pretrained(str(tiny_tower), load_tower(tiny_tower)), tmp_path)
    assert [type(module) for module in plain] == [Transformer, Pooling, Normalize]
    raw = load_tower(deep)  # its embeddings are compared as they are, so its student's are not normalised either
    student = pretrained(str(write_bert(tmp_path / "base", tiny_tower, 16, 1)), raw)
    assert [type(module) for module in student] == [Transformer, Pooling, Dense]


def test_a_base_that_is_no_transformer_is_refused(tiny_tower: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"table: .* no transformer"):
        pretrained(str(write_static(tmp_path / "table", ["sum"])), load_tower(tiny_tower))


def test_a_fresh_student_reads_its_own_vocabulary(tiny_tower: Path, tmp_path: Path) -> None:
    params = FreshEncoder(layers=1, dim=16, heads=2, vocabulary=60)
    plain = reopened(fresh(params, load_tower(tiny_tower), TEXTS * 3, 32), tmp_path)
    model, tokenizer = plain[0].auto_model, plain.tokenizer
    assert model.config.num_hidden_layers == 1 and model.config.hidden_size == 16
    assert len(tokenizer) == model.config.vocab_size <= 60
    assert tokenizer.tokenize("The WINDOW") == ["the", "window"]
    assert tokenizer.convert_ids_to_tokens(tokenizer("window")["input_ids"]) == ["[CLS]", "window", "[SEP]"]
    assert tokenizer("☂")["input_ids"][1] == tokenizer.unk_token_id


def test_a_fresh_student_starts_from_the_teachers_rows(tiny_tower: Path, tmp_path: Path) -> None:
    teacher = load_tower(tiny_tower)
    plain = reopened(fresh(FreshEncoder(layers=2, dim=16, heads=2, vocabulary=0), teacher, [], 32), tmp_path)
    assert plain.tokenizer.get_vocab() == teacher.tokenizer.get_vocab()
    rows = plain[0].auto_model.get_input_embeddings().weight.detach().numpy().astype(np.float64)
    source = teacher[0].auto_model.get_input_embeddings().weight.detach().numpy().astype(np.float64)
    centred = source - source.mean(axis=0)
    basis, values, _ = np.linalg.svd(centred, full_matrices=False)
    reduced = (basis * values)[:, :16]
    best = reduced @ reduced[:200].T  # inner products that 16 dimensions can keep
    products = rows @ rows[:200].T
    scale = (products * best).sum() / (best * best).sum()
    np.testing.assert_allclose(products, scale * best, atol=1e-4 * np.abs(products).max())


def test_rows_wider_or_more_than_the_teachers_fit(tiny_tower: Path, tmp_path: Path) -> None:
    padded = load_tower(write_bert(tmp_path / "padded", tiny_tower, 8, 1, rows=30528))
    student = fresh(FreshEncoder(layers=1, dim=16, heads=2, vocabulary=0), padded, [], 32)
    rows = student[0].auto_model.get_input_embeddings().weight
    assert rows.shape == (30522, 16) and bool(torch.isfinite(rows).all())


def test_a_new_vocabulary_follows_from_its_texts_and_has_their_most_frequent_letters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [first + second for first in TEXTS for second in "zyxwvut"]
    learned, *repeats = (_word_pieces(texts, 80).get_vocab() for _ in range(5))
    assert len(learned) == 80 and all(vocabulary == learned for vocabulary in repeats)
    monkeypatch.setattr(initialisation, "_LETTERS", 3)
    vocabulary = _word_pieces(["abab cab", "ab ca dz"], 200).get_vocab()
    assert {piece.removeprefix("##")[:1] for piece in vocabulary if not piece.startswith("[")} == set("abc")


LAYERED: dict[str, Any] = {"vocab_size": 30522, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 4,
                           "num_attention_heads": 2}  # fmt: skip


def modern_bert() -> ModernBertModel:
    torch.manual_seed(5)
    model = ModernBertModel(ModernBertConfig(**LAYERED, pad_token_id=0, bos_token_id=1, eos_token_id=2))
    for norm in (module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)):
        torch.nn.init.normal_(norm.weight, 1, 0.5)
    return model


def test_layers_of_several_kinds_keep_theirs(tiny_tower: Path, tmp_path: Path) -> None:
    modern = write_tower(tmp_path / "modern", modern_bert(), tiny_tower)
    kinds = load_tower(modern)[0].auto_model.config.layer_types
    assert kinds == ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    subset = layer_subset(modern, [0, 2, -1])
    assert subset[0].auto_model.config.layer_types == ["full_attention", "sliding_attention", "full_attention"]

    config = Qwen3Config(**LAYERED, num_key_value_heads=2, head_dim=8)
    torch.manual_seed(5)
    qwen = layer_subset(write_tower(tmp_path / "qwen", Qwen3Model(config), tiny_tower), [1, -1])
    assert qwen[0].auto_model.config.layer_types == ["full_attention"] * 2


@pytest.mark.parametrize("layers", [[1, 2], [2, 0]])
def test_layers_that_would_change_when_saved_are_refused(tiny_tower: Path, tmp_path: Path, layers: list[int]) -> None:
    modern = write_tower(tmp_path, modern_bert(), tiny_tower)
    with pytest.raises(UserError, match=r"^distill\.student: layers \[.*\]: .*saved"):
        layer_subset(modern, layers)


def test_students_are_fp32_whatever_their_start_was_saved_in(tiny_tower: Path, tmp_path: Path) -> None:
    model = BertModel(BertConfig(**LAYERED)).to(torch.bfloat16)
    base = write_tower(tmp_path, model, tiny_tower, Dense(16, 8))
    for student in (pretrained(str(base), load_tower(tiny_tower)), layer_subset(base, [0, -1])):
        assert {weight.dtype for weight in student.parameters()} == {torch.float32}
        assert student.encode(TEXTS).dtype == np.float32


def test_a_fresh_student_may_read_its_first_token(tiny_tower: Path, tmp_path: Path) -> None:
    params = FreshEncoder(layers=1, dim=16, heads=2, vocabulary=60, pooling="cls")
    plain = reopened(fresh(params, load_tower(tiny_tower), TEXTS * 3, 32), tmp_path)
    ids = plain.tokenizer(TEXTS[:1], return_tensors="pt")
    with torch.inference_mode():
        first = plain[0].auto_model(**ids).last_hidden_state[:, 0]
        expected = torch.nn.functional.normalize(plain[2]({"sentence_embedding": first})["sentence_embedding"])
    np.testing.assert_allclose(plain.encode(TEXTS[:1]), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("precision", "longest", "kind"), [("bf16", 32, "eager"), ("bf16", 256, "sdpa"), ("fp32", 32, "sdpa")]
)
def test_short_texts_train_in_bf16_with_plain_attention_on_a_cpu(
    tiny_tower: Path, tmp_path: Path, precision: str, longest: int, kind: str
) -> None:
    params = distill_params(precision=precision, max_length=longest)
    student = untrained(params.student["2l"], tiny_tower, Sources(*[tmp_path] * 4), np.arange(0), params)
    config = student.tower[0].auto_model.config
    assert config._attn_implementation == (kind if device() == "cpu" else "sdpa")
    tokens, rows = student.tokenize(TEXTS, longest), np.arange(len(TEXTS))
    with torch.no_grad():
        during = student.embed(tokens, rows)
        student.finish()
        assert config._attn_implementation == "sdpa"
        torch.testing.assert_close(student.embed(tokens, rows), during, rtol=0, atol=1e-6)

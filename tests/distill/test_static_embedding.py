"""Token tables: what training sees and what is saved give the same embeddings."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from stages import STATIC, distill_params, run_distill, run_release

from slimtower.common.errors import UserError
from slimtower.serving.query_encoder import load_query_encoder
from steps.distill.params import StudentParams
from steps.distill.phases import Trainings
from steps.distill.starts import StaticEncoder
from steps.distill.static_embedding import StaticStudent, static_embedding, table_tower
from steps.distill.tokens import Tokens
from steps.encoders.towers import load_tower

pytestmark = pytest.mark.medium

TEXTS = ["how to sum the axis", "matrix of window", "Computes the mean over a file.", ""]


def static(**changes: object) -> StaticEncoder:
    """The tiny static student with some values changed."""
    return StaticEncoder.model_validate(changes)


def table(embedded: Path, normalise: bool, **changes: object) -> StaticStudent:
    """A table over the tiny data, whose rows were moved as training might."""
    params = static(**changes)
    teacher = load_tower(embedded / "models/teach/dense/tower")
    if not normalise:
        teacher = SentenceTransformer(modules=list(teacher)[:-1], device="cpu", similarity_fn_name="dot")
    texts = ["how to sum the axis", "sum the axis", "the mean over a file", "mean over a file", "matrix of window"] * 2
    student = static_embedding(teacher, embedded / "data/embed", texts, params, 32)
    generator = torch.Generator().manual_seed(0)
    for weight in student.tower.parameters():
        weight.data += 0.1 * torch.randn(weight.shape, generator=generator)
    return student


def embeddings_of(student: StaticStudent) -> np.ndarray:
    with torch.inference_mode():
        return student.normalised(student.embed(student.tokenize(TEXTS, 32), np.arange(len(TEXTS)))).numpy()


def test_learned_weights_lie_where_the_table_does(tiny_tower: Path) -> None:
    teacher = load_tower(tiny_tower)
    tower = table_tower(teacher, teacher.tokenizer, np.zeros((30522, 32), dtype=np.float32)).to("meta")  # as on a GPU
    StaticStudent(tower, Tokens(np.arange(30522), np.arange(30523)), learned_weights=True)
    assert {weight.device.type for weight in tower.parameters()} == {"meta"}


@pytest.mark.parametrize("weights", ["idf", "uniform", "learned"])
@pytest.mark.parametrize("normalise", [True, False])
def test_finishing_changes_no_embedding(embedded: Path, weights: str, normalise: bool) -> None:
    student = table(embedded, normalise, token_weights=weights, added_words=6, added_pairs=6)
    before = embeddings_of(student)
    student.finish()
    assert [name for name, _ in student.tower.named_parameters()] == ["0.embedding.weight"]
    with torch.inference_mode():
        plain = student.tower.encode(TEXTS[:3], convert_to_numpy=True)
    np.testing.assert_allclose(plain, before[:3], atol=1e-5, rtol=1e-4)


def test_a_phrase_starts_as_the_sum_of_its_pieces(embedded: Path, tiny_tower: Path) -> None:
    teacher = load_tower(tiny_tower)
    texts = ["sum the axis", "sum the axis"]
    with_phrases, without = (
        static_embedding(teacher, embedded / "data/embed", texts, static(added_words=count, added_pairs=count), 32)
        for count in (6, 0)
    )
    assert len(with_phrases.tower.tokenizer.encode("sum the axis", add_special_tokens=False).ids) == 2
    with torch.inference_mode():
        ours, theirs = (
            student.normalised(student.embed(student.tokenize(texts, 32), np.arange(2)))
            for student in (with_phrases, without)
        )
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_a_narrow_table_starts_with_what_its_rows_have_along_the_longest_directions(
    embedded: Path, tiny_tower: Path
) -> None:
    teacher, embed = load_tower(tiny_tower), embedded / "data/embed"
    with pytest.raises(UserError, match="32 dimensions"):
        static_embedding(teacher, embed, TEXTS, static(width=32), 32)
    narrow, full = (
        static_embedding(teacher, embed, TEXTS, static(token_weights="uniform", width=width), 32) for width in (6, 0)
    )
    assert narrow.token_rows().shape == (30522, 6)
    vectors = np.load(embed / "alignment.npy").astype(np.float64)
    directions = np.linalg.svd(vectors)[2][:6].T  # of all that six numbers can say of them these lose least
    with torch.inference_mode():
        shares, rows = (
            student.embed(student.tokenize(TEXTS, 32), np.arange(len(TEXTS))).numpy() for student in (narrow, full)
        )
    np.testing.assert_allclose(shares, rows @ directions @ directions.T, atol=1e-4)


def test_learned_weights_learn(embedded: Path) -> None:
    student = table(embedded, True, token_weights="learned", added_pairs=4)
    student.embed(student.tokenize(TEXTS, 32), np.arange(4)).sum().backward()
    gradients = {name: weight.grad for name, weight in student.tower.named_parameters()}
    assert all(gradient is not None and bool(gradient.any()) for gradient in gradients.values())
    assert "0.weights" in gradients


def test_a_released_table_with_phrases_reads_as_the_student_does(embedded: Path) -> None:
    params = distill_params(
        student={"static": STATIC | {"start": {"static": {"added_words": 10, "added_pairs": 10}}}}, students=["static"]
    )
    folder = run_distill(embedded, "static", params)
    student = load_tower(folder / "query_encoder")
    assert len(student.tokenizer.get_vocab()) > 30522 + 10
    release = run_release(embedded, "static")
    served = load_query_encoder(release / "serving").encode(TEXTS[:3])
    expected = student.encode(TEXTS[:3], convert_to_numpy=True)
    assert float((served * expected).sum(axis=1).min()) > 0.999


@pytest.mark.parametrize(("length", "rate"), [(1.0, 0.01), (7.0, 0.07)])
def test_the_learning_rate_follows_the_length_of_the_teachers_vectors(length: float, rate: float) -> None:
    vectors = np.full((5, 4), length / 2, dtype=np.float32)
    sources: Any = SimpleNamespace(vectors=vectors, documents=vectors)
    chosen = StudentParams.model_validate(STATIC | {"learning_rate": 0.01})
    params: Any = SimpleNamespace(precision="fp32", seed=1)
    [(_, schedule, _)] = Trainings(chosen, params, Path(), False, sources, np.arange(5), params)
    assert schedule.learning_rate == pytest.approx(rate)

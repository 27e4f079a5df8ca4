"""Students: what they are made of, that they learn, and that their folders open in plain sentence-transformers."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from stages import STATIC, TWO_LAYERS, distill_params, run_distill, run_embed, run_release

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from slimtower.serving.release import load_release
from steps.core.cosines import cosines
from steps.core.tables import read_table, table_from_rows, write_table
from steps.distill.initialisation import layer_subset
from steps.distill.static_embedding import StaticStudent, table_tower
from steps.distill.student import readable_tokens
from steps.distill.students import TransformerStudent
from steps.distill.tokens import Tokens, tokenize
from steps.encoders.towers import encode, load_tower

pytestmark = pytest.mark.medium

TEXTS = ["how to sum the axis", "window", "a mean of a matrix over the last axis of a file"]


def subset(tower: Path, layers: list[int]) -> TransformerStudent:
    return TransformerStudent(layer_subset(tower, layers))


def test_all_layers_are_the_teacher_itself(tiny_tower: Path) -> None:
    student = subset(tiny_tower, [0, 1, 2, 3])
    teacher = load_tower(tiny_tower)
    tokens = tokenize(TEXTS, teacher.tokenizer, 32, special=True)
    with torch.inference_mode():
        embedded = student.normalised(student.embed(tokens, np.arange(3))).numpy()
    np.testing.assert_allclose(embedded, encode(teacher, TEXTS, "query"), atol=1e-6)
    for layers, message in (([0, 4, -5], r"\[4, -5\] do not exist"), ([0, 3, -1], "twice")):
        with pytest.raises(UserError, match=message):
            subset(tiny_tower, layers)


def test_a_static_embedding_is_the_normalised_mean_of_its_rows(tiny_tower: Path) -> None:
    teacher = load_tower(tiny_tower)
    rows = np.random.default_rng(0).normal(size=(30522, 32)).astype(np.float32)
    tokens = tokenize(TEXTS, teacher.tokenizer, 32, special=False)
    each_itself = Tokens(np.arange(len(rows)), np.arange(len(rows) + 1))
    student = StaticStudent(table_tower(teacher, teacher.tokenizer, rows), each_itself)
    with torch.inference_mode():
        embedded = student.normalised(student.embed(tokens, np.arange(3))).numpy()
    for position in range(3):
        mean = rows[tokens.row(position)].astype(np.float64).mean(axis=0)
        np.testing.assert_allclose(embedded[position], mean / np.linalg.norm(mean), atol=1e-6)


def embed_with_prompts(root: Path, tower: Path) -> SentenceTransformer:
    teacher = load_tower(tower)
    teacher.prompts = {"query": "find: ", "document": "read: "}
    teacher.save_pretrained(str(root / "tower"), create_model_card=False)
    run_embed(root, root / "tower")
    return teacher


@pytest.mark.slow
def test_a_teachers_prompts_are_learned_not_spoken(tiny_tower: Path, tmp_path: Path) -> None:
    teacher = embed_with_prompts(tmp_path, tiny_tower)
    targets = np.load(tmp_path / "data/embed/alignment.npy").astype(np.float32)
    first = read_table(tmp_path / "data/embed", "alignment_texts")["text"].to_pylist()[:4]
    np.testing.assert_allclose(
        encode(load_tower(tiny_tower), [f"find: {t}" for t in first], "query"), targets[:4], atol=2e-3
    )
    for student in ("static", "2l"):
        output = run_distill(tmp_path, student, distill_params())
        alone = SentenceTransformer(str(output / "query_encoder"), device="cpu")
        np.testing.assert_allclose(alone.encode_query(TEXTS), alone.encode(TEXTS), atol=1e-6)
        routed = SentenceTransformer(str(output / "router"), device="cpu")
        np.testing.assert_allclose(routed.encode_query(TEXTS), alone.encode(TEXTS), atol=1e-6)
        np.testing.assert_allclose(routed.encode_document(TEXTS), teacher.encode_document(TEXTS), atol=1e-6)
        assert not list(output.rglob("*.bin")) + list(output.rglob("*.pkl"))


@pytest.mark.slow
def test_a_teacher_that_stays_as_it_is_is_a_student_with_its_prompt_and_is_released(
    tiny_tower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = embed_with_prompts(tmp_path, tiny_tower)
    still = {
        "whole": {"start": {"layers": [0, 1, 2, 3]}, "epochs": 0.0},
        "table": {"start": {"static": {}}, "epochs": 0.0},
    }
    params = distill_params(student=still, students=list(still))
    table = read_json(run_distill(tmp_path, "table", params) / "report.json")
    assert table["steps"] == 0 and 0 < table["validation_cosine"] < 0.999, "as its tokens' vectors are"
    output = run_distill(tmp_path, "whole", params)
    report = read_json(output / "report.json")
    assert (report["steps"], report["texts_seen"], report["losses"]) == (0, 0, [])
    assert report["validation_cosine"] == pytest.approx(1, abs=1e-4) and report["held_out_overlap"] > 0.98
    for name in ("query_encoder", "router"):
        student = SentenceTransformer(str(output / name), device="cpu")
        np.testing.assert_allclose(student.encode_query(TEXTS), teacher.encode_query(TEXTS), atol=1e-6)
    np.testing.assert_allclose(student.encode_document(TEXTS), teacher.encode_document(TEXTS), atol=1e-6)
    monkeypatch.setenv("SLIMTOWER_CACHE", str(tmp_path / "cache"))
    served = load_release(run_release(tmp_path, "whole")).encode(TEXTS)
    assert cosines(served, teacher.encode_query(TEXTS)).min() > 0.98, "in int8"


def test_a_students_own_seed_stands_in_place_of_the_sections(embedded: Path) -> None:
    weights, specs = [], []
    for params in (distill_params(seed=5), distill_params(student={"2l": TWO_LAYERS | {"seed": 5}}, students=["2l"])):
        folder = run_distill(embedded, "2l", params)
        weights.append((folder / "query_encoder/model.safetensors").read_bytes())
        specs.append(read_json(folder / "report.json")["spec"])
    assert weights[0] == weights[1] and specs[0] == specs[1]


@pytest.mark.parametrize(
    ("rate", "epochs", "complaint"), [(1e30, 5.0, "lower the"), (1e39, 0.01, "cosine on held-out texts is nan")]
)
def test_a_loss_or_a_student_that_is_no_number_stops_the_run(
    embedded: Path, rate: float, epochs: float, complaint: str
) -> None:
    bad = TWO_LAYERS | {"start": {"layers": [0]}, "learning_rate": rate, "epochs": epochs}
    with pytest.raises(UserError, match=complaint):
        run_distill(embedded, "2l", distill_params(student=distill_params().student | {"2l": bad}))


def test_a_student_sees_each_text_before_it_may_end_and_no_further_phase_does(embedded: Path) -> None:
    convergence = {"min_steps": 8, "max_steps": 1000, "min_gain": 0.9}
    phase = {"losses": STATIC["losses"], "epochs": "auto", "learning_rate": 0.01}
    students = {"once": STATIC | {"epochs": "auto", "batch_size": 4}}
    students["twice"] = students["once"] | {"then": [phase]}
    params = distill_params(convergence=convergence, student=students, students=list(students))
    once, two_phases = (read_json(run_distill(embedded, name, params) / "report.json") for name in students)
    texts = read_table(embedded / "data/embed", "alignment_texts").num_rows - params.validation_texts
    assert texts <= once["texts_seen"] <= 1.2 * texts, "though nothing is gained by 0.9 a look"
    assert 8 <= two_phases["steps"] - once["steps"] <= 10 < once["steps"]


def test_a_planted_evaluation_query_stops_the_run(embedded: Path, tmp_path: Path) -> None:
    texts = read_table(embedded / "data/embed", "alignment_texts").to_pylist()
    test_query = next(q for q in read_table(embedded / "data/ingest", "queries").to_pylist() if q["split"] == "test")
    planted = [texts[0] | {"text": f"  {test_query['text'].upper()}?"}, *texts[1:]]
    write_table(embedded / "data/embed", "alignment_texts", table_from_rows("alignment_texts", planted))
    try:
        with pytest.raises(
            UserError, match=r"leak: 1 of \d+ training texts .*alignment_texts\.parquet: .*dvc repro embed"
        ):
            run_distill(embedded, "static", distill_params())
    finally:
        write_table(embedded / "data/embed", "alignment_texts", table_from_rows("alignment_texts", texts))


def test_embeddings_of_another_teacher_are_refused(embedded: Path) -> None:
    config = embedded / "models/teach/dense/tower/modules.json"
    before = config.read_text()
    config.write_text(before + "\n")
    try:
        with pytest.raises(UserError, match="another teacher"):
            run_distill(embedded, "static", distill_params())
    finally:
        config.write_text(before)


@pytest.mark.parametrize("student", ["2l", "static"])
def test_no_text_is_read_further_than_the_teacher_reads_it(
    embedded: Path, monkeypatch: pytest.MonkeyPatch, student: str
) -> None:
    limits: list[int] = []
    kind = TransformerStudent if student == "2l" else StaticStudent
    original = kind.tokenize

    def watched(self: Any, texts: list[str], max_length: int) -> Tokens:
        limits.append(max_length)
        return original(self, texts, max_length)

    monkeypatch.setattr(kind, "tokenize", watched)
    run_distill(embedded, student, distill_params(max_length=500))
    assert limits == [load_tower(embedded / "models/teach/dense/tower").max_seq_length]
    assert readable_tokens(500, *(SimpleNamespace(max_seq_length=limit) for limit in (None, math.inf, 64))) == 64  # type: ignore[arg-type]

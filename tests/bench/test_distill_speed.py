"""The race between the distillation loop and sentence-transformers' trainer, on a tiny tower."""

import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from stages import distill_params

from bench import distill_speed
from bench.distill_speed import (
    LOOP,
    SETTINGS,
    TRAINER,
    Task,
    draw,
    judge,
    loop,
    student,
    trainer,
)
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.core.tables import table_from_rows, write_table
from steps.encoders.towers import encode, load_tower

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]
TOPICS = ["sum", "mean over an axis", "string", "the graph of a file that is read in windows"]


@pytest.fixture
def project(tiny_tower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with 80 alignment texts; batches are of 16."""
    texts = [f"how to take the {TOPICS[number % 4]} number {number}" for number in range(80)]
    rows = [
        {"text_sha": f"{number:064d}", "text": text, "part": "titles", "role": "query", "source_id": ""}
        for number, text in enumerate(texts)
    ]
    write_table(tmp_path / "data/embed", "alignment_texts", table_from_rows("alignment_texts", rows))
    vectors = encode(load_tower(tiny_tower), texts, "query").astype(np.float16)
    np.save(tmp_path / "data/embed/alignment.npy", vectors)
    shutil.copytree(tiny_tower, tmp_path / "models/teach/dense/tower")
    shutil.copyfile(ROOT / "params.yaml", tmp_path / "params.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(distill_speed, "BATCH", 16)
    monkeypatch.setattr(distill_speed, "SCHEDULE", replace(distill_speed.SCHEDULE, batch_size=16))
    return tmp_path


def task(project: Path, precision: str = "fp32") -> Task:
    return draw(distill_speed.EMBED, Path("models/teach/dense/tower"), distill_params(precision=precision), 64, 16)


def test_the_record_holds_every_contestant_and_round(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distill_speed, "TRAINED", 64)
    monkeypatch.setattr(distill_speed, "HELD_OUT", 16)
    monkeypatch.setattr(distill_speed, "LEAST", 0.0)
    monkeypatch.setattr(distill_speed, "TOLERANCE", 2.0)
    distill_speed.main()
    found = read_json(project / distill_speed.RESULT)
    assert (found["texts"], found["held_out"], found["rounds"], found["batch_size"]) == (64, 16, 2, 16)
    assert found["threads"] == torch.get_num_threads()
    assert 5 < found["mean_tokens"] < 32
    assert found["machine"]["sentence_transformers"]
    rows = found["contestants"]
    assert list(rows) == sorted([LOOP, *SETTINGS])
    for row in rows.values():
        assert len(row["by_round"]) == len(row["cosine_by_round"]) == 2
        assert row["texts_per_second"] == pytest.approx(np.mean(row["by_round"]), abs=0.1)
        assert row["cosine"] == pytest.approx(np.mean(row["cosine_by_round"]), abs=1e-4)
        ratios = [ours / theirs for ours, theirs in zip(rows[LOOP]["by_round"], row["by_round"], strict=True)]
        assert row["loop_is_faster"] == pytest.approx(np.mean(ratios), rel=0.02)
    assert {path.name for path in project.iterdir()} - {"slimtower-cache"} == {"bench", "data", "models", "params.yaml"}


def test_both_sides_learn_what_holds_for_held_out_texts(project: Path) -> None:
    given = task(project)
    given = replace(given, vectors=np.roll(given.vectors, 1, axis=1))  # which the student does not know yet
    before = distill_speed.cosine(given, student(given))
    for trained, seconds in (loop(given, 1), trainer(given, 1, SETTINGS[TRAINER])):
        assert seconds > 0
        assert distill_speed.cosine(given, trained) > before + 0.05


def test_held_out_texts_are_not_trained_on(project: Path) -> None:
    given = task(project)
    assert not set(given.training) & set(given.held_out)
    assert len({*given.training, *given.held_out}) == len(given.texts) == 80
    np.testing.assert_allclose(
        given.vectors, encode(load_tower(given.tower), given.texts, "query"), atol=1e-3, err_msg="texts and targets"
    )


def test_a_broken_promise_ends_it() -> None:
    row = {"texts_per_second": 1.0, "setting": ""}
    for ratio, loop_cosine, trainer_cosine, kept in (
        (4.0, 0.9, 0.9015, True), (9.0, 0.95, 0.9, True), (3.99, 0.9, 0.9, False), (4.5, 0.9, 0.903, False),
    ):  # fmt: skip
        of_loop, of_trainer = {"cosine": loop_cosine, "loop_is_faster": 1.0}, {"cosine": trainer_cosine}
        rows = {LOOP: row | of_loop, TRAINER: row | of_trainer | {"loop_is_faster": ratio}}
        with nullcontext() if kept else pytest.raises(UserError):
            judge({"contestants": rows})

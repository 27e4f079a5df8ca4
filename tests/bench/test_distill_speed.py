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
    record = read_json(project / distill_speed.RESULT)
    assert (record["texts"], record["held_out"], record["rounds"], record["batch_size"]) == (64, 16, 2, 16)
    assert record["threads"] == torch.get_num_threads()
    assert 5 < record["mean_tokens"] < 32
    assert record["machine"]["sentence_transformers"]
    rows = record["contestants"]
    assert list(rows) == sorted([LOOP, *SETTINGS])
    for row in rows.values():
        assert len(row["by_round"]) == len(row["cosine_by_round"]) == 2
        assert row["texts_per_second"] == pytest.approx(np.mean(row["by_round"]), abs=0.1)
        assert row["cosine"] == pytest.approx(np.mean(row["cosine_by_round"]), abs=1e-4)
        ratios = [ours / theirs for ours, theirs in zip(rows[LOOP]["by_round"], row["by_round"], strict=True)]
        assert row["loop_is_faster"] == pytest.approx(np.mean(ratios), rel=0.02)
    assert {path.name for path in project.iterdir()} - {"slimtower-cache"} == {"bench", "data", "models", "params.yaml"}


def test_both_sides_learn_what_holds_for_held_out_texts(project: Path) -> None:
    shared_task = task(project)
    unknown = np.roll(shared_task.vectors, 1, axis=1)  # to the student
    shared_task = replace(shared_task, vectors=unknown)
    before = distill_speed.cosine(shared_task, student(shared_task))
    for trained, seconds in (loop(shared_task, 1), trainer(shared_task, 1, SETTINGS[TRAINER])):
        assert seconds > 0
        assert distill_speed.cosine(shared_task, trained) > before + 0.05


def test_held_out_texts_are_not_trained_on(project: Path) -> None:
    shared_task = task(project)
    assert not set(shared_task.training) & set(shared_task.held_out)
    assert len({*shared_task.training, *shared_task.held_out}) == len(shared_task.texts) == 80
    np.testing.assert_allclose(
        shared_task.vectors,
        encode(load_tower(shared_task.tower), shared_task.texts, "query"),
        atol=1e-3,
        err_msg="texts and targets",
    )


def test_a_broken_promise_ends_it() -> None:
    row = {"texts_per_second": 1.0, "setting": ""}
    for ratio, loop_cosine, trainer_cosine, is_kept in (
        (4.0, 0.9, 0.9015, True), (9.0, 0.95, 0.9, True), (3.99, 0.9, 0.9, False), (4.5, 0.9, 0.903, False),
    ):  # fmt: skip
        of_loop, of_trainer = {"cosine": loop_cosine, "loop_is_faster": 1.0}, {"cosine": trainer_cosine}
        rows = {LOOP: row | of_loop, TRAINER: row | of_trainer | {"loop_is_faster": ratio}}
        with nullcontext() if is_kept else pytest.raises(UserError):
            judge({"contestants": rows})

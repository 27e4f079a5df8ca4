"""Two processes train what one does.

Sums of float32 gradients in another order differ in their last bits, and Adam divides small gradients by their own
size, so weights are compared within TOLERANCE, embeddings within a tenth of it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import two_processes
from scoring_teachers import write_scoring_teachers
from sentence_transformers import SentenceTransformer
from stages import run_distill, run_embed
from teach_fakes import PARAMS, documents, triplets, write_clicks, write_tower, write_world
from weights import assert_close_weights, weights_of

from slimtower.common.files import read_json
from steps.teach.run import run as teach
from steps.tracking.runs import NullRun

pytestmark = pytest.mark.slow

TOLERANCE = 1e-3
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trained(tiny_tower: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The worlds, trained by one process and by two."""
    folder = tmp_path_factory.mktemp("distributed")
    teacher, single, two = folder / "teacher", folder / "one", folder / "two"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLIMTOWER_CACHE", str(folder / "cache"))
        write_tower(teacher / "model")
        write_world(teacher)
        write_world(teacher / "clicked", mined=[row | {"weight": 1 - at % 2 / 2} for at, row in enumerate(triplets())])
        write_clicks(teacher / "clicked/ingest")
        for teacher_params, data, output in two_processes.teachers(teacher):
            teach(data / "ingest", data / "mine", output / "one", teacher_params, NullRun())
        run_embed(single, tiny_tower)
        write_scoring_teachers(single, tiny_tower)
        shutil.copytree(single, two)
        for student in two_processes.STUDENTS:
            run_distill(single, student, two_processes.student_params())
        paths = os.pathsep.join([str(ROOT), str(ROOT / "tests/helpers")])
        subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
             two_processes.__file__, str(teacher), str(two)],
            env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, check=True, timeout=500,
        )  # fmt: skip
    return {"teacher": teacher, "one": single, "two": two}


def assert_equal_models(single: Path, two: Path, texts: list[str], tolerance: float = TOLERANCE) -> None:
    assert_close_weights(weights_of(two), weights_of(single), tolerance)
    first, second = (SentenceTransformer(str(folder), device="cpu").encode(texts) for folder in (single, two))
    np.testing.assert_allclose(second, first, rtol=0, atol=TOLERANCE / 10)


@pytest.mark.parametrize("world", [".", "everything", "clicked"])
def test_two_processes_train_the_same_teacher(trained: dict[str, Path], world: str) -> None:
    """Also by every term and in rounds, and by turns and on what is known to be relevant."""
    folder = trained["teacher"] / world
    assert_equal_models(folder / "one/tower", folder / "two/tower", [row["content"] for row in documents()])
    single, two = (read_json(folder / name / "report.json") for name in ("one", "two"))
    assert single["comparison"]["ndcg_base"] == two["comparison"]["ndcg_base"]
    for ours, theirs in zip(single["rounds"], two["rounds"], strict=True):
        for name in ("new_negatives", "kept_negatives"):
            assert ours[name] == theirs[name]
    if world == ".":
        assert single["triplets"] % PARAMS.batch_size == 3  # the last batch does not divide by two
    elif world == "everything":
        assert single["rounds"][0]["new_negatives"] > 0
    else:
        assert two["triplets_an_epoch"] < two["triplets_used"] == two["triplets"]
        plain, clicked = (weights_of(root / "one") for root in (folder.parent, folder))
        assert any(not np.array_equal(plain[name], clicked[name]) for name in plain)


@pytest.mark.parametrize("student", two_processes.STUDENTS)
def test_two_processes_train_the_same_student(trained: dict[str, Path], student: str) -> None:
    single, two = (trained[name] / "models/distill" / student for name in ("one", "two"))
    along = student.startswith("joint_")  # a teacher of scores trains along, all at a tenth of the others' rate
    tolerance, texts = 0.3 * TOLERANCE if along else TOLERANCE, ["sum of matrix", "window over the axis"]
    assert_equal_models(single / "query_encoder", two / "query_encoder", texts, tolerance)
    if student == "joint":
        assert_equal_models(single / "teacher", two / "teacher", texts)
    if along:
        assert_close_weights(weights_of(two / "teacher/tower"), weights_of(single / "teacher/tower"), tolerance)
    ours, theirs = (read_json(folder / "report.json") for folder in (single, two))
    assert ours["texts_seen"] == theirs["texts_seen"]
    assert theirs["validation_cosine"] == pytest.approx(ours["validation_cosine"], abs=1e-5)

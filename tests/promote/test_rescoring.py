"""A champion is measured by the code that was registered with it, whatever the project's own code can load by now."""

import math
from pathlib import Path

import pytest

from slimtower.common.errors import TransientError, UserError
from steps.core.judged import JudgedSet
from steps.promote import fresh_process
from steps.promote.evidence import Evaluation
from steps.promote.fresh_process import own_code, rescore

OLD = '''
import numpy as np

class Old:
    datasets = ["api", "unasked"]

    def encode(self, texts):
        return np.array([[len(text)] for text in texts], dtype=np.float32)

    def search(self, dataset, vectors, depth, kind):
        """Twelve of the `depth` asked for: d00 first, the last four of equal score; a text of one letter finds none."""
        assert (depth, kind) == (1000, "flat")
        scores = np.array([max(12 - rank, 4) for rank in range(12)] + [-9.0], dtype=np.float32)
        ids = [[f"d{rank:02d}" for rank in range(12)] if width > 1 else [] for [width] in vectors.tolist()]
        return np.tile(scores, (len(vectors), 1)), ids

def load_release(folder):
    if not (folder / "old format").is_file():
        raise ValueError("not a release of the old format")
    return Old()
'''


@pytest.fixture(params=["slimtower", "steps"])  # where the library was when the version was registered
def registered(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The release in a version's files, beside its own code."""
    release = tmp_path / "model/artifacts/release"
    (release / "index").mkdir(parents=True)
    (release / "index/flat.faiss").write_bytes(b"12345")
    (release / "old format").touch()
    serving = tmp_path / f"model/code/{request.param}/serving"
    serving.mkdir(parents=True)
    for name in ("__init__.py", "serving/__init__.py"):
        (serving.parent / name).touch()
    (serving / "release.py").write_text(OLD)
    return release


def code_of(release: Path) -> Path:
    """The module that loads a release, among the code that was registered with it."""
    (module,) = release.parents[1].glob("code/*/serving/release.py")
    return module


def judged_set(dataset: str, qrels: dict[str, dict[str, int]], texts: list[str]) -> JudgedSet:
    return JudgedSet(dataset, "test", list(qrels), texts, qrels)


@pytest.mark.medium
def test_the_old_code_searches_and_the_measure_is_trec_evals(registered: Path) -> None:
    judged = {"q0": {"d01": 2, "d99": 1}, "q1": {"d10": 1}, "q2": {"d08": 1}, "q3": {"d00": 1}}
    sets = [judged_set("api", judged, ["aa", "bb", "cc", "d"]), judged_set("new", {"n0": {"x": 1}}, ["ee"])]
    evaluation = Evaluation("e" * 64, {"api": frozenset(judged), "new": frozenset({"n0"})}, {})
    evidence = rescore(registered, evaluation, sets, 0.25)
    ideal = 2 + 1 / math.log2(3)
    assert evidence.values == {
        "api": {
            "q0": pytest.approx(2 / math.log2(3) / ideal),
            # d08 to d11 have one score, and trec_eval puts the greater id first: d11, d10 are ninth and tenth
            "q1": pytest.approx(1 / math.log2(11)),
            "q2": 0.0,
            "q3": 0.0,
        }
    }
    assert evidence.datasets == {"api", "unasked"}
    # a query of the id of its ninth hit: without that one the tenth is ninth
    with_identical_id = JudgedSet("api", "test", ["d11"], ["bb"], {"d11": {"d10": 1}}, ignore_identical_ids=True)
    alone = rescore(registered, Evaluation("e", {"api": frozenset({"d11"})}, {}), [with_identical_id], 0.25)
    assert alone.values == {"api": {"d11": pytest.approx(1 / math.log2(10))}}
    assert (evidence.p50_ms, evidence.index_bytes, evidence.evaluation) == (0.25, 5, evaluation)


FUSING = """
from types import SimpleNamespace
import numpy as np

def answer(dataset, texts, k, kind):
    assert kind == ("ann" if dataset == "both" else "flat"), "measured as it serves"
    return [np.array([1.0], dtype=np.float32) for _ in texts], [["d"] for _ in texts]

def load_release(folder):
    fusion = {"both": "a fusion"}.get
    return SimpleNamespace(datasets=["both", "dense"], fusion=fusion, search_text=answer)
"""


def test_a_champion_that_fuses_is_measured_over_the_index_that_serves(registered: Path) -> None:
    code_of(registered).write_text(FUSING)
    sets = [judged_set(dataset, {"q": {"d": 1}}, ["aa"]) for dataset in ("both", "dense")]
    evidence = rescore(
        registered, Evaluation("e", {judged.dataset: frozenset({"q"}) for judged in sets}, {}), sets, 0.25
    )
    assert evidence.values == {"both": {"q": 1.0}, "dense": {"q": 1.0}}


FAISS = "raise ValueError('its index was written by faiss 1.0, this is faiss 2.0')\n"
NEVER_OLD = OLD.replace("old format", "older format")


@pytest.mark.medium
@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        (NEVER_OLD, UserError, "roll back, or delete"),
        (FAISS, UserError, r"faiss 1\.0.*rolling back does not help"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", TransientError, "killed by signal 9"),
        ("import time\ntime.sleep(60)\n", TransientError, "stopped after"),
    ],
    ids=["damaged", "other packages", "killed", "hangs"],
)
def test_a_champion_that_cannot_be_measured_is_told_apart_from_a_measurement_that_was_stopped(
    registered: Path, monkeypatch: pytest.MonkeyPatch, code: str, kind: type[Exception], message: str
) -> None:
    code_of(registered).write_text(code)
    if "sleep" in code:
        monkeypatch.setattr(fresh_process, "RESCORE_TIMEOUT_S", 0.5)
    with pytest.raises(kind, match=message):
        rescore(registered, Evaluation("e", {}, {}), [judged_set("api", {"q": {"d": 1}}, ["a"])], 1.0)


def test_a_release_without_code_of_its_own_is_read_by_the_projects(tmp_path: Path, registered: Path) -> None:
    assert own_code(registered) == tmp_path / "model/code"
    assert own_code(tmp_path / "elsewhere/release") == Path(__file__).parents[2]

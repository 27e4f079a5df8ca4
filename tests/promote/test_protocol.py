"""The protocol on a sqlite registry: whatever dies and whoever interferes, the right version serves, and once only."""

import contextlib
from pathlib import Path
from unittest.mock import Mock

import pytest
from mlflow.exceptions import MlflowException
from promote_registry import SWAP, KilledError, Project, killed_after

from slimtower.common.errors import TransientError, UserError
from steps.promote import promotion
from steps.promote.move import After, history, nothing
from steps.promote.promotion import Refused, roll_back
from steps.promote.registry import Registry
from steps.tracking.runs import MlflowRun

pytestmark = pytest.mark.medium

STEPS = ["recovered", "registered", "challenger", "smoke-tested", "decided", *SWAP]
STEPS_BACK = ["recovered", "smoke-tested", *SWAP]
NIGHTLY = [pytest.mark.slow, pytest.mark.nightly]


def test_promotions_move_champion_and_previous_and_leave_a_trail(project: Project) -> None:
    first = project.promote("A")
    assert project.aliases == {"champion": first.version}
    second = project.promote("B", 0.625)
    assert project.names() == {"champion": "B", "previous": "A"}
    tags = project.registry.tags(second.version)
    assert (tags["replaced"], tags["promoted_by"], tags["decision"]) == (first.version, "tester", "approved")
    assert "+25.00%" in tags["reasons"]
    assert [row[1:6] for row in history(project.registry)] == [
        ("promoted", "1", "-", "tester", "A"),
        ("promoted", "2", "1", "tester", "B"),
    ]
    evidence = project.candidate("B", 0.625).evidence
    assert promotion.champion_evidence(project.registry, "2", evidence, [], keep=True) == evidence


def test_a_refusal_leaves_every_alias_as_it_was_and_says_why(project: Project) -> None:
    def set_challenger(step: str) -> None:
        if step == "decided":
            project.registry.point("challenger", "1")

    project.promote("A", 0.6)
    project.promote("B", 0.7)
    project.registry.point("challenger", "1")  # set by hand before
    before = project.aliases
    with pytest.raises(Refused, match=r"/3 refused, no alias was moved: api: nDCG@10 0\.5000 against 0\.70"):
        project.promote("C", 0.5)
    assert project.aliases == before
    assert project.registry.tags("3")["decision"] == "refused"
    assert project.actions() == ["promoted 1", "promoted 2", "refused 3"]
    project.registry.point("challenger", None)
    with pytest.raises(Refused):
        project.promote("D", 0.5, after=set_challenger)  # another promotion set it meanwhile
    assert project.aliases == before


@pytest.mark.parametrize(
    ("error", "reset"),
    [(UserError("no answer"), True), (MlflowException("away"), True), (KeyboardInterrupt("stopped"), False)],
)
def test_whatever_keeps_a_version_from_the_gate_leaves_every_alias_as_it_was(
    project: Project, monkeypatch: pytest.MonkeyPatch, error: BaseException, reset: bool
) -> None:
    project.promote("A")
    before = project.aliases

    def fails(registry: Registry, version: str) -> None:
        if not reset:
            monkeypatch.setattr(registry.api, "delete_registered_model_alias", Mock(side_effect=MlflowException("too")))
        raise error

    monkeypatch.setattr(promotion, "smoke_test", fails)
    with pytest.raises(type(error), match=str(error)):
        project.promote("B", 0.6)
    assert project.aliases == (before if reset else before | {"challenger": "2"})


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_promotion_killed_after_any_step_is_finished_by_the_next(project: Project, step: str) -> None:
    project.promote("A")
    with pytest.raises(KilledError):
        project.promote("B", 0.6, killed_after(step))
    moved = step in SWAP[SWAP.index("champion") :]
    assert project.names()["champion"] == ("B" if moved else "A")

    finished = project.promote("B", 0.6)
    assert project.names() == {"champion": "B", "previous": "A"}
    assert (finished.decision is None) == moved
    assert project.actions() == ["promoted 1", "promoted 2"]
    assert len(project.registry.versions()) == 2
    assert project.registry.tags("2")["replaced"] == "1"
    assert "intent" not in project.registry.model_tags()


@pytest.mark.parametrize("step", SWAP)
def test_the_first_promotion_killed_after_any_step_is_finished_by_the_next(project: Project, step: str) -> None:
    with pytest.raises(KilledError):
        project.promote("A", after=killed_after(step))
    project.promote("A")
    assert project.aliases == {"champion": "1"}
    assert project.actions() == ["promoted 1"]


@pytest.mark.parametrize("step", ["intent", "previous"])
def test_a_half_done_move_is_undone_when_another_candidate_comes_and_is_refused(project: Project, step: str) -> None:
    project.two()
    with pytest.raises(KilledError):
        project.promote("C", 0.7, killed_after(step))
    with pytest.raises(Refused):
        project.promote("D", 0.1)
    assert {alias: name for alias, name in project.names().items() if alias != "challenger"} == {
        "champion": "B",
        "previous": "A",
    }


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS_BACK)
def test_a_rollback_killed_after_any_step_is_finished_by_the_next(project: Project, step: str) -> None:
    project.two()
    with pytest.raises(KilledError):
        project.roll_back(killed_after(step))
    if step in SWAP[SWAP.index("champion") :]:
        assert project.names()["champion"] == "A"
        assert project.promote("A").decision is None  # any later command recovers
    else:
        assert project.names()["champion"] == "B"
        assert project.roll_back() == "1"
    assert project.names() == {"champion": "A"}
    assert project.actions()[2:] == ["rolled back to 1"]
    assert "rolled_back_at" in project.registry.tags("2")


@pytest.mark.parametrize(
    "step",
    [
        step if step in ("smoke-tested", "champion") else pytest.param(step, marks=NIGHTLY)
        for step in STEPS_BACK[: STEPS_BACK.index("intent removed")]
    ],
)
def test_a_rollback_killed_after_any_step_and_made_again_goes_back_once(project: Project, step: str) -> None:
    project.three()
    with pytest.raises(KilledError):
        project.roll_back(killed_after(step))
    assert project.roll_back() == "2"
    assert project.names() == {"champion": "B", "previous": "A"}
    assert project.actions()[3:] == ["rolled back to 2"]
    assert "intent" not in project.registry.model_tags()


@pytest.mark.parametrize(
    ("step", "recovered_between"),
    [
        ("intent", False),
        ("champion", True),
        *(pytest.param(step, False, marks=NIGHTLY) for step in STEPS_BACK if step != "intent"),
    ],
)
def test_a_schedulers_run_goes_back_once_however_often_it_is_tried(
    project: Project, step: str, recovered_between: bool
) -> None:
    project.three()

    def back(after: After, run: str = "rollback/manual__1") -> None:
        roll_back(project.registry, project.lock(), after, run=run)

    with pytest.raises(KilledError):
        back(killed_after(step))
    if recovered_between:
        with pytest.raises(Refused):
            project.promote("D", 0.1)  # any command recovers
    back(nothing)
    back(nothing)
    assert project.names() == {"champion": "B", "previous": "A"}
    assert [action for action in project.actions() if action.startswith("rolled")] == ["rolled back to 2"]
    back(nothing, "rollback/manual__2")
    assert project.names() == {"champion": "A"}


@pytest.mark.parametrize("step", ["registered", "challenger", "smoke-tested", "decided"])
def test_a_champion_moved_meanwhile_stops_the_promotion_and_stays(project: Project, step: str) -> None:
    project.two()

    def interfere(done: str) -> None:
        if done == step:
            project.registry.point("champion", "1")

    with pytest.raises(TransientError, match="champion moved from 2 to 1 meanwhile"):
        project.promote("C", 0.7, interfere)
    assert project.names()["champion"] == "A"
    assert "moved by other hands 1" in project.actions()

    project.promote("C", 0.7)
    assert project.names() == {"champion": "C", "previous": "A"}
    assert project.actions().count("promoted 3") == 1


def test_a_champion_moved_by_hand_during_an_interrupted_move_is_reported_and_kept(project: Project) -> None:
    project.two()
    with pytest.raises(KilledError):
        project.promote("C", 0.7, killed_after("previous"))
    project.registry.point("champion", "1")
    with pytest.raises(Refused):
        project.promote("D", 0.1)
    assert project.names()["champion"] == "A"
    assert "moved by other hands 1" in project.actions()


def test_two_promotions_at_once_end_with_one_of_them_refused(project: Project) -> None:
    project.promote("A")

    def promote_another(done: str) -> None:
        if done == "decided":
            project.promote("C", 0.8)

    with pytest.raises(TransientError, match="champion moved from 1 to 3 meanwhile"):
        project.promote("B", 0.6, promote_another)
    assert project.names()["champion"] == "C"
    with pytest.raises(Refused):
        project.promote("B", 0.6)


def test_two_promotions_of_one_release_at_once_promote_it_once(project: Project) -> None:
    project.promote("A")

    def promote_it_too(done: str) -> None:
        if done == "decided":
            project.promote("B", 0.6)

    assert project.promote("B", 0.6, promote_it_too).version == "2"
    assert project.names() == {"champion": "B", "previous": "A"}
    assert project.actions() == ["promoted 1", "promoted 2"]


def test_rollback_goes_back_one_promotion_at_a_time_and_then_stops(project: Project) -> None:
    project.three()
    assert project.roll_back() == "2"
    assert project.names() == {"champion": "B", "previous": "A"}
    assert project.roll_back() == "1"
    assert project.names() == {"champion": "A"}
    with pytest.raises(UserError, match="no previous champion to go back to"):
        project.roll_back()


def test_what_was_rolled_back_needs_a_word_to_come_back(project: Project) -> None:
    project.two()
    project.roll_back()
    with pytest.raises(Refused, match=r"was rolled back at .* PROMOTE_FLAGS=--again"):
        project.promote("B", 0.6)
    assert project.names() == {"champion": "A"}
    project.promote("B", 0.6, again=True)
    assert project.names() == {"champion": "B", "previous": "A"}
    assert "rolled_back_at" not in project.registry.tags("2")


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_what_is_rolled_back_during_its_promotion_needs_that_word_too(
    project: Project, killed: bool, again: bool
) -> None:
    project.two()

    def promote_and_roll_back(done: str) -> None:
        if done == "decided":
            project.promote("C", 0.7)
            with contextlib.suppress(KilledError):
                project.roll_back(killed_after("champion") if killed else nothing)

    if again:
        project.promote("C", 0.7, promote_and_roll_back, again=True)
        assert project.names() == {"champion": "C", "previous": "B"}
        return
    with pytest.raises(Refused, match=r"/3: this release was rolled back at .* PROMOTE_FLAGS=--again"):
        project.promote("C", 0.7, promote_and_roll_back)
    assert project.names() == {"champion": "B", "previous": "A"}


def test_a_registration_cut_short_does_not_upload_twice(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads: list[Path] = []

    def upload(run: MlflowRun, folder: Path, name: str) -> None:
        uploads.append(folder)
        run.model(folder, name)

    monkeypatch.setattr(promotion, "log_release", upload)
    publish = promotion.publish

    def dies(release: Path, run: MlflowRun) -> str:
        publish(release, run)
        raise KilledError

    monkeypatch.setattr(promotion, "publish", dies)
    with pytest.raises(KilledError):
        project.promote("A")
    monkeypatch.setattr(promotion, "publish", publish)
    project.promote("A")
    assert len(uploads) == 1
    assert len(project.registry.versions()) == 1

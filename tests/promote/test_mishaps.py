"""What happens to a registry between commands: calls that never came back, versions deleted, aliases moved by hand."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import requests
from botocore.exceptions import ClientError
from mlflow.artifacts import download_artifacts
from mlflow.exceptions import MlflowException
from mlflow.protos import databricks_pb2
from promote_fakes import evidence
from promote_registry import SWAP, KilledError, Project, killed_after

from slimtower.common.errors import TransientError, UserError
from steps.promote import fresh_process, promotion
from steps.promote.answering import passes
from steps.promote.lock import lock_store
from steps.promote.promotion import Refused
from steps.promote.registry import Registry

pytestmark = [pytest.mark.medium, pytest.mark.faults("promotion")]

WRITES = ("create_", "log_", "set_", "delete_", "finalize_")


class Dying:
    """An MLflow client whose process ends before its `last` writing call."""

    def __init__(self, api: Any, last: int = 10**6) -> None:
        self.api, self.last, self.calls = api, last, 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.api, name)
        if not name.startswith(WRITES):
            return real

        def call(*args: Any, **named: Any) -> Any:
            self.calls += 1
            if self.calls >= self.last:
                raise KilledError(name)
            return real(*args, **named)

        return call


@pytest.mark.slow
@pytest.mark.nightly
def test_a_promotion_that_dies_at_any_call_of_the_registry_is_finished_by_the_next(project: Project) -> None:
    """Before each writing call of registration and of the move; every release is better than the one before it."""
    real, names, calls = project.registry.api, ["first"], 1
    project.promote("first", 0.31)
    while len(names) <= calls:
        name, quality = f"dies at {len(names)}", 0.31 + 0.02 * len(names)
        project.registry.api = Dying(real, last=len(names))
        with pytest.raises(KilledError):
            project.promote(name, quality)
        project.registry.api = counting = Dying(real)
        assert project.names()["champion"] in {names[-1], name}
        project.promote(name, quality)
        calls = max(calls, counting.calls) if len(names) == 1 else calls
        assert project.names() == {"champion": name, "previous": names[-1]}
        names.append(name)
        assert project.registry.tags(str(len(names)))["replaced"] == str(len(names) - 1)
        assert "intent" not in project.registry.model_tags()
    assert calls > 20
    assert project.actions() == [f"promoted {number}" for number in range(1, len(names) + 1)]


def lose_the_lock(project: Project) -> None:
    """As if it had expired, and whoever took it over had given it back."""
    store = lock_store(project.registry)
    for key in store.entries(project.registry.name):
        store.delete(key)


@pytest.mark.parametrize("step", SWAP[: SWAP.index("intent removed")])
def test_a_holder_that_wakes_up_too_late_changes_nothing_more(project: Project, step: str) -> None:
    project.promote("A")

    def sleep(done: str) -> None:
        if done == step:
            lose_the_lock(project)
            project.promote("C", 0.8)

    with pytest.raises(TransientError, match="held too long and given up"):
        project.promote("B", 0.6, sleep)
    moved = step in SWAP[SWAP.index("champion") :]
    names = project.names()
    assert names.pop("challenger", "B") == "B"  # its owner did not come back to it
    assert names == {"champion": "C", "previous": "B" if moved else "A"}
    tags = project.registry.model_tags()
    assert (tags["champion"], "intent" in tags) == (project.aliases["champion"], False)
    assert not any("other hands" in action for action in project.actions())


def test_two_that_register_one_release_at_once_make_one_version(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, published = promotion.publish, []

    def meanwhile(release: Path, run: Any) -> str:
        if not published:
            published.append(release)
            project.promote("A")
        return publish(release, run)

    monkeypatch.setattr(promotion, "publish", meanwhile)
    project.promote("A")
    assert [str(version.version) for version in project.registry.versions()] == ["1"]
    assert [action.split()[-1] for action in project.actions()] == ["1"]
    assert project.promote("A").decision is None


@pytest.mark.parametrize("step", ["previous", "champion"])
def test_a_move_cut_short_is_fixed_though_a_version_of_it_was_deleted(project: Project, step: str) -> None:
    project.three()
    with pytest.raises(KilledError):
        project.promote("D", 0.8, killed_after(step))
    project.registry.api.delete_model_version(project.registry.name, "2" if step == "previous" else "3")
    project.promote("E", 0.9)
    assert project.names()["champion"] == "E"
    assert "intent" not in project.registry.model_tags()


def test_a_deleted_champion_leaves_its_predecessor_to_go_back_to(project: Project) -> None:
    project.three()
    project.registry.api.delete_model_version(project.registry.name, "3")
    project.promote("D", 0.4)  # there is no champion to be worse than
    assert project.names() == {"champion": "D", "previous": "B"}
    assert "moved by other hands None" not in project.actions()
    assert "moved by other hands -" in project.actions()
    assert project.roll_back() == "2"


def test_the_predecessor_of_a_deleted_champion_is_not_its_own_predecessor(project: Project) -> None:
    project.two()
    project.registry.api.delete_model_version(project.registry.name, "2")
    project.promote("A")
    assert project.names() == {"champion": "A"}


def test_a_challenger_that_was_deleted_meanwhile_does_not_hide_the_refusal(project: Project) -> None:
    project.promote("A", 0.6)
    with pytest.raises(Refused):
        project.promote("B", 0.5)
    project.registry.point("challenger", "2")

    def delete(done: str) -> None:
        if done == "decided":
            project.registry.api.delete_model_version(project.registry.name, "2")

    with pytest.raises(Refused, match="/3 refused"):
        project.promote("C", 0.4, delete)
    assert project.names() == {"champion": "A"}


def test_after_a_move_by_hand_to_the_previous_version_there_is_nothing_to_roll_back_to(project: Project) -> None:
    project.two()
    project.registry.point("champion", "1")
    with pytest.raises(UserError, match=r"no previous champion to go back to \(champion: 1, previous: 1\)"):
        project.roll_back()
    assert "rolled_back_at" not in project.registry.tags("1")
    assert "moved by other hands 1" in project.actions()


@pytest.mark.parametrize("deleted", [False, True])
def test_after_a_move_by_hand_the_champion_before_it_is_the_one_to_go_back_to(project: Project, deleted: bool) -> None:
    project.two()
    with pytest.raises(Refused):
        project.promote("C", 0.1)
    project.registry.point("champion", "3")
    if deleted:
        project.registry.api.delete_model_version(project.registry.name, "2")
        assert project.roll_back() == "1"
        return
    assert project.roll_back() == "2"
    assert project.names() == {"champion": "B", "previous": "A"}
    assert "rolled_back_at" in project.registry.tags("3")


def foreign_version(project: Project, folder: Path) -> str:
    """A version that somebody registered without the project: files of no release, no run, no tags."""
    folder.mkdir()
    (folder / "weights.bin").write_bytes(b"x")
    return str(project.registry.api.create_model_version(project.registry.name, folder.as_uri()).version)


def test_versions_of_others_are_left_alone_until_one_is_champion(project: Project, tmp_path: Path) -> None:
    number = foreign_version(project, tmp_path / "foreign")
    project.promote("A")
    assert project.names() == {"champion": "A"}
    project.registry.point("champion", number)
    with pytest.raises(UserError, match=r"holds no release .* nothing can be compared with it; let its alias name"):
        project.promote("B", 0.6)
    assert project.aliases == {"champion": number, "previous": "2"}
    project.registry.point("champion", None)
    project.promote("B", 0.6)
    assert project.names() == {"champion": "B", "previous": "A"}


@pytest.mark.parametrize("name", ["golden.json", "evidence/dddddddddddddddd.served.json"])
def test_a_document_whose_upload_was_cut_short_is_written_again(project: Project, name: str) -> None:
    with pytest.raises(KilledError):
        project.promote("A", after=killed_after("registered"))
    registry = project.registry
    document = registry.document("1", name)
    registry.api.log_text(registry.version("1").run_id, json.dumps(document)[:-5], name)
    assert registry.document("1", name) is None
    project.promote("A")
    assert registry.document("1", name) == document


EVIDENCE = "evidence/dddddddddddddddd.served.json"


@pytest.mark.parametrize(
    "change", [{}, [], {"evaluation": "another"}, {"values": {"api": 1}}, {"values": {"api": {"q00": "x"}}}]
)
def test_evidence_of_the_champion_that_is_damaged_is_named_and_no_alias_moves(project: Project, change: Any) -> None:
    project.promote("A")
    before, registry = project.aliases, project.registry
    document = registry.document("1", EVIDENCE)
    registry.api.log_text(registry.version("1").run_id, json.dumps(document | change if change else change), EVIDENCE)
    with pytest.raises(UserError, match=f"{registry.name}/1: its document {EVIDENCE}: damaged, .* remove it from"):
        project.promote("B", 0.6)
    assert project.aliases == before


@pytest.mark.parametrize(
    ("tag", "value"), [("intent", "{}"), ("intent", "[]"), ("event.x", "{}"), ("event.000009", "{}"), ("event.9", "x")]
)
def test_a_damaged_tag_is_named_before_anything_moves(project: Project, tag: str, value: str) -> None:
    project.two()
    before = project.aliases
    project.registry.tag_model(tag, value)
    message = f"{project.registry.name}: its tag slimtower.{tag}.* damaged, .* remove the tag by hand"
    for command in (lambda: project.promote("C", 0.7), project.roll_back):
        with pytest.raises(UserError, match=message):
            command()
    if tag != "intent":
        with pytest.raises(UserError, match=message):
            project.actions()
    assert project.aliases == before
    project.registry.tag_model(tag, None)
    assert project.roll_back() == "1"


def test_a_refusal_stays_in_the_history_when_the_release_is_judged_again(project: Project) -> None:
    project.promote("A", 0.6)
    for _ in range(2):
        with pytest.raises(Refused):
            project.promote("B", 0.5)
    project.promote("B", 0.7)
    assert sorted(project.actions()) == ["promoted 1", "promoted 2", "refused 2", "refused 2"]


def test_a_refusal_whose_date_a_kill_cut_off_is_in_the_history(project: Project) -> None:
    project.promote("A")
    project.registry.tag("1", {"decision": "refused", "decided_at": None})
    assert project.actions() == ["refused 1", "promoted 1"]


def test_an_upload_cut_short_is_made_again_and_the_part_is_not_served(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = project.registry.api
    real, starts = api.log_model_artifacts, []

    def stops(model_id: str, folder: str) -> None:
        starts.append(model_id)
        if len(starts) == 1:
            raise KilledError
        real(model_id, folder)

    monkeypatch.setattr(api, "log_model_artifacts", stops)
    with pytest.raises(KilledError):
        project.promote("A")
    project.promote("A")
    source = project.registry.version("1").source
    assert (len(starts), starts[0] in source, starts[1] in source) == (2, False, True)
    assert len(project.registry.versions()) == 1


def test_a_release_that_is_replaced_during_its_promotion_is_not_registered(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pipeline_ends(step: str) -> None:
        if step == "recovered":  # its own digest and evidence were read before
            (project.root / "releases/A/manifest.json").write_text('{"name": "never evaluated"}')

    with pytest.raises(TransientError, match=r"releases/A: was replaced while it was promoted; run this again"):
        project.promote("A", after=pipeline_ends)
    assert project.registry.versions() == [] and project.aliases == {}
    project.promote("A")  # as it was: what was stored before is not taken for it
    stored = download_artifacts(artifact_uri=project.registry.version("1").source)
    assert json.loads(Path(stored, "manifest.json").read_text())["name"] == "A"


@pytest.mark.slow
def test_a_smoke_test_that_reaches_no_server_may_be_tried_again(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = project.promote("A").version
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setattr(fresh_process, "tracking_uri", lambda: url)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(TransientError, match=r"smoke test of .*/1: not reached: .*; try again"):
        fresh_process.smoke_test(project.registry, version)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import os\nos.kill(os.getpid(), 9)\n", "killed by signal 9"),
        ("import time\ntime.sleep(60)\n", r"smoke test of .*/1: stopped after 5 s; look at"),
    ],
    ids=["killed", "hangs"],
)
def test_a_smoke_test_that_does_not_end_by_itself_may_be_tried_again(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    version = project.promote("A").version
    (tmp_path / "script.py").write_text(script)
    monkeypatch.setattr(fresh_process, "_ANSWERING", tmp_path / "script.py")
    monkeypatch.setattr(fresh_process, "SMOKE_TIMEOUT_S", 5)
    with pytest.raises(TransientError, match=message):
        fresh_process.smoke_test(project.registry, version)


def test_what_a_smoke_test_fetches_does_not_stay(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = project.promote("A").version
    (tmp_path / "script.py").write_text("import sys, tempfile\nsys.exit(tempfile.mkdtemp())\n")  # as MLflow does
    monkeypatch.setattr(fresh_process, "_ANSWERING", tmp_path / "script.py")
    with pytest.raises(UserError) as caught:
        fresh_process.smoke_test(project.registry, version)
    folder = Path(str(caught.value).rsplit(": ", 1)[1])
    assert folder.parent.name.startswith("slimtower-smoke-") and not folder.parent.exists()


def test_a_release_whose_version_and_model_were_deleted_can_be_promoted_again(project: Project) -> None:
    first = project.registry.version(project.promote("A").version)
    project.registry.api.delete_model_version(project.registry.name, first.version)
    stored = project.registry.api.get_run(first.run_id).data.tags[promotion.MODEL]
    project.registry.api.delete_logged_model(stored)
    second = project.registry.version(project.promote("A").version)
    assert second.source != first.source and project.names() == {"champion": "A"}
    assert Path(download_artifacts(artifact_uri=second.source), "manifest.json").is_file()


def test_a_number_that_no_database_holds_is_no_version(project: Project) -> None:
    for number in ("9", "9" * 30):
        with pytest.raises(UserError, match=f"no version '{number}'"):
            project.registry.version(number)


def test_more_versions_than_a_page_holds(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = [foreign_version(project, tmp_path / f"foreign{count}") for count in range(5)]
    real = project.registry.api.search_model_versions
    pages = []

    def small(name: str, max_results: int, page_token: str | None) -> Any:
        pages.append(page_token)
        return real(name, max_results=2, page_token=page_token)

    monkeypatch.setattr(project.registry.api, "search_model_versions", small)
    assert [str(version.version) for version in project.registry.versions()] == numbers
    assert len(pages) == 3
    assert project.registry.existing("5") == "5"
    assert project.registry.existing("6") is None


def test_reasons_longer_than_a_tag_are_cut_at_a_line(project: Project) -> None:
    version = project.promote("A").version
    decision = promotion.Decision(False, tuple(f"{number}: " + "x" * 90 for number in range(100)), ())
    promotion._note_decision(Registry(project.registry.name), version, decision, "a card")
    lines = project.registry.tags(version)["reasons"].splitlines()
    assert 4000 < sum(len(line) + 1 for line in lines) <= 5000
    assert all(line.endswith("x" * 90) for line in lines[:-1])
    assert lines[-1] == f"... and {100 - len(lines) + 1} more"


FILES = "The following failures occurred while downloading one or more artifacts from s3://a/b:\n##### File x #####\n"


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (MlflowException(FILES + "Connection was closed before we received a valid response"), True),
        (MlflowException(FILES + "503 Server Error: Slow Down for url"), True),
        (MlflowException(FILES + "An error occurred (404) when calling the HeadObject operation: Not Found"), False),
        (MlflowException(FILES + "[Errno 2] No such file or directory: 'flat.faiss'"), False),
        (MlflowException(FILES + "An error occurred (AccessDenied) when calling the GetObject operation"), False),
        (MlflowException("API request to /api failed with timeout exception timed out"), True),
        (MlflowException("away", error_code=databricks_pb2.TEMPORARILY_UNAVAILABLE), True),
        (MlflowException("Registered Model with name=x not found"), False),
        (ClientError({"Error": {"Code": "SlowDown", "Message": "reduce"}}, "GetObject"), True),
        (ClientError({"Error": {"Code": "RequestTimeTooSkewed", "Message": "clock"}}, "GetObject"), False),
        (ClientError({"Error": {"Code": "NoSuchKey", "Message": "none"}}, "GetObject"), False),
        (requests.ConnectionError("refused"), True),
    ],
)
def test_a_store_that_fails_during_the_smoke_test_is_worth_another_try(error: Exception, again: bool) -> None:
    assert passes(error) == again


def test_a_version_whose_run_mlflow_has_cleared_away_stops_nobody_with_a_traceback(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.promote("A")
    run_id = project.registry.version("1").run_id
    project.registry.api.delete_run(run_id)
    project.registry.api._tracking_client.store._hard_delete_run(run_id)  # as `mlflow gc` does
    monkeypatch.setattr(promotion, "rescore", lambda folder, evaluation, judged, p50_ms: evidence([0.5] * 8))
    monkeypatch.setattr(Registry, "download", lambda *_: project.root)
    project.promote("B", 0.6)
    assert project.names() == {"champion": "B", "previous": "A"}, "measured anew, and not kept"
    with pytest.raises(UserError, match=r"/1: holds this release, but .*golden.json with it; delete that version"):
        project.promote("A", 0.7)

"""A scheduled run's tasks, each a process with its own clone of a small project, meeting in a remote only."""

import hashlib
import json
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from dvc.repo import Repo
from killed_runs import kill_family
from serve_process import until
from task_project import STAGES, Project, make_project

from pipeline.task import begin, publish
from pipeline.task.run import TaskRun
from pipeline.task.stage import other_teachers
from pipeline.task.workspace import Workspace
from slimtower.common.errors import UserError
from slimtower.registry import client as registry
from steps.promote.dvc_lock import dump_lock, lock_stages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
TOKEN = "s3cr3t"
AWAY = f"http://me:{TOKEN}@127.0.0.1:9/x.git"


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose run `first` is published; to be copied, not changed."""
    project = make_project(tmp_path_factory.mktemp("first"))
    assert project.all("first") == [0] * 6
    return project


@pytest.fixture
def project(first: Project, tmp_path: Path) -> Project:
    copy = copied(first, tmp_path / "project")
    copy.ran()
    return copy


def copied(project: Project, root: Path) -> Project:
    """A copy, whose MLflow follows it."""
    shutil.copytree(project.root, root)
    return Project(root, str(root / "remote"), f"sqlite:///{root}/mlflow.db")


def test_a_run_leaves_one_complete_lock_and_a_closed_run(first: Project) -> None:
    lock = first.stored("locks/first/dvc.lock")["stages"]
    assert tuple(lock) == STAGES
    assert first.stored("locks/latest/dvc.lock")["stages"] == lock
    record = first.stored("locks/latest/begin.json")
    assert record["window"] == {"since": "", "until": ""}
    assert Path(first.root, "ran").read_text().split() == list(STAGES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", first.tracking)
        api = registry.client()
        parent = api.get_run(record["parent_run"])
        assert parent.info.status == "FINISHED"
        assert parent.data.tags["slimtower.pipeline"] == f"{first.remote}/runs/first"
        assert parent.data.tags["slimtower.git_commit"] == record["commit"]
        written = (Path(first.remote) / "locks/first/dvc.lock").read_bytes()
        assert parent.data.tags["slimtower.dvc_lock"] == hashlib.sha256(written).hexdigest()
        children = api.search_runs([parent.info.experiment_id], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'")
    assert {run.data.tags["slimtower.stage"] for run in children} == set(STAGES)  # they track nothing themselves


@pytest.mark.nightly
def test_promotion_reads_what_a_run_published(project: Project) -> None:
    project.change("a: 1", "a: 3")  # not published: no business of theirs
    assert project.task("first", "promote")[0] == 0
    assert project.task("latest", "rollback")[0] == 0
    assert project.task("latest", "deploy", SLIMTOWER_DEPLOY_TO="x.db")[0] == 0
    done = ["promote-data/ingest/text", "promote---rollback", "deploy---to-x.db---champion-data/ingest/text"]
    assert project.ran() == done
    code, message = project.task("first", "promote", MISBEHAVE="refuse")
    assert code == 3 and "slimtower: refused" in message
    lock = Path(project.remote) / "locks/latest/dvc.lock"
    lock.write_text(lock.read_text() + "# of a run whose publish was killed before it wrote the rest\n")
    code, message = project.task("latest", "promote")
    assert code == 75 and "dvc.lock is of another run than begin.json" in message


def test_a_run_that_a_newer_one_overtook_is_promoted_by_its_name_alone(project: Project) -> None:
    path = Path(project.remote) / "locks/latest/begin.json"
    first = json.loads(path.read_text())
    same = first | {"run": "second", "began": "9999"}  # found nothing new: the release is the first run's
    path.write_text(json.dumps(same))
    assert project.task("first", "publish")[0] == 0
    path.write_text(json.dumps(same | {"parent_run": "its own"}))
    publishing = project.start("first", "publish")
    message, _ = publishing.communicate()
    assert publishing.returncode == 99 and "not announced, as second began later" in message
    assert json.loads(path.read_text())["run"] == "second"
    code, message = project.task("first", "promote", SLIMTOWER_ANNOUNCED="1")
    assert code == 3 and "first began before second, which is published" in message
    assert project.ran() == []
    assert project.task("first", "promote")[0] == 0


@pytest.mark.nightly
def test_two_deployments_do_not_share_a_run(project: Project) -> None:
    settings = {"SLIMTOWER_RECIPE": "recipes/named.yaml", "UNTIL": "2025-01-03", "TWO": "2"}
    (project.repository / "recipes/named.yaml").write_text("grow: {a: '${TWO:-3}'}\n")
    project.change("a: 1", "a: 3")
    assert project.task("second", "begin", **settings)[0] == 0
    project.change("a: 3", "a: 4")
    assert project.task("second", "begin", **settings)[0] == 0  # tried again; the branch has moved on
    for name, changed in {"SLIMTOWER_RECIPE": "", "UNTIL": "2025-01-02", "TWO": ""}.items():
        code, message = project.task("second", "begin", **settings | {name: changed})
        assert code == 3 and f"{name} was {settings[name]!r} and is {changed!r}; give each deployment" in message


def test_two_deployments_that_begin_at_once_do_not_share_a_run_and_none_is_called_as_the_newest_ones_folder(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(*_: object) -> str:
        folder = Path(project.remote) / "runs/second"
        folder.mkdir(parents=True)
        shutil.copyfile(Path(project.remote) / "locks/first/begin.json", folder / "begin.json")
        return "parent"

    monkeypatch.setattr(begin, "pipeline_run", meanwhile)
    for run, message in (
        ("second", "UNTIL was '' and is '2025-01-02'"),
        ("latest", "SLIMTOWER_RUN: locks/latest/ is the newest run's"),  # it would write there what is of the past
    ):
        for name, value in project.environment(run, UNTIL="2025-01-02").items():
            monkeypatch.setenv(name, value)
        with pytest.raises(UserError, match=message):
            begin.begin(TaskRun.from_environment())
    assert project.stored("runs/second/begin.json")["window"]["until"] == ""


@pytest.mark.nightly
def test_a_folder_that_the_commit_holds_is_filled_with_what_stages_wrote_into_it(tmp_path: Path) -> None:
    project = make_project(tmp_path, tracked="models/README.md")
    assert project.all("first") == [0] * 6
    assert project.ran() == list(STAGES)
    assert [project.task("second", task)[0] for task in ("begin", "gather")] == [99, 99]
    project.change("a: 1", "a: 3")
    assert project.all("third") == [0, 99, 0, 99, 0, 0]
    assert project.ran() == ["grow@a", "gather"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("start", "is_teacher"),
    [({"adapter": "models/teach/new/tower"}, True), ({"base": "./models/teach/new/tower"}, True),
     ({"base": "all-MiniLM-L6-v2"}, False), ({"layers": [-1]}, False)],
)  # fmt: skip
def test_a_teacher_in_which_a_student_begins_is_fetched(
    tmp_path: Path, start: dict[str, Any], is_teacher: bool
) -> None:
    params = {"distill": {"student": {"adapter": {"start": start}}}}
    teachers = other_teachers(params, "distill@adapter")
    assert bool(teachers) == is_teacher and other_teachers(params, "release@adapter") == []
    if not teachers:
        return
    (teacher,) = teachers
    commands: list[tuple[str, ...]] = []
    entries = {"teach@new": {"cmd": "x", "outs": [{"path": "models/teach/new/tower", "md5": "1.dir"}]}}
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": entries}))

    class Place(Workspace):
        def dvc(self, *words: str) -> str:
            commands.append(words)
            return ""

    clone = Place(tmp_path, {}, tmp_path / "exit")
    assert clone.fetch_output(teacher) == ["models/teach/new/tower"] and commands == [
        ("pull", "models/teach/new/tower")
    ]
    (tmp_path / "models/teach/new/tower").mkdir(parents=True)
    assert clone.fetch_output(teacher) == []


def test_teachers_that_train_along_or_show_their_maps_are_fetched() -> None:
    stored, maps = ({"kind": kind, "teacher": "late"} for kind in ("mutual_kl", "attention"))
    start = {"base": "models/teach/new/tower"}
    students = {
        "stored": {"losses": [stored]},
        "along": {"losses": [stored], "then": [{"targets": "joint", "losses": [stored, {"kind": "label_softmax"}]}]},
        "maps": {"losses": [maps], "start": start},
    }
    late, new = Path("models/teach/late"), Path("models/teach/new/tower")
    expected = {"distill@stored": [], "distill@along": [late], "distill@maps": [late, new], "release@along": []}
    assert {stage: other_teachers({"distill": {"student": students}}, stage) for stage in expected} == expected


@pytest.mark.nightly
def test_a_past_window_gives_what_it_gave(project: Project) -> None:
    project.day("2025-01-03")
    assert [project.task("second", task)[0] for task in ("begin", "ingest")] == [0, 0]
    window = {"SINCE": "2025-01-01", "UNTIL": "2025-01-03", "SLIMTOWER_RECIPE": "recipes/twice.yaml"}
    assert project.task("past", "begin", **window)[0] == 0
    assert project.stored("runs/past/params.yaml")["ingest"] == {"since": "2025-01-01", "until": "2025-01-03"}
    assert project.stored("runs/past/params.yaml")["grow"] == {"a": 2, "b": 2}
    assert project.stored("runs/past/sources.json") == project.stored("runs/first/sources.json")
    assert project.stored("runs/second/sources.json") != project.stored("runs/first/sources.json")
    # The window is in ingest's params, so it runs; what it wrote is as before, so what follows does not run.
    assert [project.task("past", task)[0] for task in ("ingest", "grow@b", "grow@a")] == [0, 99, 0]
    assert project.ran() == ["ingest", "ingest", "grow@a"]
    outputs = project.stored("runs/past/locks/ingest.yaml")["ingest"]["outs"]
    assert outputs == project.stored("locks/first/dvc.lock")["stages"]["ingest"]["outs"]
    code, message = project.task("past", "publish")
    assert code == 3 and "gather did not run on what others made" in message
    latest = project.stored("locks/latest/begin.json")
    assert [project.task("past", task, SLIMTOWER_BACKFILL="1")[0] for task in ("gather", "publish")] == [0, 0]
    assert tuple(project.stored("locks/past/dvc.lock")["stages"]) == STAGES
    assert project.stored("locks/latest/begin.json") == latest


@pytest.mark.nightly  # tests/integration kills one in containers
def test_a_killed_task_is_repeated_alone(project: Project) -> None:
    project.change("a: 1", "a: 3")
    assert [project.task("second", task)[0] for task in ("begin", "ingest")] == [0, 99]
    process = project.start("second", "grow@a", MISBEHAVE="grow@a:hang")
    until(lambda: project.ran() == ["grow@a"])
    kill_family(process.pid)  # as a container's end kills all of it
    process.communicate()
    shutil.rmtree(project.root / "work")
    assert [project.task("second", task)[0] for task in ("grow@a", "grow@b", "gather")] == [0, 99, 0]
    assert project.ran() == ["grow@a", "gather"]
    assert project.task("second", "grow@a")[0] == 99
    assert project.task("second", "publish")[0] == 0
    assert project.ran() == []
    lock, before = (project.stored(f"locks/{run}/dvc.lock")["stages"] for run in ("second", "first"))
    assert lock["grow@a"]["outs"] != before["grow@a"]["outs"] and lock["gather"]["outs"] != before["gather"]["outs"]
    assert lock["ingest"] == before["ingest"] and lock["grow@b"] == before["grow@b"]

    project.change("a: 3", "a: 1")  # made before: DVC's run cache has it, on another machine too
    assert [project.task("third", task)[0] for task in ("begin", "grow@a")] == [0, 0]
    assert project.ran() == []
    assert project.stored("runs/third/locks/grow@a.yaml")["grow@a"] == before["grow@a"]


@pytest.mark.nightly
def test_outputs_that_the_remote_lost_are_made_again(project: Project) -> None:
    lock = project.stored("locks/first/dvc.lock")["stages"]
    md5 = lock["grow@b"]["outs"][0]["md5"]
    (Path(project.remote) / "dvc/files/md5" / md5[:2] / md5[2:]).unlink()
    assert [project.task("second", task)[0] for task in ("begin", "grow@a", "grow@b")] == [0, 99, 0]
    assert project.ran() == ["grow@b"]
    assert project.stored("runs/second/locks/grow@b.yaml")["grow@b"] == lock["grow@b"]


@pytest.fixture(scope="module")
def started_project(first: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project whose run `second` has begun, with work for grow@a and nothing else."""
    project = copied(first, tmp_path_factory.mktemp("begun") / "project")
    project.change("a: 1", "a: 3")
    assert project.task("second", "begin")[0] == 0
    return project


@pytest.mark.parametrize(
    ("how", "code", "message"),
    [
        ("user", 3, "grow@a: the data are wrong; fix them"),
        (
            "memory",
            137,
            "grow@a: out of memory: too large; give it more, or a smaller SLIMTOWER_MICRO_BATCH or batch_size",
        ),
        pytest.param("transient", 75, "grow@a: the server is away; try again", marks=pytest.mark.nightly),
        pytest.param("defect", 1, "grow@a: 'a defect'", marks=pytest.mark.nightly),
    ],
)
def test_a_failing_stage_gives_its_code_and_its_reason_last(
    started_project: Project, how: str, code: int, message: str
) -> None:
    ended, output = started_project.task("second", "grow@a", MISBEHAVE=f"grow@a:{how}")
    assert (ended, output.splitlines()[-1]) == (code, f"slimtower: {message}")
    assert not (Path(started_project.remote) / "runs/second/locks").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", started_project.tracking)
        parent = registry.client().get_run(started_project.stored("runs/second/begin.json")["parent_run"])
    assert parent.info.status == "FAILED"


def test_a_killed_stage_and_a_stopped_task(started_project: Project) -> None:
    for sent, code in ((signal.SIGKILL, 137), (signal.SIGTERM, 143), (signal.SIGHUP, 129)):
        started_project.ran()
        process = started_project.start("second", "grow@a", MISBEHAVE="grow@a:hang")
        until(lambda: started_project.ran() == ["grow@a"])
        family = psutil.Process(process.pid).children(recursive=True)
        stage = next(child for child in family if "steps.ingest" in child.cmdline())
        (stage if sent == signal.SIGKILL else process).send_signal(sent)
        process.communicate(timeout=60)
        assert process.returncode == code
        assert not psutil.wait_procs(family, timeout=10)[1]
        assert not list((started_project.root / "work").glob("*"))


@pytest.mark.nightly  # each setting is a process of some seconds
@pytest.mark.parametrize(
    ("task", "change", "code", "message"),
    [
        ("grow@a", {"SLIMTOWER_RUN": ""}, 3, "SLIMTOWER_RUN: not set; give the id of this run"),
        ("grow@a", {"SLIMTOWER_RUN": "third"}, 3, "run `begin` with the same SLIMTOWER_RUN first"),
        ("grow@c", {}, 3, "'grow@c' is no stage of dvc.yaml at this run's commit; there are ingest, grow@a"),
        ("publish", {}, 3, "a stage did not run on what others made"),
        ("promote", {"SLIMTOWER_RUN": "third"}, 3, "nothing was published there"),
        ("deploy", {}, 3, "SLIMTOWER_DEPLOY_TO: not set; give the vector engine"),
        ("begin", {"SLIMTOWER_RUN": "new", "SLIMTOWER_REF": "no-such"}, 3, "no commit, tag or branch 'no-such'"),
        ("begin", {"SLIMTOWER_RUN": "new", "SLIMTOWER_REPO": "/no/such"}, 3, "SLIMTOWER_REPO: /no/such"),
        ("begin", {"SLIMTOWER_RUN": "new", "SLIMTOWER_STAGES": "ingest grow@a gather"}, 3, "differ in grow@b"),
        ("begin", {"SLIMTOWER_RUN": "new", "SINCE": "4"}, 3, "ingest.since: no such day"),
        ("begin", {"SLIMTOWER_RUN": "new", "SLIMTOWER_RECIPE": "recipes/no.yaml"}, 3, "recipes/no.yaml"),
        ("begin", {"SLIMTOWER_RUN": "new", "SLIMTOWER_REPO": AWAY}, 75, "http://***@127.0.0.1"),
        ("begin", {"SLIMTOWER_RUN": "new", "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}, 75, "not reached"),
        ("grow@a", {"SLIMTOWER_REMOTE": "s3://bucket/prefix"}, 75, "SLIMTOWER_REMOTE: s3://bucket/prefix: Could not"),
    ],
)
def test_wrong_settings_and_servers_that_are_away(
    started_project: Project, task: str, change: dict[str, str], code: int, message: str
) -> None:
    aws = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
    started = time.monotonic()
    ended, output = started_project.task("second", task, **aws, **change)
    assert time.monotonic() - started < 60
    complaints = [line for line in output.splitlines() if line.startswith("slimtower:")]
    assert ended == code and len(complaints) == 1 and message in complaints[0], output
    assert TOKEN not in output


def test_a_run_begun_with_a_clock_ahead_holds_no_later_one_back(project: Project) -> None:
    path = Path(project.remote) / "locks/latest/begin.json"
    ahead = json.loads(path.read_text()) | {"began": "2999-01-01T00:00:00.000000+00:00"}
    path.write_text(json.dumps(ahead))
    project.change("a: 1", "a: 3")
    code, message = project.task("second", "begin")
    assert code == 0 and "2999-01-01 00:00 UTC, which is still to come; see to the clocks" in message
    record = project.stored("runs/second/begin.json")
    assert record["began"] == "2999-01-01T00:00:00.000001+00:00" > ahead["began"]


def test_a_stage_that_reads_what_stayed_need_not_run_though_another_output_changed() -> None:
    def entry(*names: str, **outs: str) -> dict[str, Any]:
        return {"deps": [{"path": name, "md5": "a"} for name in names],
                "outs": [{"path": path, "md5": md5} for path, md5 in outs.items()]}  # fmt: skip

    base = {"ingest": entry(corpus="a", unlabelled="a"), "candidates": entry("corpus"), "embed": entry("unlabelled")}
    fragments = {"ingest": {"ingest": entry(corpus="a", unlabelled="b")}}
    lock = base | fragments["ingest"]
    assert publish._outdated(lock, base, fragments, lambda _: {}) == ["embed"]
    assert publish._outdated(lock, base, fragments | {"embed": {"embed": lock["embed"]}}, lambda _: {}) == []


def test_a_file_inside_a_folder_that_changed_is_what_its_readers_are_held_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    written = "mkdir -p data/mine && echo {} > data/mine/t && echo {} > data/mine/u"
    teach = {"cmd": "cp data/mine/t model", "deps": ["data/mine/t"], "outs": ["model"]}
    Repo.init(no_scm=True).close()
    Path(".dvc/config.local").write_text(f"[core]\nremote = other\n['remote \"other\"']\nurl = {tmp_path}/remote\n")
    stages = {}
    for name, texts in {"old": "12", "other file": "13", "read file": "42"}.items():
        mine = {"cmd": written.format(*texts), "outs": ["data/mine"]}
        Path("dvc.yaml").write_text(yaml.safe_dump({"stages": {"mine": mine, "teach": teach}}))
        with Repo() as repo:
            repo.reproduce()
            repo.push()
        stages[name] = lock_stages(Path("dvc.lock"))
    for path in ("data", ".dvc/cache", "model"):
        shutil.rmtree(path, ignore_errors=True)
    clone = Workspace(tmp_path / "project", dict(os.environ), tmp_path / "exit")
    for name, outdated in {"other file": [], "read file": ["teach"]}.items():
        lock = {"mine": stages[name]["mine"], "teach": stages["old"]["teach"]}
        clone.write("dvc.lock", dump_lock(lock))
        fragments = {"mine": {"mine": lock["mine"]}}
        assert publish._outdated(lock, stages["old"], fragments, clone.digests) == outdated
    fragments["teach"] = {"teach": lock["teach"]}
    assert publish._outdated(lock, stages["old"], fragments, clone.digests) == []
    assert not Path("data").exists(), "nothing is pulled"

"""Runs of recipes: each in a worktree of its own, one at a time, stopped and gone on with."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import pipeline.recipe as recipe_module
from pipeline.in_run import main as in_run
from pipeline.outcome import next_commands
from pipeline.recipe import (
    check_new,
    params_text,
    worktree,
)
from slimtower.common.errors import UserError
from slimtower.common.files import write_json
from slimtower.serving.choice import check_origin


def git(*words: str | Path) -> str:
    identity = ("-c", "user.email=test@example.org", "-c", "user.name=test")
    done = subprocess.run(["git", *identity, *map(str, words)], check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    files = {
        ".dvc/config": "", ".dvc/.gitignore": "/config.local\n", ".gitignore": "/runs/\n/models\n",
        "params.yaml": "a: 1\n", "dvc.lock": "of the project\n",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    git("init", "-q", tmp_path)
    git("-C", tmp_path, "add", "-A")
    git("-C", tmp_path, "commit", "-qm", "first")
    return tmp_path


def status(checkout: Path) -> str:
    return git("-C", checkout, "status", "--porcelain")


def wait_for(path: Path, running: subprocess.Popen[Any] | None = None) -> None:
    """Until a file is there, which a process that runs writes."""
    last = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < last and (running is None or running.poll() is None)
        time.sleep(0.05)


def test_a_worktree_leaves_the_project_clean_and_keeps_its_own_lock(checkout: Path) -> None:
    folder = worktree(checkout, Path("recipes/x.yaml"))
    (folder / "params.yaml").write_text("a: 2\n")
    (folder / "dvc.lock").write_text("of the recipe\n")
    assert worktree(checkout, Path("recipes/x.yaml")) == folder
    assert (folder / "dvc.lock").read_text() == "of the recipe\n"
    assert (folder / "params.yaml").read_text() == "a: 1\n"
    assert str(checkout / ".dvc" / "cache") in (folder / ".dvc" / "config.local").read_text()
    assert status(checkout) == ""
    (checkout / "params.yaml").write_text("a: 3\n")  # not committed
    worktree(checkout, Path("recipes/x.yaml"))
    assert (folder / "params.yaml").read_text() == "a: 3\n"
    assert status(checkout) == " M params.yaml\n"


@pytest.mark.parametrize("state", ["announced", "in conflict"])
def test_what_git_cannot_save_is_told_with_what_to_do(checkout: Path, state: str) -> None:
    if state == "announced":
        (checkout / "new.yaml").write_text("a: 1\n")
        git("-C", checkout, "add", "-N", "new.yaml")
    else:
        git("-C", checkout, "checkout", "-qb", "other")
        (checkout / "params.yaml").write_text("a: 2\n")
        git("-C", checkout, "commit", "-qam", "two")
        git("-C", checkout, "checkout", "-q", "-")
        (checkout / "params.yaml").write_text("a: 3\n")
        git("-C", checkout, "commit", "-qam", "three")
        subprocess.run(["git", "-C", str(checkout), "merge", "-q", "other"], capture_output=True)
    with pytest.raises(UserError, match="finish the merge, or `git add` the files"):
        worktree(checkout, Path("recipes/x.yaml"))


@pytest.mark.parametrize("how", ["moved", "copied", "cloned", "without git", "moved, others first"])
def test_a_run_goes_on_with_what_it_holds_in_a_project_that_was_moved_or_copied(checkout: Path, how: str) -> None:
    """Another recipe's first run, in a project that was moved, once made git forget all others."""
    before = worktree(checkout, Path("recipes/x.yaml"))
    files = {"dvc.lock": "of the recipe\n", "models": "served", "params.yaml": "a: 9, by the recipe\n"}
    for name, text in files.items():
        (before / name).write_text(text)
    there = checkout.with_name(f"{checkout.name} there")
    if how == "copied":
        shutil.copytree(checkout, there)
    elif how == "cloned":
        git("clone", "-q", checkout, there)
        shutil.copytree(checkout / "runs", there / "runs")
    else:
        checkout.rename(there)
    if how == "without git":
        (there / "runs/x/.git").unlink()
    if how != "moved":
        worktree(there, Path("recipes/y.yaml"))
    (there / "params.yaml").write_text("a: 7\n")
    for _ in range(2):
        folder = worktree(there, Path("recipes/x.yaml"))
        contents = {name: (folder / name).read_text() for name in files}
        assert contents == files | {"params.yaml": "a: 7\n"} and status(folder).startswith(" M dvc.lock\n")
    assert str(folder) in git("-C", there, "worktree", "list")
    assert [path.name for path in folder.parent.iterdir() if "worktree" in path.name] == []
    if how == "copied":
        assert (before / "params.yaml").read_text() == files["params.yaml"] and "dvc.lock" in status(before)


def test_code_of_a_forgotten_runs_old_commit_does_not_stay(checkout: Path) -> None:
    for path in ("steps/losses/old.py", "steps/new.py", "data/kept.parquet"):
        (checkout / path).parent.mkdir(parents=True, exist_ok=True)
        (checkout / path).write_text("")
    (checkout / "data/.gitignore").write_text("*.parquet\n")
    git("-C", checkout, "add", "-A")
    git("-C", checkout, "commit", "-qm", "second")
    folder = worktree(checkout, Path("recipes/x.yaml"))
    for path in ("data/kept.parquet", "notes.txt", "models/release"):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text("of a person or a stage")
    git("-C", checkout, "rm", "-qr", "steps/losses")
    git("-C", checkout, "commit", "-qm", "third")
    shutil.rmtree(checkout / ".git/worktrees/x")  # as `git worktree prune` does where the project was moved
    assert worktree(checkout, Path("recipes/x.yaml")) == folder
    assert (folder / "steps/new.py").is_file() and not (folder / "steps/losses").exists()
    for path in ("data/kept.parquet", "notes.txt", "models/release"):
        assert (folder / path).read_text() == "of a person or a stage"


@pytest.mark.medium
@pytest.mark.parametrize("with_git", [True, False])
def test_the_lock_of_a_run_survives_a_kill_while_its_files_are_renewed(
    checkout: Path, with_git: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_git:
        shutil.rmtree(checkout / ".git")
    folder = worktree(checkout, Path("recipes/x.yaml"))
    (folder / "dvc.lock").write_text("of the recipe\n")
    name = "_check_out" if with_git else "plain_copy"
    killed = (
        "import os, signal, sys; from pathlib import Path; import pipeline.recipe as recipe\n"
        f"renew = recipe.{name}\n"
        f"recipe.{name} = lambda *paths: (renew(*paths), os.kill(os.getpid(), signal.SIGKILL))\n"
        "recipe.worktree(Path(sys.argv[1]), Path('recipes/x.yaml'))"
    )
    assert subprocess.run([sys.executable, "-c", killed, str(checkout)]).returncode == -signal.SIGKILL
    assert (folder / "dvc.lock").read_text() == "of the project\n"
    worktree(checkout, Path("recipes/x.yaml"))
    assert (folder / "dvc.lock").read_text() == "of the recipe\n"

    renewed = getattr(recipe_module, name)

    def fails(*paths: Path) -> None:
        renewed(*paths)
        raise UserError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(recipe_module, name, fails)
        with pytest.raises(UserError, match="no space left"):
            worktree(checkout, Path("recipes/x.yaml"))
    assert (folder / "dvc.lock").read_text() == "of the recipe\n"
    assert [path.name for path in folder.parent.iterdir()] == ["x"]


RUN = """
import os, sys; from pathlib import Path; from pipeline.recipe import run
run(sys.argv[2:], Path(sys.argv[1]), dict(os.environ))
"""


@pytest.mark.medium
@pytest.mark.parametrize(
    ("sent", "nohup", "code"),
    [([signal.SIGTERM], False, 143), ([signal.SIGHUP], False, 129), ([signal.SIGHUP, signal.SIGTERM], True, 143)],
    ids=["stopped", "terminal closed", "nohup"],
)
def test_a_recipe_that_is_stopped_stops_its_pipeline_and_waits_for_it(
    tmp_path: Path, sent: list[signal.Signals], nohup: bool, code: int
) -> None:
    pipeline = tmp_path / "pipeline.sh"  # takes a moment to put its things away
    pipeline.write_text(
        "trap 'sleep 0.3; echo ended >ended; exit 1' TERM; echo began >began; while :; do sleep 0.05; done"
    )
    words = [sys.executable, "-c", RUN, str(tmp_path), "sh", "pipeline.sh"]
    recipe = subprocess.Popen(["nohup", *words] if nohup else words)
    wait_for(tmp_path / "began")
    for number in sent:
        time.sleep(0.2)  # a child may be at work before the call that starts it has returned
        recipe.send_signal(number)
    assert recipe.wait(30) == code
    assert (tmp_path / "ended").exists()


@pytest.mark.medium
def test_an_interrupted_recipe_lets_its_pipeline_end_in_its_own_time(tmp_path: Path) -> None:
    """Ctrl-C reaches both; the pipeline closes its run of MLflow on its way out, which takes a moment."""
    (tmp_path / "closing.py").write_text(
        "import time; from pathlib import Path; from pipeline.stopping import stop_when_asked; stop_when_asked()\n"
        "try:\n    Path('began').touch(); time.sleep(60)\n"
        "except (KeyboardInterrupt, SystemExit):\n    time.sleep(1); Path('closed').touch(); raise\n"
    )
    recipe = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path), sys.executable, "closing.py"],
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored where tests run in the background
    )
    wait_for(tmp_path / "began")
    os.killpg(recipe.pid, signal.SIGINT)
    assert recipe.wait(30)
    assert (tmp_path / "closed").exists()


PIPELINE = """\
import time
from pathlib import Path
Path("began").touch()
while not Path("enough").exists():
    time.sleep(0.05)
for name in ("report.html", "report.md", "metrics.json"):
    Path("reports").mkdir(exist_ok=True)
    Path("reports", name).write_text('{"verdict": {"a": {"s": {"answer": "yes"}}}}')
"""


@pytest.mark.slow
def test_one_run_of_a_recipe_at_a_time(checkout: Path) -> None:
    """The second is told so and touches nothing; one that is killed holds nobody up, though its pipeline runs on."""
    params = Path("params.yaml").read_text(encoding="utf-8")
    files = {"params.yaml": params, "recipes/x.yaml": "{}", "pipeline.py": PIPELINE}
    files["steps/evaluate.py"] = "import sys; print('the table' if sys.argv[1:] == ['--table'] else '')"
    for name, text in files.items():
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text(text, encoding="utf-8")
    git("-C", checkout, "add", "-A")
    start = "import sys; sys.path.remove(''); sys.path.insert(0, sys.argv.pop(1));"
    start += "from pipeline.recipe import main; from slimtower.common.errors import guarded; guarded(main)"

    def recipe() -> subprocess.Popen[str]:
        words = [sys.executable, "-c", start, str(Path.cwd()), "recipes/x.yaml"]
        return subprocess.Popen(words, cwd=checkout, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def began(running: subprocess.Popen[str]) -> None:
        wait_for(folder / "began", running)
        (folder / "began").unlink()

    folder = checkout / "runs/x"
    try:
        first = recipe()
        began(first)
        (folder / "params.yaml").write_text("as it was\n")
        second = recipe()
        _, stderr = second.communicate(timeout=60)
        assert second.returncode == 75 and "another run of this recipe is at work" in stderr
        assert (folder / "params.yaml").read_text() == "as it was\n"
        first.kill()
        first.wait(60)
        third = recipe()
        began(third)
    finally:
        (folder / "enough").touch()
    stdout, stderr = third.communicate(timeout=60)
    assert third.returncode == 0, stderr
    assert "the table\n" in stdout
    for command in ("reports/x.report.html", "make serve RECIPE=recipes/x.yaml", "make promote RECIPE=recipes/x.yaml"):
        assert f"{command}\n" in stdout
    assert not list(folder.rglob(".staging.*"))


def test_params_that_the_last_run_wrote_are_not_checked_again(tmp_path: Path) -> None:
    wrong: dict[str, Any] = {"no_such_section": 1}
    written, recipe = tmp_path / "params.yaml", Path("recipes/scifact.yaml")
    with pytest.raises(UserError, match="no_such_section"):
        check_new(wrong, written, recipe)
    written.write_text(params_text(wrong, str(recipe)), encoding="utf-8")
    check_new(wrong, written, recipe)
    with pytest.raises(UserError, match="no_such_section"):
        check_new(wrong | {"another": 2}, written, recipe)


def test_a_command_runs_where_the_recipe_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    module_file = tmp_path / "told.py"
    module_file.write_text(
        "import os, sys\nprint(os.getcwd(), os.environ.get('SLIMTOWER_RECIPE'), sys.argv[1:])\nsys.exit(3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("SLIMTOWER_RECIPE", raising=False)

    def run(recipe: str) -> str:
        monkeypatch.setattr(sys, "argv", ["in_run", recipe, "told", "--name", "mine"])
        with pytest.raises(SystemExit, match="3"):
            in_run()
        return capfd.readouterr().out.strip()

    assert run("") == f"{tmp_path} None ['--name', 'mine']"
    with pytest.raises(UserError, match=r"runs/x: recipes/x\.yaml was not run here"):
        run("recipes/x.yaml")
    (tmp_path / "runs/x").mkdir(parents=True)
    assert run("recipes/x.yaml") == f"{tmp_path}/runs/x recipes/x.yaml ['--name', 'mine']"
    (tmp_path / "runs/x/params.yaml").write_text(params_text({}, "recipes/x.yaml"), encoding="utf-8")
    assert run(f"{tmp_path}/recipes/x.yaml").startswith(f"{tmp_path}/runs/x ")
    for command in (lambda: run("mine/x.yaml"), lambda: check_origin(Path("runs/x"), Path("mine/x.yaml"))):
        with pytest.raises(
            UserError, match=r"runs/x is the run of recipes/x\.yaml, another recipe of that name; rename"
        ):
            command()


def test_the_last_words_say_if_no_student_would_be_a_first_champion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    yes, no, open_ = ({"answer": answer} for answer in ("yes", "no", "cannot tell"))
    for verdict, refused in (
        ({"a": {"s": no, "t": yes}, "b": {"s": yes}}, False),
        ({"a": {"s": no}, "b": {"s": yes}}, True),
        ({"a": {"s": open_}}, False),
        ({}, True),
    ):
        write_json(tmp_path / "reports/metrics.json", {"verdict": verdict})
        [offer] = [line for line in next_commands("") if "make promote" in line]
        assert ("refuses" in offer) == refused

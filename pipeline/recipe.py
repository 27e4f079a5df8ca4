"""python -m pipeline.recipe recipes/x.yaml DATA=...: the pipeline with an overlay, in a worktree of its own.

The worktree runs/<recipe> is at the present commit plus uncommitted changes of tracked files; without git it is a plain
copy. It shares DVC's cache, the embeddings' cache and the MLflow database with the project, whose tracked files stay as
they are.
"""

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from pipeline.outcome import show
from pipeline.plain_copy import plain_copy
from pipeline.stopping import stop_when_asked
from slimtower.common.errors import UserError, guarded, line
from slimtower.common.files import cache_root, file_lock, staged_file
from slimtower.common.imports import uncollected_imports
from slimtower.common.masking import redacted
from slimtower.common.settings import checked_name, parse_mapping, read_mapping, read_text
from slimtower.registry.client import tracking_uri
from slimtower.serving.choice import check_origin
from steps.tracking.run_ids import git_commit

_VARIABLE = re.compile(r"\$\{(\w+)(:-[^}]*)?\}")
_NO_VALUE = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029\"\\]")  # it would end the text in YAML that it stands in
_WAY_OUT_S = 120  # so long may a command that was interrupted take to put its things away
_PATHS = {"DATA", "UNLABELLED", "RELEVANCE"}


def overlay(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """`base` with `change` laid over it: mappings merge, everything else replaces, and so does a student's start."""
    merged = dict(base)
    for key, value in change.items():
        old, replaces = merged.get(key), key == "start"  # of two starts in one mapping none would count
        merged[key] = (
            overlay(old, value) if isinstance(old, dict) and isinstance(value, dict) and not replaces else value
        )
    return merged


def fill(text: str, variables: dict[str, str], recipe: Path) -> str:
    """Replace `${NAME}` and `${NAME:-default}`; UserError names a variable that was not given."""

    def value(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if setting := variables.get(name):
            if _NO_VALUE.search(setting):
                raise UserError(
                    f"{recipe}: {name}={setting!r}: quotes, backslashes and line ends have no place in a value"
                )
            here = name in _PATHS or ("/" in setting and Path(setting).is_dir())  # a model may be a folder or a name
            return str(Path(setting).resolve()) if here and "://" not in setting else setting
        if default is None:
            raise UserError(
                f"{recipe}: needs {name}; run `make run RECIPE={recipe} {name}=<path>` (its comments say how to get it)"
            )
        return default[2:]

    return "\n".join(line if line.lstrip().startswith("#") else _VARIABLE.sub(value, line) for line in text.split("\n"))


def check_names(variables: dict[str, str], text: str, recipe: Path) -> None:
    """UserError for a variable that no recipe beside this one reads either; a line for one that others alone read."""
    own_names = set(variable_names(text))
    other_names = {name for path in recipe.parent.glob("*.yaml") for name in variable_names(read_text(path))}
    for name in [name for name, setting in variables.items() if setting and name not in own_names]:
        if name in other_names:
            print(
                f"{recipe} reads no {name}, which changes nothing; it reads {', '.join(sorted(own_names))}",
                file=sys.stderr,
            )
            continue
        near = get_close_matches(name, sorted(own_names), 1)
        raise UserError(
            f"{recipe}: reads no {name}{f', but {near[0]}' if near else ''}; it reads {', '.join(sorted(own_names))}"
        )


def variable_names(text: str) -> list[str]:
    """The `NAME`s of a recipe's `${NAME}` and `${NAME:-default}`."""
    return [match[1] for match in _VARIABLE.finditer(text)]


def given_variables(text: str, typed: dict[str, str]) -> dict[str, str]:
    """Values of a recipe's variables: those that were typed, else those of the environment."""
    return {name: os.environ.get(name, "") for name in variable_names(text)} | typed


def laid_over(params: dict[str, Any], text: str, variables: dict[str, str], recipe: Path) -> dict[str, Any]:
    """`params` with the text of a recipe, its variables filled, laid over them."""
    return overlay(params, parse_mapping(fill(text, variables, recipe), str(recipe)))


def params_text(params: dict[str, Any], origin: str) -> str:
    """What is written as params.yaml; `origin` says on its first line what was laid over it."""
    text: str = yaml.safe_dump(params, sort_keys=False, allow_unicode=True, width=120)
    return f"# params.yaml of the project with {origin} laid over it\n{text}"


def check_new(params: dict[str, Any], written: Path, recipe: Path) -> None:
    """Check params unless the last run wrote the same; the pipeline checks them once more in any case."""
    if not written.is_file() or read_text(written) != params_text(params, str(recipe)):
        with uncollected_imports():
            from pipeline.params import check_params  # seconds: it loads torch

        check_params(params, str(recipe), written.parent)


def run_folder(root: Path, recipe: Path) -> Path:
    return root / "runs" / checked_name("recipe", recipe.stem)


def run_environment(recipe: Path) -> dict[str, str]:
    """What a command in a recipe's run is told: cache, commit and MLflow are the project's."""
    return os.environ | {
        "SLIMTOWER_CACHE": str(cache_root()),
        "SLIMTOWER_GIT_COMMIT": git_commit(),
        "SLIMTOWER_RECIPE": str(recipe),
        "MLFLOW_TRACKING_URI": tracking_uri(),
    }


def worktree(root: Path, recipe: Path) -> Path:
    """Make or refresh the recipe's run, where nothing may run, at the tracked files' state; keeps its dvc.lock."""
    folder = run_folder(root, recipe)
    lock, backup = folder / "dvc.lock", folder.with_name(f".{folder.name}~dvc.lock")
    if not folder.exists():
        backup.unlink(missing_ok=True)
    elif lock.is_file() and not backup.is_file():  # it is there where a run was killed before it put it back
        with staged_file(backup) as staging:
            shutil.copyfile(lock, staging)
    config = f"[cache]\n    dir = '{root / '.dvc' / 'cache'}'\n"
    try:
        if (root / ".git").exists() and shutil.which("git"):
            _check_out(root, folder)
        else:
            plain_copy(root, folder)
            config = f"[core]\n    no_scm = true\n{config}"  # a checkout that the project may lie in ignores the folder
    finally:
        if backup.is_file():
            backup.replace(lock)
    (folder / ".dvc" / "config.local").write_text(config, encoding="utf-8")
    return folder


def _check_out(root: Path, folder: Path) -> None:
    """Make or refresh a git worktree at the present commit and what differs from it."""
    commit = _git(root, "rev-parse", "HEAD")
    if _git(root, "status", "--porcelain", "--untracked-files=no"):
        identity = ("-c", "user.name=slimtower", "-c", "user.email=slimtower@localhost")  # of a commit nobody keeps
        try:
            commit = _git(root, *identity, "stash", "create")
        except UserError as error:
            reason = line(error).partition("; ")[0]
            raise UserError(
                f"git cannot save what differs from the last commit ({reason}): finish the merge, or `git add` the"
                " files that `git status` names, and run it again"
            ) from None
    if not folder.exists():
        _git(root, "worktree", "add", "--quiet", "--force", "--detach", str(folder), commit)
        return
    if not _is_linked(root, folder):
        _link(root, folder, commit)
    _git(folder, "checkout", "--quiet", "--force", "--detach", commit)


def _link(root: Path, folder: Path, commit: str) -> None:
    """Make a worktree of a folder that is none of this checkout's: what it holds besides tracked files stays.

    In the tracked folders that is what .gitignore names: anything else there may be code of the folder's old commit.
    """
    spare = folder.with_name(f".{folder.name}.worktree")
    shutil.rmtree(spare, ignore_errors=True)
    _git(root, "worktree", "add", "--quiet", "--force", "--detach", str(spare), commit)
    git_dir = f"--git-dir={(spare / '.git').read_text(encoding='utf-8').strip().removeprefix('gitdir: ')}"
    for name in _git(root, "ls-tree", "-d", "-z", "--name-only", commit).split("\0")[:-1]:
        _git(folder, git_dir, f"--work-tree={folder}", "clean", "--quiet", "--force", "-d", "--", name)
    (folder / ".git").unlink(missing_ok=True)
    (spare / ".git").rename(folder / ".git")
    shutil.rmtree(spare)
    _is_linked(root, folder)  # git is told where it lies


def _is_linked(root: Path, folder: Path) -> bool:
    """Whether the folder is a worktree of this checkout; one that was moved or copied with it becomes one again."""
    link = folder / ".git"
    if not link.is_file():
        return False
    content = link.read_text(encoding="utf-8")
    linked = (root / _git(root, "rev-parse", "--git-common-dir")).resolve() / "worktrees" / Path(content.strip()).name
    if not linked.is_dir():
        return False
    if content != (right := f"gitdir: {linked}\n"):  # else git would work on the checkout that it was copied from
        link.write_text(right, encoding="utf-8")
    lies = f"{link.resolve()}\n"
    if (linked / "gitdir").read_text(encoding="utf-8") != lies:
        (linked / "gitdir").write_text(lies, encoding="utf-8")
    return True


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True)
    if done.returncode:
        reason = redacted(done.stderr).strip()[:300]
        raise UserError(f"git {' '.join(words[:2])}: {reason}; recipes need a git checkout with a commit")
    return done.stdout.strip()


def run(command: list[str], folder: Path, environment: dict[str, str]) -> int:
    """Run a command, which stops if this process is to; returns its exit code, 128 and the signal if it was killed."""
    stop_when_asked()
    running = subprocess.Popen(command, cwd=folder, env=environment)
    try:
        code = running.wait()
        return code if code >= 0 else 128 - code
    except KeyboardInterrupt:  # the terminal has asked the command too; asked twice, its way out would be cut short
        with suppress(subprocess.TimeoutExpired):
            running.wait(_WAY_OUT_S)
        raise
    finally:
        if running.poll() is None:
            running.terminate()
            running.wait()


def main() -> None:
    """Run a recipe and copy its report to reports/; words without `=` are the stages to stop at."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__)
        return
    if len(sys.argv) < 2 or not sys.argv[1]:
        raise UserError("no recipe given; run `make run RECIPE=recipes/<name>.yaml DATA=<folder>`")
    recipe, root = Path(sys.argv[1]), Path.cwd()
    if recipe.is_absolute() and recipe.is_relative_to(root):  # params.yaml records it, and the project may move
        recipe = recipe.relative_to(root)
    if not recipe.is_file():
        recipes = ", ".join(sorted(str(path) for path in Path("recipes").glob("*.yaml")))
        raise UserError(f"{recipe}: no such recipe; there are {recipes}")
    folder = run_folder(root, recipe)
    busy = f"{recipe}: another run of this recipe is at work in {folder}; wait until it has ended, or stop it"
    with file_lock(folder.with_name(f".{folder.name}.lock"), busy):
        _run_alone(root, recipe, sys.argv[2:])


def _run_alone(root: Path, recipe: Path, words: list[str]) -> None:
    """Refresh the recipe's worktree, run the pipeline there, and copy its report."""
    text = read_text(recipe)
    typed = dict(word.split("=", 1) for word in words if "=" in word)
    stages = [word for word in words if "=" not in word]
    check_names(typed, text, recipe)
    variables = given_variables(text, typed)
    check_origin(run_folder(root, recipe), recipe)
    params = laid_over(read_mapping(Path("params.yaml")), text, variables, recipe)
    check_new(params, run_folder(root, recipe) / "params.yaml", recipe)
    folder = worktree(root, recipe)
    with staged_file(folder / "params.yaml") as staging:
        staging.write_text(params_text(params, str(recipe)), encoding="utf-8")
    code = run([sys.executable, "-m", "pipeline", *stages], folder, run_environment(recipe))
    if code or stages:
        raise SystemExit(code)
    for name in ("report.html", "report.md", "metrics.json"):
        target = root / "reports" / f"{recipe.stem}.{name}"
        target.parent.mkdir(exist_ok=True)
        with staged_file(target) as staging:
            shutil.copyfile(folder / "reports" / name, staging)
    show(str(recipe))


if __name__ == "__main__":
    guarded(main)

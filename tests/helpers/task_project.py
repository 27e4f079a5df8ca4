"""A small project as a git repository, whose stages misbehave when told to, and its tasks as processes."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

CORE = (
    *(f"slimtower/{name}.py" for name in ("__init__", "common/__init__", "common/errors", "common/masking")),
    *(f"steps/{name}.py" for name in ("__init__", "frame/__init__", "frame/exit_file")),
)
STAGES = ("ingest", "grow@a", "grow@b", "gather")

DVC_YAML = """\
stages:
  ingest:
    cmd: python -m steps.ingest
    params: [ingest]
    deps: [sources.json, steps/ingest]
    outs: [data/ingest]
  grow:
    matrix:
      kind: ${kinds}
    cmd: python -m steps.ingest grow ${item.kind}
    params:
      - grow.${item.kind}
    deps: [data/ingest]
    outs:
      - models/${item.kind}
  gather:
    cmd: python -m steps.ingest gather
    deps: [data/ingest, models]
    outs: [reports]
"""

# Lists the days of a log, or runs a stage; says what ran in $RAN; misbehaves as $MISBEHAVE says.
STEP = """\
import json, os, sys, time
from pathlib import Path
import yaml
from slimtower.common import errors
from steps.frame import exit_file

params = yaml.safe_load(Path("params.yaml").read_text())
window = params["ingest"]


def days():
    for path in sorted(Path(os.environ["LOG"]).iterdir()):
        if window["since"] <= path.stem and (not window["until"] or path.stem < window["until"]):
            yield path


def ingest():
    write("data/ingest", "".join(path.read_text() for path in days()))


def grow(kind):
    write(f"models/{kind}", Path("data/ingest/text").read_text() * params["grow"][kind])


def gather():
    write("reports", "".join(path.read_text() for path in sorted(Path("models").glob("*/text"))))


def write(folder, text):
    Path(folder).mkdir(parents=True)
    Path(folder, "text").write_text(text)


def stage(words):
    with Path(os.environ["RAN"]).open("a") as ran:
        ran.write("@".join(words) + "\\n")
    name, _, how = os.environ.get("MISBEHAVE", "").partition(":")
    if name == "@".join(words):
        if how == "hang":
            time.sleep(600)
        raise {
            "user": errors.UserError("the data are wrong;\\nfix them"),
            "transient": errors.TransientError("the server is away; try again"),
            "memory": MemoryError("too large"),
            "defect": KeyError("a defect"),
        }[how]
    globals()[words[0]](*words[1:])


def main():
    if sys.argv[1:] == ["--list"]:
        if window["since"] > "3":
            raise errors.UserError("params.yaml: ingest.since: no such day")
        Path("sources.json").write_text(json.dumps([[path.name, path.stat().st_size] for path in days()]))
    else:
        with exit_file.record_exit():
            stage(sys.argv[1:] or ["ingest"])


errors.guarded(main)
"""


PROMOTE = """\
import os, sys
from pathlib import Path

with Path(os.environ["RAN"]).open("a") as ran:
    words = [name for name in (Path(__file__).parent.name, *sys.argv[1:]) if name != "slimtower"]
    ran.write("-".join([*words, *map(str, Path("data").glob("*/text"))]) + "\\n")
if os.environ.get("MISBEHAVE") == "refuse":
    print("slimtower: refused", file=sys.stderr)
    sys.exit(3)
"""


@dataclass
class Project:
    """A git repository, a log of days, and a remote; `ran` lists the stages that ran since it was last asked."""

    root: Path
    remote: str
    tracking: str
    given: dict[str, str] = field(default_factory=dict)

    @property
    def repository(self) -> Path:
        return self.root / "repository"

    def environment(self, run: str, **variables: str) -> dict[str, str]:
        dropped = ("SLIMTOWER_", "MLFLOW_", "AIRFLOW_", "DVC_")
        return {name: value for name, value in os.environ.items() if not name.startswith(dropped)} | {
            "SLIMTOWER_RUN": run,
            "SLIMTOWER_REPO": str(self.repository),
            "SLIMTOWER_REMOTE": self.remote,
            "SLIMTOWER_WORK": str(self.root / "work"),
            "MLFLOW_TRACKING_URI": self.tracking,
            "LOG": str(self.root / "log"),
            "RAN": str(self.root / "ran"),
            **self.given,
            **variables,
        }

    def start(self, run: str, name: str, **variables: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pipeline.task", name]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.environment(run, **variables), stdout=pipe, stderr=pipe, text=True)

    def task(self, run: str, name: str, **variables: str) -> tuple[int, str]:
        """Exit code and stderr of a task; its clone must be gone."""
        process = self.start(run, name, **variables)
        _, message = process.communicate()
        assert not list((self.root / "work").glob("*"))
        assert "Traceback" not in message or process.returncode == 1, message
        return process.returncode, message

    def all(self, run: str, **variables: str) -> list[int]:
        """Exit codes of begin, the stages and publish."""
        return [self.task(run, name, **variables)[0] for name in ("begin", *STAGES, "publish")]

    def ran(self) -> list[str]:
        path = self.root / "ran"
        lines = path.read_text().split() if path.is_file() else []
        path.unlink(missing_ok=True)
        return lines

    def stored(self, key: str) -> Any:
        return yaml.safe_load((Path(self.remote) / key).read_text())

    def day(self, name: str) -> None:
        (self.root / "log").mkdir(exist_ok=True)
        (self.root / "log" / f"{name}.txt").write_text(f"{name}\n")

    def change(self, old: str, new: str) -> None:
        path = self.repository / "params.yaml"
        path.write_text(path.read_text().replace(old, new))
        commit(self.repository)


def commit(repository: Path) -> None:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    for words in (["add", "-A"], ["commit", "-qm", "state"]):
        subprocess.run(["git", *identity, *words], cwd=repository, check=True, capture_output=True)


def make_project(root: Path, remote: str = "", tracked: str = "") -> Project:
    """`tracked`: a file of the commit itself that DVC does not look at, in a folder that several stages write into."""
    repository = root / "repository"
    for name in CORE:
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(name, repository / name)
    files = {
        ".dvc/config": "[core]\n    analytics = false\n",
        ".dvc/.gitignore": "/config.local\n/tmp\n/cache\n",
        ".gitignore": f"/data\n/models/*\n/reports\n__pycache__/\n{f'!/{tracked}' if tracked else ''}\n",
        ".dvcignore": f"__pycache__\n{tracked}\n",
        "dvc.yaml": DVC_YAML,
        "params.yaml": "ingest: {since: '', until: ''}\nkinds: [a, b]\ngrow: {a: 1, b: 2}\n",
        "sources.json": "[]",
        "recipes/twice.yaml": "grow: {a: 2}\ningest: {since: '${SINCE:-}', until: '${UNTIL:-}'}\n",
        "steps/ingest/__init__.py": "",
        "steps/ingest/__main__.py": STEP,
        "steps/promote/__init__.py": "",
        "steps/promote/__main__.py": PROMOTE,
        "slimtower/__main__.py": PROMOTE,
    } | ({tracked: "why this folder is here\n"} if tracked else {})
    for name, text in files.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=repository, check=True)
    commit(repository)
    project = Project(root, remote or str(root / "remote"), f"sqlite:///{root}/mlflow.db")
    project.day("2025-01-01")
    project.day("2025-01-02")
    return project

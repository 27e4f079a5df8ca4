"""The wheel: a release opens from it with what it requires and nothing else, torch least of all; and the command."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipeline.plain_copy import plain_copy

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ALONE = """
import sys
class Absent:
    def find_spec(name, path, target=None):
        if name.partition(".")[0] in {foreign!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent)
"""
ASK = """
import json, sys
from slimtower import load_release
release = load_release({folder!r})
print(json.dumps({{
    "hits": [hit.title for hit in release.query("sum of an array", k=3)],
    "file": sys.modules["slimtower.serving.release"].__file__,
}}))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel; other packages are those that the tests run with."""
    folder = tmp_path_factory.mktemp("package")
    plain_copy(ROOT, folder / "project")
    venv.create(folder / "venv", symlinks=True)
    site_packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
    (site_packages / "shared.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--quiet", "--python", str(folder / "venv/bin/python"), "install"]
    alone = ["--no-deps", "--no-build-isolation", "--no-index", "--no-compile", "--disable-pip-version-check"]
    subprocess.run([*pip, *alone, str(folder / "project")], check=True)
    return folder / "venv"


def outside(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in another folder, without the project's own files on the path."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)


def brought(requirement: str, collected: set[str]) -> set[str]:
    """`known` and the normalised names of a distribution and of all that it requires here."""
    parsed = Requirement(requirement)
    name = canonicalize_name(parsed.name)
    if name in collected or (parsed.marker and not parsed.marker.evaluate({"extra": ""})):
        return collected
    extended = collected | {name}
    for inner in requires(name) or []:
        extended = brought(inner, extended)
    return extended


@pytest.fixture(scope="module")
def foreign(environment: Path) -> list[str]:
    """The modules that the wheel does not bring along."""
    (metadata,) = environment.glob("lib/python*/site-packages/slimtower-*.dist-info/METADATA")
    required: set[str] = set()
    for line in re.findall(r"(?m)^Requires-Dist: (.+)$", metadata.read_text(encoding="utf-8")):
        required = brought(line, required)
    owners = packages_distributions()
    return [name for name in owners if not required & {canonicalize_name(owner) for owner in owners[name]}]


def test_a_release_opens_from_the_wheel_with_what_that_requires(
    environment: Path, foreign: list[str], released: Path, tmp_path: Path
) -> None:
    (site_packages,) = environment.glob("lib/python*/site-packages")
    assert {"torch", "transformers", "mlflow", "fastapi", "pandas"} <= set(foreign)

    code = ALONE.format(foreign=foreign) + ASK.format(folder=str(released / "models/release/2l"))
    done = outside([str(environment / "bin/python"), "-c", code], tmp_path)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert len(answer["hits"]) == 3
    assert Path(answer["file"]).is_relative_to(site_packages)
    assert (site_packages / "slimtower/py.typed").is_file()
    assert (site_packages / "slimtower/service/page.html").is_file()  # what the service reads is packed too
    (record,) = site_packages.glob("slimtower-*.dist-info/RECORD")
    files = [row.partition(",")[0] for row in record.read_text(encoding="utf-8").splitlines()]
    assert {name.partition("/")[0].partition("-")[0] for name in files} == {"slimtower", ".."}  # ..: the command


def test_the_command_searches_and_says_what_it_lacks(
    environment: Path, foreign: list[str], released: Path, tmp_path: Path
) -> None:
    command = str(environment / "bin/slimtower")
    done = outside([command, "search", "sum of an array", "--student", "2l"], released)
    assert done.returncode == 0 and "2l" in done.stdout, done.stderr
    assert "promote" in outside([command, "--help"], tmp_path).stdout
    for words, message in (
        (["fetch"], "there is no command 'fetch'"),
        (["run"], "is no checkout of the project"),
        (["promote"], "is no checkout"),
    ):
        done = outside([command, *words], tmp_path)
        assert done.returncode == 3 and message in done.stderr, done.stderr
    shutil.copy(ROOT / "params.yaml", tmp_path)
    (tmp_path / "sitecustomize.py").write_text(ALONE.format(foreign=foreign), encoding="utf-8")
    for options in (["--release", str(released / "models/release/2l")], ["--model", "slimtower@champion"]):
        done = outside([command, "serve", *options], tmp_path, PYTHONPATH=str(tmp_path))
        assert done.returncode == 3 and "`pip install 'slimtower[serve]'`" in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1

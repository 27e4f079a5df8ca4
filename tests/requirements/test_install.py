"""What is installed for running: enough for every module of steps/, pins equal to the rest, torch as it fits."""

import ast
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml

from pipeline.licences import licences

ROOT = Path(__file__).parents[2]
# asked for by name where they are missing
EXTRAS = {
    "pyspark", "ir_datasets", "peft", "openai", "psycopg", "pgvector", "qdrant_client", "pymilvus", "milvus_lite",
}  # fmt: skip
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def pins(lock: str) -> dict[str, str]:
    """Version by normalised name."""
    lines = (ROOT / "requirements" / f"{lock}.lock").read_text(encoding="utf-8").splitlines()
    return {re.sub(r"[-_.]+", "-", line.split("==")[0]).lower(): line.split("==")[1] for line in lines}


def imported() -> set[str]:
    """Top-level packages that any line of the project imports."""
    names: set[str] = set()
    for path in (path for folder in ("slimtower", "steps", "pipeline") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"slimtower", "steps", "pipeline", "__future__"}


def missing_from_run_lock(packages: set[str]) -> set[str]:
    """Packages that no distribution of run.lock brings."""
    known, by_package = pins("run"), packages_distributions()
    return {
        package
        for package in packages
        if not any(re.sub(r"[-_.]+", "-", name).lower() in known for name in by_package.get(package, []))
    }


@pytest.mark.medium
def test_running_needs_no_more_than_its_lock() -> None:
    found = imported()
    assert {"torch", "boto3", "mlflow"} <= found
    assert missing_from_run_lock(found - EXTRAS) == set()


@pytest.mark.medium
def test_the_corpus_is_installed_for_running() -> None:
    (source,) = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))["ingest"]["sources"]
    assert missing_from_run_lock(set(source["packages"])) == set()


def test_a_package_is_pinned_in_one_lock() -> None:
    run, extras, test = pins("run"), pins("extras"), pins("test")
    assert not run.keys() & extras.keys() and not (run.keys() | extras.keys()) & test.keys()
    assert {"pyspark", "ir-datasets"} <= extras.keys() and {"pytest", "mypy", "ruff"} <= test.keys()
    assert "dvc-s3" in run  # a remote on S3 needs no second install


@pytest.mark.faults("security")
@pytest.mark.parametrize(
    ("file", "locks"),
    [
        ("hashes.txt", ("run", "extras", "test", "gpu", "tracking")),
        ("airflow.lock", ("airflow",)),
        ("sbom.lock", ("sbom",)),
    ],
)
def test_every_pin_but_torch_has_digests(file: str, locks: tuple[str, ...]) -> None:
    lines = [line.split() for line in (ROOT / "requirements" / file).read_text(encoding="utf-8").splitlines()]
    wanted = {
        line.split()[0] for lock in locks for line in (ROOT / f"requirements/{lock}.lock").read_text().splitlines()
    }
    assert {pin for pin in wanted if not pin.startswith("torch=")} == {pin for pin, *_ in lines}
    digests = [[word for word in words if word.startswith("--")] for words in lines]
    assert all(digests) and all(
        re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", word) for words in digests for word in words
    )


@pytest.mark.medium
@pytest.mark.faults("security")
def test_a_file_with_another_digest_is_not_installed(tmp_path: Path) -> None:
    wheel = tmp_path / "toy-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("toy.py", "")
        file.writestr("toy-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
        file.writestr("toy-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("toy-1.0.dist-info/RECORD", "")
    (tmp_path / "pins.txt").write_text(f"toy==1.0 --hash=sha256:{'0' * 64}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", "there", "--find-links", ".",
         "--requirement", "pins.txt"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1 and "THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "there").exists()


FROM_LOCK = "--no-deps --requirement .venv/hashed.txt"
FAKE = """#!/bin/sh
echo "$@" >>"$LOG"
case "$*" in
-m\\ venv*) mkdir -p .venv/bin && cp "$0" .venv/bin/python;;
*index\\ versions*--extra-index-url*) echo "Available versions: 2.13.0${AT_INDEX:-}";;
*index\\ versions*) echo "Available versions: 2.13.0${AT_HOME:-}";;
*m.version*) exit 1;;
*ensurepip*) echo fits;;
*" check") [ -z "${MISSING:-}" ] || { echo "a 1.0 requires $MISSING, which is not installed."; exit 1; };;
esac
"""


def program(path: Path, text: str) -> None:
    """Write a file that can be run."""
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def install(tmp_path: Path):
    """Run install.sh in a folder whose name holds a space, with fakes; returns its output and pip's calls."""
    root, tools = tmp_path / "a folder", tmp_path / "tools"
    tools.mkdir()
    (root / "requirements").mkdir(parents=True)
    for name in ("install.sh", "find_python.sh", "run.lock", "extras.lock", "test.lock", "hashes.txt"):
        shutil.copy(ROOT / "requirements" / name, root / "requirements")
    for name in ("sh", "awk", "dirname", "sed", "cat", "grep", "wc", "date", "du", "cut", "mkdir", "cp"):
        (tools / name).symlink_to(str(shutil.which(name)))
    program(tools / "python3", FAKE)
    program(tools / "uname", "#!/bin/sh\necho ${SYSTEM:-Linux}\n")

    def run(locks: str, *programs: str, **environment: str) -> tuple[str, list[str]]:
        for name in programs:
            program(tools / name, f'#!/bin/sh\necho {name} "$@" >>"$LOG"\n')
        log = tmp_path / "log"
        done = subprocess.run(
            [str(root / "requirements/install.sh"), *locks.split()],
            env={"PATH": str(tools), "LOG": str(log), **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        calls = log.read_text().splitlines()
        return done.stdout, [call for call in calls if " install " in call and "pip>=" not in call]

    return run


def test_torch_comes_from_its_cpu_index_where_there_is_no_gpu(install) -> None:
    said, calls = install("run", AT_INDEX="+cpu")
    assert f"CPU build, from {CPU_INDEX}" in said
    assert calls[0].endswith(f"--no-deps --extra-index-url {CPU_INDEX} torch===2.13.0+cpu")
    assert len(calls) == 2 and calls[1].endswith("--no-deps --requirement .venv/hashed.txt")
    assert f"{len(pins('run'))} packages of requirements/run.lock" in said


def test_a_venv_without_pip_is_made_again(install, tmp_path: Path) -> None:
    """As it lies there after `python -m venv` failed in the middle, or behind a link."""
    venv, elsewhere = tmp_path / "a folder/.venv", tmp_path / "elsewhere"
    (elsewhere / "bin").mkdir(parents=True)
    (elsewhere / "kept").touch()
    program(elsewhere / "bin/python", "#!/bin/sh\necho No module named pip >&2\ncase $* in *pip*) exit 1;; esac\n")
    venv.symlink_to(elsewhere)
    _, calls = install("run", AT_HOME="+cpu")
    assert calls[-1].endswith("--no-deps --requirement .venv/hashed.txt")
    assert venv.is_symlink() and (elsewhere / "kept").exists()
    assert [call for call in (tmp_path / "log").read_text().splitlines() if "-m venv" in call] == ["-m venv .venv"]
    install("run", AT_HOME="+cpu")
    assert (tmp_path / "log").read_text().count("-m venv") == 1, "one that has pip stays"


@pytest.mark.parametrize(
    ("version", "pip", "message"),
    [
        ("3, 9, 2", "", "needs Python 3.11 to 3.14, .venv/bin/python is 3.9.2; delete .venv, then run it"),
        ("3, 11, 2", "exit 1", ".venv has no pip, though it was made just now; delete .venv"),
    ],
)
def test_a_venv_of_no_use_is_named(tmp_path: Path, version: str, pip: str, message: str) -> None:
    for name in ("install.sh", "find_python.sh", "run.lock"):
        (tmp_path / "requirements").mkdir(exist_ok=True)
        shutil.copy(ROOT / "requirements" / name, tmp_path / "requirements")
    claim = f"import sys; sys.version_info = ({version}); sys.version = '{version.replace(', ', '.')} (main)'"
    (tmp_path / ".venv/bin").mkdir(parents=True)
    program(
        tmp_path / ".venv/bin/python",
        f'#!/bin/sh\ncase $* in "-c "*) exec {sys.executable} -c "{claim}; $2";; *) {pip or ":"};; esac\n',
    )
    program(tmp_path / "python3", "#!/bin/sh\ncase $* in *ensurepip*) echo fits;; esac\n")
    done = subprocess.run(
        [str(tmp_path / "requirements/install.sh"), "run"],
        env=os.environ | {"PYTHON": str(tmp_path / "python3")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and message in done.stderr
    assert not (tmp_path / ".venv/wanted.txt").exists()


def test_a_cpu_build_that_pip_knows_needs_no_index(install) -> None:
    said, calls = install("run", AT_HOME="+cpu")
    assert "from where pip is told to look" in said
    assert calls[0].endswith("--no-deps torch===2.13.0+cpu")


@pytest.mark.parametrize(
    ("programs", "environment", "what"),
    [
        ((), {}, "not in reach"),
        (("nvidia-smi",), {"AT_INDEX": "+cpu"}, "for CUDA"),
        ((), {"SYSTEM": "Darwin"}, "finds"),
    ],
)
def test_else_torch_is_pips_own_choice(install, programs: tuple, environment: dict[str, str], what: str) -> None:
    said, calls = install("run", *programs, **environment)
    assert what in said
    assert len(calls) == 1 and calls[0].endswith("--requirement .venv/hashed.txt")


@pytest.mark.faults("security")
def test_what_has_no_digest_is_named(install) -> None:
    said, calls = install("run", AT_HOME="+cpu", MISSING="setuptools")
    assert "setup: without digests: setuptools\n" in said
    assert [call.rpartition("/")[2] for call in calls[1:]] == ["hashed.txt", "wanted.txt"]
    said, calls = install("run", AT_HOME="+cpu")
    assert "without digests" not in said and "wanted.txt" not in calls[-1]


@pytest.mark.faults("security")
def test_only_torch_and_what_is_asked_for_is_installed_without_digests() -> None:
    """Of all that Containerfiles and the Makefile install from locks."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "containers").glob("*Containerfile")]
    found = re.findall(r"pip install [^\n&;]*", "\n".join([*texts, (ROOT / "Makefile").read_text(encoding="utf-8")]))
    free = [call for call in found if "--require-hashes" not in call]
    assert len(found) == len(free) + 6
    torch, asked, podman = free
    assert "^torch==" in torch and asked.endswith('"requirements/${LOCK}.lock"') and "podman-compose==" in podman
    assert 'if [ -n "${UNHASHED}" ]; then pip install' in "\n".join(texts)


def test_a_lock_that_is_not_there_is_named_before_anything_is_made(tmp_path: Path) -> None:
    script = tmp_path / "requirements/install.sh"
    script.parent.mkdir()
    shutil.copy(ROOT / "requirements/install.sh", script)
    done = subprocess.run([str(script), "cpu"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "setup: there is no requirements/cpu.lock; give run, or run extras test\n"
    assert not (tmp_path / ".venv").exists()


def test_uv_is_taken_where_it_is(install) -> None:
    _, calls = install("run", "uv", AT_HOME="+cpu")
    assert calls[1] == f"uv pip install --quiet --python .venv/bin/python {FROM_LOCK}"
    assert len(calls) == 2


def test_pyspark_comes_with_java_alone(install, tmp_path: Path) -> None:
    said, _ = install("run extras test", AT_HOME="+cpu")
    packages = tmp_path / "a folder/.venv/wanted.txt"
    assert "without pyspark" in said and "pyspark" not in packages.read_text()
    said, _ = install("run extras test", "java", AT_HOME="+cpu")
    assert "without pyspark" not in said and "pyspark" in packages.read_text()


def test_every_locked_package_says_its_licence() -> None:
    found = dict(licences())
    assert found.keys() >= {line for line in (ROOT / "requirements/run.lock").read_text().split() if "==" in line}
    assert {package.split("==")[0] for package, terms in found.items() if terms == "not said"} <= {
        "huey"
    }  # it is MIT's
    assert {terms for package, terms in found.items() if package.startswith(("torch==", "mlflow=="))}

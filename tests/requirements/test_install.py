"""What is installed for running: enough for every module of steps/, pins equal to the rest, torch as it fits."""

import ast
import os
import re
import shutil
import stat
import subprocess
import sys
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
    locked, by_package = pins("run"), packages_distributions()
    return {
        package
        for package in packages
        if not any(re.sub(r"[-_.]+", "-", name).lower() in locked for name in by_package.get(package, []))
    }


@pytest.mark.medium
def test_running_needs_no_more_than_its_lock() -> None:
    packages = imported()
    assert {"torch", "boto3", "mlflow"} <= packages
    (source,) = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))["ingest"]["sources"]
    assert missing_from_run_lock(packages - EXTRAS | set(source["packages"])) == set()


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
        ("kubeflow.lock", ("kubeflow",)),
        ("sbom.lock", ("sbom",)),
    ],
)
def test_every_pin_but_torch_has_digests(file: str, locks: tuple[str, ...]) -> None:
    lines = [line.split() for line in (ROOT / "requirements" / file).read_text(encoding="utf-8").splitlines()]
    texts = [(ROOT / f"requirements/{lock}.lock").read_text() for lock in locks]
    pins_in_locks = {line.split()[0] for text in texts for line in text.splitlines()}
    assert {pin for pin in pins_in_locks if not pin.startswith("torch=")} == {pin for pin, *_ in lines}
    digests = [[word for word in words if word.startswith("--")] for words in lines]
    assert all(digests)
    assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", word) for words in digests for word in words)


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


@pytest.mark.parametrize(
    ("programs", "environment", "message", "torch"),
    [
        ((), {"AT_INDEX": "+cpu"}, f"CPU build, from {CPU_INDEX}", f"--extra-index-url {CPU_INDEX} torch===2.13.0+cpu"),
        ((), {"AT_HOME": "+cpu"}, "from where pip is told to look", "--no-deps torch===2.13.0+cpu"),
        ((), {}, "not in reach", ""),  # else torch is pip's own choice
        (("nvidia-smi",), {"AT_INDEX": "+cpu"}, "for CUDA", ""),
        ((), {"SYSTEM": "Darwin"}, "finds", ""),
        (("uv",), {"AT_HOME": "+cpu"}, "", "--no-deps torch===2.13.0+cpu"),
    ],
)
def test_torch_comes_from_its_cpu_index_where_there_is_no_gpu(
    install, programs: tuple[str, ...], environment: dict[str, str], message: str, torch: str
) -> None:
    output, calls = install("run", *programs, **environment)
    assert message in output and f"{len(pins('run'))} packages of requirements/run.lock" in output
    *before, last = calls
    assert last.endswith("--no-deps --requirement .venv/hashed.txt")
    assert len(before) == bool(torch) and all(call.endswith(torch) for call in before)
    if "uv" in programs:
        assert last == "uv pip install --quiet --python .venv/bin/python --no-deps --requirement .venv/hashed.txt"


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
    done = subprocess.run([done.args[0], "cpu"], capture_output=True, text=True)
    assert done.returncode == 2 and "no requirements/cpu.lock" in done.stderr
    assert not (tmp_path / ".venv/wanted.txt").exists()


@pytest.mark.faults("security")
def test_what_has_no_digest_is_named(install) -> None:
    output, calls = install("run", AT_HOME="+cpu", MISSING="setuptools")
    assert "setup: without digests: setuptools\n" in output
    assert [call.rpartition("/")[2] for call in calls[1:]] == ["hashed.txt", "wanted.txt"]
    output, calls = install("run", AT_HOME="+cpu")
    assert "without digests" not in output and "wanted.txt" not in calls[-1]


@pytest.mark.faults("security")
def test_only_torch_and_what_is_asked_for_is_installed_without_digests() -> None:
    """Of all that Containerfiles and the Makefile install from locks."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "containers").glob("*Containerfile")]
    pip_calls = re.findall(
        r"pip install [^\n&;]*", "\n".join([*texts, (ROOT / "Makefile").read_text(encoding="utf-8")])
    )
    free = [call for call in pip_calls if "--require-hashes" not in call]
    assert len(pip_calls) == len(free) + 7
    torch, by_lock, podman = free
    assert "^torch==" in torch and by_lock.endswith('"requirements/${LOCK}.lock"') and "podman-compose==" in podman
    assert 'if [ -n "${UNHASHED}" ]; then pip install' in "\n".join(texts)


def test_pyspark_comes_with_java_alone(install, tmp_path: Path) -> None:
    output, _ = install("run extras test", AT_HOME="+cpu")
    packages = tmp_path / "a folder/.venv/wanted.txt"
    assert "without pyspark" in output and "pyspark" not in packages.read_text()
    output, _ = install("run extras test", "java", AT_HOME="+cpu")
    assert "without pyspark" not in output and "pyspark" in packages.read_text()


def test_every_locked_package_says_its_licence() -> None:
    terms_by_package = dict(licences())
    assert terms_by_package.keys() >= {
        line for line in (ROOT / "requirements/run.lock").read_text().split() if "==" in line
    }
    assert {package.split("==")[0] for package, terms in terms_by_package.items() if terms == "not said"} <= {
        "huey"
    }  # which is MIT's
    assert {terms for package, terms in terms_by_package.items() if package.startswith(("torch==", "mlflow=="))}

"""Which Python `.venv` is made of: the first that fits, and one line that helps if none does."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

FIND = Path(__file__).parents[2] / "requirements/find_python.sh"
SHIM = "#!/bin/sh\necho 'pyenv: python3: command not found' >&2\nexit 127\n"


def interpreter(version: str, ensurepip: bool = True) -> str:
    """A program that answers `-c` as this version does, with or without ensurepip."""
    numbers = version.replace(".", ", ")
    pretend = f"import sys; sys.version_info = ({numbers}); sys.version = '{version} (main)'"
    hide = "" if ensurepip else "; sys.modules['ensurepip'] = None"
    return f'#!/bin/sh\nexec {sys.executable} -c "{pretend}{hide}\n$2"\n'


def uv(finds: str, installs: str = "") -> str:
    """A program that finds this Python, the second one once it is installed."""
    return f"""#!/bin/sh
case "$*" in
"python find >="*) [ -n "{finds}" ] || exit 2; echo "{finds}";;
"python install "*) [ -n "{installs}" ];;
"python find "*) echo "{installs}";;
esac
"""


def find(folder: Path, programs: dict[str, str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script with no other programs on the PATH."""
    folder.mkdir(exist_ok=True)
    for name, text in programs.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    environment = {"PATH": str(folder), **environment}
    return subprocess.run(["/bin/sh", FIND], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("programs", "chosen"),
    [
        ({"python3": interpreter("3.12.1"), "python3.13": interpreter("3.13.5")}, "python3"),
        ({"python3": interpreter("3.10.12"), "python3.12": interpreter("3.12.1")}, "python3.12"),
        ({"python3": interpreter("3.15.0"), "python3.14": interpreter("3.14.0")}, "python3.14"),
        ({"python3": SHIM, "python3.13": SHIM, "python3.11": interpreter("3.11.2")}, "python3.11"),
        ({"python3.13": interpreter("3.13.5"), "python3.11": interpreter("3.11.2")}, "python3.13"),
        ({"python3": interpreter("3.13.5", False), "python3.11": interpreter("3.11.2")}, "python3.11"),
        ({"python3": interpreter("3.9.2"), "uv": uv("any"), "any": interpreter("3.12.1")}, "any"),
        ({"uv": uv("", "new"), "new": interpreter("3.13.5")}, "new"),
        ({"uv": uv("bare", "new"), "bare": interpreter("3.13.5", False), "new": interpreter("3.13.5")}, "new"),
    ],
)
def test_the_first_python_that_fits_is_chosen(tmp_path: Path, programs: dict[str, str], chosen: str) -> None:
    done = find(tmp_path, programs)
    assert (done.stdout, done.stderr, done.returncode) == (f"{chosen}\n", "", 0)


@pytest.mark.parametrize(
    ("programs", "named", "help"),
    [
        ({}, "", ["python3 does not run", "apt install python3-venv", "dnf install", "brew install", "uv"]),
        ({"python3": SHIM}, "", ["python3 does not run"]),
        ({"python3": interpreter("3.9.2"), "uv": uv("")}, "", ["3.11 to 3.14", "python3 is 3.9.2", "apt install"]),
        ({"python3": interpreter("3.13.5", False)}, "", ["run: apt install python3-venv"]),
        ({"python3": interpreter("3.9.2"), "python3.12": interpreter("3.12.1", False)}, "", ["python3.12-venv"]),
        ({"python3": interpreter("3.12.1"), "old": interpreter("3.9.2")}, "old", ["PYTHON=old is 3.9.2"]),
        ({"python3": interpreter("3.12.1"), "uv": uv("python3")}, "no-such", ["PYTHON=no-such does not run"]),
    ],
)
def test_if_none_fits_one_line_says_what_to_do(
    tmp_path: Path, programs: dict[str, str], named: str, help: list[str]
) -> None:
    done = find(tmp_path, programs, PYTHON=named)
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr.count("\n") == 1 and all(words in done.stderr for words in help)


def test_a_python_that_is_named_is_the_one(tmp_path: Path) -> None:
    programs = {"python3": interpreter("3.13.5"), "a python": interpreter("3.12.1")}
    assert find(tmp_path, programs, PYTHON=os.fspath(tmp_path / "a python")).stdout == f"{tmp_path}/a python\n"

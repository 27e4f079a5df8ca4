"""What tests marked `faults` did is counted once, also where they run side by side."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slimtower.common.files import read_json, write_json

HELPERS = Path(__file__).parent / "helpers"
CONFTEST = """
from pathlib import Path
import fault_record
fault_record.ROOT = Path(__file__).parent
fault_record.RESULTS = fault_record.ROOT / "faults.json"
def pytest_configure(config):
    config.pluginmanager.register(fault_record.FaultCounts())
"""
TESTS = """
import pytest
@pytest.mark.faults("input")
@pytest.mark.parametrize("number", range(6))
def test_some(number, record_property):
    record_property("cases", number)
    record_property("cases", 1)
    record_property("by kind", {"even": 1 - number % 2, "odd": number % 2})
    assert number < 5
    if number == 4:
        pytest.skip()
@pytest.mark.faults("load")
def test_other(): pass
def test_of_no_fault(record_property):
    record_property("cases", 1)
"""
DONE = {"passed": 4, "failed": 1, "skipped": 1, "cases": 21, "by kind": {"even": 3, "odd": 3}}  # a failure's, too


def recorded(folder: Path, *words: str) -> dict[str, Any]:
    """What is written once the tests of a folder ran, without seconds."""
    path = os.pathsep.join([str(HELPERS), str(HELPERS.parents[1])])
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    command = [sys.executable, "-m", "pytest", "-q", *words]
    environment = variables | {"PYTHONPATH": path, "SLIMTOWER_GIT_COMMIT": "abc"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=folder)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    record = read_json(folder / "faults.json")
    for groups in (record["groups"], *(file_record["groups"] for file_record in record["files"].values())):
        assert all(0 <= counts.pop("seconds", 0) < 60 for counts in groups.values())
    return record | {"said": done.stdout}


def make(folder: Path) -> None:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = faults: x\n")
    (folder / "test_it.py").write_text(TESTS)
    (folder / "test_load.py").write_text("")
    other_file = {"git_commit": "older", "groups": {"kills": {"passed": 7, "seconds": 1.0}, "load": {"passed": 9}}}
    missing_file = {"git_commit": "older", "groups": {"load": {"passed": 100}}}
    write_json(folder / "faults.json", {"files": {"test_load.py": other_file, "test_gone.py": missing_file}})


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("processes", ["0", "2"])
def test_counts_of_all_processes_are_summed_and_other_files_stay(tmp_path: Path, processes: str) -> None:
    make(tmp_path)
    record = recorded(tmp_path, "-n", processes)
    assert record["groups"] == {
        "kills": {"passed": 7},
        "load": {"passed": 10, "failed": 0, "skipped": 0},
        "input": DONE,
    }
    assert {name: file_record["git_commit"] for name, file_record in record["files"].items()} == {
        "test_load.py": "older", "test_it.py": "abc",
    }  # fmt: skip
    assert record["files"]["test_it.py"]["machine"] == record["machine"], "files are run on several machines"
    assert record["git_commit"] == "abc" and record["machine"]["cores"] and "in part" not in record["said"]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(
    "words", [("-k", "some and 3"), ("test_it.py::test_some",), ("-n", "2", "-m", "faults", "-k", "other")]
)
def test_a_file_that_ran_in_part_leaves_what_was_counted(tmp_path: Path, words: tuple[str, ...]) -> None:
    make(tmp_path)
    before = recorded(tmp_path)
    after = recorded(tmp_path, *words)
    assert after["files"] == before["files"] and after["groups"] == before["groups"]
    assert "run in part and not counted: test_it.py" in after["said"]


@pytest.mark.slow
@pytest.mark.nightly
def test_what_ran_before_a_session_was_killed_is_counted(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / "test_late.py").write_text("import os\ndef test_last(): os._exit(1)\n")
    assert recorded(tmp_path)["groups"]["input"] == DONE

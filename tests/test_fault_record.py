"""What tests marked `faults` did is counted once, also where they run side by side."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from steps.core.files import read_json, write_json

HELPERS = Path(__file__).parent / "helpers"
CONFTEST = """
from pathlib import Path
import fault_record
fault_record.RESULTS = Path(__file__).parent / "faults.json"
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


@pytest.mark.medium
@pytest.mark.parametrize("processes", ["0", "2"])
def test_counts_of_all_processes_are_summed_and_groups_that_did_not_run_stay(tmp_path: Path, processes: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = faults: x\n")
    write_json(tmp_path / "faults.json", {"machine": {}, "groups": {"kills": {"passed": 7}, "load": {"passed": 9}}})
    path = os.pathsep.join([str(HELPERS), str(HELPERS.parents[1])])
    words = [sys.executable, "-m", "pytest", "-q", "-n", processes, str(tmp_path)]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    done = subprocess.run(words, env=own | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    groups = read_json(tmp_path / "faults.json")["groups"]
    seconds = [groups[name].pop("seconds") for name in ("input", "load")]
    assert all(0 <= each < 60 for each in seconds)
    assert groups == {
        "kills": {"passed": 7},
        "load": {"passed": 1, "failed": 0, "skipped": 0},
        "input": {"passed": 4, "failed": 1, "skipped": 1, "cases": 21, "by kind": {"even": 3, "odd": 3}},
    }

"""`make bench`: every benchmark is listed, and found by its name."""

import re
import subprocess
import sys
from pathlib import Path

from bench.__main__ import benchmarks

ROOT = Path(__file__).parents[2]
RUNS = re.compile(r"^    (guarded|recording)\(main\)$", re.M)


def test_each_module_with_a_command_line_is_listed_once() -> None:
    files = [*(ROOT / "bench").glob("*.py"), *(ROOT / "bench").glob("*/__main__.py")]
    commands = {path for path in files if path != ROOT / "bench/__main__.py" and RUNS.search(path.read_text("utf-8"))}
    names = {path.parent.name if path.stem == "__main__" else path.stem for path in commands}
    assert benchmarks().keys() == names and all(benchmarks().values())


def test_a_name_is_run_with_its_words_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench"]
    words = ["ubi-log", str(tmp_path / "log"), str(tmp_path / "nowhere")]
    ran = subprocess.run([*command, *words], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 3 and str(tmp_path / "nowhere") in ran.stderr
    refused = subprocess.run([*command, "nothing"], cwd=ROOT, capture_output=True, text=True)
    assert refused.returncode == 3 and "there is no 'nothing'" in refused.stderr

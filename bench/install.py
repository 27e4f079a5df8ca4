"""python -m bench.install [COMMIT]: what installing takes, in fresh clones, as bench/results/install.json.

Installs what running needs (`make setup`), then elsewhere what tests need (`make setup-all`), each with an empty cache
of downloads. With COMMIT first what `make setup` installed there, for comparison. Ten minutes, 4 GB of disk.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import Distribution, distributions
from pathlib import Path

from bench.machine import clean_commit, recording, write_record
from slimtower.common.errors import UserError

TARGET = Path("bench/results/install.json")
SHOWN = 10  # packages
MB = 2**20


def size(distribution: Distribution) -> int:
    """Bytes of a package's files, the bytecode among them."""
    paths = (Path(str(distribution.locate_file(file))) for file in distribution.files or [])
    return sum(path.stat().st_size for path in paths if path.is_file())


def folder_mb(path: Path) -> int:
    return int(subprocess.run(["du", "-sm", path], capture_output=True, text=True, check=True).stdout.split()[0])


def make(clone: Path, target: str) -> dict[str, object]:
    """Seconds, processor seconds and MB after a target of the Makefile."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"PIP_CACHE_DIR": f"{cache}/pip", "UV_CACHE_DIR": f"{cache}/uv"}
        environment["PATH"] = os.pathsep.join(p for p in os.get_exec_path() if not p.startswith(sys.prefix))
        spent, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        if subprocess.run(["make", "-C", clone, target], env=environment, stdout=2).returncode:
            raise UserError(f"bench.install: make {target} failed, as said above")
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor_seconds = after.ru_utime + after.ru_stime - spent.ru_utime - spent.ru_stime
    return {"seconds": round(seconds), "processor_seconds": round(processor_seconds), "mb": folder_mb(clone / ".venv")}


def installed(commit: str, target: str) -> dict[str, object]:
    """What a target takes in a clone at a commit, and the largest packages after it."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", ".", clone], check=True)
        subprocess.run(["git", "-C", clone, "checkout", "--quiet", "--detach", commit], check=True)
        result = {"git_commit": commit, "target": target} | make(clone, target)
        (site,) = (clone / ".venv/lib").glob("python3*/site-packages")
        sizes = {distribution.metadata["Name"]: size(distribution) for distribution in distributions(path=[str(site)])}
    largest = sorted(sizes, key=lambda name: -sizes[name])[:SHOWN]
    return result | {"largest_packages_mb": {name: round(sizes[name] / MB) for name in largest}}


def main() -> None:
    result: dict[str, object] = {}
    if len(sys.argv) > 1:
        result["before"] = installed(sys.argv[1], "setup")
    commit = clean_commit()
    result["running"] = installed(commit, "setup")
    result["testing"] = installed(commit, "setup-all")
    write_record(TARGET, result)
    print(result)


if __name__ == "__main__":
    recording(main)

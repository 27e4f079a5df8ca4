"""python -m steps.core.pipeline: one run of the whole pipeline.

Checks params.yaml, lists the data outside the project, calls `dvc repro`, then closes the MLflow run and links the
stages that were reused to the runs that made them.
"""

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

from steps.core.errors import guarded
from steps.core.lineage import finish, lock_stages, outputs
from steps.core.params import load_params


def main() -> None:
    """Run it all; exits with the code of the command that failed."""
    load_params()
    started = time.perf_counter()
    os.environ.setdefault("SLIMTOWER_PIPELINE", uuid.uuid4().hex)
    if code := _call("steps.ingest", "--list"):
        raise SystemExit(code)
    before = lock_stages()
    absent = [path for entry in before.values() for path in outputs(entry) if not path.exists()]
    code = _call("dvc", "repro", *sys.argv[1:])
    changed = lock_stages() != before or any(path.exists() for path in absent)
    done = finish(failed=code != 0) if code or changed else "nothing to do, every stage is up to date"
    print(f"pipeline: {'failed; ' if code else ''}{done}; {time.perf_counter() - started:.0f} s")
    raise SystemExit(code)


def _call(*words: str) -> int:
    """Run a module of this interpreter and return its exit code."""
    own_bin = str(Path(sys.executable).parent)  # stages say `python`; it must be this one
    environment = os.environ | {"PATH": f"{own_bin}{os.pathsep}{os.environ.get('PATH', '')}"}
    return subprocess.run([sys.executable, "-m", *words], env=environment).returncode


if __name__ == "__main__":
    guarded(main)

"""python -m steps.core.pipeline: one run of the whole pipeline.

Checks params.yaml, lists the data outside the project, calls `dvc repro`, then links the stages that DVC restored from
its cache to the MLflow runs that made them.
"""

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

from steps.core.errors import guarded
from steps.core.lineage import finish, lock_stages
from steps.core.params import load_params


def main() -> None:
    """Run it all; exits with dvc's code when a stage fails."""
    load_params()
    started = time.perf_counter()
    os.environ.setdefault("SLIMTOWER_PIPELINE", uuid.uuid4().hex)
    _call("steps.ingest", "--list")
    before = lock_stages()
    missing = {stage for stage, entry in before.items() if not all(Path(out["path"]).exists() for out in entry["outs"])}
    _call("dvc", "repro", *sys.argv[1:])
    print(f"pipeline: {finish(before, missing)}; {time.perf_counter() - started:.0f} s")


def _call(*words: str) -> None:
    """Run a module of this interpreter; its failure ends this command with the same code."""
    own_bin = str(Path(sys.executable).parent)  # stages say `python`; it must be this one
    environment = os.environ | {"PATH": f"{own_bin}{os.pathsep}{os.environ.get('PATH', '')}"}
    code = subprocess.run([sys.executable, "-m", *words], env=environment).returncode
    if code:
        raise SystemExit(code)


if __name__ == "__main__":
    guarded(main)

"""python -m bench.gpu_images [BASE]: the CUDA image of each step that can use a GPU, built and self-checked.

Each image imports what its step needs, faiss with its GPU code among it, and says that it sees no CUDA device.
Then it is told that one must be there, as tasks with a GPU are. No container is given a GPU, also where there is one.
BASE is the base image, the Containerfile's by default. Writes bench/results/gpu_images.json. A quarter of an hour.
"""

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from bench.machine import recording, write_record
from pipeline.images import ACCELERATED, build
from slimtower.common.errors import UserError

RESULT = Path("bench/results/gpu_images.json")
TAG = "bench-gpu"
FAISS = "import faiss; print(faiss.__version__, faiss.get_num_gpus())"


def engine() -> str:
    """The container engine's command."""
    return os.environ.get("CONTAINER_ENGINE") or "docker"


def run_in(image: str, *words: str, variables: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run Python in a container of an image, without a GPU. It is gone when this returns."""
    name = f"slimtower-{uuid.uuid4().hex[:12]}"
    given = [word for variable in ("NVIDIA_VISIBLE_DEVICES=void", *variables) for word in ("--env", variable)]
    command = [engine(), "run", "--name", name, *given, "--entrypoint", "python", image, *words]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=600)
    finally:  # not --rm: podman before 4.6 forgets the exit code then
        subprocess.run([engine(), "rm", "--force", name], capture_output=True)


def inspect(step: str, tag: str = TAG) -> dict[str, Any]:
    """What the image of a step is and says; UserError if it cannot run its step."""
    image = f"slimtower-{step}:{tag}"
    ready = run_in(image, "-m", f"steps.{step}", "--self-check")
    if ": ready;" not in ready.stdout:
        raise UserError(f"{image}: {ready.stderr.strip()[-500:]}")
    of_faiss = run_in(image, "-c", FAISS)
    if of_faiss.returncode:
        raise UserError(f"{image}: faiss cannot be imported: {of_faiss.stderr.strip()[-500:]}")
    faiss_version, devices = of_faiss.stdout.split()
    required = run_in(image, "-m", f"steps.{step}", "--self-check", variables=("SLIMTOWER_REQUIRE_CUDA=1",))
    size = subprocess.run(
        [engine(), "image", "inspect", "--format", "{{.Size}}", image], capture_output=True, text=True, check=True
    )
    return {
        "gb": round(int(size.stdout) / 1e9, 2),
        "self_check": ready.stdout.strip(),
        "faiss": faiss_version,
        "faiss_devices": int(devices),
        "cuda_required": {"code": required.returncode, "lines": (required.stdout + required.stderr).splitlines()},
    }


def main() -> None:
    base = sys.argv[1] if len(sys.argv) > 1 else ""
    images, began = {}, time.monotonic()
    for step in ACCELERATED:
        build([step], "gpu", base, "", TAG, [])
        images[step] = inspect(step)
        print(f"{step}: {images[step]}")
    write_record(RESULT, {"images": images, "seconds": round(time.monotonic() - began)})


if __name__ == "__main__":
    recording(main)

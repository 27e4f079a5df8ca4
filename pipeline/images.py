"""The steps' container images: what they are made from, as images.lock, and building them: `make images`.

images.lock has two keys, by the packages that an image installs: `cpu`, and `accelerated` with CUDA, for the steps
that can use a GPU. A key covers the Containerfile, with the base's name, and the locks of those packages; not the code,
which stages depend on by themselves. Comments may change freely. Stages of dvc.yaml depend on `cpu` alone: what they
compute follows from its versions, which the other lock pins too. An image carries the key that it was built for: a task
does not run a stage in an image that its commit does not name.

Under `bases` it holds the digests of the images that others are made from or run beside, once `--pin` has asked a
registry for them: builds then take those. Keys do not cover them.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from slimtower.common.errors import UserError, guarded
from slimtower.common.files import staged_file

CONTAINERFILE = Path("containers/Containerfile")
PACKAGE_LOCKS = {"cpu": Path("requirements/run.lock"), "accelerated": Path("requirements/gpu.lock")}
EXTRAS = Path("requirements/extras.lock")
STEPS = (  # the sections of params.yaml: not read from pipeline.params, which loads torch before every task
    "ingest", "candidates", "mine", "rank", "teach", "generate", "embed", "score", "distill", "index", "release",
    "evaluate", "promote", "deploy",
)  # fmt: skip
SERVICES = ("serve",)  # no stage: it is built when it is named
# Steps that can use a GPU. Releases are served on CPUs, so `release` and `promote` check them there.
ACCELERATED = (
    "candidates", "mine", "rank", "teach", "generate", "embed", "score", "distill", "index", "evaluate",
)  # fmt: skip
LOCK = Path("images.lock")
COMPOSE = Path("containers/compose.yaml")  # names the images of others, each by a variable with a default
KEY = "SLIMTOWER_IMAGE_KEY"  # set by the Containerfile
HEADER = "# What the steps' images are made from; `make images` keeps it up to date (pipeline/images.py).\n"


def fingerprint(containerfile: str, lock: bytes) -> str:
    """Sha256 of what images are made from: a Containerfile without comments and blank lines, and a lock of packages."""
    lines = [line.rstrip() for line in containerfile.splitlines() if line.strip()]
    instructions = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    return hashlib.sha256(instructions.encode() + b"\n" + lock.replace(b"\r\n", b"\n")).hexdigest()


def current() -> dict[str, str]:
    """Fingerprints of the files as they are, by key of images.lock."""
    text = CONTAINERFILE.read_text(encoding="utf-8")
    extras = EXTRAS.read_bytes()
    return {key: fingerprint(text, path.read_bytes() + extras) for key, path in PACKAGE_LOCKS.items()}


def read_lock(path: Path = LOCK) -> dict[str, Any]:
    """What images.lock holds, if anything."""
    return (yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None) or {}


def write_lock(path: Path = LOCK, bases: Mapping[str, str] | None = None) -> None:
    """Write images.lock, with these digests of base images or its own; untouched where it is right."""
    bases = dict(read_lock(path).get("bases", {}) if bases is None else bases)
    text = HEADER + yaml.safe_dump(current() | ({"bases": bases} if bases else {}), sort_keys=False)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        with staged_file(path) as staging:
            staging.write_text(text, encoding="utf-8")
        print(f"{path}: written; where `cpu` changed, `dvc repro` will run every stage", file=sys.stderr)


def check_lock(path: Path = LOCK) -> None:
    """UserError if images.lock does not say what the images are made from now."""
    locked, expected = read_lock(path), current()
    if stale := sorted(
        key for key in (locked.keys() | expected.keys()) - {"bases"} if locked.get(key) != expected.get(key)
    ):
        raise UserError(f"{path}: out of date for {', '.join(stale)}; run `python -m pipeline.images --lock`")


def check_image(step: str, root: Path) -> None:
    """UserError if this process runs in an image of neither key of `root`/images.lock; both have the same versions."""
    if not (key := os.environ.get(KEY)):
        return  # in no image
    locked = read_lock(root / LOCK)
    accepted = [locked[name] for name in PACKAGE_LOCKS if name in locked]
    if key not in accepted:
        names = " or ".join(digest[:12] for digest in accepted) or "nothing"
        raise UserError(
            f"{KEY}: this image is made from {key[:12]}, not from what images.lock of the run's commit says ({names});"
            f" run `make images STEPS={step}` at that commit (LOCK=gpu for a GPU) and let the deployment use the image"
        )


def base_images() -> dict[str, str]:
    """Name of each image of others, by the variable of .env that names another."""
    return dict(re.findall(r"\$\{(\w+_IMAGE):-([^}]+)\}", COMPOSE.read_text(encoding="utf-8")))


def pin(path: Path = LOCK) -> None:
    """Ask the images' registries which digests the names have today; into images.lock, and as lines for .env on stdout.

    UserError if the engine fails, or knows no digest, as of an image that was built here.
    """
    engine, pinned = os.environ.get("CONTAINER_ENGINE") or "docker", {}
    for variable, name in sorted(base_images().items()):
        _call(engine, "pull", name)
        digests = _output(engine, "image", "inspect", "--format", "{{range .RepoDigests}}{{.}} {{end}}", name).split()
        if not digests:
            raise UserError(f"{name}: {engine} knows no digest of it; pull it from a registry, or name another image")
        pinned[name] = digests[0]
        print(f"{variable}={digests[0]}")
    write_lock(path, pinned)


def build(steps: list[str], lock: str, base: str, prefix: str, tag: str, flags: list[str]) -> None:
    """Build images `<prefix>slimtower-<step>:<tag>` and print id and size of each; UserError if the engine fails.

    With lock `gpu` the steps that can use a GPU get CUDA packages, the others the CPU's all the same.
    """
    engine = os.environ.get("CONTAINER_ENGINE") or "docker"
    if unknown := [step for step in steps if step not in STEPS + SERVICES]:
        raise UserError(f"images: there is no step {unknown[0]!r}; there are {', '.join(STEPS + SERVICES)}")
    keys, base = current(), base or read_lock().get("bases", {}).get(base_images()["PYTHON_IMAGE"], "")
    revision = _output("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude", "*")
    began = time.perf_counter()
    for step in steps or STEPS:
        name = f"{prefix}slimtower-{step}:{tag}"
        packages = lock if step in ACCELERATED else "cpu"
        key = "accelerated" if packages == "gpu" else "cpu"
        arguments = [
            f"STEP={step}",
            f"LOCK={PACKAGE_LOCKS[key].stem}",
            f"FINGERPRINT={keys[key]}",
            f"REVISION={revision}",
        ]
        arguments += ["GPUS=all"] if step in ACCELERATED else []
        arguments += [f"BASE={base}"] if base else []
        words = [engine, "build", *flags, "--file", str(CONTAINERFILE), "--target", "step", "--tag", name]
        _call(*words, *(word for argument in arguments for word in ("--build-arg", argument)), ".")
        digest, size = _output(engine, "image", "inspect", "--format", "{{.Id}} {{.Size}}", name).split()
        digest = f"sha256:{digest.removeprefix('sha256:')}"  # podman leaves the prefix out
        print(f"{name}  {packages}  {digest}  {int(size) / 1e9:.2f} GB", flush=True)
    print(f"images: built in {time.perf_counter() - began:.0f} s", file=sys.stderr)


def _call(*words: str) -> None:
    """Run a command whose output goes to stderr."""
    sys.stderr.flush()
    try:
        code = subprocess.run(words, stdout=2).returncode
    except FileNotFoundError:
        raise UserError(f"CONTAINER_ENGINE: {words[0]!r} is not installed; name docker or podman") from None
    if code:
        raise UserError(f"{' '.join(words[:2])}: ended with code {code}, as said above; fix that and run it again")


def _output(*words: str) -> str:
    """What a command prints; empty if it fails or is not installed."""
    try:
        return subprocess.run(words, capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        return ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m pipeline.images", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--lock", action="store_true", help="write images.lock")
    action.add_argument("--check", action="store_true", help="fail where images.lock is out of date")
    action.add_argument("--pin", action="store_true", help="pull the base images; their digests into images.lock")
    action.add_argument("--build", nargs="*", metavar="STEP", help="write images.lock, then build these (default: all)")
    parser.add_argument("--packages", choices=["cpu", "gpu"], default="cpu", help="for the steps that can use a GPU")
    parser.add_argument("--base", default="", help="the base image (default: images.lock's, else the Containerfile's)")
    parser.add_argument("--prefix", default="", help="registry and folder of the names, e.g. ghcr.io/team/")
    parser.add_argument("--tag", default="latest", help="tag of the names")
    parser.add_argument("--flags", default="", help="further flags of the engine's build command, as one word")
    arguments = parser.parse_args()
    if arguments.check:
        check_lock()
        return
    if arguments.pin:
        pin()
        return
    write_lock()
    if arguments.build is not None:
        packages, flags = arguments.packages, arguments.flags.split()
        build(arguments.build, packages, arguments.base, arguments.prefix, arguments.tag, flags)


if __name__ == "__main__":
    guarded(main)

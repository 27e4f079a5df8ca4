"""The steps' container images: what each is made from, as images.lock, and building them: `make images`.

A stage of dvc.yaml depends on its own key of images.lock: it reruns when its image is made differently, and it alone.
A key covers the target's lines in the Containerfile and those it builds on, the locks and the base's name; not the
code, which stages depend on by themselves. Comments may change freely. An image carries the key that it was built for:
a task does not run a stage in an image that its commit does not name.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import yaml

from steps.core.errors import UserError, guarded
from steps.core.files import staged_file

CONTAINERFILE = Path("containers/Containerfile")
PACKAGE_LOCKS = (Path("requirements/cpu.lock"), Path("requirements/gpu.lock"))
LOCK = Path("images.lock")
KEY = "SLIMTOWER_IMAGE_KEY"  # set by the Containerfile
HEADER = "# What each step's image is made from; `make images` keeps it up to date (pipeline/images.py).\n"
GPU_TARGET = "accelerated"

Targets = dict[str, list[str]]


def targets(containerfile: str) -> Targets:
    """Lines of each target, without comments and blank lines; those before the first `FROM` under ''."""
    found: Targets = {"": []}
    name = ""
    for line in containerfile.splitlines():
        if start := re.match(r"FROM\s+\S+\s+AS\s+(\S+)", line, re.IGNORECASE):
            name = start[1]
            found[name] = []
        if line.strip() and not line.lstrip().startswith("#"):
            found[name].append(line.rstrip())
    return found


def ancestors(name: str, known: Targets) -> list[str]:
    """The targets that one is made from, itself last."""
    named = re.findall(r"(?:^FROM\s+|--from=)(\S+)", "\n".join(known[name]), re.IGNORECASE | re.MULTILINE)
    chain: list[str] = []
    for parent in (parent for parent in named if parent in known):
        chain += [one for one in ancestors(parent, known) if one not in chain]
    return [*chain, name]


def steps_of(known: Targets) -> list[str]:
    """Targets that are a step's image: those that no other is made from."""
    shared = {one for name in known if name for one in ancestors(name, known)[:-1]}
    return [name for name in known if name and name not in shared]


def fingerprints(containerfile: str, locks: list[bytes]) -> dict[str, str]:
    """Sha256 by step of what its image is made from."""
    known = targets(containerfile)
    result = {}
    for step in steps_of(known):
        digest = hashlib.sha256()
        for part in ("", *ancestors(step, known)):
            digest.update("\n".join([*known[part], ""]).encode())
        for lock in locks:
            digest.update(hashlib.sha256(lock).digest())
        result[step] = digest.hexdigest()
    return result


def current() -> dict[str, str]:
    """Fingerprints of the files as they are."""
    return fingerprints(
        CONTAINERFILE.read_text(encoding="utf-8"), [path.read_bytes().replace(b"\r\n", b"\n") for path in PACKAGE_LOCKS]
    )


def write_lock(path: Path = LOCK) -> None:
    """Write images.lock; untouched where it is right already."""
    text = HEADER + yaml.safe_dump(current(), sort_keys=False)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        with staged_file(path) as staging:
            staging.write_text(text, encoding="utf-8")
        print(f"{path}: written; `dvc repro` will run the stages whose images changed", file=sys.stderr)


def check_lock(path: Path = LOCK) -> None:
    """UserError where images.lock does not say what the images are made from now."""
    held = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
    wanted = current()
    if stale := sorted(step for step in held.keys() | wanted.keys() if held.get(step) != wanted.get(step)):
        raise UserError(f"{path}: out of date for {', '.join(stale)}; run `python -m pipeline.images --lock`")


def check_image(step: str, root: Path) -> None:
    """UserError where this process runs in an image made from something else than `root`/images.lock says of a step."""
    if not (key := os.environ.get(KEY)):
        return  # in no image
    path = root / LOCK
    held = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None
    wanted = (held or {}).get(step, "nothing")
    if key != wanted:
        raise UserError(
            f"{KEY}: this image is made from {key[:12]}, not from what images.lock of the run's commit says of {step}"
            f" ({wanted[:12]}); run `make images STEPS={step}` at that commit and let the deployment use the image"
        )


def build(steps: list[str], lock: str, base: str, prefix: str, tag: str, flags: list[str]) -> None:
    """Build images `<prefix>slimtower-<step>:<tag>` and print id and size of each; UserError where the engine fails.

    With lock `gpu` the steps that can use a GPU get CUDA packages, the others the CPU's all the same.
    """
    engine = os.environ.get("CONTAINER_ENGINE") or "docker"
    known = targets(CONTAINERFILE.read_text(encoding="utf-8"))
    if unknown := [step for step in steps if step not in steps_of(known)]:
        raise UserError(f"{CONTAINERFILE}: has no image {unknown[0]!r}; it has {', '.join(steps_of(known))}")
    keys = current()
    revision = _output("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude", "*")
    began = time.perf_counter()
    for step in steps or steps_of(known):
        name = f"{prefix}slimtower-{step}:{tag}"
        packages = lock if GPU_TARGET in ancestors(step, known) else "cpu"
        arguments = [f"LOCK={packages}", f"FINGERPRINT={keys[step]}", f"REVISION={revision}"]
        arguments += [f"BASE={base}"] if base else []
        words = [engine, "build", *flags, "--file", str(CONTAINERFILE), "--target", step, "--tag", name]
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
        raise UserError(f"{' '.join(words[:2])}: ended with code {code}, as said above; mend that and run it again")


def _output(*words: str) -> str:
    """What a command prints; empty where it fails."""
    return subprocess.run(words, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Read the command line and do what it says."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.images", description=__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--lock", action="store_true", help="write images.lock")
    action.add_argument("--check", action="store_true", help="fail where images.lock is out of date")
    action.add_argument("--build", nargs="*", metavar="STEP", help="write images.lock, then build these (default: all)")
    parser.add_argument("--packages", choices=["cpu", "gpu"], default="cpu", help="for the steps that can use a GPU")
    parser.add_argument("--base", default="", help="name of the base image (default: the Containerfile's)")
    parser.add_argument("--prefix", default="", help="registry and folder of the names, e.g. ghcr.io/team/")
    parser.add_argument("--tag", default="latest", help="tag of the names")
    parser.add_argument("--flags", default="", help="further flags of the engine's build command, as one word")
    arguments = parser.parse_args()
    if arguments.check:
        check_lock()
        return
    write_lock()
    if arguments.build is not None:
        packages, flags = arguments.packages, arguments.flags.split()
        build(arguments.build, packages, arguments.base, arguments.prefix, arguments.tag, flags)


if __name__ == "__main__":
    guarded(main)

"""One whole deployment for the tests that need one: a copy of the checkout, its repository, S3 and compose."""

import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from deployment import ENGINE, Deployment, compose_command
from forwarder import forwarded, own_address
from serve_process import free_port

from pipeline.images import base_images

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
OWN = "dags/deployments/test.yaml"
DOCKERS_OWN = "/var/run/docker.sock"
BASE_IS_THERE = (["image", "inspect"], ["pull"])
NEEDED = ("DOCKER_HOST", "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


@pytest.fixture(scope="session")
def engine() -> str:
    """The container engine's command; skips where something is missing."""
    if Path(DOCKERS_OWN).is_socket():
        os.environ.setdefault("DOCKER_HOST", f"unix://{DOCKERS_OWN}")
    if missing := [name for name in NEEDED if not os.environ.get(name)]:
        pytest.skip(f"needs a container engine and an S3 server: set {', '.join(missing)}")
    if not os.environ["DOCKER_HOST"].startswith("unix://"):
        pytest.skip(f"DOCKER_HOST is {os.environ['DOCKER_HOST']}: needs the engine's socket on this machine")
    if not compose_command():
        pytest.skip("needs docker compose or podman-compose (pip install podman-compose)")
    if "PYTHON_IMAGE" not in os.environ and (base := other_base(ENGINE, base_images()["PYTHON_IMAGE"])):
        os.environ["PYTHON_IMAGE"] = base
    return ENGINE


def other_base(engine: str, base: str) -> str | None:
    """A slim Python image of this machine if it has not `base` and cannot pull it; None if `base` will do."""
    if not all(subprocess.run([engine, *words, base], capture_output=True).returncode for words in BASE_IS_THERE):
        return None
    words = [engine, "image", "ls", "--format", "{{.Repository}}:{{.Tag}}"]
    listed = subprocess.run(words, capture_output=True, text=True).stdout
    images = re.findall(r"^(?:\S+/)?(python:3\.1([1-4])-slim\S*)$", listed, re.MULTILINE)
    return max(images, key=lambda image: int(image[1]))[0] if images else None


@pytest.fixture(scope="session")
def images(engine: str) -> None:
    """Every image, as `make images` builds them."""
    command = [sys.executable, "-m", "pipeline.images", "--base", os.environ.get("PYTHON_IMAGE", ""), "--build"]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"CONTAINER_ENGINE": engine}, check=True)


@pytest.fixture(scope="session")
def store(engine: str) -> Iterator[tuple[str, str]]:
    """Bucket of this session, and the S3 endpoint as both containers and this machine reach it."""
    client: Any = boto3.client("s3")
    name = f"deployment-{uuid.uuid4().hex[:12]}"
    with forwarded(os.environ["AWS_ENDPOINT_URL"]) as endpoint:
        yield name, endpoint
    if name in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:  # the deployment makes it
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=name):
            for item in page.get("Contents", []):
                client.delete_object(Bucket=name, Key=item["Key"])
        client.delete_bucket(Bucket=name)


@pytest.fixture(scope="session")
def checkout(store: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the working tree as it is, committed, with tests/integration/tiny.yaml among the recipes."""
    folder = tmp_path_factory.mktemp("project") / "slimtower"
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    shutil.copy2(HERE / "tiny.yaml", folder / "recipes" / "tiny.yaml")
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    for words in (["init", "--quiet"], ["add", "--all"], [*identity, "commit", "--quiet", "--message", "As it is"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="session")
def repository(checkout: Path) -> Iterator[str]:
    """URL of `checkout` as tasks clone it."""
    port = free_port()
    words = ["git", "daemon", "--export-all", f"--base-path={checkout.parent}", f"--listen={own_address()}"]
    server = subprocess.Popen([*words, f"--port={port}", "--reuseaddr", str(checkout.parent)], start_new_session=True)
    time.sleep(1)
    yield f"git://{own_address()}:{port}/{checkout.name}"
    server.terminate()
    server.wait(timeout=30)


@pytest.fixture(scope="session")
def deployment(checkout: Path, store: tuple[str, str], repository: str, engine: str) -> Iterator[Deployment]:
    """The deployment, up."""
    stack = Deployment(project=checkout, bucket=store[0], endpoint=store[1], repo=repository)
    path = checkout / OWN
    path.write_text(yaml.safe_dump(_settings(stack), sort_keys=False))
    stack.settings["SLIMTOWER_DEPLOYMENT"] = OWN
    if "POSTGRES_IMAGE" not in os.environ:
        build = [engine, "build", "--tag", stack.settings["POSTGRES_IMAGE"], "--file"]
        if base := os.environ.get("PYTHON_IMAGE"):
            build[2:2] = ["--build-arg", f"PYTHON_IMAGE={base}"]
        subprocess.run([*build, str(HERE / "postgres.Containerfile"), str(HERE)], check=True)
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()
        subprocess.run([engine, "volume", "rm", "--force", f"{stack.name}-cache"], capture_output=True)


def _settings(deployment: Deployment) -> dict[str, Any]:
    """What differs from dags/deployment.yaml: the tiny recipe, no schedule, small tasks, short waits."""
    return {
        "runner": "docker",
        "schedule": "",
        "recipe": "recipes/tiny.yaml",
        "variables": {"DATA": f"s3://{deployment.bucket}/data"},
        "parallel": 2,
        "retry_delay_s": 5,
        "docker": {"network": deployment.name, "cache": f"{deployment.name}-cache"},
        "defaults": {"cpus": 1, "memory_gib": 3},
    }

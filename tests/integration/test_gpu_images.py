"""The CUDA images, built here: each can run its step, and says that a container without a GPU has none."""

import os
import subprocess

import pytest
from deployment import ENGINE

from bench import gpu_images
from pipeline import images

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(3600)]
TAG = "test-gpu"


@pytest.fixture(autouse=True)
def _engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What builds and runs: the same container engine; skips if there is none."""
    if subprocess.run([ENGINE, "info"], capture_output=True).returncode:
        pytest.skip(f"needs a container engine: {ENGINE} does not answer")
    monkeypatch.setenv("CONTAINER_ENGINE", ENGINE)


@pytest.mark.parametrize("step", images.ACCELERATED)
def test_an_image_with_cuda_runs_its_step_and_says_that_no_device_is_there(step: str) -> None:
    images.build([step], "gpu", os.environ.get("PYTHON_IMAGE", ""), "", TAG, [])
    image = gpu_images.inspect(step, TAG)
    assert "faiss-gpu" in image["self_check"] and "torch is built for CUDA" in image["self_check"]
    # a container that is given no GPU: one line, and the code of what a retry would not help
    assert image["faiss_devices"] == 0
    assert image["cuda_required"]["code"] == 3
    (line,) = image["cuda_required"]["lines"]
    assert "sees no CUDA device" in line and "LOCK=gpu" in line

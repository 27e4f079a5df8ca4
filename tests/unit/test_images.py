"""images.lock: a stage depends on how its own image is made, and on that alone. Images: what every target must be."""

import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from pipeline import images
from steps.core.errors import UserError

TEXT = images.CONTAINERFILE.read_text(encoding="utf-8")
TARGETS = images.targets(TEXT)
STEPS = images.steps_of(TARGETS)
LOCKS = [path.read_bytes() for path in images.PACKAGE_LOCKS]
ON_GPU = {"teach", "generate", "embed", "score", "distill", "index"}


def changed(text: str = TEXT, locks: list[bytes] = LOCKS) -> set[str]:
    """Keys that differ from those of the tracked files."""
    before, after = images.fingerprints(TEXT, LOCKS), images.fingerprints(text, locks)
    assert before.keys() == after.keys()
    return {step for step in before if before[step] != after[step]}


def after_line(start: str, addition: str) -> str:
    """The Containerfile with a line put after the first one that begins so."""
    lines = TEXT.splitlines()
    number = next(number for number, line in enumerate(lines) if line.startswith(start))
    return "\n".join([*lines[: number + 1], addition, *lines[number + 1 :]])


def test_the_tracked_file_is_up_to_date() -> None:
    images.check_lock()


@pytest.mark.parametrize("step", STEPS)
def test_a_targets_own_line_changes_its_own_key_only(step: str) -> None:
    base = re.search(rf"FROM (\S+) AS {step}\n", TEXT)
    assert base
    assert changed(after_line(f"FROM {base[1]} AS {step}", "ENV X=1")) == {step}


def test_what_targets_share_changes_the_keys_of_those_that_share_it() -> None:
    assert changed(after_line("FROM packages AS accelerated", "ENV X=1")) == ON_GPU
    assert changed(after_line("FROM ${BASE} AS system", "ENV X=1")) == set(STEPS)
    assert changed(TEXT.replace("ARG BASE=python:3.11", "ARG BASE=python:3.12")) == set(STEPS)
    through_another = TEXT.replace("FROM accelerated AS index", "FROM accelerated AS middle\nFROM middle AS index")
    assert changed(through_another) == {"index"}
    copying = after_line("FROM packages AS ingest", "COPY --from=helper /x /x") + "\nFROM system AS helper\nRUN x\n"
    assert changed(copying) == {"ingest"}
    assert images.fingerprints(copying, LOCKS)["ingest"] != images.fingerprints(copying + "RUN y\n", LOCKS)["ingest"]


@pytest.mark.parametrize("which", [0, 1])
def test_a_changed_lock_changes_every_key(which: int) -> None:
    locks = list(LOCKS)
    locks[which] += b"six==1.17.0\n"
    assert changed(locks=locks) == set(STEPS)


def test_comments_and_blank_lines_change_nothing() -> None:
    assert changed(after_line("FROM packages AS ingest", "# why\n\n   # because")) == set()


def test_a_stale_file_names_the_steps_and_a_right_one_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "images.lock"
    images.write_lock(path)
    written = path.stat().st_mtime_ns
    images.write_lock(path)
    assert path.stat().st_mtime_ns == written
    held = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(held | {"teach": "0", "gone": "1"}))
    with pytest.raises(UserError, match="out of date for gone, teach; run"):
        images.check_lock(path)


def test_every_step_has_an_image_and_every_stage_its_own_key() -> None:
    commands = {path.parent.name for path in Path("steps").glob("*/__main__.py")} - {"search"}
    assert set(STEPS) == commands
    for name, entry in yaml.safe_load(Path("dvc.yaml").read_text(encoding="utf-8"))["stages"].items():
        params = entry.get("do", entry)["params"]
        assert [item["images.lock"] for item in params if isinstance(item, dict)] == [[name]]


@pytest.mark.parametrize("step", STEPS)
def test_an_image_holds_its_own_step_and_runs_as_nobody_special(step: str) -> None:
    chain = images.ancestors(step, TARGETS)
    assert ("accelerated" in chain) == (step in ON_GPU)
    lines = [line for name in chain for line in TARGETS[name]]
    user = [line.split()[1] for line in lines if line.startswith("USER ")][-1]
    assert user == "50000"
    copied = [line.split()[1] for line in lines if line.startswith("COPY steps")]
    assert copied == ["steps/__init__.py", "steps/core", f"steps/{step}"]
    assert any(f'org.opencontainers.image.title="slimtower-{step}"' in line for line in lines)


def test_both_locks_hold_the_same_pins_but_for_cuda() -> None:
    cpu, gpu = ({re.split("=+", line)[0]: line for line in lock.decode().split()} for lock in LOCKS)
    added = gpu.keys() - cpu.keys()
    assert {name for name in added if not re.match(r"nvidia-|cuda-|triton$", name)} == {"faiss-gpu"}
    assert cpu.keys() - gpu.keys() == {"faiss-cpu"}
    assert gpu["faiss-gpu"].partition("=")[2] == cpu["faiss-cpu"].partition("=")[2]  # releases refuse another version
    assert gpu["torch"] == cpu["torch"].replace("==", "===")  # `==` would take a CPU build
    assert {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]} == {"torch"}


@pytest.mark.parametrize("step", STEPS)
def test_an_image_carries_the_key_that_it_is_built_for(step: str) -> None:
    own = TARGETS[step]
    assert "ARG FINGERPRINT=unknown" in own  # built by hand it is of no key
    assert 'ENV SLIMTOWER_IMAGE_KEY="${FINGERPRINT}"' in own


def test_a_stage_runs_only_in_an_image_that_its_commit_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(images.KEY, raising=False)
    images.check_image("teach", tmp_path)  # outside images there is nothing to compare
    images.write_lock(tmp_path / "images.lock")
    keys = images.current()
    monkeypatch.setenv(images.KEY, keys["teach"])
    images.check_image("teach", tmp_path)
    with pytest.raises(UserError, match=rf"images\.lock of the run's commit says of mine \({keys['mine'][:12]}\); run"):
        images.check_image("mine", tmp_path)
    monkeypatch.setenv(images.KEY, "unknown")
    with pytest.raises(UserError, match="this image is made from unknown") as caught:
        images.check_image("teach", tmp_path)
    assert caught.value.exit_code == 3
    (tmp_path / "images.lock").unlink()
    with pytest.raises(UserError, match=r"\(nothing\)"):
        images.check_image("teach", tmp_path)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for docker: notes the words it is given, fails for the target `mine`."""
    program = tmp_path / "engine"
    program.write_text(
        '#!/bin/sh\necho "$@" >>"$0.log"\n'
        'case "$*" in *"--target mine"*) exit 125;; *inspect*) echo sha256:0a 1500000000;; esac\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CONTAINER_ENGINE", str(program))
    return program


def test_gpu_packages_go_to_the_steps_that_can_use_them(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images.build(["ingest", "teach"], "gpu", "other:1", "ghcr.io/team/", "v1", ["--network=host"])
    calls = engine.with_name("engine.log").read_text().splitlines()
    assert "--network=host --file containers/Containerfile --target ingest" in calls[0]
    assert "LOCK=cpu" in calls[0] and "BASE=other:1" in calls[0]
    assert f"FINGERPRINT={images.current()['ingest']}" in calls[0]
    assert "--target teach --tag ghcr.io/team/slimtower-teach:v1" in calls[2] and "LOCK=gpu" in calls[2]
    shown = capsys.readouterr().out.splitlines()
    assert shown[1] == "ghcr.io/team/slimtower-teach:v1  gpu  sha256:0a  1.50 GB"


def test_a_failing_engine_an_absent_one_and_an_unknown_step_are_named(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="engine build: ended with code 125"):
        images.build(["mine"], "cpu", "", "", "latest", [])
    with pytest.raises(UserError, match="has no image 'tech'; it has ingest, mine, teach"):
        images.build(["tech"], "cpu", "", "", "latest", [])
    monkeypatch.setenv("CONTAINER_ENGINE", "no-such-engine")
    with pytest.raises(UserError, match="'no-such-engine' is not installed"):
        images.build(["teach"], "cpu", "", "", "latest", [])


@pytest.mark.skipif(shutil.which("hadolint") is None, reason="hadolint is not installed")
def test_hadolint_has_nothing_to_say() -> None:
    done = subprocess.run(["hadolint", str(images.CONTAINERFILE)], capture_output=True, text=True)
    assert done.stdout == ""

"""images.lock: what makes stages rerun, and what does not. Images: what they hold, carry and are built with."""

import contextlib
import re
import stat
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipeline import images
from slimtower.common.errors import UserError

TEXT = images.CONTAINERFILE.read_text(encoding="utf-8")
LINES = TEXT.splitlines()
PINS = b"torch==2.13.0\n"


def test_the_tracked_file_is_up_to_date() -> None:
    images.check_lock()


def test_every_instruction_counts_and_neither_comments_nor_blank_lines_nor_line_ends() -> None:
    lines = [line for line in LINES if line.strip() and not line.startswith("#")]
    key = images.fingerprint(TEXT, PINS)
    assert key == images.fingerprint("\n".join(lines), PINS)
    for number in range(len(lines)):
        assert images.fingerprint("\n".join(lines[:number] + lines[number + 1 :]), PINS) != key, lines[number]
    commented = TEXT.replace("\nUSER 50000\n", "\n# why\n\n   # because\nUSER 50000\r\n")
    assert commented != TEXT
    assert images.fingerprint(commented, PINS.replace(b"\n", b"\r\n")) == key


@pytest.mark.parametrize("key", ["cpu", "accelerated"])
def test_a_changed_package_lock_changes_its_own_key_only(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = images.current()
    lock = tmp_path / "changed.lock"
    lock.write_bytes(images.PACKAGE_LOCKS[key].read_bytes() + b"six==1.17.0\n")
    monkeypatch.setitem(images.PACKAGE_LOCKS, key, lock)
    after = images.current()
    assert {name for name in before if before[name] != after[name]} == {key}
    assert before.keys() == after.keys() == {"cpu", "accelerated"}


def test_every_stage_depends_on_the_cpu_key_and_so_on_no_gpu_lock() -> None:
    stages = yaml.safe_load(Path("dvc.yaml").read_text(encoding="utf-8"))["stages"]
    for entry in stages.values():
        stage = entry.get("do", entry)
        files = [item for item in stage["params"] if isinstance(item, dict)]
        assert [item["images.lock"] for item in files if "images.lock" in item] == [["cpu"]]
        assert "requirements/gpu.lock" not in stage["deps"]


def test_both_locks_hold_the_same_pins_but_for_cuda() -> None:
    """Stages depend on run.lock alone: it must say what an image with CUDA computes with as well."""
    cpu, gpu = (
        {re.split("=+", line)[0]: line for line in images.PACKAGE_LOCKS[key].read_text(encoding="utf-8").split()}
        for key in ("cpu", "accelerated")
    )
    added = gpu.keys() - cpu.keys()
    assert {name for name in added if not re.match(r"nvidia-|cuda-|triton$", name)} == {"faiss-gpu"}
    assert cpu.keys() - gpu.keys() == {"faiss-cpu"}
    assert gpu["faiss-gpu"].partition("=")[2] == cpu["faiss-cpu"].partition("=")[2]  # releases refuse another version
    assert gpu["torch"] == cpu["torch"].replace("==", "===")  # `==` would take a CPU build
    assert {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]} == {"torch"}


def test_a_stale_file_names_the_keys_and_a_right_one_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "images.lock"
    images.write_lock(path)
    written = path.stat().st_mtime_ns
    images.write_lock(path)
    assert path.stat().st_mtime_ns == written
    lock = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(lock | {"cpu": "0", "teach": "1"}))
    with pytest.raises(UserError, match="out of date for cpu, teach; run"):
        images.check_lock(path)


def test_every_step_and_service_has_an_image_and_steps_that_use_a_gpu_exist() -> None:
    commands = {path.parent.name for path in Path("steps").glob("*/__main__.py")} | {"deploy", "serve"}
    assert {*images.STEPS, *images.SERVICES} == commands
    assert set(images.ACCELERATED) <= commands


@pytest.mark.faults("security")
def test_a_stage_runs_only_in_an_image_that_its_commit_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(images.KEY, raising=False)
    images.check_image("teach", tmp_path)  # outside images there is nothing to compare
    images.write_lock(tmp_path / "images.lock")
    keys = images.current()
    for key in keys.values():  # with or without CUDA packages
        monkeypatch.setenv(images.KEY, key)
        images.check_image("teach", tmp_path)
    accepted = rf"\({keys['cpu'][:12]} or {keys['accelerated'][:12]}\)"
    for key in ("unknown", "0" * 64):  # built by hand; at another commit
        monkeypatch.setenv(images.KEY, key)
        with pytest.raises(UserError, match=rf"made from {key[:12]}, .* {accepted}; run") as caught:
            images.check_image("teach", tmp_path)
        assert caught.value.exit_code == 3
    (tmp_path / "images.lock").unlink()
    with pytest.raises(UserError, match=r"\(nothing\)"):
        images.check_image("teach", tmp_path)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake docker: notes the words it is given, fails when told to."""
    program = tmp_path / "engine"
    program.write_text(
        '#!/bin/sh\necho "$@" >>"$0.log"\n'
        "for last; do :; done\n"
        'case "$*" in *--fail*) exit 125;; *RepoDigests*built-here*) ;; *RepoDigests*) echo "${last%%:*}@sha256:1b x";;'
        " *inspect*) echo sha256:0a 1500000000;; esac\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CONTAINER_ENGINE", str(program))
    return program


def test_cuda_packages_their_key_and_gpus_go_to_the_steps_that_can_use_them(
    engine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images.build(["ingest", "teach"], "gpu", "other:1", "ghcr.io/team/", "v1", ["--network=host"])
    images.build([], "cpu", "", "", "latest", [])
    calls = engine.with_name("engine.log").read_text().splitlines()
    keys = images.current()
    ingest, teach, *cpu_calls = (set(call.split()) for call in calls if "STEP=" in call)
    assert {"--network=host", "--tag", "ghcr.io/team/slimtower-ingest:v1"} <= ingest
    assert {"STEP=ingest", "LOCK=run", f"FINGERPRINT={keys['cpu']}", "BASE=other:1"} <= ingest
    assert "GPUS=" not in " ".join(ingest)
    assert {"STEP=teach", "LOCK=gpu", f"FINGERPRINT={keys['accelerated']}", "GPUS=all"} <= teach
    assert len(cpu_calls) == len(images.STEPS), "without CUDA packages every image is of the cpu key"
    assert all({"LOCK=run", f"FINGERPRINT={keys['cpu']}"} <= words for words in cpu_calls)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "ghcr.io/team/slimtower-teach:v1  gpu  sha256:0a  1.50 GB"


@pytest.mark.faults("security")
def test_images_name_one_base_use_every_argument_and_hold_all_code() -> None:
    texts = [path.read_text(encoding="utf-8") for path in Path("containers").glob("*Containerfile")]
    named = re.findall(r"^ARG (?:BASE|PYTHON_IMAGE)=(\S+)$", "\n".join(texts), re.MULTILINE)
    assert len(named) == 3 and set(named) == {images.base_images()["PYTHON_IMAGE"]}
    assert images.base_images().keys() == {"PYTHON_IMAGE", "POSTGRES_IMAGE", "S3_IMAGE"}
    for name in ("STEP", "LOCK", "FINGERPRINT", "REVISION", "BASE", "GPUS", "JAVA", "UNHASHED"):
        assert any(re.match(rf"ARG {name}(=|$)", line) for line in LINES) and f"${{{name}" in TEXT
    copied = {line.split()[1] for line in LINES if line.startswith("COPY")}
    assert {"slimtower", "steps", "pipeline"} <= copied
    context = Path(".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {"!slimtower", "!steps", "!pipeline", "!requirements/*.lock", "!requirements/hashes.txt"} <= set(context)


@pytest.mark.faults("security")
def test_pinned_bases_are_kept_and_taken(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "images.lock"
    monkeypatch.setattr(images.read_lock, "__defaults__", (path,))
    images.write_lock(path)
    images.pin(path)
    assert capsys.readouterr().out.splitlines() == [
        "POSTGRES_IMAGE=postgres@sha256:1b", "PYTHON_IMAGE=python@sha256:1b", "S3_IMAGE=minio/minio@sha256:1b"
    ]  # fmt: skip
    assert yaml.safe_load(path.read_text())["bases"]["postgres:17"] == "postgres@sha256:1b"
    images.check_lock(path)
    written = path.read_text()
    images.write_lock(path)
    assert path.read_text() == written
    images.build(["mine"], "cpu", "", "", "latest", [])
    images.build(["mine"], "cpu", "other:1", "", "latest", [])
    first, second = (call for call in engine.with_name("engine.log").read_text().splitlines() if "STEP=" in call)
    assert "BASE=python@sha256:1b" in first and "BASE=other:1" in second
    monkeypatch.setattr(images, "base_images", lambda: {"PYTHON_IMAGE": "built-here:1"})
    with pytest.raises(UserError, match=r"built-here:1: .* knows no digest of it"):
        images.pin(path)


def test_images_are_built_where_git_is_not_installed(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(engine.parent))
    images.build(["ingest"], "cpu", "", "", "latest", [])
    [built] = [call for call in engine.with_name("engine.log").read_text().splitlines() if "STEP=" in call]
    assert "STEP=ingest" in built


def test_a_failing_engine_an_absent_one_and_an_unknown_step_are_named(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="engine build: ended with code 125"):
        images.build(["mine"], "cpu", "", "", "latest", ["--fail"])
    with pytest.raises(UserError, match="no step 'tech'; there are ingest, candidates, mine, rank, teach"):
        images.build(["tech"], "cpu", "", "", "latest", [])
    monkeypatch.setenv("CONTAINER_ENGINE", "no-such-engine")
    with pytest.raises(UserError, match="'no-such-engine' is not installed"):
        images.build(["teach"], "cpu", "", "", "latest", [])


@pytest.mark.medium
@pytest.mark.parametrize("locks", [["run"], ["run", "extras", "test"]])
def test_locks_hold_all_that_their_packages_need(locks: list[str]) -> None:
    """Images install nothing else, and `pip check` fails their build."""
    lines = [line for lock in locks for line in Path(f"requirements/{lock}.lock").read_text().split()]
    pins = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    missing = []
    for name in pins:
        with contextlib.suppress(PackageNotFoundError):  # Spark, where there is no Java
            for need in map(Requirement, requires(name) or []):
                package = canonicalize_name(need.name)
                is_needed = need.marker is None or need.marker.evaluate({"extra": ""})
                of_cuda = package.startswith(("nvidia-", "cuda-", "triton"))
                if is_needed and not of_cuda and pins.get(package, "0") not in need.specifier:
                    missing.append(f"{name} needs {need}, not {pins.get(package)}")
    assert missing == []

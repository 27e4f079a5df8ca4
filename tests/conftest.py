"""What many tests need: a tiny tower, and a place where nothing reaches the network."""

import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_record import FAULTS, FaultCounts

LONG = (
    "test_task.py", "test_killed_training.py", "test_distributed.py", "test_sharding.py",
    "test_secrets.py", "test_whatever_data.py", "test_with_airflow.py", "test_tracking_away.py", "test_rounds.py",
    "test_runs.py",
)  # fmt: skip
TIERS = ("slow", "medium")

if "PYTEST_XDIST_WORKER" in os.environ:  # read when torch is loaded; programs that tests start inherit it
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else every process, of hundreds, compiles the project anew
sys.dont_write_bytecode = False
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["GRPC_VERBOSITY"] = "NONE"  # a channel that a test of Milvus left would speak into what another one captures
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # programs that tests start would ignore it under nohup


def pytest_configure(config: pytest.Config) -> None:
    if "gpu" not in config.option.markexpr.replace("not gpu", ""):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # what tests compare with is computed on the CPU
    if FAULTS:
        config.pluginmanager.register(FaultCounts())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Python does not search what is imported and collected for garbage, now or later: it stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files that take longest first: processes take whole files, and one would end with such a file alone.

    Of the integration tests PART=1/3 keeps every third file, beginning with the second.
    """
    turns: dict[Path, int] = {}
    for item in items:
        turns[item.path] = min(turn := _turn(item), turns.get(item.path, turn))
    items.sort(key=lambda item: turns[item.path])
    if part := os.environ.get("PART"):
        number, parts = map(int, part.split("/"))
        files = sorted({item.path for item in items if item.get_closest_marker("integration")})
        deselected = [item for item in items if item.path not in files[number::parts]]
        items[:] = [item for item in items if item.path in files[number::parts]]
        config.hook.pytest_deselected(items=deselected)


def _turn(item: pytest.Item) -> int:
    """When a test's file starts: by its place among the longest, then by the tier of its slowest test."""
    if item.path.name in LONG:
        return LONG.index(item.path.name)
    tiers = (tier for tier, name in enumerate(TIERS) if item.get_closest_marker(name))
    return len(LONG) + next(tiers, len(TIERS))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has its own SLIMTOWER_CACHE."""
    folder = tmp_path / "slimtower-cache"
    monkeypatch.setenv("SLIMTOWER_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def own_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar that a test left open, as one that kills its work does, is not around the work of another test."""
    if (progress := sys.modules.get("steps.core.progress")) is not None:
        monkeypatch.setattr(progress, "_open", [])


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules that a test lets Python find, as a model that brings its own code does, are found by that test alone."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def built_once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], None]) -> Path:
    """A folder that one process of the session builds for all; to be copied, not changed."""
    from slimtower.common.files import file_lock

    root = factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / f"built-{name}"
    with file_lock(folder.with_suffix(".lock")):
        if not folder.with_suffix(".done").is_file():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("SLIMTOWER_CACHE", str(folder / "cache"))
                build(folder)
            folder.with_suffix(".done").touch()
    return folder


@pytest.fixture(scope="session", autouse=True)
def copied_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """New databases of MLflow are copies of one: writing its tables takes a second."""
    from slimtower.registry import client

    write = client._write_database

    def copy(path: Path) -> None:
        built = built_once(tmp_path_factory, "mlflow", lambda folder: write(folder / "mlflow.db"))
        shutil.copyfile(built / "mlflow.db", path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "_write_database", copy)
        yield


@pytest.fixture(scope="session")
def tiny_tower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers folder of a random BERT: 4 layers, width 32, the bundled model's tokenizer."""
    return built_once(tmp_path_factory, "tiny", _write_tiny_tower) / "tower"


def _write_tiny_tower(folder: Path) -> None:
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules.transformer import Transformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
    from transformers import AutoTokenizer, BertConfig, BertModel

    from steps.encoders.bases import resolve_base

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30522, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=64
    )
    BertModel(config).save_pretrained(folder / "bert")
    AutoTokenizer.from_pretrained(resolve_base("all-MiniLM-L6-v2")).save_pretrained(folder / "bert")
    transformer = Transformer(str(folder / "bert"), max_seq_length=64)
    model = SentenceTransformer(modules=[transformer, Pooling(32, pooling_mode="mean"), Normalize()], device="cpu")
    model.save_pretrained(str(folder / "tower"), create_model_card=False)


@pytest.fixture(scope="module")
def embedded(tiny_tower: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project's folder in which `embed` is done, for the tests of one file."""
    from stages import run_embed

    built = built_once(tmp_path_factory, "embedded", lambda folder: run_embed(folder, tiny_tower))
    return shutil.copytree(built, tmp_path_factory.mktemp("embedded"), dirs_exist_ok=True)


@pytest.fixture(scope="session")
def released(tiny_tower: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project's folder in which `static` and `2l` are distilled and released; to be copied, not changed."""
    from stages import distill_params, run_distill, run_embed, run_release

    def build(folder: Path) -> None:
        run_embed(folder, tiny_tower)
        for student in ("static", "2l"):
            run_distill(folder, student, distill_params())
            run_release(folder, student)

    return built_once(tmp_path_factory, "released", build)


@pytest.fixture(scope="session")
def hybrid(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same project where `static` is released with BM25 indexes of both data sets; to be copied, not changed."""
    from stages import RELEASE, run_release

    def build(folder: Path) -> None:
        shutil.copytree(released, folder, ignore=shutil.ignore_patterns("release", "cache"), dirs_exist_ok=True)
        run_release(folder, "static", RELEASE.model_copy(update={"lexical": "always"}))

    return built_once(tmp_path_factory, "hybrid", build)


@pytest.fixture
def dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings drop out, so that random numbers matter."""
    from steps.training import library_trainer

    monkeypatch.setattr(library_trainer, "DROPOUT", 0.1)

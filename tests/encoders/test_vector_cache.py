"""The embeddings' cache: nothing is computed twice, and a killed run repeats at most one shard."""

import os
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embedding_server import KEY, serving, tower_reader
from endpoint_fakes import teach
from other_versions import LIBRARIES, install_another

import steps.encoders.vector_cache as vector_cache
from slimtower.common.errors import UserError
from slimtower.common.fingerprints import fingerprint
from steps.core import progress
from steps.core.vector_store import WINDOW_SHARDS, Embeddings, ScoreShards, VectorCache, text_key
from steps.distill.layer_store import LayerReader
from steps.encoders.towers import load_tower

TEXTS = [f"text {number}" for number in range(50)]


def vectors(texts: list[str]) -> np.ndarray:
    return np.array([[len(text), float(text.split()[1]), 1.0] for text in texts], dtype=np.float32)


def embed(texts: list[str]) -> Embeddings:
    return Embeddings(vectors(texts), np.array([float(text.split()[1]) / 2 for text in texts], dtype=np.float32))


def test_written_vectors_are_in_the_order_asked_for(tmp_path: Path) -> None:
    cache = VectorCache(tmp_path / "cache", "float32")
    cache.fill(TEXTS, embed, 7, "test")
    requests = [TEXTS[3], TEXTS[49], TEXTS[3]]
    cache.write(requests, tmp_path / "out.npy", 3, tmp_path / "lengths.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), vectors(requests))
    np.testing.assert_array_equal(np.load(tmp_path / "lengths.npy"), np.array([1.5, 24.5, 1.5], dtype=np.float32))


def test_the_longest_texts_come_first_and_are_the_greater_share_of_the_work(tmp_path: Path) -> None:
    texts = ["no 1", f"{'long ' * 99} 2", f"{'longer ' * 99} 3", "no 1"]
    shares = []

    def embed_counted(batch: list[str]) -> Embeddings:
        [bar] = progress._open
        assert bar.share
        shares.append((len(batch[0]), round(bar.share(bar.done + len(batch)), 3)))
        return Embeddings(np.ones((len(batch), 3), dtype=np.float32), np.ones(len(batch), dtype=np.float32))

    assert VectorCache(tmp_path, "float32").fill(texts, embed_counted, 1, "test", longest=10) == 3
    assert shares == [(695, 0.4), (497, 0.8), (4, 1.0)]  # two of 32 + 4 * 10 bytes, one of 32 + 4


@pytest.mark.parametrize(("dtype", "value"), [("float32", np.nan), ("float16", 70_000.0)])
def test_what_is_not_finite_is_never_kept(tmp_path: Path, dtype: str, value: float) -> None:
    cache = VectorCache(tmp_path / "cache", dtype)
    broken = Embeddings(np.array([[1.0, 2.0], [1.0, value]], dtype=np.float32), np.ones(2, dtype=np.float32))
    with pytest.raises(UserError, match=rf"1 of 2 vectors are not finite, as {dtype} or at all; set .*: fp32"):
        cache.fill(TEXTS[:2], lambda _: broken, 7, "test")
    assert not (tmp_path / "cache").exists()


def test_more_shards_than_files_may_be_open_are_read(tmp_path: Path) -> None:
    cache = VectorCache(tmp_path, "float32")
    for text in TEXTS:  # as the answers of an endpoint: a shard each
        cache.add([text_key(text)], embed([text]))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 20, hard))
    try:
        np.testing.assert_array_equal(cache.load(TEXTS[::-1]), vectors(TEXTS[::-1]))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("name", ["keys", "vectors", "lengths"])
@pytest.mark.parametrize("size", [0, 130])
def test_a_shard_that_a_power_failure_cut_is_named(tmp_path: Path, name: str, size: int) -> None:
    VectorCache(tmp_path / "cache", "float32").fill(TEXTS, embed, 50, "test")
    [path] = (tmp_path / "cache").glob(f"*/{name}.npy")
    os.truncate(path, size)
    with pytest.raises(UserError, match=rf"{path.parent}: cannot be read .*: delete it, and it is made again"):
        VectorCache(tmp_path / "cache", "float32").write(TEXTS, tmp_path / "out.npy", 3, tmp_path / "lengths.npy")


def test_a_shard_that_another_process_wrote_first_is_left_to_those_who_read_it(tmp_path: Path) -> None:
    folder, keys = tmp_path / "cache", [text_key(text) for text in TEXTS]
    slower = VectorCache(folder, "float32")
    VectorCache(folder, "float32").add(keys, embed(TEXTS))
    [shard] = folder.glob("shard-*")
    before = (shard / "vectors.npy").stat().st_ino
    slower.add(keys, embed(TEXTS))
    assert [*folder.iterdir()] == [shard] and (shard / "vectors.npy").stat().st_ino == before
    np.testing.assert_array_equal(slower.load(TEXTS), vectors(TEXTS))


@pytest.mark.parametrize("name", ["keys", "vectors", "lengths"])
def test_a_shard_that_lacks_a_file_is_told_and_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    cache, out = tmp_path / "cache", tmp_path / "out.npy"
    VectorCache(cache, "float32").fill(TEXTS, embed, 25, "test")
    lost = sorted(cache.glob("shard-*"))[0]
    (lost / f"{name}.npy").unlink()
    reopened = VectorCache(cache, "float32")
    assert f"{lost}: has no {name}.npy; its texts are read again" in capsys.readouterr().err
    assert reopened.fill(TEXTS, embed, 25, "test") == 25
    reopened.write(TEXTS, out, 3, tmp_path / "lengths.npy")
    np.testing.assert_array_equal(np.load(out), vectors(TEXTS))
    VectorCache(cache, "float32")
    assert "has no" not in capsys.readouterr().err and (lost / f"{name}.npy").is_file()


@pytest.mark.medium
def test_windows_bound_what_is_held_and_a_resumed_run_makes_the_same_shards(tmp_path: Path) -> None:
    texts = [f"{'long ' * (number % 5)}text {number}" for number in range(203)] + TEXTS

    def embed(texts: list[str]) -> Embeddings:
        shards.append(texts)
        if len(shards) == stop:
            raise KeyboardInterrupt
        return Embeddings(np.zeros((len(texts), 3), dtype=np.float32), np.zeros(len(texts), dtype=np.float32))

    runs = []
    for stop in (0, 7):
        shards: list[list[str]] = []
        cache = tmp_path / str(stop)
        if stop:
            with pytest.raises(KeyboardInterrupt):
                VectorCache(cache, "float32").fill(texts, embed, 3, "test")
            shards.pop()
            stop = 0
        VectorCache(cache, "float32").fill(texts, embed, 3, "test")
        runs.append(shards)
    assert runs[0] == runs[1]
    sequence = [text for shard in runs[0] for text in shard]
    assert len(sequence) == len(set(sequence)) == len(set(texts))
    window = 3 * WINDOW_SHARDS
    for position, shard in enumerate(runs[0]):
        assert len({texts.index(text) // window for text in shard}) == 1, position
        assert len(shard[0]) >= len(shard[-1])


def test_scores_that_are_no_numbers_are_not_kept_and_a_shard_that_was_cut_is_one_line(own_cache: Path) -> None:
    def scores(value: float) -> list[list[float]]:
        arguments = ["a"], np.array([[0, 2]])
        values: np.ndarray = shards.get_or_compute(lambda _, rows: np.full(rows.shape, value, np.float32), *arguments)
        return values.tolist()

    shards = ScoreShards(["a teacher"], np.zeros((3, 32), dtype=np.uint8))
    assert np.isnan(scores(np.nan)).all() and not list(own_cache.rglob("*.npy"))
    for _ in range(2):
        assert scores(1.0) == [[1.0, 1.0]] and shards.computed == 1
    [file] = own_cache.rglob("*.npy")
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(UserError, match="delete it"):
        scores(1.0)


def embed_texts(folder: Path, target: Path) -> int:
    """How many of the texts a tower had to read."""
    tower, name = load_tower(folder), fingerprint(folder).id
    how: Any = {"dtype": "float32", "precision": "fp32", "batch_size": 8, "shard_texts": 20}
    return vector_cache.embed_once(tower, name, "query", TEXTS, target, **how, caption="test")


@pytest.mark.medium
def test_embeddings_do_not_outlive_the_code_and_the_libraries_that_made_them(
    tmp_path: Path, tiny_tower: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def embed() -> int:
        return embed_texts(tiny_tower, tmp_path / "out.npy")

    reader = LayerReader(tiny_tower, "a fingerprint", [1, 3], 0, "fp32")
    keys = {reader.key}
    assert (embed(), embed()) == (len(TEXTS), 0)
    for library in LIBRARIES:
        with monkeypatch.context() as patch:
            install_another(library, patch)
            assert (embed(), embed()) == (len(TEXTS), 0)
            keys.add(reader.key)
    assert embed() == 0 and len(keys) == 4
    monkeypatch.setattr(vector_cache, "code_digest", lambda *modules: f"another {modules}")
    assert (embed(), embed()) == (len(TEXTS), 0)


@pytest.mark.medium
def test_answers_of_an_endpoint_are_not_paid_for_again_by_other_code_or_libraries(
    tmp_path: Path, tiny_tower: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_KEY", KEY)
    with serving(tower_reader(load_tower(tiny_tower))) as server:
        tower = teach(tmp_path / "teach", server)
        embed_texts(tower, tmp_path / "out.npy")
        paid = sum(server.paid.values())
        for library in LIBRARIES:
            install_another(library, monkeypatch)
        monkeypatch.setattr(vector_cache, "code_digest", lambda *modules: "another", raising=False)
        assert embed_texts(tower, tmp_path / "out.npy") == 0
        assert sum(server.paid.values()) == paid

"""faiss indexes: exact is exact, every kind finds what it should, small collections get what they can train."""

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from index_vectors import all_of, clustered, exact_top, index_params, target_of

from slimtower.common.errors import OutOfMemory, UserError
from slimtower.serving.checks import index_digests
from slimtower.serving.dims import truncate
from slimtower.serving.index_files import apply_settings, file_digests, open_index
from steps.index import gpu, tuning
from steps.index.build import build_shards, fill, flat, layers_of, mergeable, shard_slices, trained, write_shards
from steps.index.gpu import inverted_lists
from steps.index.inputs import Vectors
from steps.index.params import Kind, factory, of_kind
from steps.index.tuning import Target, tune, tuned_again

KINDS: list[Kind] = ["ivfflat", "ivfpq", "hnsw", "sq8", "binary"]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    faiss.omp_set_num_threads(1)


def built(kind: Kind, matrix: np.ndarray, seed: int = 3) -> faiss.Index:
    text = of_kind(kind, len(matrix), matrix.shape[1])
    return fill(trained(text, all_of(matrix), 10**6, seed), all_of(matrix)).index()


def test_flat_ranks_by_inner_product() -> None:
    matrix, queries = clustered(200), clustered(5, seed=1)
    scores, rows = flat(all_of(matrix)).search(queries, 7)
    expected = queries.astype(np.float64) @ matrix.astype(np.float64).T
    np.testing.assert_allclose(scores, -np.sort(-expected, axis=1)[:, :7], atol=1e-6)
    np.testing.assert_array_equal(rows, exact_top(matrix, queries, 7))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_reaches_the_target_and_scores_by_inner_product(kind: Kind) -> None:
    matrix, queries = clustered(3000), clustered(50, seed=1)
    index = built(kind, matrix)
    tuned = tune(index, target_of(matrix, queries), 0.95)
    assert tuned.met and tuned.recall >= 0.95
    scores, rows = index.search(queries, 10)
    exact = exact_top(matrix, queries)
    shares = [len({*ours} & {*best}) / 10 for ours, best in zip(rows, exact, strict=True)]
    assert tuned.recall == pytest.approx(np.mean(shares))
    products = np.take_along_axis(queries @ matrix.T, rows, axis=1)
    np.testing.assert_allclose(scores, products, atol=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_fixes_the_bytes(kind: Kind) -> None:
    matrix = clustered(700)
    once, again = (faiss.serialize_index(built(kind, matrix)) for _ in range(2))
    np.testing.assert_array_equal(once, again)


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (623, "Flat"),
        (624, "OPQ6_30,IVF16,PQ6x4fs,Refine(SQ8)"),
        (7500, "OPQ6_30,IVF192,PQ6x4fs,Refine(SQ8)"),
        (10**6, "OPQ6_30,IVF2564,PQ6x4fs,Refine(SQ8)"),
    ],
)
def test_lists_keep_39_points_a_centroid(count: int, expected: str) -> None:
    assert factory(index_params(), count, 30) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("IVF1O0,Flat", "index.factory: 'IVF1O0,Flat' cannot be trained on 100 vectors of 32 dim"),
        ("IVF100000,Flat", "index.factory: 'IVF100000,Flat' cannot be trained"),
        ("IDMap,Flat", "takes no vectors"),
    ],
)
def test_a_factory_string_that_makes_no_index_is_a_user_error(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        fill(trained(text, all_of(clustered(100)), 10**6, 1), all_of(clustered(100)))


@pytest.mark.medium
def test_settings_rise_until_the_target_is_met_and_no_further() -> None:
    matrix, queries = clustered(4000), clustered(100, seed=1)
    target = target_of(matrix, queries)
    index = built("ivfpq", matrix)
    tuned = tune(index, target, 0.8)
    assert tuned.met
    for name in ("nprobe", "k_factor_rf"):
        if tuned.settings[name] == 1:
            continue
        apply_settings(index, tuned.settings | {name: tuned.settings[name] // 2})
        assert target.recall(index.search(queries, 10)[1]) < 0.8


@pytest.mark.medium
def test_an_unreachable_target_gets_the_best_there_is_and_says_so() -> None:
    matrix, queries = clustered(3000), clustered(50, seed=1)
    index = fill(trained("IVF20,PQ4x4", all_of(matrix), 10**6, 1), all_of(matrix)).index()
    tuned = tune(index, target_of(matrix, queries), 0.99)
    assert not tuned.met
    apply_settings(index, {"nprobe": 20})
    assert tuned.recall >= target_of(matrix, queries).recall(index.search(queries, 10)[1])


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_any_of_many_copies_of_a_document_is_a_hit(kind: Kind) -> None:
    matrix, queries = np.repeat(clustered(100), 50, axis=0), clustered(20, seed=1)
    index = built(kind, matrix)
    tuned = tune(index, Target.of(queries, all_of(matrix), tuning.exact_top(all_of(matrix), queries, 10)), 1.0)
    texts = index.search(queries, 10)[1] // 50
    assert tuned.recall == np.mean(texts == exact_top(clustered(100), queries, 1)) > 0.9


def test_what_scores_as_the_last_hit_is_one() -> None:
    line = np.array([[0.0], [1], [2], [2], [2], [3]], np.float32)
    target = target_of(line, np.array([[1.0], [-1]], np.float32), 3)
    assert (target.least.tolist(), target.k) == ([2.0, -2.0], 3)
    assert target.recall(np.array([[5, 2, 4], [0, 1, 3]])) == 1
    assert target.recall(np.array([[5, 1, -1], [5, 1, 0]])) == pytest.approx((1 / 3 + 2 / 3) / 2)
    matrix, queries = clustered(4), clustered(3, seed=1)  # fewer documents than hits
    assert tune(built("ivfpq", matrix), target_of(matrix, queries), 1.0).met


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_shards_find_what_one_piece_finds(kind: Kind, tmp_path: Path) -> None:
    matrix, queries = clustered(2000), clustered(20, seed=1)
    vectors = all_of(matrix)
    text = of_kind(kind, len(matrix), 32)
    template = trained(text, vectors, 10**6, 3)
    several = not mergeable(template)
    assert several == (kind in ("hnsw", "binary"))
    pieces = build_shards(template, shard_slices(vectors, 600))
    entry = write_shards(tmp_path, "ann", pieces, several) | {"settings": {}}
    assert sorted(file_digests("ann", entry)) == sorted(path.name for path in tmp_path.iterdir())
    together = open_index(tmp_path, "ann", entry)
    alone = built(kind, matrix)
    for index in (together, alone):
        assert tune(index, target_of(matrix, queries), 1.0).recall > 0.95
        assert index.ntotal == 2000
    if not several:
        np.testing.assert_array_equal(together.search(queries, 10)[1], alone.search(queries, 10)[1])


@pytest.mark.parametrize("size", [64, 128, 129])
def test_shards_whose_lists_end_with_a_block_are_the_same_index(size: int) -> None:
    """faiss 1.15.1 merges lists of 4-bit codes past their ends, which may kill the process."""
    vectors = all_of(clustered(700))
    template = trained("IVF1,PQ8x4fs,Refine(SQ8)", vectors, 10**6, 3)  # blocks of 128 bytes
    [together] = build_shards(template.empty(), shard_slices(vectors, size))
    alone = fill(template.empty(), vectors).index()
    np.testing.assert_array_equal(faiss.serialize_index(together), faiss.serialize_index(alone))


@pytest.mark.parametrize("factory", ["IVF20,PQ8x4", "IVF20,SQ8,Refine(Flat)", "SQ8"])
def test_shards_that_a_gpu_filled_are_merged(factory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, queries = all_of(clustered(1000)), clustered(20, seed=1)
    template = trained(factory, vectors, 10**6, 3)
    alone = fill(template.empty(), vectors).index()
    monkeypatch.setattr(gpu, "faiss", FakeGpu(faiss.Index))
    [together] = build_shards(template, shard_slices(vectors, 300))
    np.testing.assert_array_equal(together.search(queries, 10)[1], alone.search(queries, 10)[1])


@pytest.mark.parametrize("kind", [*KINDS, "flat"])
def test_a_mapped_index_finds_what_a_loaded_one_finds(kind: Kind, tmp_path: Path) -> None:
    matrix, queries = clustered(1000), clustered(20, seed=1)
    entry = write_shards(tmp_path, "ann", iter([built(kind, matrix)]), several=False) | {"settings": {}}
    mapped, loaded = open_index(tmp_path, "ann", entry), faiss.read_index(str(tmp_path / "ann.faiss"))
    for ours, theirs in zip(mapped.search(queries, 10), loaded.search(queries, 10), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_cut_vectors_are_renormalised_and_whole_ones_left_alone() -> None:
    matrix = clustered(10) * 2
    np.testing.assert_array_equal(truncate(matrix, 32), matrix)
    halves = matrix.astype(np.float64)[:, :16]
    np.testing.assert_allclose(truncate(matrix, 16), halves / np.linalg.norm(halves, axis=1)[:, None], atol=1e-6)


def test_rows_are_read_in_order_and_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steps.index.inputs.CHUNK", 3)
    matrix = clustered(20)
    vectors = Vectors(matrix, np.arange(19, -1, -2), 32)
    assert [len(chunk) for chunk in vectors.chunks()] == [3, 3, 3, 1]
    np.testing.assert_array_equal(np.concatenate(list(vectors.chunks())), matrix[19::-2])
    np.testing.assert_array_equal(flat(vectors).reconstruct_n(0, 10), matrix[19::-2])


class FakeGpu:
    """Stands for faiss with one GPU, which takes indexes of some classes: moving is copying."""

    GpuParameterSpace = faiss.ParameterSpace

    def __init__(self, *takes: type) -> None:
        self.takes = takes
        self.moves: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(faiss, name)

    def get_num_gpus(self) -> int:
        return 1

    def StandardGpuResources(self) -> None:
        return None

    def index_cpu_to_gpu(self, resources: None, device: int, index: faiss.Index) -> faiss.Index:
        if not isinstance(faiss.downcast_index(index), self.takes):
            raise RuntimeError("not implemented on GPU")
        self.moves.append("there")
        return faiss.clone_index(index)

    def index_gpu_to_cpu(self, index: faiss.Index) -> faiss.Index:
        self.moves.append("back")
        return index

    def knn_gpu(self, resources: None, queries: np.ndarray, vectors: np.ndarray, k: int, **named: int) -> Any:
        self.moves.append("knn")
        return faiss.knn(queries, vectors, k, metric=named["metric"])


@pytest.mark.parametrize(
    ("kind", "takes", "moves"),
    [
        ("hnsw", (), []),
        # the centroids alone, as they are trained and as vectors find theirs
        ("ivfpq", (faiss.IndexFlat,), ["there", "there"]),
        # the centroids as they are trained; then the base and the re-ranking, filled and brought back
        (
            "ivfpq",
            (faiss.IndexFlat, faiss.IndexPreTransform, faiss.IndexScalarQuantizer),
            ["there", "there", "back", "there", "back"],
        ),
        ("ivfflat", (faiss.IndexFlat, faiss.IndexIVFFlat), ["there", "there", "back"]),
    ],
)
def test_a_gpu_does_what_it_can_and_changes_nothing(
    kind: Kind, takes: tuple[type, ...], moves: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix, queries = clustered(1000), clustered(5, seed=1)
    expected = built(kind, matrix).search(queries, 10)[1]
    fake = FakeGpu(*takes)
    monkeypatch.setattr(gpu, "faiss", fake)
    index = built(kind, matrix)
    np.testing.assert_array_equal(index.search(queries, 10)[1], expected)
    assert fake.moves == moves
    lists = inverted_lists(layers_of(index).base)
    if lists is not None:
        assert lists.own_fields and lists.clustering_index is None


@pytest.mark.parametrize(("factory", "max_probes"), [("IVF40,Flat", 2048), ("IVF40,SQ8,RFlat", 8)])
def test_settings_tuned_on_a_gpu_are_those_of_the_cpu(
    factory: str, max_probes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix, queries = clustered(2000), clustered(50, seed=1)
    target, exact = target_of(matrix, queries), exact_top(matrix, queries)
    index = fill(trained(factory, all_of(matrix), 10**6, 1), all_of(matrix)).index()
    expected = tune(index, target, 0.95)
    fake = FakeGpu(faiss.IndexIVFFlat, faiss.IndexIVFScalarQuantizer)
    monkeypatch.setattr(gpu, "faiss", fake)
    monkeypatch.setattr(gpu, "MOST_PROBES", max_probes)  # costlier settings are tried on the CPU
    apply_settings(index, {"nprobe": 1})
    assert tune(index, target, 0.95) == expected
    assert fake.moves == ["there"]
    assert tuning.exact_top(all_of(matrix), queries, 10).rows.tolist() == exact.tolist()
    assert fake.moves == ["there", "knn"]
    assert target.recall(index.search(queries, 10)[1]) == expected.recall


FULL = (
    "Error in allocMemory at StandardGpuResources.cpp:530: Error: 'err == cudaSuccess' failed: StandardGpuResources:"
    " alloc fail type IVFLists dev 0 space Device size 1024 bytes (cudaMalloc error out of memory [2])"
)


class FullGpu(FakeGpu):
    """Takes indexes of every kind until its memory is used up, or breaks with another error."""

    def __init__(self, error: str, holds: int) -> None:
        super().__init__(faiss.Index)
        self.error, self.holds = error, holds

    def index_cpu_to_gpu(self, resources: None, device: int, index: faiss.Index) -> faiss.Index:
        if len(self.moves) == self.holds:
            raise RuntimeError(self.error)
        return super().index_cpu_to_gpu(resources, device, index)

    def knn_gpu(self, *args: Any, **named: Any) -> Any:
        raise RuntimeError(self.error)


@pytest.mark.parametrize("holds", [0, 1], ids=["as it trains", "as it is filled"])
def test_a_gpu_out_of_memory_or_broken_is_no_reason_to_use_the_cpu(holds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = clustered(1000)
    index = built("ivfflat", matrix)
    monkeypatch.setattr(gpu, "faiss", FullGpu(FULL, holds))
    with pytest.raises(OutOfMemory, match=r"out of GPU memory: .*index.shard_vectors"):
        fill(trained("IVF40,Flat", all_of(matrix), 10**6, 1), all_of(matrix))
    with pytest.raises(OutOfMemory):
        tuning.exact_top(all_of(matrix), matrix[:3], 10)
    monkeypatch.setattr(gpu, "faiss", FullGpu(FULL, 0))
    with pytest.raises(OutOfMemory):
        gpu.searching(index)
    monkeypatch.setattr(gpu, "faiss", FullGpu("Error: 'err == cudaSuccess' failed: CUDA error 700", 0))
    with pytest.raises(RuntimeError, match="CUDA error 700"):
        gpu.add(faiss.IndexScalarQuantizer(32, faiss.ScalarQuantizer.QT_8bit), lambda: iter([matrix]))


@pytest.mark.parametrize(
    ("before", "met", "whole_grid"),
    [("same", True, False), ("cheaper", True, False), ("cheapest", True, True), ("cheapest", False, False)],
)
def test_settings_are_kept_while_they_do(before: str, met: bool, whole_grid: bool) -> None:
    matrix, queries = clustered(3000), clustered(100, seed=1)
    target = target_of(matrix, queries)
    index = fill(trained("IVF60,Flat", all_of(matrix), 10**6, 1), all_of(matrix)).index()
    best = tune(index, target, 0.999)
    step = tuning._PROBES.index(best.settings["nprobe"])
    nprobe = {"same": best.settings["nprobe"], "cheaper": tuning._PROBES[step - 1], "cheapest": 1}[before]
    tuned, searched = tuned_again(index, target, 0.999, {"nprobe": nprobe}, met)
    assert searched == whole_grid
    assert faiss.extract_index_ivf(index).nprobe == tuned.settings["nprobe"]
    if met:
        assert tuned == best
    else:
        assert tuned.settings == {"nprobe": 1} and not tuned.met


def test_a_file_outside_the_index_is_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "flat.faiss").write_bytes(b"not an index")
    with pytest.raises(UserError, match=r"flat\.faiss: faiss cannot read it.*dvc repro index"):
        open_index(tmp_path, "flat", {"sha256": "", "settings": {}})
    monkeypatch.setattr(faiss, "read_index", lambda *_: pytest.fail("opened"))
    for file in ("../../x.faiss", "/x.faiss", "", "a//b", "a/./b", "..", "a\\b", "a\nb"):
        with pytest.raises(UserError, match="a file is named by its path inside the folder"):
            open_index(tmp_path, "ann", {"shards": {file: ""}, "settings": {}})
        with pytest.raises(UserError, match="a file is named by its path inside the folder"):
            index_digests({"toy": {"files": {file: ""}, "indexes": {}}})

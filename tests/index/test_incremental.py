"""An index brought up to date finds what one built anew finds, and costs what the changes cost."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from index_vectors import all_of, clustered, exact_top, index_params, target_of

from steps.index import state, tuning
from steps.index.build import Layers, build_shards, fill, layers_of, shard_slices, trained
from steps.index.incremental import Match, match, updated
from steps.index.inputs import Vectors
from steps.index.params import Kind, of_kind
from steps.index.semantic_ids import codebooks, semantic_ids, updated_ids
from steps.index.state import State, TunedSettings
from steps.index.tuning import tune, updated_top

OLD = clustered(1500)
OLD_IDS = [f"d{number}" for number in range(1500)]
# In the new corpus 100 documents are gone, 30 have changed, 50 are new, and the order is another.
ORDER = np.random.default_rng(5).permutation(1450)
NEW = np.concatenate([OLD[:1370], clustered(30, seed=8), clustered(50, seed=9)])[ORDER]
NEW_IDS = [[*OLD_IDS[:1400], *(f"n{number}" for number in range(50))][row] for row in ORDER]
QUERIES = clustered(40, seed=1)
FACTORIES = ["IVF30,Flat", "OPQ8_32,IVF30,PQ8x4fs,Refine(SQ8)", "IVF30,PQ8x4,RFlat", "SQ8", "HNSW16",
             "RR32,RaBitQ,Refine(SQ8)", "IVF8,PQ16x4", "Flat", "L2norm,HNSW16", "L2norm,SQ8", "PQ8x4fs"]  # fmt: skip


def digests(matrix: np.ndarray) -> np.ndarray:
    return all_of(matrix).digests()


def ids_of(names: list[str]) -> pa.ChunkedArray:
    return pa.chunked_array([names])


def between(before: np.ndarray, after: np.ndarray, old: list[str], new: list[str]) -> Match:
    """What became of the documents."""
    return match(ids_of(old), digests(before), ids_of(new), digests(after))


CHANGED = between(OLD, NEW, OLD_IDS, NEW_IDS)


def template_and_index(factory: str, matrix: np.ndarray = OLD) -> tuple[Layers, faiss.Index]:
    """What is trained on the old corpus, and an index over a corpus that was written and read again."""
    faiss.omp_set_num_threads(1)
    template = trained(factory, all_of(OLD), 10**6, 3)
    index = fill(template.empty(), all_of(matrix)).index()
    return template, faiss.deserialize_index(faiss.serialize_index(index))


def wide_open(index: faiss.Index) -> faiss.Index:
    """At the settings that find most."""
    tune(index, target_of(NEW, QUERIES), 1.0)
    return index


@pytest.mark.medium
@pytest.mark.parametrize("factory", FACTORIES)
def test_equals_a_rebuild_with_the_same_quantiser(factory: str) -> None:
    template, index = template_and_index(factory)
    ours = wide_open(updated(index, CHANGED, all_of(NEW)))
    theirs = wide_open(fill(template.empty(), all_of(NEW)).index())
    assert ours.ntotal == theirs.ntotal == 1450
    hits, expected = ours.search(QUERIES, 10), theirs.search(QUERIES, 10)
    np.testing.assert_allclose(hits[0], expected[0], atol=1e-6)
    same = [set(a) == set(b) for a, b in zip(hits[1].tolist(), expected[1].tolist(), strict=True)]
    # Codes of equal score may come in another order: only the last hit can differ.
    assert np.mean(same) == 1 if "PQ" not in factory and "RaBitQ" not in factory else np.mean(same) > 0.9


@pytest.mark.medium
@pytest.mark.parametrize("factory", ["OPQ8_32,IVF30,PQ8x4fs", "IVF30,RaBitQfs", "IVF30,PQ8x4"])
@pytest.mark.parametrize("how", ["exchanged", "removed, kept and added to", "merged of shards and added to"])
def test_what_is_added_after_others_left_has_its_own_code(factory: str, how: str) -> None:
    """Compared by the scores of all documents: re-ranking would hide most of the wrong ones."""
    template, index = template_and_index(factory)
    stay, new = np.arange(0 if "shards" in how else 100, 1500), clustered(100, seed=8)
    both = np.concatenate([OLD[stay], new])
    added = np.full(len(new), -1)
    if "shards" in how:
        index = next(build_shards(template, shard_slices(all_of(OLD), 350)))
    if how != "removed, kept and added to":
        index = updated(index, Match(np.concatenate([stay, added]), len(OLD)), all_of(both))
    else:
        index = updated(index, Match(stay, len(OLD)), all_of(OLD[stay]))
        index = faiss.deserialize_index(faiss.serialize_index(index))
        index = updated(index, Match(np.concatenate([np.arange(1400), added]), 1400), all_of(both))
    ours, theirs = (_scores(searched, len(both)) for searched in (index, fill(template.empty(), all_of(both)).index()))
    np.testing.assert_allclose(ours, theirs, atol=0.02)  # tables of distances are rounded for each list


def _scores(index: faiss.Index, count: int) -> np.ndarray:
    """The score of each document with each query, all lists looked at."""
    faiss.ParameterSpace().set_index_parameter(index, "nprobe", 30)
    scores, rows = index.search(QUERIES, count)
    by_document = np.full((len(QUERIES), count), np.nan)
    np.put_along_axis(by_document, rows, scores, axis=1)
    return by_document


def test_documents_are_told_apart_by_id_and_vector() -> None:
    assert (CHANGED.added, CHANGED.removed, CHANGED.exchanged) == (80, 130, 130)
    old_rows = {(name, digest): row for row, (name, digest) in enumerate(zip(OLD_IDS, digests(OLD), strict=True))}
    expected = [old_rows.get(key, -1) for key in zip(NEW_IDS, digests(NEW), strict=True)]
    assert CHANGED.rows.tolist() == expected


@pytest.mark.parametrize(
    "factory", ["IVF30,Flat", "OPQ8_32,IVF30,PQ8x4fs,Refine(SQ8)", "SQ8", "RR32,RaBitQ,Refine(SQ8)"]
)
def test_only_what_is_new_is_read(factory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    index = template_and_index(factory)[1]
    sizes: list[int] = []
    take = Vectors.take

    def counted(self: Vectors, positions: np.ndarray | slice) -> np.ndarray:
        vectors = take(self, positions)
        sizes.append(len(vectors))
        return vectors

    monkeypatch.setattr(Vectors, "take", counted)
    updated(index, CHANGED, all_of(NEW))
    assert sum(sizes) == 80 * len([part for part in ("base", "refine") if getattr(layers_of(index), part)])


def test_an_unchanged_corpus_gives_the_same_bytes_and_a_reordered_one_keeps_every_code() -> None:
    index = template_and_index("OPQ8_32,IVF30,PQ8x4fs,Refine(SQ8)")[1]
    before = faiss.serialize_index(index)
    same = between(OLD, OLD, OLD_IDS, OLD_IDS)
    assert same.nothing_new()
    np.testing.assert_array_equal(faiss.serialize_index(updated(index, same, all_of(OLD))), before)
    order = np.random.default_rng(1).permutation(len(OLD))
    reordered = between(OLD, OLD[order], OLD_IDS, [OLD_IDS[row] for row in order])
    assert (reordered.added, reordered.removed) == (0, 0)
    index = updated(template_and_index("IVF30,Flat")[1], reordered, all_of(OLD[order]))
    index.make_direct_map()
    np.testing.assert_array_equal(index.reconstruct_n(0, len(OLD)), OLD[order])


@pytest.mark.parametrize("factory", ["HNSW16", "HNSW16,RFlat"])
def test_a_graph_that_only_grows_is_linked_to_and_renumbered(factory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    both = np.concatenate([OLD, clustered(60, seed=9)])
    order = np.random.default_rng(2).permutation(len(both))
    names = [*OLD_IDS, *(f"n{number}" for number in range(60))]
    grown = between(OLD, both[order], OLD_IDS, [names[row] for row in order])
    index = template_and_index(factory)[1]
    monkeypatch.setattr(Vectors, "chunks", lambda self: pytest.fail("every vector was read"))
    index = updated(index, grown, all_of(both[order]))
    np.testing.assert_array_equal(layers_of(index).base.reconstruct_n(0, len(both)), both[order])
    assert tune(index, target_of(both[order], QUERIES), 0.99).met
    rows = index.search(both[order], 1)[1][:, 0]
    assert (rows == np.arange(len(both))).mean() > 0.99


def test_exact_hits_follow_the_documents() -> None:
    before = tuning.exact_top(all_of(OLD), QUERIES, 10)
    np.testing.assert_array_equal(before.rows, exact_top(OLD, QUERIES))
    top, scanned = updated_top(before, CHANGED, all_of(NEW), QUERIES)
    np.testing.assert_array_equal(top.rows, exact_top(NEW, QUERIES))
    lost = (CHANGED.moved()[before.rows] < 0).any(axis=1).sum()
    assert 0 < scanned == lost < len(QUERIES)
    products = np.take_along_axis(QUERIES @ NEW.T, top.rows, axis=1)
    np.testing.assert_allclose(top.scores, products, atol=1e-6)


def test_semantic_ids_of_documents_that_stay_are_kept() -> None:
    books = codebooks(OLD, 3, 16, seed=1)
    before = semantic_ids(all_of(OLD), books)
    ids, anew = updated_ids(before, CHANGED, all_of(NEW)), semantic_ids(all_of(NEW), books)
    unchanged = CHANGED.unchanged()
    np.testing.assert_array_equal(ids.codes[unchanged], before.codes[CHANGED.rows[unchanged]])
    np.testing.assert_array_equal(ids.codes, anew.codes)
    np.testing.assert_allclose(ids.errors(), anew.errors(), rtol=1e-6)


def remember(folder: Path, names: list[str], matrix: np.ndarray, trained_on: int, changed: int) -> State:
    """Save a whole state of these documents."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    ann = folder.parent / "ann.faiss"
    ann.write_bytes(faiss.serialize_index(template_and_index("IVF30,Flat", matrix)[1]).tobytes())
    ids = semantic_ids(all_of(matrix), codebooks(matrix, 2, 16, seed=1))
    top = tuning.exact_top(all_of(matrix), QUERIES, 10)
    new_state = State(trained_on, changed, TunedSettings("IVF30,Flat", {"nprobe": 4}, 0.9, True), ids, top, "asked")
    state.save(folder, new_state, ids_of(names), digests(matrix), ann)
    return new_state


def test_a_state_comes_back_as_it_was_and_its_changes_add_up(tmp_path: Path) -> None:
    folder = tmp_path / "one" / "state"
    saved = remember(folder, OLD_IDS, OLD, 1500, 7)
    back = state.load(folder, ids_of(NEW_IDS), digests(NEW))
    assert back is not None and back.match.rows.tolist() == CHANGED.rows.tolist()
    assert replace(back.state, ids=None, top=None) == replace(saved, ids=None, top=None)
    for part in ("ids", "top"):
        for name, value in vars(getattr(saved, part)).items():
            np.testing.assert_array_equal(getattr(getattr(back.state, part), name), value)
    assert back.drift() == pytest.approx((7 + 130) / 1500)
    remember(folder, NEW_IDS, NEW, 1450, back.changed())  # another run that shares the cache
    after = state.load(folder, ids_of(OLD_IDS), digests(OLD))
    assert after is not None and after.drift() == pytest.approx((7 + 130 + 130) / 1450)
    for _ in range(2):  # its own index, whatever becomes of the folder
        index = back.index()
        assert index is not None and index.ntotal == 1500
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("removed", [False, True])
def test_a_state_that_is_replaced_while_it_is_read_does_not_count(
    removed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, read_table = tmp_path / "state", pq.read_table
    remember(folder, OLD_IDS, OLD, 1500, 0)

    def meanwhile(path: Path) -> pa.Table:
        if removed:
            shutil.rmtree(folder)
        else:
            remember(folder, NEW_IDS, NEW, 1450, 0)
        return read_table(path)

    with monkeypatch.context() as patch:
        patch.setattr(pq, "read_table", meanwhile)
        assert state.load(folder, ids_of(NEW_IDS), digests(NEW)) is None
    if not removed:
        assert state.load(folder, ids_of(NEW_IDS), digests(NEW)) is not None


@pytest.mark.parametrize("size", [0, 40, -3])
def test_a_state_that_cannot_be_read_is_none(size: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "state"
    remember(folder, OLD_IDS, OLD, 1500, 0)
    for name in ("state.json", "documents.parquet", "codes.npy", "rows.npy", "ann.faiss"):
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:size])
        previous = state.load(folder, ids_of(NEW_IDS), digests(NEW))
        assert previous is None or (name == "ann.faiss" and previous.index() is None)
        warning = capsys.readouterr().err
        assert warning.count("\n") == 1 and str(folder) in warning and "cannot be read" in warning
        (folder / name).write_bytes(content)
    assert state.load(folder, ids_of(NEW_IDS), digests(NEW)) is not None


def test_the_states_used_last_are_kept(tmp_path: Path) -> None:
    folders = [tmp_path / "one" / f"state{number}" for number in range(state.KEPT_STATES + 1)]
    for age, folder in enumerate(folders[:-1]):
        remember(folder, OLD_IDS, OLD, 1500, 0)
        os.utime(folder / "state.json", (age, age))
    assert state.load(folders[0], ids_of(OLD_IDS), digests(OLD)) is not None  # the oldest, and used again
    remember(tmp_path / "two" / "state", OLD_IDS, OLD, 1500, 0)
    remember(folders[-1], OLD_IDS, OLD, 1500, 0)
    assert {path.name for path in (tmp_path / "one").iterdir() if path.is_dir()} == {
        folder.name for folder in folders if folder != folders[1]
    }
    assert (tmp_path / "two" / "state" / "state.json").is_file()


@pytest.mark.parametrize(
    ("change", "shared"),
    [({"target_recall": 0.5}, True), ({"seed": 4}, False), ({"dim": 16}, False), ({"factory": "SQ8"}, False)],
)
def test_another_training_has_another_state_and_another_target_the_same(change: dict[str, Any], shared: bool) -> None:
    folders = {state.state_folder("t", "one", params) for params in (index_params(), index_params(**change))}
    assert (len(folders) == 1) == shared


def test_digests_tell_vectors_apart() -> None:
    matrix = clustered(2000)
    assert len(np.unique(digests(matrix))) == 2000
    changed = matrix.copy()
    changed[7, 31] = np.nextafter(changed[7, 31], 1)
    assert np.flatnonzero(digests(changed) != digests(matrix)).tolist() == [7]
    swapped = matrix[:, ::-1].copy()
    assert not np.any(digests(swapped) == digests(matrix))


@pytest.mark.parametrize("kind", ["ivfflat", "ivfpq", "hnsw", "binary"])
def test_removed_documents_are_never_found(kind: Kind) -> None:
    remaining = np.arange(0, len(OLD), 2)
    fewer = between(OLD, OLD[remaining], OLD_IDS, [OLD_IDS[row] for row in remaining])
    index = template_and_index(of_kind(kind, len(OLD), 32))[1]
    index = updated(index, fewer, all_of(OLD[remaining]))
    tune(index, target_of(OLD[remaining], QUERIES), 1.0)
    scores, rows = index.search(OLD[:50], 1)
    assert rows[::2, 0].tolist() == list(range(25))
    assert (scores[1::2, 0] < 0.999).all()

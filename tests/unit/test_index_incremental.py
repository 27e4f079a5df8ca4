"""An index brought up to date finds what one built anew finds, and costs what the changes cost."""

from pathlib import Path

import faiss
import numpy as np
import pytest
from index_vectors import all_of, clustered, exact_top, index_params

from steps.core.params.index import Kind
from steps.index import incremental
from steps.index.build import Layers, fill, layers_of, trained
from steps.index.factories import of_kind
from steps.index.incremental import Held
from steps.index.tuning import tune
from steps.index.vectors import Vectors

OLD = clustered(1500)
OLD_IDS = [f"d{number}" for number in range(1500)]
# In the new corpus 100 documents are gone, 30 have changed, 50 are new, and the order is another.
ORDER = np.random.default_rng(5).permutation(1450)
NEW = np.concatenate([OLD[:1370], clustered(30, seed=8), clustered(50, seed=9)])[ORDER]
NEW_IDS = [[*OLD_IDS[:1400], *(f"n{number}" for number in range(50))][row] for row in ORDER]
QUERIES = clustered(40, seed=1)
FACTORIES = ["IVF30,Flat", "IVF30,SQ8", "IVF30,PQ8x4", "OPQ8_32,IVF30,PQ8x4fs,Refine(SQ8)", "IVF30,PQ8x4,RFlat", "SQ8",
             "PQ8x4", "HNSW16", "RR32,RaBitQ,Refine(SQ8)", "IVF8,PQ16x4", "Flat"]  # fmt: skip


def digests(matrix: np.ndarray) -> np.ndarray:
    return all_of(matrix).digests()


def keep(folder: Path, factory: str) -> Layers:
    """Save the state of an index over the old corpus; returns what it was trained to."""
    faiss.omp_set_num_threads(1)
    template = trained(factory, all_of(OLD), 10**6, 3)
    index = fill(template.empty(), all_of(OLD)).index()
    incremental.save(folder, index, Held(OLD_IDS, digests(OLD), factory, len(OLD), 0))
    return template


def wide_open(index: faiss.Index) -> faiss.Index:
    """At the settings that find most."""
    tune(index, QUERIES, exact_top(NEW, QUERIES), 1.0)
    return index


@pytest.mark.parametrize("factory", FACTORIES)
def test_equals_a_rebuild_with_the_same_quantiser(factory: str, tmp_path: Path) -> None:
    template = keep(tmp_path / "state", factory)
    previous = incremental.load(tmp_path / "state", NEW_IDS, digests(NEW))
    assert previous is not None and (previous.added, previous.removed) == (80, 130)
    ours = wide_open(incremental.updated(previous, all_of(NEW)))
    theirs = wide_open(fill(template.empty(), all_of(NEW)).index())
    assert ours.ntotal == theirs.ntotal == 1450
    found, expected = ours.search(QUERIES, 10), theirs.search(QUERIES, 10)
    np.testing.assert_allclose(found[0], expected[0], atol=1e-6)
    same = [set(a) == set(b) for a, b in zip(found[1].tolist(), expected[1].tolist(), strict=True)]
    # Codes of equal score may come in another order: only the last hit can differ.
    assert np.mean(same) == 1 if "PQ" not in factory and "RaBitQ" not in factory else np.mean(same) > 0.9


@pytest.mark.parametrize("factory", ["IVF30,Flat", "OPQ8_32,IVF30,PQ8x4fs,Refine(SQ8)", "SQ8"])
def test_only_what_is_new_is_read(factory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(tmp_path / "state", factory)
    previous = incremental.load(tmp_path / "state", NEW_IDS, digests(NEW))
    assert previous is not None
    taken: list[int] = []
    take = Vectors.take

    def counted(self: Vectors, positions: np.ndarray | slice) -> np.ndarray:
        found = take(self, positions)
        taken.append(len(found))
        return found

    monkeypatch.setattr(Vectors, "take", counted)
    incremental.updated(previous, all_of(NEW))
    assert sum(taken) == 80 * len([part for part in ("base", "refine") if getattr(layers_of(previous.index), part)])


def test_an_unchanged_corpus_gives_the_same_bytes(tmp_path: Path) -> None:
    keep(tmp_path / "state", "OPQ8_32,IVF30,PQ8x4fs,Refine(SQ8)")
    previous = incremental.load(tmp_path / "state", OLD_IDS, digests(OLD))
    assert previous is not None and previous.drift() == 0
    faiss.write_index(incremental.updated(previous, all_of(OLD)), str(tmp_path / "again.faiss"))
    assert (tmp_path / "again.faiss").read_bytes() == (tmp_path / "state" / "ann.faiss").read_bytes()


def test_a_reordered_corpus_keeps_every_code(tmp_path: Path) -> None:
    keep(tmp_path / "state", "IVF30,Flat")
    order = np.random.default_rng(1).permutation(len(OLD))
    previous = incremental.load(tmp_path / "state", [OLD_IDS[row] for row in order], digests(OLD[order]))
    assert previous is not None and (previous.added, previous.removed) == (0, 0)
    index = incremental.updated(previous, all_of(OLD[order]))
    index.make_direct_map()
    np.testing.assert_array_equal(index.reconstruct_n(0, len(OLD)), OLD[order])


def test_changes_add_up_until_the_quantiser_is_too_old(tmp_path: Path) -> None:
    state = tmp_path / "state"
    keep(state, "IVF30,Flat")
    previous = incremental.load(state, NEW_IDS, digests(NEW))
    assert previous is not None and previous.exchanged == 130
    assert previous.drift() == pytest.approx(130 / 1500)
    index = incremental.updated(previous, all_of(NEW))
    incremental.save(state, index, Held(NEW_IDS, digests(NEW), "IVF30,Flat", 1500, previous.exchanged))
    back = incremental.load(state, OLD_IDS, digests(OLD))
    assert back is not None and back.drift() == pytest.approx((130 + 130) / 1500)


def test_without_a_state_there_is_nothing_to_bring_up_to_date(tmp_path: Path) -> None:
    assert incremental.load(tmp_path / "state", OLD_IDS, digests(OLD)) is None


@pytest.mark.parametrize("change", [{"seed": 4}, {"width": 16}, {"factory": "SQ8"}, {"training_vectors": 99}])
def test_another_training_has_another_state(change: dict[str, object]) -> None:
    assert incremental.state_folder("t", "one", index_params()) != incremental.state_folder(
        "t", "one", index_params(**change)
    )


def test_another_target_shares_the_state() -> None:
    folders = {incremental.state_folder("t", "one", index_params(target_recall=target)) for target in (0.5, 0.9)}
    assert len(folders) == 1


def test_digests_tell_vectors_apart() -> None:
    matrix = clustered(2000)
    assert len(np.unique(digests(matrix))) == 2000
    other = matrix.copy()
    other[7, 31] = np.nextafter(other[7, 31], 1)
    assert np.flatnonzero(digests(other) != digests(matrix)).tolist() == [7]
    swapped = matrix[:, ::-1].copy()
    assert not np.any(digests(swapped) == digests(matrix))


@pytest.mark.parametrize("kind", ["ivfflat", "ivfpq"])
def test_removed_documents_are_never_found(kind: Kind, tmp_path: Path) -> None:
    keep(tmp_path / "state", of_kind(kind, len(OLD), 32, len(OLD)))
    left = np.arange(0, len(OLD), 2)
    previous = incremental.load(tmp_path / "state", [OLD_IDS[row] for row in left], digests(OLD[left]))
    assert previous is not None
    index = wide_open(incremental.updated(previous, all_of(OLD[left])))
    scores, rows = index.search(OLD[:50], 1)
    assert rows[::2, 0].tolist() == list(range(25))
    assert (scores[1::2, 0] < 0.999).all()

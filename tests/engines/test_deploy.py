"""Releases in real engines: the same hits, runs that were killed, what is told."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import yaml
from engines import PARAMS, ndcg, put, put_back
from promote_project import PARAMS as NAMED
from promote_project import copy_project

from slimtower.common.errors import TransientError, UserError
from slimtower.common.files import folder_digest, read_json, write_json
from slimtower.engines import command as commands
from slimtower.engines import deployment
from slimtower.engines.belonging import check_encoder
from slimtower.engines.command import read_champion
from slimtower.engines.contents import load_queries, recall
from slimtower.engines.engine import Engine, Graph, Rows, read_record
from slimtower.engines.engines import open_engine
from slimtower.engines.kinds.milvus import Milvus
from slimtower.registry.client import client
from slimtower.serving.release import load_release

pytestmark = [pytest.mark.medium, pytest.mark.filterwarnings("ignore")]
ONE = "one"
ENGINES = Path("docs/engines.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_release_is_searched_as_well_through_an_engine(released: Path, to: str) -> None:
    folder = released / "models/release/2l"
    with open_engine(to) as engine:
        put(engine, folder, "two", alias="other")
        release, done = put(engine, folder, ONE)
        assert (done.filled, done.record.documents, done.met) == (32, 32, True)
        assert engine.shape("live").dim == release.manifest.dim
        assert read_record(engine, done.collection) == done.record
        assert done.record.manifest == release.manifest.checksum

        def through(texts: list[str]) -> list:
            return engine.search("live", release.encode(texts), 10, done.record.ef)

        expected = ndcg(released, ONE, lambda texts: release.hits(ONE, release.encode(texts), 10, "flat"))
        assert ndcg(released, ONE, through) == pytest.approx(expected, abs=0.005)
        [hits] = through(["how to sum the axis"])
        [exact] = release.hits(ONE, release.encode(["how to sum the axis"]), 10, "flat")
        assert [(hit.id, hit.title) for hit in hits] == [(hit.id, hit.title) for hit in exact]
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in exact], abs=1e-4)
        assert put(engine, folder, ONE)[1].filled == 0
        with pytest.raises(UserError, match="answers for 'one'"):
            put(engine, folder, "two")
        assert (engine.target("live"), engine.names("live_")) == (done.collection, [done.collection])


def test_students_of_one_index_share_its_collection_and_go_back_too(
    released: Path, retitled: Path, qdrant: Engine
) -> None:
    _, static = put(qdrant, released / "models/release/static", ONE)
    _, narrow = put(qdrant, released / "models/release/2l", ONE)
    assert (narrow.filled, narrow.collection) == (0, static.collection)
    assert narrow.before and narrow.before.student == "static"
    qdrant.keep(narrow.collection, narrow.record.model_copy(update={"recall": 0.953}).model_dump_json())
    back = put_back(qdrant).record
    assert (back.student, back.recall) == ("static", static.record.recall)  # not what the other student finds
    put(qdrant, retitled, ONE)
    assert len(qdrant.names("live_")) == 2
    record = read_record(qdrant, str(qdrant.target("live")))
    assert record and record.previous and record.previous.collection == static.collection


def test_a_milvus_collection_that_a_kill_left_without_an_index_is_completed(released: Path, tmp_path: Path) -> None:
    pytest.importorskip("pymilvus")
    folder = released / "models/release/static"
    with open_engine(str(tmp_path / "engine.db")) as engine:
        assert isinstance(engine, Milvus)
        _, first = put(engine, folder, ONE)
        engine.keep(first.collection, "")  # not complete yet
        engine.client.release_collection(first.collection)
        for index in engine.client.list_indexes(first.collection):
            engine.client.drop_index(first.collection, index)
    with open_engine(str(tmp_path / "engine.db")) as engine:
        assert isinstance(engine, Milvus) and not engine.client.list_indexes(first.collection)
        assert engine.count(first.collection) == 32  # for which a server loads it, and that needs an index
        assert engine.client.list_indexes(first.collection)
        assert put(engine, folder, ONE)[1].filled == 0


def test_changed_settings_make_another_deployment_which_is_filled_where_the_graph_changes(
    released: Path, qdrant: Engine
) -> None:
    folder = released / "models/release/static"
    denser = PARAMS.model_copy(update={"m": [12, 16]})
    _, first = put(qdrant, folder, ONE)
    _, lower = put(qdrant, folder, ONE, PARAMS.model_copy(update={"target_recall": 0.5}))
    assert (lower.collection, lower.filled) == (first.collection, 0)
    assert lower.record.settings.target_recall == 0.5
    assert put_back(qdrant).record.settings == first.record.settings
    _, second = put(qdrant, folder, ONE, denser)
    assert (second.record.m, second.filled) == (12, 32) and qdrant.target("live") == second.collection
    assert second.before and second.before.collection == first.collection != second.collection
    _, again = put(qdrant, folder, ONE, denser)
    assert (again.collection, again.filled, again.before) == (second.collection, 0, None)
    assert put(qdrant, released / "models/release/2l", ONE, denser)[1].collection == second.collection
    assert qdrant.names("live_") == [second.collection]


def test_a_deployment_never_drops_or_moves_what_another_one_has_put_there(
    released: Path, qdrant: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, foreign = released / "models/release/static", "live_0123456789ab"
    for moment in ("_choose_collection", "_set_up"):
        put(qdrant, folder, ONE)
        real = getattr(deployment, moment)

        def after_another(*arguments: Any, real: Callable[..., Any] = real) -> Any:
            qdrant.create(foreign, 8)
            qdrant.point("live", foreign)
            return real(*arguments)

        with monkeypatch.context() as patch, pytest.raises(TransientError, match="another deployment moved it"):
            patch.setattr(deployment, moment, after_another)
            put(qdrant, folder, ONE, PARAMS.model_copy(update={"m": [5]}))
        assert qdrant.target("live") == foreign


def test_documents_that_others_put_into_what_answers_are_not_lost(released: Path, to: str) -> None:
    with open_engine(to) as engine:
        release, done = put(engine, released / "models/release/static", ONE)
        release_vectors = release.index(ONE, "flat").reconstruct_n(0, 1)
        engine.upsert(done.collection, Rows(32, ["theirs"], ["new"], release_vectors))
        with pytest.raises(UserError, match="33 documents"):
            put(engine, released / "models/release/2l", ONE)
        assert engine.target("live") == done.collection and engine.count(done.collection) == 33
        assert read_record(engine, done.collection) == done.record


def test_a_qdrant_that_keeps_no_record_is_not_flipped_to(
    released: Path, qdrant: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qdrant, "note", lambda name: "")  # as a server that does not know the field
    with pytest.raises(UserError, match=r"from 1\.16 on"):
        put(qdrant, released / "models/release/static", ONE)
    assert qdrant.target("live") is None


KILLED = """
import os, signal, sys
from pathlib import Path
from engines import put
from slimtower.engines.engines import open_engine

to, folder, step, after = sys.argv[1:]
with open_engine(to) as engine:
    real, left = getattr(engine, step), [int(after)]
    def dying(*arguments):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)
    setattr(engine, step, dying)
    put(engine, Path(folder), "one")
"""


@pytest.mark.faults("kills")
@pytest.mark.slow
@pytest.mark.parametrize(("step", "after"), [("upsert", "2"), ("point", "0")])
def test_a_killed_run_leaves_the_old_one_answering_and_is_completed(
    released: Path, retitled: Path, to: str, step: str, after: str, record_property: Callable[..., None]
) -> None:
    with open_engine(to) as engine:
        release, first = put(engine, released / "models/release/static", ONE)
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{root}:{root / 'tests/helpers'}"}
    done = subprocess.run([sys.executable, "-c", KILLED, to, str(retitled), step, after], env=environment)
    assert done.returncode == -signal.SIGKILL
    record_property("kills", {"deploy": 1})
    vector = release.encode(["matrix of window"])
    with open_engine(to) as engine:
        assert engine.target("live") == first.collection
        assert not engine.search("live", vector, 1, 32)[0][0].title.startswith("new ")
        [half] = set(engine.names("live_")) - {first.collection}
        assert engine.count(half) == (16 if step == "upsert" else 32)
        _, second = put(engine, retitled, ONE)
        assert second.collection == half and second.filled == (24 if step == "upsert" else 0)
        assert engine.count(half) == 32 and len(engine.names("live_")) == 2
        assert engine.search("live", vector, 1, 32)[0][0].title.startswith("new ")
        assert second.before and second.before.collection == first.collection


def _rows(release, dataset: str, vectors: np.ndarray) -> Rows:
    ids, titles = release.documents(dataset)
    return Rows(0, ids, titles, np.ascontiguousarray(vectors, dtype=np.float32))


def _check(engine: Engine, name: str, folder: Path):
    release = load_release(folder)
    queries = load_queries(release, ONE, folder.parents[2] / "data/ingest", 20)
    return check_encoder(engine, name, release, ONE, queries, PARAMS)


@pytest.mark.slow
def test_only_an_encoder_that_belongs_to_the_index_is_let_in(released: Path, retitled: Path, to: str) -> None:
    folder = released / "models/release/static"
    with open_engine(to) as engine:
        release, done = put(engine, folder, ONE)
        assert _check(engine, "live", folder)[0].recall == pytest.approx(1.0)
        assert _check(engine, done.collection, released / "models/release/2l")[0].met
        with pytest.raises(UserError, match="filled from another index, of the same teacher"):
            _check(engine, "live", retitled)
        release_vectors = release.index(ONE, "flat").reconstruct_n(0, 32)
        shuffled, mirrored, narrow = (
            release_vectors[np.roll(np.arange(32), 1)],
            -release_vectors,
            release_vectors[:, :16],
        )
        for name, vectors, message in (
            ("shuffled", shuffled, "32 of 32 sampled documents have another vector"),
            ("mirrored", mirrored, r"another vector .* \(mean cosine -1\.000\)"),
            ("narrow", narrow, "holds vectors of 16 dimensions, the encoder makes 32"),
        ):
            engine.create(name, vectors.shape[1])
            engine.upsert(name, _rows(release, ONE, vectors))
            engine.build(name, Graph(4, 40))
            with pytest.raises(UserError, match=message):
                _check(engine, name, folder)
        engine.create("others", 32)
        engine.upsert("others", _rows(release, ONE, release_vectors)._replace(ids=[str(62 - 2 * n) for n in range(32)]))
        engine.build("others", Graph(4, 40))
        with pytest.raises(UserError, match="has 0 of 32 sampled documents"):
            _check(engine, "others", folder)
        stored = engine.vectors("others", ["0", "2"])  # an id may be the number of another row
        assert np.allclose([stored["0"], stored["2"]], release_vectors[[31, 30]], atol=1e-6) and len(stored) == 2
        with pytest.raises(UserError, match="no such"):
            _check(engine, "gone", folder)


@pytest.mark.parametrize("key", ["id", "doc_id"])
def test_a_payload_of_qdrants_may_hold_whole_numbers_as_ids(qdrant: Engine, key: str) -> None:
    models = pytest.importorskip("qdrant_client").models
    client, vectors = cast(Any, qdrant).client, np.eye(4, dtype=np.float32)
    client.create_collection("theirs", models.VectorParams(size=4, distance=models.Distance.DOT))
    rows = enumerate(vectors.tolist())
    client.upsert("theirs", [models.PointStruct(id=100 + n, vector=row, payload={key: n}) for n, row in rows])
    stored = qdrant.vectors("theirs", ["1", "3", "x", "9" * 30])
    assert stored.keys() == {"1", "3"} and np.array_equal(stored["3"], vectors[3])


@pytest.mark.parametrize(("added", "prefix"), [(40, ""), (1, "one/")])
def test_documents_that_came_and_went_do_not_keep_an_encoder_from_its_index(
    released: Path, to: str, added: int, prefix: str
) -> None:
    folder = released / "models/release/static"
    release = load_release(folder)
    with open_engine(to) as engine:
        ids, titles = release.documents(ONE)
        ids = [doc.removeprefix(prefix) for doc in ids]  # an index of one's own has the ids of the source
        release_vectors = release.index(ONE, "flat").reconstruct_n(0, 32)
        queries = load_queries(release, ONE, released / "data/ingest", 20)
        new = np.resize(queries.vectors, (added, release_vectors.shape[1]))  # each found first by some query
        engine.create("mine", release_vectors.shape[1])
        engine.upsert("mine", Rows(0, ids[3:], titles[3:], np.ascontiguousarray(release_vectors[3:])))  # three are gone
        engine.upsert("mine", Rows(32, [f"new {n}" for n in range(added)], [""] * added, new))
        engine.build("mine", Graph(8, 40))
        tuned, judged = _check(engine, "mine", folder)
        assert tuned.recall == 1.0 and judged == len(queries.vectors)
        with pytest.raises(UserError, match=r"finds (50|[0-4]?\d)\.\d\d% of the exact top 10"):
            _check(Worse(engine), "mine", folder)


def test_an_ivfflat_index_is_tuned_by_its_probes(released: Path, database: str) -> None:
    folder = released / "models/release/static"
    release = load_release(folder)
    with open_engine(database) as engine:
        release_vectors = release.index(ONE, "flat").reconstruct_n(0, 32)
        engine.create("mine", release_vectors.shape[1])
        engine.upsert("mine", _rows(release, ONE, release_vectors))
        engine.connection.execute("create index on mine using ivfflat (vector vector_ip_ops) with (lists = 8)")
        engine.connection.execute("create view seen as select * from mine")
        engine.connection.execute("set enable_seqscan = off")  # so few rows would be scanned
        name = "seen"
        assert engine.shape(name) == engine.shape("mine") == (32, "inner_product", "ivfflat.probes")
        tuned, _ = _check(engine, name, folder)
        assert tuned.met and tuned.ef in (2, 3, 4, 6, 8)
        few = engine.search(name, release_vectors[:1], 32, 1)[0]
        assert len(few) < len(engine.search(name, release_vectors[:1], 32, 8)[0]) == 32
        with pytest.raises(UserError, match=r"with ivfflat\.probes \d+,.*: build this index anew") as raised:
            _check(Worse(engine), name, folder)
        assert "deploy.m " not in str(raised.value)
        engine.connection.execute("create index on mine using hnsw (vector vector_ip_ops)")
    with open_engine(database) as engine, pytest.raises(UserError, match=r"hnsw and .* ivfflat"):
        engine.shape(name)


def test_an_index_of_milvus_is_searched_by_the_knob_of_its_kind(released: Path, tmp_path: Path) -> None:
    pytest.importorskip("milvus_lite")
    release = load_release(released / "models/release/static")
    engine = Milvus(str(tmp_path / "mine.db"))
    release_vectors = release.index(ONE, "flat").reconstruct_n(0, 32)
    engine.create("mine", release_vectors.shape[1])
    engine.upsert("mine", _rows(release, ONE, release_vectors))
    assert engine.shape("mine") == (32, "inner_product", "ef")
    for kind, knob in (("IVF_FLAT", "nprobe"), ("HNSW", "ef")):
        engine.client.release_collection("mine")
        for index in engine.client.list_indexes("mine"):
            engine.client.drop_index("mine", index)
        settings = {"nlist": 4} if knob == "nprobe" else {"M": 8, "efConstruction": 64}
        indexes = engine.client.prepare_index_params()
        indexes.add_index("vector", index_type=kind, metric_type="IP", params=settings)
        engine.client.create_index("mine", indexes)
        engine = Milvus(engine.file)
        assert engine.shape("mine").knob == knob
        assert len(engine.search("mine", release_vectors[:1], 5, 4)[0]) == 5
    assert engine._knob("mine", "AUTOINDEX") == "ef", "what pymilvus makes where no kind is named"
    with pytest.raises(UserError, match="DISKANN"):
        engine._knob("mine", "DISKANN")


class Worse:
    """An engine that finds half of the hits."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __getattr__(self, name: str):
        return getattr(self.engine, name)

    def search(self, name: str, vectors: np.ndarray, k: int, ef: int):
        return [hits[: k // 2] for hits in self.engine.search(name, vectors, k, ef)]


def test_an_engine_that_finds_less_than_the_release_is_not_flipped_to(released: Path, qdrant: Engine) -> None:
    with pytest.raises(UserError, match=r"finds 50\.00% of the exact top 10 with ef 16.*nothing was changed"):
        put(Worse(qdrant), released / "models/release/static", ONE)
    assert qdrant.target("live") is None


def test_documents_of_equal_score_count_alike() -> None:
    assert recall([["a", "b"]], [frozenset("abc")]) == pytest.approx(2 / 3)
    many = frozenset(str(n) for n in range(12))  # three share the tenth place
    assert recall([[str(n) for n in range(2, 12)]], [many]) == 1.0


def register(name: str, student: str, release: Path) -> None:
    """Make a release the champion."""
    api = client()
    if not api.search_registered_models():
        api.create_registered_model(name)
    tags = {"slimtower.student": student, "slimtower.release": folder_digest(release)}
    version = api.create_model_version(name, str(release), tags=tags)
    api.set_registered_model_alias(name, "champion", version.version)


@pytest.fixture
def tracked(released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A project with releases and a registry of its own, and where it deploys to."""
    pytest.importorskip("qdrant_client")
    for part in ("models/release", "data/ingest"):
        shutil.copytree(released / part, tmp_path / "project" / part)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return tmp_path / "project", f"qdrant:{tmp_path / 'qdrant'}"


def students(to: str) -> list[str]:
    """Whose queries the aliases of `one` and `two` answer, where they are there."""
    with open_engine(to) as engine:
        collections = [engine.target(f"retriever_{name}") for name in ("one", "two")]
        records = [read_record(engine, name) for name in collections if name]
    return [record.student for record in records if record]


@pytest.mark.slow
def test_the_champion_is_deployed_and_a_disagreement_is_told(
    tracked: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, to = tracked
    write_json(root / "reports/metrics.json", {"choice": {"student": "static"}})
    assert read_champion("retriever") is None and not (tmp_path / "mlflow.db").exists()
    commands.run(root, to, "retriever", "", [], PARAMS)
    printed = capsys.readouterr().out
    assert "retriever_one at qdrant:" in printed and "answers for static" in printed and "no champion" in printed
    with pytest.raises(UserError, match=r"champion is none, .* nothing was deployed"):
        commands.run(root, to, "retriever", "", [], PARAMS, champion_alone=True)
    register("retriever", "2l", root / "models/release/2l")
    commands.run(root, to, "retriever", "", [], PARAMS, champion_alone=True)
    printed = capsys.readouterr().out
    assert "answers for 2l" in printed and "0 put in now, was static" in printed and "they agree" in printed
    (root / "models/release/2l").rename(root / "elsewhere")
    with pytest.raises(UserError, match=r"version 1 \(2l\), whose release is not in models/release"):
        commands.run(root, to, "retriever", "", [], PARAMS, champion_alone=True)
    (root / "elsewhere").rename(root / "models/release/2l")
    commands.run_rollback(root, to, "retriever", ["one"])
    printed = capsys.readouterr().out
    assert (
        "answers for static" in printed and "version 1 (2l), another release than this static: they DISAGREE" in printed
    )
    commands.run_encoder_only(root, to, "retriever", "2l", [], "", PARAMS)
    assert capsys.readouterr().out.count("belong together: ef 16 finds 100.00%") == 2
    with pytest.raises(UserError, match="holds no index of 'three'"):
        commands.run(root, to, "retriever", "", ["three"], PARAMS)
    with pytest.raises(UserError, match="nothing of other is deployed there"):
        commands.run_rollback(root, to, "other", [])


@pytest.mark.slow
def test_a_champion_that_moves_meanwhile_is_not_deployed_and_the_last_line_knows(
    tracked: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root, to = tracked
    register("retriever", "static", root / "models/release/static")
    commands.run(root, to, "retriever", "", ["one"], PARAMS)
    register("retriever", "2l", root / "models/release/2l")

    def moving(real: Callable[..., Any], version: str | None) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            done = real(*arguments)
            client().delete_registered_model_alias("retriever", "champion")
            if version:
                client().set_registered_model_alias("retriever", "champion", version)
            return done

        return call

    for version, champion in ((None, "none"), ("1", r"version 1 \(static\)")):
        client().set_registered_model_alias("retriever", "champion", "2")
        with (
            monkeypatch.context() as patch,
            pytest.raises(UserError, match=f"is {champion} by now, so .*2l was not dep"),
        ):
            patch.setattr(deployment, "_set_up", moving(deployment._set_up, version))
            commands.run(root, to, "retriever", "", ["one"], PARAMS, champion_alone=True)
        assert students(to) == ["static"]
    for module, step, command in (
        (deployment, "_set_up", lambda: commands.run(root, to, "retriever", "2l", ["one"], PARAMS)),
        (commands, "roll_back", lambda: commands.run_rollback(root, to, "retriever", [])),
    ):
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(module, step, moving(getattr(module, step), "2" if module is deployment else "1"))
            command()
        assert "they agree" in capsys.readouterr().out


def test_a_rollback_of_several_data_sets_that_was_cut_short_is_finished_by_the_next(
    tracked: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, to = tracked
    for student in ("static", "2l"):
        commands.run(root, to, "retriever", student, [], PARAMS)
    done: list[str] = []

    def once(engine: Any, way: Any) -> None:
        if done:
            raise TransientError(f"{way.alias}: readers hold it; run it again")
        done.append(way.alias)
        deployment.roll_back(engine, way)

    with monkeypatch.context() as patch, pytest.raises(TransientError):
        patch.setattr(commands, "roll_back", once)
        commands.run_rollback(root, to, "retriever", [])
    assert students(to) == ["static", "2l"]
    commands.run_rollback(root, to, "retriever", [])
    assert students(to) == ["static", "static"]
    with pytest.raises(UserError, match="rolled back already"):
        commands.run_rollback(root, to, "retriever", [])
    commands.run(root, to, "retriever", "2l", ["one"], PARAMS)
    commands.run_rollback(root, to, "retriever", ["one"])
    assert students(to) == ["static", "static"]


def test_no_alias_moves_where_one_of_several_data_sets_is_refused_or_has_nothing_to_go_back_to(
    tracked: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, to = tracked
    commands.run(root, to, "retriever", "static", ["one"], PARAMS)
    commands.run(root, to, "retriever", "2l", [], PARAMS)
    with pytest.raises(UserError, match="retriever_two: nothing to go back to"):
        commands.run_rollback(root, to, "retriever", [])
    assert students(to) == ["2l", "2l"]

    def refused(name: str, *_: Any) -> None:
        if name.startswith("retriever_two"):
            raise UserError(f"{name}: finds too little; nothing was changed")

    with monkeypatch.context() as patch, pytest.raises(UserError, match=r"retriever_two_.*nothing was changed"):
        patch.setattr(deployment, "contents_digest", lambda release, dataset: "f" * 64)  # other documents
        patch.setattr(deployment, "check_recall", refused)
        commands.run(root, to, "retriever", "static", [], PARAMS)
    assert students(to) == ["2l", "2l"]
    commands.run_rollback(root, to, "retriever", ["one"])
    assert students(to) == ["static", "2l"]


def test_what_a_fused_release_gives_up_in_an_engine_is_told_and_an_application_can_fuse(
    hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("qdrant_client")
    folder, to = hybrid / "models/release/static", f"qdrant:{tmp_path / 'qdrant'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    register("retriever", "static", folder)
    commands.run(hybrid, to, "retriever", "static", [], PARAMS)
    printed = capsys.readouterr().out
    dev = read_json(folder / "report.json")["lexical"]["two"]["dev"]
    assert f"{dev['dense']:.4f} in place of {dev['fused']:.4f}" in printed and "they agree" not in printed
    [block] = [snippet for snippet in re.findall(r"```python\n(.*?)```", ENGINES, re.S) if "fuse(pooled" in snippet]
    release = load_release(folder)
    with open_engine(to) as engine:
        vector = release.encode(["draw a histogram"])

        def hits(limit: int) -> list[tuple[str, float]]:
            return [(hit.id, hit.score) for hit in engine.search("retriever_two", vector, limit, limit)[0]]

        names = {"release": release, "engine_hits": hits, "np": np}
        exec(block.replace('"api"', '"two"'), names)
    scores, ids = release.search_text("two", ["draw a histogram"], 10, "flat")
    assert names["ids"] == ids[0]
    np.testing.assert_allclose(names["scores"], scores[0], atol=1e-5)


def test_only_filling_a_postgres_creates_its_extension(database: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    there = "select count(*) from pg_extension where extname = 'vector'"
    with open_engine(database) as engine, psycopg.connect(database, autocommit=True) as connection:
        with pytest.raises(UserError, match="no such table or view here"):
            engine.shape("gone")
        connection.execute("create table plain (id text, vector real[])")
        with pytest.raises(UserError, match="plain: has no column of type vector"):
            engine.shape("plain")
        assert connection.execute(there).fetchone() == (0,)
        engine.create("mine", 2)
        assert connection.execute(there).fetchone() == (1,)
        engine.upsert("mine", Rows(0, ["a"], ["A"], np.ones((1, 2), np.float32)))
        assert engine.vectors("mine", ["a"])["a"].tolist() == [1, 1]


@pytest.mark.slow
def test_the_command_fills_a_file_that_another_process_searches_and_goes_back(released: Path, tmp_path: Path) -> None:
    pytest.importorskip("pymilvus")
    folder = copy_project(released, tmp_path / "project")
    (folder / "params.yaml").write_text(yaml.safe_dump({"deploy": PARAMS.model_dump(), "promote": NAMED}))
    command = [sys.executable, "-m", "slimtower", "deploy", "--to", "engine.db"]
    environment = os.environ | {"PYTHONPATH": str(Path.cwd()), "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}

    def deploy(*more: str) -> str:
        done = subprocess.run([*command, *more], cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def answers() -> str:
        with open_engine(str(folder / "engine.db")) as engine:
            release = load_release(folder / "models/release/static")
            alias = deployment.alias_of(NAMED["name"], release.datasets[0])
            assert len(engine.search(alias, release.encode(["how to sum the axis"]), 3, 16)[0]) == 3
            record = read_record(engine, engine.target(alias) or "")
        assert record
        return record.student

    assert "static" in deploy("--student", "static") and answers() == "static"
    assert "2l" in deploy("--student", "2l") and answers() == "2l"
    deploy("--rollback")
    assert answers() == "static"


def test_a_record_of_an_earlier_version_says_what_to_do() -> None:
    engine: Any = SimpleNamespace(note=lambda name: '{"manifest": "a", "m": 16}')
    with pytest.raises(UserError, match="deploy anew"):
        read_record(engine, "docs")

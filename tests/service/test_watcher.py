"""What the service serves while releases come, go and break."""

import contextlib
import dataclasses
import shutil
import threading
from collections.abc import Hashable
from pathlib import Path
from unittest.mock import Mock

import pytest
from serve_fakes import ToldSource, open_client, replace
from serve_process import until

from slimtower.common.errors import TransientError, UserError
from slimtower.common.files import write_json
from slimtower.service import sources
from slimtower.service.sources import FolderSource, RegistrySource
from slimtower.service.systems import Served, Serving
from slimtower.service.telemetry import Metrics
from slimtower.service.watcher import DEFAULT, POLL, Watcher
from slimtower.serving.release import load_release

pytestmark = pytest.mark.medium


@pytest.fixture
def releases(released: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(released / "models/release", tmp_path / "models/release"))


def watcher(source: object) -> Watcher:
    watched = Watcher(source, 0.2, Metrics())  # type: ignore[arg-type]
    watched.refresh()
    return watched


def serving(watched: Watcher) -> Serving:
    assert watched.current
    return watched.current


def students(watched: Watcher) -> dict[str, str]:
    return {name: served.identity["student"] for name, served in serving(watched).students.items()}


def test_a_changed_release_is_swapped_whole_and_an_unchanged_one_kept(releases: Path, released: Path) -> None:
    watched = watcher(FolderSource(releases, ""))
    before = watched.current
    watched.refresh()
    assert watched.current is before
    replace(releases / "2l", released / "models/release/static")
    watched.refresh()
    assert students(watched) == {"2l": "static", "static": "static"}
    assert before and watched.current
    assert watched.current.students["static"] is before.students["static"]
    assert before.students["2l"].identity["student"] == "2l"  # a request that took it still has it whole
    assert len(before.students["2l"].release.query("sum", 3)) == 3


def test_a_defect_in_one_look_does_not_end_all_looking(releases: Path, released: Path) -> None:
    watched = watcher(FolderSource(releases, ""))
    watched.poll_s = 0.01
    watched.swapped = Mock(side_effect=[KeyError("a defect"), None])
    watched.start(30)
    for number, student in enumerate(("static", "2l"), start=1):
        replace(releases / "2l", released / "models/release" / student)
        until(lambda number=number: watched.swapped.call_count == number)
    watched.stop()
    assert students(watched)["2l"] == "2l"


def test_what_does_not_load_leaves_the_old_release_serving_and_says_so(releases: Path) -> None:
    client, service = open_client(releases)
    with client:
        manifest = releases / "2l/manifest.json"
        content = manifest.read_text()
        old = client.post("/search", json={"query": "sum", "system": "2l"}).json()["release"]
        manifest.write_text(content.replace('"probe_tolerance"', '"surprise"'))
        for _ in range(3):
            service.watcher.refresh()
        state = client.get("/health").json()
        assert state["ready"] and [row["system"] for row in state["failing"]] == ["2l"]
        assert state["failing"][0].keys() == {"system", "kind", "since", "tries"}  # where it lies is for the log
        assert state["failing"][0]["kind"] == "does not load"
        assert str(releases) not in client.get("/health").text + client.get("/systems").text
        assert "field required" in service.watcher.failures["2l"].message
        assert state["failing"][0]["tries"] == 1  # it waits before it tries again
        assert "slimtower_load_failing 1" in client.get("/metrics").text
        assert client.post("/search", json={"query": "sum", "system": "2l"}).json()["release"] == old
        manifest.write_text(content)
        service.watcher.refresh()
        assert client.get("/health").json()["failing"] == []


@pytest.mark.parametrize("opens", [True, False])
def test_a_release_that_is_replaced_while_it_loads_is_not_served(
    releases: Path, released: Path, monkeypatch: pytest.MonkeyPatch, opens: bool
) -> None:
    source = FolderSource(releases, "")
    key = source.poll()["2l"]

    def slow(folder: Path, threads: int) -> object:
        release = load_release(folder, threads)
        replace(folder, released / "models/release/2l")
        if not opens:
            raise UserError("files of two releases do not belong together")
        return release

    monkeypatch.setattr(sources, "load_release", slow)
    with pytest.raises(TransientError, match="replaced while it was loaded"):
        source.load("2l", key)


def test_a_source_that_is_out_of_reach_and_a_release_that_is_gone_for_long_keep_serving(released: Path) -> None:
    releases = released / "models/release"
    source = ToldSource({"a": releases / "static", "b": releases / "2l"})
    watched = watcher(source)
    source.unreachable = "no route"
    watched.refresh()
    assert watched.failures[POLL].message == "RuntimeError: no route"
    source.unreachable = ""
    del source.folders["b"]
    watched.refresh()
    assert set(watched.failures) == {"b"}
    assert students(watched) == {"a": "static", "b": "2l"}
    watched.failures["b"] = dataclasses.replace(watched.failures["b"], tries=5000)  # no wait is too long to count
    source.folders["a"] = releases / "2l"
    watched.refresh()
    assert students(watched)["a"] == "2l" and watched.failures["b"].tries == 5001


def test_a_release_that_does_not_load_at_the_start_is_tried_again_before_requests_come(
    releases: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slimtower.service.watcher._FIRST_WAIT_S", 0.0)
    source = ToldSource({"a": releases / "static"})
    real, tries = source.load, []

    def load(name: str, key: Hashable) -> Served:
        tries.append(name)
        if len(tries) == 1:
            raise UserError("replaced meanwhile")
        return real(name, key)

    monkeypatch.setattr(source, "load", load)
    watched = Watcher(source, 60.0, Metrics())  # type: ignore[arg-type]
    watched.start(30)
    watched.stop()
    assert students(watched) == {"a": "static"} and not watched.failures and len(tries) == 2


def test_files_in_the_cache_that_a_power_failure_cut_are_fetched_again_once(
    releases: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLIMTOWER_CACHE", str(tmp_path / "cache"))
    fetched: list[Path] = []

    def download(uri: str, into: Path) -> None:
        fetched.append(into)
        shutil.copytree(releases / "static", into, dirs_exist_ok=True)

    monkeypatch.setattr("slimtower.service.sources._download", download)
    source, version = RegistrySource("retriever@champion"), Mock(version="1", source="s3", creation_timestamp=0)
    source._opened(version)
    for tries in (2, 2):  # a release that never opens is not fetched for ever
        (serving,) = (tmp_path / "cache/serve/retriever").glob("1-*/serving")
        (serving / "tokenizer.json").write_text("")
        with contextlib.suppress(UserError):
            assert source._opened(version).manifest.student == "static"
        assert len(fetched) == tries


def test_the_port_opens_while_a_large_release_is_on_its_way(releases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slimtower.service.app.OPEN_S", 0.1)
    arrived = threading.Event()

    class Slow(ToldSource):
        def load(self, name: str, key: Hashable) -> Served:
            assert arrived.wait(60)
            return super().load(name, key)

    client, service = open_client(releases)
    service.watcher.source = Slow({"champion": releases / "static"})  # type: ignore[assignment]
    with client:
        assert client.get("/health/live").status_code == 200
        state = client.get("/health")
        assert (state.status_code, state.json()["failing"]) == (503, [])
        refused = client.get("/search", params={"q": "sum"})
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "5")
        arrived.set()
        until(lambda: client.get("/health").status_code == 200)
        assert client.get("/search", params={"q": "sum"}).json()["system"] == "champion"


def test_what_keeps_a_source_from_answering_is_told_once_for_each_reason(
    releases: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = ToldSource({"a": releases / "static"})
    watched = watcher(source)
    source.unreachable = "no route"
    source_poll = source.poll
    for poll in (source_poll, source_poll, Mock(side_effect=UserError("no champion")), source_poll):
        source.poll = poll  # type: ignore[method-assign]
        watched.refresh()
    errors = [record.data["error"] for record in caplog.records if record.message == "not loaded"]  # type: ignore[attr-defined]
    assert errors == ["RuntimeError: no route", "no champion", "RuntimeError: no route"]


def test_asking_for_a_model_where_nothing_was_promoted_makes_no_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///own.db")
    with pytest.raises(UserError, match=r"own\.db is not there: set MLFLOW_TRACKING_URI, or promote"):
        RegistrySource("retriever@champion").poll()
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_audit_trail_keeps_no_champion_from_serving(releases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = '{"version": "7", "at": "2026-01-01T00:00:00Z", "by": "someone"}'
    trail = ["", "{", "7", "[" * 4000, '{"version": "6"}', good]
    tags = {f"slimtower.event.{number}": text for number, text in enumerate(trail)}
    version = Mock(version="7", source="s3", creation_timestamp=0, tags={})
    monkeypatch.setattr(
        "slimtower.service.sources.client", lambda: Mock(get_registered_model=lambda _: Mock(tags=tags))
    )
    source = RegistrySource("retriever@champion")
    monkeypatch.setattr(source, "_version", lambda: version)
    monkeypatch.setattr(source, "_opened", lambda _: load_release(releases / "static"))
    origin = source.load("champion", ("7", "s3")).origin
    assert (origin.promoted, origin.promoted_by) == ("2026-01-01T00:00:00Z", "someone")


def test_a_release_that_is_gone_embeds_and_searches_on_and_so_does_one_beside_a_broken_corpus(
    releases: Path,
) -> None:
    corpus = releases.parent.parent / "data/ingest/corpus.parquet"
    corpus.parent.mkdir(parents=True)
    corpus.write_text("no Parquet")
    client, _ = open_client(releases)
    with client:
        shutil.rmtree(releases)
        assert client.post("/v1/embeddings", json={"input": "sum"}).json()["usage"]["prompt_tokens"] > 0
        assert client.get("/search", params={"q": "sum"}).json()["results"][0]["hits"][0]["snippet"] == ""
        assert all(system["model_bytes"] > 0 for system in client.get("/systems").json()["systems"])
        assert client.get("/systems").json()["documents"] is False


def test_the_default_is_the_named_one_else_the_evaluations_choice_else_the_first(releases: Path) -> None:
    assert FolderSource(releases, "").default(["2l", "static"]) == ""
    assert serving(watcher(FolderSource(releases, ""))).default == "2l"
    reports = releases.parent.parent / "reports"
    reports.mkdir()
    (reports / "metrics.json").write_text('{"choice": {"student": "static"}}')
    assert FolderSource(releases, "").default(["2l", "static"]) == "static"
    # where no student was chosen, one that was evaluated: another may be of a student that params no longer have
    write_json(reports / "metrics.json", {"choice": {"student": None}, "releases": {"static": {}}})
    assert FolderSource(releases, "").default(["1l", "2l", "static"]) == "static"
    assert FolderSource(releases, "2l").default(["2l", "static"]) == "2l"
    with pytest.raises(UserError, match="'9l' is not among the releases; choose one of 2l, static"):
        FolderSource(releases, "9l").default(["2l", "static"])
    assert set(watcher(FolderSource(releases, "9l")).failures) == {DEFAULT}


def test_the_default_follows_the_evaluation_which_writes_its_choice_after_the_releases(releases: Path) -> None:
    metrics = releases.parent.parent / "reports/metrics.json"
    metrics.parent.mkdir()
    metrics.write_text('{"choice": {"student": "static"}}')
    watched = watcher(FolderSource(releases, ""))
    swaps: list[str] = []
    watched.swapped = lambda: swaps.append(serving(watched).default)
    metrics.unlink()  # DVC removes it when `evaluate` starts
    watched.refresh()
    assert serving(watched).default == "static", "nothing says another"
    metrics.write_text('{"choice": {"student": "2l"}}')
    before = serving(watched).students
    watched.refresh()
    assert serving(watched).default == "2l" and serving(watched).students == before
    assert swaps == [], "no release was loaded"


def test_a_release_that_waited_for_the_default_is_served_as_soon_as_that_is_told_again(releases: Path) -> None:
    source = ToldSource({"a": releases / "2l"})
    watched = watcher(source)
    default, source.folders = source.default, {"a": releases / "static"}
    for error in (UserError("metrics.json: not JSON"), AttributeError("of a half-written file")):
        source.default = Mock(side_effect=error)  # type: ignore[method-assign]
        watched.refresh()
        assert (students(watched), set(watched.failures)) == ({"a": "2l"}, {DEFAULT})
    source.default = default  # type: ignore[method-assign]
    watched.refresh()
    assert (students(watched), watched.failures) == ({"a": "static"}, {})

"""The parts of one process of the service, and the search that its routes share."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TypeVar

from starlette.types import Scope

from slimtower.common.errors import UserError
from slimtower.service.corpus import Corpus
from slimtower.service.log_store import log_store
from slimtower.service.messages import Problem
from slimtower.service.search_log import SearchLog
from slimtower.service.settings import K, Settings
from slimtower.service.sources import FolderSource, RegistrySource, Source, project_of
from slimtower.service.systems import (
    BASELINES,
    BM25,
    FUSED_TEACHER,
    TEACHER,
    Baselines,
    Served,
    Serving,
    example_queries,
    report_of,
)
from slimtower.service.telemetry import SEEN, Metrics
from slimtower.service.watcher import Watcher
from slimtower.serving.display import CALLS, EXAMPLE, Medians, Times, medians
from slimtower.serving.query_encoder import is_unicode
from slimtower.serving.release import Hit

_FEWEST, _WARM_UP_CALLS_S = 5, 1.0  # calls of one warm-up, which ends after so many seconds


class Recent:
    """Times of single queries, by system and data set, of the release that answers there now. Safe in threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[tuple[str, str], tuple[str, deque[Times]]] = {}  # with the release's manifest

    def note(self, system: str, dataset: str, manifest: str, times: Times) -> None:
        """Remember a call; those of an earlier release are forgotten."""
        with self._lock:
            entry = self._calls.get((system, dataset))
            if entry is None or entry[0] != manifest:
                entry = self._calls[system, dataset] = manifest, deque(maxlen=CALLS)
            entry[1].append(times)

    def medians(self, system: str, dataset: str, manifest: str) -> Medians | None:
        """Over the last calls; None if this release has answered nothing yet."""
        with self._lock:
            entry = self._calls.get((system, dataset))
            calls = list(entry[1]) if entry and entry[0] == manifest else []
        return medians(calls) if calls else None


def warm_up(call: Callable[[], object]) -> None:
    """Call as often as the medians look back, but stop after a second if calls are slow."""
    began = time.perf_counter()
    for done in range(CALLS):
        if done >= _FEWEST and time.perf_counter() - began > _WARM_UP_CALLS_S:
            return
        call()


_T = TypeVar("_T")
_WARM_UP_S = 2.0  # for all students and data sets together


class SearchResult(NamedTuple):
    """A system's hits of each query, its times, and the medians of its last calls if this was one query."""

    system: str
    by: Served
    dataset: str
    times: Times
    hits: list[list[Hit]]
    recent: Medians | None = None


@dataclass(frozen=True)
class Service:
    """One process: settings, releases, baselines, counts, log of searches, threads to compute in, and the last times.

    `project` is the checkout, or the folder of a recipe's run, that the releases lie in, if any.
    """

    settings: Settings
    watcher: Watcher
    corpus: Corpus
    baselines: Baselines
    metrics: Metrics
    log: SearchLog | None
    pool: ThreadPoolExecutor
    project: Path | None = None
    recent: Recent = field(default_factory=Recent)
    baseline_pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="baseline")
    )

    @property
    def report(self) -> Path | None:
        """The report of the run that made the releases, if it may be shown."""
        return report_of(self.project) if self.settings.baselines else None

    def examples(self, serving: Serving) -> dict[str, list[str]]:
        """Queries to try, by data set; those of a run's own data are shown as the rest of the run is."""
        return example_queries(serving, self.project if self.settings.baselines else None)

    @property
    def students(self) -> list[Served]:
        return list(self.watcher.current.students.values()) if self.watcher.current else []

    def serving(self) -> Serving:
        """What answers now; a request calls this once. Problem 503 if nothing does yet."""
        current = self.watcher.current
        if current is None:
            raise Problem(503, "no release is loaded yet; the log of the service says why", retry_s=5)
        return current

    async def run(self, compute: Callable[[], _T], system: str = "") -> _T:
        """Compute in a thread, as many at once as `threads` says; baselines have one, so that students still answer."""
        pool = self.baseline_pool if system in BASELINES else self.pool
        return await asyncio.get_running_loop().run_in_executor(pool, compute)

    def warm(self) -> None:
        """Let new students answer some queries on each of their data sets, so that none is timed cold."""
        serving = self.watcher.current
        if serving is None:
            return
        began = time.perf_counter()
        for name, served in serving.students.items():
            for dataset in served.release.datasets:
                new = not self.recent.medians(name, dataset, served.release.manifest.checksum)
                if new and time.perf_counter() - began < _WARM_UP_S:
                    warm_up(partial(self.search, serving, name, dataset, [EXAMPLE], K))

    def search(self, serving: Serving, system: str, dataset: str, texts: list[str], k: int) -> SearchResult:
        """Encode and search. UserError for an unknown system or data set."""
        name = system or serving.default
        is_baseline = name in BASELINES
        if is_baseline and name not in self.baselines.names(serving):
            raise UserError(f"system {name!r} does not answer here: its files are not beside the releases")
        served = serving.student("" if is_baseline else name)
        chosen = dataset or served.release.datasets[0]
        served.release.kinds(chosen)  # refuses one that is not there
        key = name, chosen, served.release.manifest.checksum
        if is_baseline:
            self.baselines.prepare(name, chosen, served.release)
            if not self.recent.medians(*key):
                warm_up(lambda: self.recent.note(*key, self._answer(served, name, chosen, [EXAMPLE], k).times))
        answer = self._answer(served, name, chosen, texts, k)
        if len(texts) != 1:
            return answer
        self.recent.note(*key, answer.times)
        return answer._replace(recent=self.recent.medians(*key))

    def _answer(self, served: Served, name: str, dataset: str, texts: list[str], k: int) -> SearchResult:
        """What a system finds, with nothing else timed."""
        release = served.release
        began = encoded = time.perf_counter()
        if name == BM25:
            hits = self.baselines.bm25(dataset, texts, k)
        else:
            by_teacher = name in (TEACHER, FUSED_TEACHER)
            vectors = self.baselines.encode(texts, release) if by_teacher else release.encode(texts)
            encoded = time.perf_counter()
            alone = name == TEACHER
            hits = release.hits(dataset, vectors, k) if alone else release.answers(dataset, texts, vectors, k)
        times = Times(1e3 * (encoded - began), 1e3 * (time.perf_counter() - encoded))
        return SearchResult(name, served, dataset, times, hits)

    def check_texts(self, texts: list[str], param: str) -> None:
        """Problem for no texts, too many, or one that is empty or too long."""
        if not texts:
            raise Problem(422, f"{param}: give at least one text", param=param)
        if len(texts) > self.settings.max_batch:
            message = f"{param}: {len(texts)} texts; at most {self.settings.max_batch} in one request"
            raise Problem(413, message, param=param)
        for text in texts:
            if not text.strip():
                raise Problem(422, f"{param}: a text is empty", param=param)
            if len(text) > self.settings.max_text:
                message = f"{param}: a text of {len(text)} characters; at most {self.settings.max_text}"
                raise Problem(413, message, param=param)
            if not is_unicode(text):
                raise Problem(422, f"{param}: half a surrogate pair is no text", param=param)


def note_answer(
    service: Service, scope: Scope, served: Served, system: str, texts: list[str], encode_ms: float, **fields: object
) -> None:
    """Count what a system answered, and put it into the request's log line, with more fields."""
    service.metrics.count("slimtower_queries_total", len(texts), system=system)
    service.metrics.time("slimtower_encode_seconds", encode_ms / 1e3, system=system)
    fields |= {"system": system, "queries": len(texts), **served.identity}
    if service.settings.log_queries:
        fields["texts"] = texts
    scope.get(SEEN, {}).update(fields)


def make_source(settings: Settings) -> Source:
    """Where the settings say that releases come from; UserError for neither or both."""
    if bool(settings.release) == bool(settings.model):
        raise UserError("serve: name a release's folder (RELEASE=) or a registered model (MODEL=), not both")
    if settings.model:
        if not find_spec("mlflow"):
            raise UserError(f"serve: MODEL={settings.model} needs mlflow; `pip install 'slimtower[registry]'`")
        return RegistrySource(settings.model)
    return FolderSource(Path(settings.release), settings.system)


def open_service(settings: Settings) -> Service:
    """The parts of this process. Nothing is loaded yet."""
    metrics = Metrics()
    project = project_of(Path(settings.release)) if settings.release else None
    corpus = Corpus(settings.corpus or (str(project / "data/ingest") if project else ""), settings.corpus_mb)
    if settings.corpus and corpus.state() is None:
        raise UserError(
            f"serve: {settings.corpus} holds no corpus.parquet of at most {settings.corpus_mb} MiB; name the folder"
            " data/ingest of the run that made the release, or a copy of it, or raise --corpus-mb"
        )
    watcher, log = Watcher(make_source(settings), settings.poll_s, metrics), None
    if settings.log:
        log = SearchLog(log_store(settings.log), settings, metrics)
    return Service(
        settings,
        watcher,
        corpus,
        Baselines(project, corpus, enabled=settings.baselines),
        metrics,
        log,
        ThreadPoolExecutor(settings.threads, thread_name_prefix="search"),
        project,
    )

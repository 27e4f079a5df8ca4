"""An alias moves to another release and back, and no search fails or waits meanwhile."""

import itertools
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from engines import put, put_back

from slimtower.common.errors import TransientError
from slimtower.engines.deployment import way_back
from slimtower.engines.engine import Engine
from slimtower.engines.engines import open_engine
from slimtower.engines.kinds import postgres as pgvector

pytestmark = [pytest.mark.medium, pytest.mark.filterwarnings("ignore")]
ONE = "one"
RATE = 20  # searches a second


class Searcher(threading.Thread):
    """Searches through the alias RATE times a second until told to stop; keeps titles of hits, and what failed.

    Each search has its time by the clock: one that was held up is made up for, before the end at the latest.
    """

    def __init__(self, engine: Engine, vector: np.ndarray, ids: list[str]) -> None:
        super().__init__()
        self.engine, self.vector, self.ids = engine, vector, ids
        self.stop = threading.Event()
        self.failed: list[str] = []
        self.titles: list[str] = []
        self.seconds = self.longest = 0.0

    def run(self) -> None:
        began = time.monotonic()
        for number in itertools.count():
            late = time.monotonic() - began - number / RATE
            if late < 0 and self.stop.wait(-late):
                break
            start = time.monotonic()
            try:
                [hits] = self.engine.search("live", self.vector, 5, 32)
                if [hit.id for hit in hits] != self.ids:
                    self.failed.append(f"{hits}")
                self.titles.append(hits[0].title)
            except Exception as error:
                self.failed.append(repr(error))
            self.longest = max(self.longest, time.monotonic() - start)
        self.seconds = time.monotonic() - began


@pytest.mark.slow
def test_flips_and_rollbacks_lose_no_query(released: Path, retitled: Path, to: str) -> None:
    with open_engine(to) as engine:
        release, first = put(engine, released / "models/release/static", ONE)
        vector = release.encode(["matrix of window"])
        ids = [hit.id for hit in release.hits(ONE, vector, 5, "flat")[0]]
        with (
            open_engine(to) if to.startswith("postgres") else nullcontext(engine) as reader
        ):  # files are of one process
            searcher = Searcher(reader, vector, ids)
            searcher.start()
            time.sleep(0.3)
            _, second = put(engine, retitled, ONE)
            time.sleep(0.3)
            back = put_back(engine)
            time.sleep(0.3)
            searcher.stop.set()
            searcher.join()
        assert searcher.failed == []
        assert len(searcher.titles) >= 3 * 0.3 * RATE and len(searcher.titles) >= 0.99 * RATE * searcher.seconds
        kinds = [title.startswith("new ") for title in searcher.titles]
        assert (kinds[0], kinds[-1]) == (False, False) and True in kinds
        assert second.before and second.before.collection == first.collection == back.collection
        assert engine.target("live") == first.collection
        assert way_back(engine, "live") is None  # nothing further back is kept


def test_a_reader_that_takes_long_holds_up_the_flip_and_no_search(
    released: Path, retitled: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    psycopg = pytest.importorskip("psycopg")
    monkeypatch.setattr(pgvector, "_PAUSE_S", 0.3)
    monkeypatch.setattr(pgvector, "_FLIP_S", 1.0)
    with open_engine(database) as engine, psycopg.connect(database) as dump:
        release, first = put(engine, released / "models/release/static", ONE)
        vector = release.encode(["matrix of window"])
        dump.execute("select count(*) from live")  # holds the view until its transaction ends, as pg_dump does
        with open_engine(database) as reader:
            searcher = Searcher(reader, vector, [hit.id for hit in release.hits(ONE, vector, 5, "flat")[0]])
            searcher.start()
            with pytest.raises(TransientError, match=r"others have read it for 1 s .*run it again when they are done"):
                put(engine, retitled, ONE)
            assert engine.target("live") == first.collection
            monkeypatch.setattr(pgvector, "_FLIP_S", 60.0)
            threading.Timer(0.5, dump.rollback).start()
            put(engine, retitled, ONE)
            searcher.stop.set()
            searcher.join()
    assert searcher.failed == [] and searcher.longest < 3.0 and searcher.titles

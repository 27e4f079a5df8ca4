"""Searches, what they showed, and clicks, as a log in the schema of User Behavior Insights 1.x that `ingest` reads.

Below the log's root, for each data set, `queries/dt=YYYY-MM-DD/*.jsonl` and `events/dt=YYYY-MM-DD/*.jsonl` (UTC), and
`corpus.jsonl` where the service has the corpus: what `make run RECIPE=recipes/ubi.yaml DATA=<root>/<data set>` wants.
Schema: https://o19s.github.io/ubi
"""

import hashlib
import hmac
import json
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

from slimtower.common.errors import UserError, line
from slimtower.service.corpus import Corpus
from slimtower.service.log_store import LogStore
from slimtower.service.settings import Settings
from slimtower.service.telemetry import LOGGER, Metrics

APPLICATION = "slimtower"
CLICK_S = 24 * 3600  # so long after its search a click counts, for `ingest` as well
_AHEAD_S = 300  # so far the clock of the replica that answered the search may be ahead
_WAITING = 100_000  # rows of a file at most, and rows that wait while a store fails
_OF_ONE = _WAITING // 10  # of these at most from one address
_LETTERS = 100_000_000  # of all rows of a file, and a tenth of one address's
_OURS = re.compile(  # and what a kill left of one
    r"(?:^|/)(?:queries|events)/dt=(\d{4}-\d{2}-\d{2})/(?:\.staging\.)?slimtower-[^/]+\.jsonl(?:\.\d+\.[0-9a-f]+)?$"
)
_KINDS = ("queries", "events")  # a search is written before its clicks
_FileKey = tuple[str, str, str]  # kind, data set, day


class Client(NamedTuple):
    """Who searches: under which name the log has it, and from where, which it cannot choose at will."""

    name: str
    address: str


@dataclass
class _Waiting:
    """Rows for one file, each with its address, and how many rows and letters each address has of them."""

    rows: list[tuple[str, str]] = field(default_factory=list)
    shares: Counter[str] = field(default_factory=Counter)
    letters: Counter[str] = field(default_factory=Counter)
    letters_of_all: int = 0

    def add(self, address: str, row: str) -> bool:
        """Keep a row, if there is room for one of this address."""
        if len(self.rows) >= _WAITING or self.shares[address] >= _OF_ONE:
            return False
        if self.letters_of_all + len(row) > _LETTERS or self.letters[address] + len(row) > _LETTERS // 10:
            return False
        self.rows.append((address, row))
        self.shares[address] += 1
        self.letters[address] += len(row)
        self.letters_of_all += len(row)
        return True

    def remove(self, count: int) -> None:
        self.shares -= Counter(address for address, _ in self.rows[:count])
        for address, row in self.rows[:count]:
            self.letters[address] -= len(row)
            self.letters_of_all -= len(row)
        self.letters += Counter()  # without those who have none
        del self.rows[:count]


class SearchLog:
    """Rows are held until the next flush, then written as one new file for each kind, data set and day."""

    def __init__(
        self, store: LogStore, settings: Settings, metrics: Metrics, clock: Callable[[], float] = time.time
    ) -> None:
        self.store, self.flush_s, self.retention_days = store, settings.log_flush_s, settings.retention_days
        self.metrics, self._salt, self._clock = metrics, settings.salt.encode("utf-8"), clock
        self._waiting: dict[_FileKey, _Waiting] = {}
        self._dropped = 0  # since the last flush
        self._lock, self._flushing = threading.Lock(), threading.Lock()
        self._stop = threading.Event()
        self._tidied = ""
        self._due: Callable[[], None] | None = None
        self._writing_due = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="search log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Write what is held, and stop; what cannot be written is lost, and counted."""
        self._stop.set()
        self.flush()
        if lost := sum(len(waiting.rows) for waiting in self._waiting.values()):
            self.metrics.count("slimtower_log_dropped_total", lost)
            LOGGER.error("rows of the search log lost", extra={"data": {"rows": lost}})

    def write_beside(self, write: Callable[[], None]) -> None:
        """Write now what lies beside the log; where that fails again after each flush, until it is written."""
        with self._writing_due:
            self._due = write
            self._write_due()

    def client_id(self, name: str) -> str:
        """A client's id, its name salted and hashed: the same while the salt is."""
        return self._mac("client", name)

    def search(
        self, query_id: str, client: Client, text: str, dataset: str, ids: list[str], facts: dict[str, Any]
    ) -> bool:
        """Note a search and what it showed, in order; `facts` become its attributes. False if there is no room."""
        moment = self._utc_now()
        row = {
            "application": APPLICATION,
            "query_id": query_id,
            "client_id": self.client_id(client.name),
            "user_query": text,
            "query_response_id": query_id,
            "query_response_hit_ids": [own_id(doc_id, dataset) for doc_id in ids],
            "query_attributes": facts,
            "timestamp": _iso(moment),
        }
        return self._add("queries", dataset, moment, client.address, row)

    def tokens(self, query_id: str, dataset: str, ids: list[str]) -> list[str]:
        """For each hit what proves that this search showed it there: any process with this salt can tell."""
        issued = int(self._clock())
        return [
            f"{issued}.{self._mac('click', issued, query_id, dataset, doc_id, rank)}"
            for rank, doc_id in enumerate(ids, start=1)
        ]

    def click(self, query_id: str, client: Client, dataset: str, doc_id: str, rank: int, token: str) -> bool:
        """Note a click; False if there is no room. UserError if its token is of another hit, or out of time."""
        issued, _, mac = token.partition(".")
        expected = self._mac("click", issued, query_id, dataset, doc_id, rank)
        if not issued.isdigit() or not hmac.compare_digest(mac.encode("utf-8"), expected.encode("utf-8")):
            raise UserError("click: no logged search showed this document there")
        age_s = self._clock() - int(issued)
        if age_s >= CLICK_S:
            raise UserError("click: the search was too long ago")
        if age_s < -_AHEAD_S:
            raise UserError("click: the search is of a time to come; set the clocks of all replicas")
        moment = self._utc_now()
        row = {
            "application": APPLICATION,
            "action_name": "click",
            "query_id": query_id,
            "client_id": self.client_id(client.name),
            "timestamp": _iso(moment),
            "message_type": "CLICK",
            "event_attributes": {
                "object": {"object_id": own_id(doc_id, dataset), "object_id_field": "doc_id"},
                "position": {"ordinal": rank},
            },
        }
        return self._add("events", dataset, moment, client.address, row)

    def flush(self) -> None:
        """Write what is held; what fails is kept for the next time."""
        with self._flushing:
            with self._lock:
                batches = {key: [row for _, row in waiting.rows] for key, waiting in self._waiting.items()}
                dropped, self._dropped = self._dropped, 0
            if dropped:
                LOGGER.error("search log full", extra={"data": {"dropped": dropped}})
            for key in sorted(batches, key=lambda key: (_KINDS.index(key[0]), key)):
                if not self._write(key, batches[key]):
                    break  # no click goes before its search

    def tidy(self) -> None:
        """Delete files of days before the retention; only files that this module wrote.

        All of them stay where the log's next day does not follow within as many days: the clock may be ahead, and may
        have written a day of its own already, or nobody searched for so long.
        """
        first = (self._utc_now() - timedelta(days=self.retention_days)).strftime("%Y-%m-%d")
        ours = sorted((match[1], name) for name in self.store.names() if (match := _OURS.search(name)))
        old = [(day, name) for day, name in ours if day < first]
        if not old:
            return
        newest = date.fromisoformat(old[-1][0])
        next_day = date.fromisoformat(ours[len(old)][0]) if len(ours) > len(old) else None
        if next_day is None or (next_day - newest).days > self.retention_days:
            data = {"newest_old_day": str(newest), "today": f"{self._utc_now():%Y-%m-%d}"}
            LOGGER.error("old days of the search log kept: check the clock, or delete them", extra={"data": data})
            return
        for _, name in old:
            self.store.delete(name)

    def _write(self, key: _FileKey, rows: list[str]) -> bool:
        kind, dataset, day = key
        name = f"{dataset}/{kind}/dt={day}/slimtower-{self._utc_now():%H%M%S}-{uuid.uuid4().hex}.jsonl"
        try:
            self.store.write(name, "".join(rows))
        except Exception as error:  # whatever a store comes up with: the rows are kept, and the thread goes on
            self.metrics.count("slimtower_log_failures_total")
            LOGGER.error("search log not written", extra={"data": {"error": _error_text(error), "rows": len(rows)}})
            return False
        with self._lock:
            self._waiting[key].remove(len(rows))
            if not self._waiting[key].rows:
                del self._waiting[key]
        self.metrics.count("slimtower_logged_rows_total", len(rows), kind=kind)
        return True

    def _add(self, kind: str, dataset: str, moment: datetime, address: str, row: dict[str, Any]) -> bool:
        text = json.dumps(row, ensure_ascii=False) + "\n"
        with self._lock:
            waiting = self._waiting.setdefault((kind, dataset, moment.strftime("%Y-%m-%d")), _Waiting())
            is_added = waiting.add(address, text)
            self._dropped += not is_added
        if not is_added:
            self.metrics.count("slimtower_log_dropped_total")
        return is_added

    def _run(self) -> None:
        """Flush at multiples of the interval: all processes at once, so that no click lies there without its search."""
        while True:
            self._tidy_daily()
            if self._stop.wait(self.flush_s - self._clock() % self.flush_s):
                return
            self._turn()

    def _turn(self) -> None:
        self.flush()
        with self._writing_due:
            self._write_due()

    def _write_due(self) -> None:
        if self._due:
            try:
                self._due()
                self._due = None
            except Exception as error:  # tried again at the next turn
                self.metrics.count("slimtower_log_failures_total")
                LOGGER.error("corpus not read, or not written", extra={"data": {"error": _error_text(error)}})

    def _tidy_daily(self) -> None:
        if (today := self._utc_now().strftime("%Y-%m-%d")) != self._tidied:
            try:
                self.tidy()
                self._tidied = today
            except Exception as error:  # tried again at the next turn
                LOGGER.error("old days of the search log not deleted", extra={"data": {"error": _error_text(error)}})

    def _utc_now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    def _mac(self, *fields: object) -> str:
        text = json.dumps([str(field) for field in fields])
        return hmac.new(self._salt, text.encode("utf-8"), hashlib.sha256).hexdigest()[:32]


def write_corpus(store: LogStore, corpus: Corpus, datasets: Iterable[str]) -> None:
    """Put each data set's documents beside its log, under the ids that the log names, where they are not there yet."""
    for dataset in datasets:
        if any(True for _ in corpus.documents(dataset)):
            store.keep(f"{dataset}/corpus.jsonl", partial(_corpus_lines, corpus, dataset))


def _corpus_lines(corpus: Corpus, dataset: str) -> Iterator[str]:
    for document in corpus.documents(dataset):
        row = document._asdict() | {"doc_id": own_id(document.doc_id, dataset)}
        del row["dataset"]
        yield json.dumps(row, ensure_ascii=False) + "\n"


def _error_text(error: Exception) -> str:
    """One line of what went wrong; of a defect its type alone, as its text may hold a query."""
    return line(error) if isinstance(error, UserError | OSError) else type(error).__name__


def own_id(doc_id: str, dataset: str) -> str:
    """The id that the data set's own corpus has: ours begins with the data set's name."""
    return doc_id.removeprefix(f"{dataset}/")


def _iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"

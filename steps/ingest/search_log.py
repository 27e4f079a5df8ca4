"""A search log: the tables of its source, and its impressions in memory, where queries and documents are numbers."""

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slimtower.common.errors import UserError
from steps.core.progress import Bar, progress
from steps.core.texts import fold
from steps.ingest.batches import Batch, Row
from steps.ingest.coded_columns import coded, codes, mixed
from steps.ingest.locations import table_files
from steps.ingest.rows import Defect, LeftOut, one_word
from steps.ingest.source import (
    MAX_QUERY_IMPRESSIONS,
    MAX_QUERY_WORDS,
    Document,
    Judgement,
    LogSource,
    Query,
    ReadContext,
    ScoredSource,
    SourceData,
    seeded_order,
    text_id,
)
from steps.ingest.splits import JudgedRows
from steps.ingest.table_rows import TableFile
from steps.ingest.times import ALWAYS, Window
from steps.ingest.values import as_id, text_field

SESSIONS = pa.dictionary(pa.int32(), pa.string())
_SCHEMA = pa.schema(
    [
        ("session", SESSIONS),
        ("query", pa.int32()),
        ("document", pa.int32()),
        ("rank", pa.int32()),
        ("clicked", pa.bool_()),
        ("timestamp", pa.int64()),
    ]
)
_TRAIN, _DEV, _TEST = range(3)
_SPLITS = ("train", "dev", "test")
AFTER_TEST_FROM = "after_test_from"  # of what was shown, why it is left out
REPEATED = "repeated"
OF_LONG_SESSIONS, OF_FREQUENT_QUERIES = "of_long_sessions", "of_frequent_queries"
# Fates of an impression, and of a search the first that one of its impressions has.
USED, WITHOUT_CLICK, LATE, OF_ROBOTS = range(4)
_OF_FATE = {WITHOUT_CLICK: "query_without_click", LATE: AFTER_TEST_FROM, OF_ROBOTS: "of_robots"}


class Tables:
    """The files of a field of params.yaml, such as `corpus`; their rows, and whether enough of them are of use."""

    def __init__(self, source: ScoredSource, field: str, context: ReadContext, window: Window = ALWAYS) -> None:
        self.place: str = getattr(source, field)
        self.form, self.rejects = source.form, context.rejects
        self.name, self.subject = f"{source.name}/{field}", f"params.yaml: {context.key}.{field}, {self.place}"
        files = table_files(self.place, f"{context.key}.{field}", window)
        self.files = {f"{self.name}/{file.name}": file.path for file in files}

    def rows(
        self, required: Mapping[str, str], optional: Collection[str] = (), gap: str = ""
    ) -> Iterator[tuple[str, Row]]:
        """Rows as of `TableFile`, each with its file's name; of several small files some may lack the column `gap`."""
        gaps = {gap} if gap and len(self.files) > 1 else set()
        unseen = set(gaps)
        for name, path in self.files.items():
            file = TableFile(path, name, required, self.rejects, optional, gaps, self.form)
            for row in progress(self.rejects.watched(file.rows(), name, path), None, name):
                unseen.difference_update(row.values)
                yield name, row
        for name, path in self.files.items() if unseen else ():  # the first one that lacks the column is named
            next(TableFile(path, name, required, self.rejects, optional, form=self.form).rows(), None)

    def batches(self, required: Mapping[str, str]) -> Iterator[tuple[str, Batch]]:
        """Batches of rows as of `TableFile`, each with its file's name."""
        for name, path in self.files.items():
            file = TableFile(path, name, required, self.rejects, form=self.form)
            with Bar(None, name) as bar:
                for batch in file.batches():
                    yield name, batch
                    bar.advance(len(batch.lines))
                    self.rejects.look(name, path)

    def check(self, *, has_settings: bool = True) -> None:
        """UserError where too many rows are defect; `has_settings`: the source has knobs of how its files spell."""
        self.rejects.check(self.name, self.place, has_settings=has_settings)

    def check_log(self, other_rows: int) -> None:
        """The same, and where most rows, `other_rows` not counted, are about what is not there."""
        self.check()
        self.rejects.check_log(list(self.files), self.subject, other_rows)


def read_corpus(source: LogSource, context: ReadContext) -> dict[str, Document]:
    """Documents by original id; UserError for a missing file or column, an empty corpus or too many defect rows."""
    key, columns = context.key, source.corpus_columns
    named = {"doc_id", "content"} | columns.model_fields_set
    required = {getattr(columns, ours): f"{key}.corpus_columns.{ours}" for ours in sorted(named)}
    corpus, tables = JudgedRows(source.name), Tables(source, "corpus", context)
    for name, row in tables.rows(required, {columns.title, columns.topic}, gap=columns.content):
        with context.rejects.guard(name, row.line, row.raw):
            doc_id = one_word(as_id(row.values.get(columns.doc_id)))
            title, topic = (text_field(row.values, column, optional=True) for column in (columns.title, columns.topic))
            content = text_field(row.values, columns.content, optional=bool(title))  # a product may have a title alone
            corpus.add_document(doc_id, title, content, topic)
    tables.check()
    if not corpus.documents:
        raise UserError(f"params.yaml: {key}.corpus: {source.corpus!r} holds no document; name another place")
    return corpus.documents


class SearchLog:
    """The impressions of one log, and its distinct queries: texts that fold alike are one query."""

    def __init__(self) -> None:
        self.keys: list[str] = []  # folded texts of the queries by number
        self.first_times = array("q")  # when each was first seen
        self._first_texts: list[str] = []
        self._first_sources, self._first_lines = array("i"), array("q")
        self._sources: list[str] = []  # the last is the one being read
        self._of_key: dict[str, int] = {}
        self._of_text: dict[str, int] = {}
        self._batches: list[pa.RecordBatch] = []

    def query(self, text: str, timestamp: int, source: str, line: int) -> int:
        """The number of a query seen in a row; Defect as in `folded`."""
        number = self.number(text)
        self.note(number, text, timestamp, source, line)
        return number

    def number(self, text: str) -> int:
        """The number of a query, a new one at its first time: `note` has to follow. Defect as in `folded`."""
        number = self._of_text.get(text)
        if number is None:
            number = self._of_text[text] = self._number(text)
        return number

    def note(self, number: int, text: str, timestamp: int, source: str, line: int) -> None:
        """Note where a query was seen; of new ones in the order of their numbers."""
        if not self._sources or source != self._sources[-1]:
            self._sources.append(source)
        if number == len(self.first_times):
            self.first_times.append(timestamp)
            self._first_texts.append(text)
            self._first_sources.append(len(self._sources) - 1)
            self._first_lines.append(line)
        elif (timestamp, text) < (self.first_times[number], self._first_texts[number]):
            self.first_times[number], self._first_texts[number] = timestamp, text
            self._first_sources[number], self._first_lines[number] = len(self._sources) - 1, line

    def first(self, number: int) -> tuple[str, str, int]:
        """Text, source and line of the first occurrence of a query: the earliest, then of the smallest text."""
        return self._first_texts[number], self._sources[self._first_sources[number]], self._first_lines[number]

    def folded(self, text: str) -> str:
        """A query's text as its key; Defect `empty_text` or `query_too_long`."""
        key = fold(text)
        if not key:
            raise Defect("empty_text")
        if len(text.split()) > MAX_QUERY_WORDS:
            raise LeftOut("query_too_long")
        return text if key == text else key  # one string in memory, not two

    def _number(self, text: str) -> int:
        key = self.folded(text)
        number = self._of_key.setdefault(key, len(self.keys))
        if number == len(self.keys):
            self.keys.append(key)
        return number

    def add(self, sessions: pa.Array, *columns: Sequence[int] | np.ndarray) -> None:
        """Add a batch of impressions: unique session ids, perhaps a dictionary, and the other columns of `table`."""
        coded = sessions if pa.types.is_dictionary(sessions.type) else sessions.dictionary_encode()
        typed = [pa.array(values, field.type) for values, field in zip(columns, list(_SCHEMA)[1:], strict=True)]
        self._batches.append(pa.record_batch([coded, *typed], schema=_SCHEMA))

    def table(self) -> pa.Table:
        """All impressions as (session, query, document, rank, clicked, timestamp) in the order of their adding."""
        return pa.Table.from_batches(self._batches, schema=_SCHEMA).unify_dictionaries().combine_chunks()


def add_log(
    data: SourceData,
    log: SearchLog,
    source: LogSource,
    context: ReadContext,
    *,
    has_sessions: bool = False,
    visits: np.ndarray | None = None,
) -> None:
    """Give `data` (which has its documents, in the order of their numbers) the log's queries, judgements, impressions.

    Queries first seen at or after `test_from` are test; a seeded share of the others is dev, the rest train. Those
    others lose their impressions from `test_from` on. A dev or test query is judged by its clicks, or left out. What a
    log that `has_sessions` of its own holds twice counts once. What robots left is left out first, and queries that
    nobody else asked; `visits` as in `without_robots`, else those sessions.
    Raises UserError when the log is empty, or names `test_from` and gives no test query or no train query.
    """
    key, seed = context.key, context.seed
    impressions, left_out = log.table(), data.facts["impressions_left_out"]
    if has_sessions and not (once := without_repeats(impressions)).all():
        left_out |= {REPEATED: int((~once).sum())}
        impressions = impressions.filter(pa.array(once))
    if has_sessions:
        visits = codes(impressions["session"])
    is_kept, robots = without_robots(impressions, source, seed, visits)
    table = impressions.filter(pa.array(is_kept)) if robots else impressions
    left_out |= robots
    if not table.num_rows:
        counts = ", ".join(f"{reason} {count}" for reason, count in left_out.items())
        raise UserError(
            f"params.yaml: {key}: no usable impression in the window; left out: {counts or 'none'}, rejected rows:"
            f" {context.rejects.counts(data.name) or 'none'}; widen ingest.since and ingest.until, or fix the log"
        )
    robots_alone = np.zeros(len(log.keys), dtype=bool)
    if robots:
        robots_alone[impressions["query"].to_numpy()] = True
        robots_alone[table["query"].to_numpy()] = False
    query, document = table["query"].to_numpy(), table["document"].to_numpy()
    clicked, times = table["clicked"].to_numpy(), table["timestamp"].to_numpy()
    cut = source.cut
    split = _split(log, source, cut, seed)

    held_out = split != _TRAIN
    late = (times >= cut) & (split[query] != _TEST)
    judging = clicked & ~late & held_out[query]
    pairs = np.unique(query[judging].astype(np.int64) * len(data.documents) + document[judging])
    judged_queries, judged_documents = np.divmod(pairs, len(data.documents))
    unjudged = held_out.copy()
    unjudged[judged_queries] = False
    if source.test_from:
        first, last = (np.datetime_as_string(np.datetime64(int(moment), "s")) for moment in (times.min(), times.max()))
        fix = f"the log runs from {first}Z to {last}Z: choose a date in it"
        if not ((split == _TEST) & ~unjudged).any():
            raise UserError(
                f"params.yaml: {key}.test_from: no clicked query is first seen at or after {source.test_from!r}; {fix}"
            )
        if held_out.all():
            raise UserError(
                f"params.yaml: {key}.test_from: no query is left to train, as none is first seen before"
                f" {source.test_from!r} and not dev; {fix}"
            )

    ids = [text_id(data.name, text) for text in log.keys]
    for number in np.flatnonzero(~unjudged & ~robots_alone).tolist():
        text, read_from, line = log.first(number)
        data.queries.append(Query(ids[number], data.name, text, _SPLITS[split[number]], read_from, line))
    data.judgements += [
        Judgement(ids[query_number], data.name, data.documents[doc_number].doc_id, 1, _SPLITS[split[query_number]])
        for query_number, doc_number in zip(judged_queries.tolist(), judged_documents.tolist(), strict=True)
    ]
    late_ones = int(late.sum()) + left_out.get(AFTER_TEST_FROM, 0)
    by_time = {AFTER_TEST_FROM: late_ones, "query_without_click": int((unjudged[query] & ~late).sum())}
    data.facts["impressions_left_out"] = left_out | by_time
    data.facts["queries_left_out"] = {
        f"{_SPLITS[which]}_without_click": int((unjudged & ~robots_alone & (split == which)).sum())
        for which in (_DEV, _TEST)
    } | ({"of_robots_alone": int(robots_alone.sum())} if robots_alone.any() else {})
    fates = np.full(impressions.num_rows, OF_ROBOTS)
    fates[is_kept] = np.where(late, LATE, np.where(unjudged[query], WITHOUT_CLICK, USED))
    data.facts |= {"searches": searches_by_fate(impressions, fates), "queries_counted": len(data.queries)}
    data.facts["judgements_from_clicks"] = True
    data.sessions_simulated = source.simulated
    data.impressions = _impressions(table.filter(pa.array(~late & ~unjudged[query])), ids, data)


def _split(log: SearchLog, source: LogSource, cut: float, seed: int) -> np.ndarray:
    split = np.where(np.array(log.first_times, dtype=np.int64) >= cut, _TEST, _TRAIN).astype(np.int8)
    before = {log.keys[number]: number for number in np.flatnonzero(split == _TRAIN).tolist()}
    order = seeded_order(before, seed, f"dev of {source.name}")
    split[[before[text] for text in order[: round(source.validation_fraction * len(order))]]] = _DEV
    return split


def _impressions(rows: pa.Table, query_ids: list[str], data: SourceData) -> pa.Table:
    """The rows with ids instead of numbers, as dictionaries."""
    doc_ids = [document.doc_id for document in data.documents]
    return pa.table(
        {
            "session_id": rows["session"],
            "query_id": coded(rows["query"].to_numpy(), pa.array(query_ids, pa.string())),
            "doc_id": coded(rows["document"].to_numpy(), pa.array(doc_ids, pa.string())),
            "rank": rows["rank"],
            "clicked": rows["clicked"],
            "timestamp": rows["timestamp"],
        }
    )


def without_repeats(log: pa.Table) -> np.ndarray:
    """Which impressions count, `(impressions,)`: of those equal in every column, delivered again, the first."""
    columns = [
        codes(column) if pa.types.is_dictionary(column.type) else pc.cast(column, pa.int64()).to_numpy()
        for column in log.columns
    ]
    keys = np.zeros(log.num_rows, dtype=np.uint64)
    for column in columns:
        keys = mixed(keys ^ column.astype(np.int64).view(np.uint64))
    order = np.argsort(keys, kind="stable")
    again = keys[order[1:]] == keys[order[:-1]]
    for column in columns:
        again &= column[order[1:]] == column[order[:-1]]
    is_first = np.ones(log.num_rows, dtype=bool)
    is_first[order[1:][again]] = False
    return is_first


def without_robots(
    log: pa.Table, source: LogSource, seed: int, visits: np.ndarray | None
) -> tuple[np.ndarray, dict[str, int]]:
    """Which impressions of a log count, `(impressions,)`, and how many do not, by reason; no reason without any.

    A visit of more than `max_session_impressions` counts for nothing; `visits` are numbers from 0, `(impressions,)`,
    None where a log has no sessions of its own: what all people asked at one time is nobody's. Of a query's other
    impressions, MAX_QUERY_IMPRESSIONS drawn by seed count, so that shares of clicks stay what they are.
    """
    is_kept = np.ones(log.num_rows, dtype=bool)
    if visits is not None:
        is_kept = (np.bincount(visits) <= source.max_session_impressions)[visits]
    counts = {OF_LONG_SESSIONS: int((~is_kept).sum())}
    query = log["query"].to_numpy()
    frequent = np.bincount(query[is_kept]) > MAX_QUERY_IMPRESSIONS
    rows = np.flatnonzero(is_kept)
    rows = rows[frequent[query[rows]]]
    rows = rows[np.argsort(query[rows], kind="stable")]
    for of_one in np.split(rows, np.flatnonzero(np.diff(query[rows])) + 1) if len(rows) else ():
        shuffled = np.random.default_rng([seed, query[of_one[0]]]).permutation(of_one)
        is_kept[shuffled[MAX_QUERY_IMPRESSIONS:]] = False
    counts[OF_FREQUENT_QUERIES] = int((~is_kept).sum()) - counts[OF_LONG_SESSIONS]
    return is_kept, {reason: count for reason, count in counts.items() if count}


def searches_by_fate(log: pa.Table, fates: np.ndarray) -> dict[str, Any]:
    """Searches and clicks of a log that are used, and those that are left out by reason; `fates` `(impressions,)`."""
    searches, clicked = search_numbers(log["session"], log["query"]), log["clicked"].to_numpy()
    fate_of = np.full(int(searches.max(initial=-1)) + 1, OF_ROBOTS)
    np.minimum.at(fate_of, searches, fates)
    counts = np.bincount(fate_of, minlength=OF_ROBOTS + 1).tolist()
    clicks = np.bincount(fates[clicked], minlength=OF_ROBOTS + 1).tolist()
    left_out = {reason: [counts[fate], clicks[fate]] for fate, reason in _OF_FATE.items()}
    return {"used": [counts[USED], clicks[USED]], "left_out": left_out}


def search_numbers(sessions: pa.ChunkedArray, queries: pa.ChunkedArray) -> np.ndarray:
    """A number from 0 on of each impression's search, which is one query in one session: `(impressions,)`."""
    ids = codes(queries) if pa.types.is_dictionary(queries.type) else queries.to_numpy()
    pairs = codes(sessions).astype(np.int64) * (int(ids.max(initial=0)) + 1) + ids
    return np.unique(pairs, return_inverse=True)[1].reshape(-1)

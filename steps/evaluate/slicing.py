"""Which test queries belong together: slices by length, frequency, words unseen in training, form, or a user's own."""

import re
import sys
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from slimtower.common.errors import UserError
from steps.core.judged import JudgedSet
from steps.core.tables import table_path
from steps.core.texts import words, words_of
from steps.evaluate.judging import Folders

MIN_QUERIES = 20  # queries; a slice of fewer says nothing
_LENGTHS = (4, 8)  # words: up to 4, 5 to 8, 9 and more
_RARE = 5  # training texts; a word in at most so many is rare
_RARE_LETTERS = 3  # a shorter word is no name
_ASKS = frozenset(
    {"what", "who", "whom", "whose", "which", "when", "where", "why", "how", "is", "are", "was", "were", "do", "does"}
    | {"did", "can", "could", "should"}
)
_NEGATES = frozenset(
    {"no", "not", "never", "none", "nobody", "nothing", "neither", "nor", "without", "except", "cannot", "non"}
    | {"lack", "lacks", "lacking", "absence"}
)
_APOSTROPHE_T = re.compile(r"n['’]t\b", re.IGNORECASE)


@dataclass(frozen=True)
class Slice:
    """Some test queries of a data set: their rows in its judged set, ascending int64 `(queries,)`."""

    dataset: str
    name: str
    rows: np.ndarray


@dataclass(frozen=True)
class QueryFacts:
    """What is known of queries beside their texts.

    `training`: how many training texts hold each of their words; `searches`: how often each was asked in the log, by
    id, empty without a log; `user_slices`: a user's table, query id -> names of slices.
    """

    training: Mapping[str, int]
    searches: Mapping[str, int]
    user_slices: Mapping[str, Sequence[str]]


def slice_queries(judged: JudgedSet, facts: QueryFacts, patterns: Mapping[str, str]) -> list[Slice]:
    """Every slice of one judged set with MIN_QUERIES or more, in the report's order; `patterns`: a user's slices."""
    named: dict[str, Sequence[bool]] = {
        **_of_lengths(judged.texts),
        **_of_searches([facts.searches.get(query, 0) for query in judged.query_ids]),
        **_of_unseen(judged.texts, facts.training),
        "question": [asks(text) for text in judged.texts],
        "no question": [not asks(text) for text in judged.texts],
        "negation": [negates(text) for text in judged.texts],
        "number": [any(letter.isdigit() for letter in text) for text in judged.texts],
        "capitalised name": [bool(names_of(text)) for text in judged.texts],
        "rare word": [rare(words(text), facts.training) for text in judged.texts],
        "rare name": [rare(names_of(text), facts.training) for text in judged.texts],
    }
    user_names = sorted({name for query in judged.query_ids for name in facts.user_slices.get(query, ())})
    if clashes := sorted({*patterns, *user_names} & named.keys() | patterns.keys() & set(user_names)):
        raise UserError(f"evaluate.slices, slice_table: {clashes} are slices already; give yours other names")
    named |= {name: [bool(re.search(rule, text)) for text in judged.texts] for name, rule in patterns.items()}
    for name in user_names:
        named[name] = [name in facts.user_slices.get(query, ()) for query in judged.query_ids]
    slices = [Slice(judged.dataset, name, np.flatnonzero(inside)) for name, inside in named.items()]
    return [part for part in slices if len(part.rows) >= MIN_QUERIES]


def asks(text: str) -> bool:
    """Whether it begins with an English question word or verb, or ends with a question mark."""
    return (words(text) or [""])[0] in _ASKS or text.rstrip().endswith(("?", "？"))


def negates(text: str) -> bool:
    """Whether an English word of it denies something."""
    return bool(_APOSTROPHE_T.search(text)) or not _NEGATES.isdisjoint(words(text))


def names_of(text: str) -> list[str]:
    """The words after the first that begin with a capital letter, as `words` has them; none where every word does."""
    every = [word for word in words_of(text) if word[0].isalpha()]
    if all(word[0].isupper() for word in every):
        return []
    return [token for word in every[1:] if word[0].isupper() for token in words(word)]


def rare(tokens: Iterable[str], training: Mapping[str, int]) -> bool:
    """Whether one of these words, of three letters or more, is in at most _RARE training texts."""
    return any(len(word) >= _RARE_LETTERS and training.get(word, 0) <= _RARE for word in tokens)


def unseen_share(text: str, training: Mapping[str, int]) -> float:
    """Share of its words that are in no training text; 0 without words."""
    tokens = words(text)
    return sum(not training.get(word) for word in tokens) / len(tokens) if tokens else 0.0


def popularity(searches: Sequence[int]) -> list[str]:
    """Head, torso or tail of each query by how often it was asked; of queries asked equally often all are in one.

    Head are the most asked queries that make a third of all searches, torso those that make the next third.
    """
    total, before, placed = sum(searches), 0, {}
    for count in sorted(set(searches), reverse=True):
        placed[count] = ("head", "torso", "tail")[min(2, 3 * before // total)]
        before += count * searches.count(count)
    return [placed[count] for count in searches]


def read_user_slices(path: Path, query_ids: Container[str]) -> dict[str, list[str]]:
    """A user's slices, query id -> names, of a Parquet, CSV or TSV file with the columns `query_id` and `slice`.

    Rows of queries that are not among `query_ids` are left out with a line; UserError if all are.
    """
    rows = list(user_rows(path, ["query_id", "slice"], "evaluate.slice_table"))
    slices: dict[str, list[str]] = {}
    for query, name in rows:
        if query in query_ids:
            slices.setdefault(query, []).append(name)
    if left_out := [query for query, _ in rows if query not in query_ids]:
        notice = f"evaluate.slice_table: {path}: {len(left_out):,} rows, such as {left_out[0]!r}, name no test query"
        if not slices:
            raise UserError(
                f"{notice}, nor does any other; write ids as data/ingest has them, with the data set in front"
            )
        print(f"evaluate: {notice}", file=sys.stderr)
    return slices


def user_rows(path: Path, columns: Sequence[str], key: str) -> Iterator[tuple[str, ...]]:
    """Some columns, as text, of a user's Parquet, CSV or TSV file; `key` names it in what goes wrong.

    UserError when it is missing, cannot be read, lacks one of them or a value in one of them.
    """
    if not path.is_file():
        raise UserError(f"{key}: {path} not found; give a file with the columns {', '.join(columns)}")
    try:
        if path.suffix == ".parquet":
            table = pq.read_table(path)
        else:
            options = pacsv.ParseOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
            as_text = pacsv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string()))
            table = pacsv.read_csv(path, parse_options=options, convert_options=as_text)
        if missing := set(columns) - set(table.column_names):
            raise UserError(f"{key}: {path} lacks the column {min(missing)}; it has {table.column_names}")
        arrays = {column: table[column].cast(pa.string()).to_pylist() for column in columns}
    except (pa.ArrowException, KeyError) as error:  # the latter for a column that is there twice
        raise UserError(f"{key}: {path} cannot be read ({error}); give Parquet, .csv or .tsv in UTF-8") from None
    for column, values in arrays.items():
        if not all((value or "").strip() for value in values):
            raise UserError(f"{key}: {path}: a row has no {column}; give each one")
    return zip(*arrays.values(), strict=True)


def _of_lengths(texts: Sequence[str]) -> dict[str, list[bool]]:
    """By number of words, as blanks part them: the names are those of the promotion gate."""
    lengths, (short, long) = [len(text.split()) for text in texts], _LENGTHS
    return {
        f"up to {short} words": [length <= short for length in lengths],
        f"{short + 1} to {long} words": [short < length <= long for length in lengths],
        f"{long + 1} words and more": [length > long for length in lengths],
    }


def _of_searches(searches: Sequence[int]) -> dict[str, list[bool]]:
    """Head, torso and tail; nothing where no query was asked in the log, or all equally often."""
    if len(set(searches)) < 2:
        return {}
    placed = popularity(searches)
    return {name: [band == name for band in placed] for name in ("head", "torso", "tail")}


def _of_unseen(texts: Sequence[str], training: Mapping[str, int]) -> dict[str, list[bool]]:
    shares = [unseen_share(text, training) for text in texts]
    return {
        "all words seen": [share == 0 for share in shares],
        "up to a quarter unseen": [0 < share <= 0.25 for share in shares],
        "more than a quarter unseen": [share > 0.25 for share in shares],
    }


_ROWS = 65_536  # in memory at once


def training_texts(folders: Folders) -> Iterator[str]:
    """The texts that students may be aligned on: of documents, unlabelled, generated and training queries, each once.

    Of the last two some may be alignment texts (`embed.max_part_texts`): where some are, all are read.
    """
    partly_aligned, parts = pa.array(["generated_queries", "train_queries"], pa.string()), set[str]()
    for batch in _batches(table_path(folders.embed, "alignment_texts"), ["text", "part"]):
        parts.update(batch["part"].unique().to_pylist())
        yield from batch.filter(pc.invert(pc.is_in(batch["part"], partly_aligned)))["text"].to_pylist()
    if "generated_queries" in parts:
        for batch in _batches(table_path(folders.generate, "generated_queries"), ["text"]):
            yield from batch["text"].to_pylist()
    if "train_queries" in parts:
        for batch in _batches(table_path(folders.ingest, "queries"), ["text", "split"]):
            yield from batch.filter(pc.equal(batch["split"], "train"))["text"].to_pylist()


def count_words(vocabulary: set[str], texts: Iterable[str]) -> dict[str, int]:
    """How many texts hold each of the wanted words; 0 of a word that none does."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(vocabulary.intersection(words(text)))
    return {word: counts[word] for word in vocabulary}


def count_searches(ingest: Path, query_ids: Iterable[str]) -> dict[str, int]:
    """Sessions of the log in which each of these queries was asked; {} where none was, or without a log."""
    path, ids = ingest / "impressions.parquet", pa.array(sorted(query_ids), pa.string())
    if not path.is_file():
        return {}
    searches: set[tuple[str, str]] = set()
    for batch in _batches(table_path(ingest, "impressions"), ["query_id", "session_id"]):
        rows = batch.filter(pc.is_in(batch["query_id"], ids))
        searches.update(zip(*(rows[name].to_pylist() for name in ("query_id", "session_id")), strict=True))
    return dict(Counter(query for query, _ in searches))


def _batches(path: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as table:
        yield from table.iter_batches(_ROWS, columns=columns)

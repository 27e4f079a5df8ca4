"""Fill, build, tune, check, flip, clear up: each can be repeated, and until the flip the old one answers.

A collection is named by what fills it, so a run that was killed is found and completed by the next one; students of
one index share it, and settings that its graph does not reach make another one. What is kept beside it (`Record`) is
written when it is complete, just before the flip, and names what answered before, for the way back.
"""

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from slimtower.common.errors import TransientError, UserError
from slimtower.common.files import sha256_text
from slimtower.engines.belonging import Tuned, check_recall, check_sample, tune
from slimtower.engines.contents import SAMPLE, QueryBatch, contents_digest, rows_from, sample_vectors
from slimtower.engines.engine import Engine, Graph, Previous, Record, Settings, read_record
from slimtower.engines.params import DeployParams
from slimtower.serving.release import Release

EF_CONSTRUCTION = 200  # candidates looked at for a node while the graph is built
_LONGEST = 48  # characters of an alias: Postgres takes 63, and a digest is added
_CUT = _LONGEST - 9  # of a longer one so many are kept
_DIGEST = 12
_COLLECTION = re.compile(rf"(\w+)_[0-9a-f]{{{_DIGEST}}}")


@dataclass(frozen=True)
class Deployed:
    """What an alias names once it has moved from `live`, with the record that then lies beside it.

    `before`: what answered until then, None if that was the same or nothing.
    """

    alias: str
    live: str | None
    collection: str
    record: Record
    before: Previous | None
    there: int  # documents that the collection holds: others may have put some in or taken some out
    filled: int = 0  # documents that this run put in
    met: bool = True  # whether the target recall is reached
    answers: bool = False  # whether this is what answers already


def alias_of(name: str, dataset: str) -> str:
    """What a data set is searched by: letters, digits and _, as every engine takes them."""
    plain = re.sub(r"\W", "_", f"{name}_{dataset}", flags=re.ASCII)
    return plain if len(plain) <= _LONGEST else f"{plain[:_CUT]}_{sha256_text(plain)[:8]}"


def answering(engine: Engine, alias: str) -> tuple[str | None, Record | None]:
    """The collection that an alias names, and its record."""
    live = engine.target(alias)
    return live, read_record(engine, live) if live else None


def check_owner(engine: Engine, alias: str, name: str, dataset: str) -> None:
    """UserError if the alias answers for another model or data set: two can be called alike by `alias_of`."""
    live, record = answering(engine, alias)
    if record and (record.model, record.dataset) != (name, dataset):
        raise UserError(
            f"{alias}: answers for {record.dataset!r} of the registered model {record.model!r}, and {dataset!r} of"
            f" {name!r} would be called the same; nothing was changed: rename one, deploy to another engine, or, where"
            f" that one is given up, remove {alias} and {live} by hand"
        )


def prepare(
    engine: Engine,
    release: Release,
    release_digest: str,
    name: str,
    dataset: str,
    alias: str,
    queries: QueryBatch,
    params: DeployParams,
) -> Deployed:
    """A collection of this release's documents, set up for its student, to which the alias may be moved.

    `name`: registered model. UserError if the collection would find less than the release itself by more than the
    margin, if the collection that answers is the release's own but holds other documents by now, or if the alias is
    another's. What answers at present goes on answering.
    """
    check_owner(engine, alias, name, dataset)
    digest, documents = contents_digest(release, dataset), release.manifest.datasets[dataset].vectors
    settings = Settings(target_recall=params.target_recall, m=params.m, ef_construction=EF_CONSTRUCTION)
    live, current = answering(engine, alias)
    back = {current.previous.collection} if current and current.previous else set()
    if live and current and (current.index, current.release, current.settings) == (digest, release_digest, settings):
        _clear(engine, alias, {live, *back})
        met = current.recall >= params.target_recall
        return Deployed(alias, live, live, current, None, engine.count(live), met=met, answers=True)
    plain = f"{alias}_{digest[:_DIGEST]}"
    is_own = live == plain or (current is not None and current.index == digest)
    if live and is_own and engine.count(live) != documents:
        raise UserError(
            f"{live}: answers now with {engine.count(live)} documents, and the release has {documents}: others were put"
            " in or taken out, and filling it anew would undo that; set ef by hand from --encoder-only, or release an"
            " index of these documents"
        )
    collection = _choose_collection(engine, alias, plain, digest, queries, settings)
    _clear(engine, alias, {collection, live, *back})
    filled = _fill(engine, release, dataset, collection, params)
    m, tuned = _set_up(engine, collection, queries, params)
    check_sample(engine, collection, release, sample_vectors(release, dataset, SAMPLE), 1.0)
    check_recall(collection, tuned, queries, params.margin)
    before = current.as_previous(live) if live and current else None
    record = Record(
        student=release.manifest.student,
        model=name,
        dataset=dataset,
        release=release_digest,
        manifest=release.manifest.checksum,
        index=digest,
        teacher=release.manifest.teacher,
        documents=documents,
        m=m,
        ef=tuned.ef,
        recall=tuned.recall,
        settings=settings,
        previous=before,
    )
    return Deployed(alias, live, collection, record, before, documents, filled, tuned.met)


def flip(engine: Engine, done: Deployed) -> Deployed:
    """Let the alias name what was prepared; TransientError if another deployment moved it since."""
    if done.answers:
        return done
    engine.keep(done.collection, done.record.model_dump_json())  # now: a collection that students share has one
    if engine.target(done.alias) != done.live:
        raise TransientError(f"{done.alias}: another deployment moved it meanwhile; run this one again")
    engine.point(done.alias, done.collection)
    _clear(engine, done.alias, {done.collection, *([done.before.collection] if done.before else [])})
    return done


def way_back(engine: Engine, alias: str) -> Deployed | None:
    """What the alias named before, of which one is kept; None if rolled back already, UserError without."""
    live, current = answering(engine, alias)
    if current and current.previous is None and current.rolled_back:
        return None
    if live is None or current is None or current.previous is None:
        raise UserError(
            f"{alias}: nothing to go back to: {'one deployment' if current else 'none'} is kept; deploy another, or"
            " roll back the other data sets alone (--dataset)"
        )
    old = current.previous
    record = read_record(engine, old.collection) if old.collection in engine.names(alias) else None
    if record is None:
        raise UserError(f"{alias}: {old.collection}, which answered before, is gone; deploy {old.student!r} anew")
    fields = {field: value for field, value in old if field != "collection"}
    restored = record.model_copy(update=fields | {"previous": None, "rolled_back": current.release})
    there = engine.count(old.collection)
    return Deployed(alias, live, old.collection, restored, current.as_previous(live), there)


def roll_back(engine: Engine, back: Deployed) -> None:
    """Let the alias name what answered before, with its student."""
    engine.keep(back.collection, back.record.model_dump_json())
    engine.point(back.alias, back.collection)


def _choose_collection(
    engine: Engine, alias: str, plain: str, digest: str, queries: QueryBatch, settings: Settings
) -> str:
    """The collection for these contents: a complete one of these settings, or one whose graph reaches the target.

    Else `plain`, the name by contents alone, or, if that collection is complete, a name by contents and settings.
    """
    records = {name: read_record(engine, name) for name in _collections(engine, alias)}
    same = {name: record for name, record in records.items() if record and record.index == digest}
    for name, record in same.items():
        if record.settings == settings:
            return name
    target = settings.target_recall
    for name, record in same.items():
        graph = record.settings.model_copy(update={"target_recall": target})
        if graph == settings and tune(engine, name, queries, target).met:
            return name
    if plain not in same:
        return plain
    return f"{alias}_{sha256_text(digest + settings.model_dump_json())[:_DIGEST]}"


def _fill(engine: Engine, release: Release, dataset: str, collection: str, params: DeployParams) -> int:
    """Put in what is missing; a collection that is not whole after that is made anew. Returns how many were put in.

    Rows go in by their order, so those of a killed run are the first ones; its last batch may be in part.
    """
    documents = release.manifest.datasets[dataset].vectors
    put = 0
    for first in _starts(engine, collection, documents, params.batch):
        engine.create(collection, release.manifest.dim)
        for rows in rows_from(release, dataset, first, params.batch):
            engine.upsert(collection, rows)
            put += len(rows.ids)
    return put


def _starts(engine: Engine, collection: str, documents: int, batch: int) -> Iterator[int]:
    """Rows from which to fill: behind those that are there, then, after a drop, from 0; UserError if that fails too."""
    there = engine.count(collection) if collection in engine.names(collection) else 0
    if there == documents:
        return
    if there < documents:
        yield max(0, there - there % batch - batch)
        if engine.count(collection) == documents:
            return
    engine.drop(collection)
    yield 0
    if (count := engine.count(collection)) != documents:
        raise UserError(f"{collection}: holds {count} documents after {documents} were put in; are ids there twice?")


def _set_up(engine: Engine, collection: str, queries: QueryBatch, params: DeployParams) -> tuple[int, Tuned]:
    """Links of the graph and ef; the graph of a collection that was complete before stays as it is."""
    record = read_record(engine, collection)
    if record:
        return record.m, tune(engine, collection, queries, params.target_recall)
    best: tuple[int, Tuned] | None = None
    for m in params.m:
        engine.build(collection, Graph(m, EF_CONSTRUCTION))
        best = m, tune(engine, collection, queries, params.target_recall)
        if best[1].met:
            break
    assert best is not None  # deploy.m has at least one
    return best


def deployed_aliases(engine: Engine, name: str) -> list[str]:
    """Aliases of a registered model that name a collection; not those of another one whose name goes on behind its."""
    begin = alias_of(name, "")[:_CUT]  # longer aliases go on with a digest
    matches = [_COLLECTION.fullmatch(collection) for collection in engine.names(begin)]
    aliases = []
    for alias in sorted({match[1] for match in matches if match}):
        with contextlib.suppress(UserError):  # of an earlier version's record, which may be another model's
            record = answering(engine, alias)[1]
            aliases += [alias] * (record is not None and record.model == name)
    return aliases


def _collections(engine: Engine, alias: str) -> list[str]:
    return [name for name in engine.names(alias) if (match := _COLLECTION.fullmatch(name)) and match[1] == alias]


def _clear(engine: Engine, alias: str, keep: set[str | None]) -> None:
    """Drop this alias's collections except those in `keep` and the one it names, which may have changed meanwhile."""
    for name in set(_collections(engine, alias)) - keep - {engine.target(alias)}:
        engine.drop(name)

"""`slimtower deploy --to TARGET`: make a release searchable in a vector engine, or go back to the one before."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from slimtower.common.errors import UserError
from slimtower.common.files import folder_digest, read_json
from slimtower.common.masking import redacted
from slimtower.common.settings import load_section
from slimtower.engines.belonging import check_encoder
from slimtower.engines.contents import RECALL_QUERIES, K, load_queries
from slimtower.engines.deployment import (
    Deployed,
    alias_of,
    check_owner,
    deployed_aliases,
    flip,
    prepare,
    roll_back,
    way_back,
)
from slimtower.engines.engines import open_engine
from slimtower.engines.params import DeployParams, registered_name
from slimtower.registry.client import client, reaching, sqlite_file
from slimtower.serving.choice import release_folder
from slimtower.serving.release import Release, load_release

_PREFIX = "slimtower."  # of the tags that `make promote` sets


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="slimtower deploy", description=__doc__)
    parser.add_argument(
        "--to", required=True, help="postgresql://..., http(s)://... (Qdrant), milvus+http(s)://..., <file>.db"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--student",
        default="",
        help="a released student (default: MLflow's champion, else the evaluation's choice; with"
        " --encoder-only the choice)",
    )
    which.add_argument("--champion", action="store_true", help="MLflow's champion or nothing, as scheduled tasks do")
    parser.add_argument("--dataset", action="append", default=[], help="this data set alone (default: all)")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--rollback", action="store_true", help="let what answered before answer again")
    instead.add_argument(
        "--encoder-only", action="store_true", help="only check that encoder and index belong together"
    )
    parser.add_argument("--collection", default="", help="with --encoder-only: a collection or table of your own")
    arguments = parser.parse_args(words)
    params, name, root = load_section("deploy", DeployParams), registered_name(), Path()
    if arguments.collection and not arguments.encoder_only:
        raise UserError("--collection goes with --encoder-only: deploying makes collections of its own")
    if arguments.champion and (arguments.rollback or arguments.encoder_only):
        raise UserError("--champion goes with deploying alone; leave it out, or name the release with --student")
    if arguments.student and arguments.rollback:
        raise UserError("--student goes with no --rollback: what answered before answers again")
    to, datasets = arguments.to, arguments.dataset
    if arguments.rollback:
        run_rollback(root, to, name, datasets)
    elif arguments.encoder_only:
        run_encoder_only(root, to, name, arguments.student, datasets, arguments.collection, params)
    else:
        run(root, to, name, arguments.student, datasets, params, champion_alone=arguments.champion)


def run(
    root: Path,
    to: str,
    name: str,
    student: str,
    datasets: Sequence[str],
    params: DeployParams,
    *,
    champion_alone: bool = False,
) -> None:
    """Deploy a release of the project at `root`; `student` empty is the champion, else the evaluation's choice.

    `champion_alone`: UserError in place of that choice. `datasets` empty are all of the release. The release is
    verified whole before. UserError if the champion is deployed and moves before an alias does.
    """
    champion = read_champion(name)
    folder = None if student else local_release(champion, root / "models/release")
    if champion_alone and folder is None:
        raise UserError(
            f"models:/{name}@champion is {champion or 'none'}, whose release is not in models/release: nothing was"
            " deployed; run this where it was released, or without --champion"
        )
    release = load_release(folder or release_folder(root, student))
    digest, aliases = folder_digest(release.folder), _aliases(name, _chosen(release, datasets))
    with open_engine(to) as engine:
        ready = {}
        for dataset, alias in aliases.items():  # all of them before the first alias moves: one may be refused
            queries = load_queries(release, dataset, root / "data/ingest", RECALL_QUERIES)
            ready[dataset] = queries, prepare(engine, release, digest, name, dataset, alias, queries, params)
        if folder and not all(prepared.answers for _, prepared in ready.values()):
            _check_champion(name, release.folder, digest)  # hours later, maybe
        for dataset, (queries, prepared) in ready.items():
            done = flip(engine, prepared)
            _say(done, to)
            print(
                f"deploy: {done.alias} finds {done.record.recall:.2%} of the exact top {K} with m {done.record.m} and"
                f" ef {done.record.ef}, the release's own index {queries.index_recall:.2%} ({len(queries.vectors)}"
                f" {queries.source})"
            )
            if not done.met:
                print(f"deploy: {_out_of_reach(done, params)}")
            if release.fusion(dataset):
                print(f"deploy: {_given_up(release, dataset)}")
    fused = any(release.fusion(dataset) for dataset in aliases)
    print(f"deploy: {agreement(name, read_champion(name), release.manifest.student, digest, fused=fused)}")


def run_encoder_only(
    root: Path, to: str, name: str, student: str, datasets: Sequence[str], collection: str, params: DeployParams
) -> None:
    """Check that a release's encoder may search a collection, or each data set's alias; UserError if not."""
    release = load_release(release_folder(root, student))
    aliases = _aliases(name, _chosen(release, datasets))
    if collection and len(aliases) > 1:
        raise UserError(f"--collection is of one data set; add --dataset, one of {', '.join(release.datasets)}")
    with open_engine(to) as engine:
        for dataset, alias in aliases.items():
            target = collection or alias
            queries = load_queries(release, dataset, root / "data/ingest", RECALL_QUERIES)
            tuned, judged = check_encoder(engine, target, release, dataset, queries, params)
            knob = engine.shape(target).knob
            print(
                f"deploy: {release.manifest.student} and {target} belong together: {knob} {tuned.ef} finds"
                f" {tuned.recall:.2%} of the exact top {K}, the release's own index {queries.index_recall:.2%}"
                f" ({judged} of {len(queries.vectors)} {queries.source})"
            )


def run_rollback(root: Path, to: str, name: str, datasets: Sequence[str]) -> None:
    """Let what answered before answer again; what an earlier try that was cut short has rolled back stays so."""
    read_champion(name)  # its server answers, before anything moves
    with open_engine(to) as engine:
        aliases = _aliases(name, datasets)
        for dataset, alias in aliases.items():
            check_owner(engine, alias, name, dataset)
        alias_names = list(aliases.values()) or deployed_aliases(engine, name)
        if not alias_names:
            raise UserError(f"{redacted(to)}: nothing of {name} is deployed there")
        ways = {alias: way_back(engine, alias) for alias in alias_names}  # all of them, before the first moves
        for alias in (alias for alias, way in ways.items() if way is None):
            print(f"deploy: {alias} was rolled back already; nothing further back is kept")
        if not any(ways.values()):
            raise UserError(f"{redacted(to)}: {name} was rolled back already; deploy another")
        for done in filter(None, ways.values()):
            roll_back(engine, done)
            _say(done, to)
            release = local_release(Champion("", done.record.student, done.record.release), root / "models/release")
            fused = release is not None and load_release(release).fusion(done.record.dataset) is not None
            champion = read_champion(name)
            print(f"deploy: {agreement(name, champion, done.record.student, done.record.release, fused=fused)}")


def _check_champion(name: str, folder: Path, digest: str) -> None:
    current = read_champion(name)
    if current is None or current.release != digest:
        raise UserError(
            f"models:/{name}@champion is {current or 'none'} by now, so {folder} was not deployed; run it again"
        )


def _given_up(release: Release, dataset: str) -> str:
    """What a fused release loses in an engine, by its own report."""
    path = release.folder / "report.json"
    dev = read_json(path).get("lexical", {}).get(dataset, {}).get("dev") if path.is_file() else None
    lost = (
        f"nDCG@10 on {dev['queries']} dev queries {dev['dense']:.4f} in place of {dev['fused']:.4f}"
        f" ({dev['dense'] - dev['fused']:+.4f})"
        if dev
        else "no judged dev query tells what that loses"
    )
    return (
        f"the release fuses {dataset} with BM25, the engine answers with dense hits alone: {lost}; an application can"
        " fuse them itself (docs/engines.md)"
    )


def _out_of_reach(done: Deployed, params: DeployParams) -> str:
    """What can be done about it: a graph that another student's deployment built may have few links."""
    denser = [m for m in params.m if m > done.record.m]
    advice = f"set deploy.m: {denser}" if denser else "raise deploy.m"
    return f"deploy.target_recall {params.target_recall} is out of reach, the best setting is kept; {advice} and repeat"


def _say(done: Deployed, to: str) -> None:
    record = done.record
    change = f" ({done.there} there now: others put some in or took some out)" if done.there != record.documents else ""
    summary = f"{record.student} ({record.manifest[:12]}) over {done.collection}, {record.documents} documents{change}"
    if done.answers:
        print(f"deploy: {done.alias} at {redacted(to)} answers for {summary}; nothing to do")
        return
    was = f", was {done.before.student} over {done.before.collection}" if done.before else ""
    print(f"deploy: {done.alias} at {redacted(to)} answers for {summary}, {done.filled} put in now{was}")


def _chosen(release: Release, datasets: Sequence[str]) -> list[str]:
    for dataset in datasets:
        release.kinds(dataset)  # refuses one that is not there
    return list(datasets) or release.datasets


def _aliases(name: str, datasets: Sequence[str]) -> dict[str, str]:
    """Data set -> alias; UserError if two would share one."""
    aliases = {dataset: alias_of(name, dataset) for dataset in datasets}
    for dataset, alias in aliases.items():
        if twin := [candidate for candidate, same in aliases.items() if same == alias and candidate != dataset]:
            raise UserError(f"data sets {dataset!r} and {twin[0]!r} would both be called {alias}; rename one")
    return aliases


class Champion(NamedTuple):
    """Version, student and digest of the release."""

    version: str
    student: str
    release: str

    def __str__(self) -> str:
        return f"version {self.version} ({self.student})"


def read_champion(name: str) -> Champion | None:
    """The champion of a registered model; None where nothing was promoted."""
    if (database := sqlite_file()) and not database.is_file():
        return None  # asking would make the file
    with reaching():
        api = client()
        models = api.search_registered_models(filter_string=f"name = '{name}'")
        version = models[0].aliases.get("champion") if models else None
        if version is None:
            return None
        tags = api.get_model_version(name, str(version)).tags
    return Champion(str(version), tags.get(f"{_PREFIX}student", ""), tags.get(f"{_PREFIX}release", ""))


def local_release(champion: Champion | None, releases: Path) -> Path | None:
    """The champion's release among those in a folder; None where it is not there, or another of that name is."""
    if champion is None or not champion.student:
        return None
    folder = releases / champion.student
    same = (folder / "manifest.json").is_file() and folder_digest(folder) == champion.release
    return folder if same else None


def agreement(name: str, champion: Champion | None, student: str, release: str, *, fused: bool) -> str:
    """One line: does the engine answer with the champion's release? One that is `fused` with BM25 answers otherwise
    where it is served."""
    if champion is None:
        return f"MLflow has no champion of {name} to agree with; `make promote` makes one"
    if champion.release == release:
        same = f"models:/{name}@champion is version {champion.version}, the same release"
        if fused:
            return f"{same}, but its own answers are fused with BM25, the engine's are not: encoder and index agree"
        return f"{same}: they agree"
    return (
        f"models:/{name}@champion is {champion}, another release than this {student}: they DISAGREE; `make promote"
        f" STUDENT={student}` or `make rollback` moves the champion, `make deploy` without STUDENT= deploys the"
        " champion where its release is here"
    )

"""The commands: promote, dry run, roll back, show history and lineage. Each says what it found and did."""

import os
from pathlib import Path

import yaml

from slimtower.registry.client import reaching, tracking_uri
from steps.promote.evidence import (
    SLICE_WORDS,
    choose_students,
    metrics_of,
    read_candidate,
    read_evaluation,
    read_test_sets,
    with_reported_slices,
)
from steps.promote.gate import decide
from steps.promote.lineage import check_evaluation, check_measured, made_from, made_of, read_origin
from steps.promote.lock import Lock, lock_place, lock_store
from steps.promote.move import Refused, RolledBack, as_table, history, refuse_rolled_back
from steps.promote.params import PromoteParams
from steps.promote.promotion import champion_evidence, find_version, promote, roll_back
from steps.promote.registry import CHAMPION, Registry

LOCK_WAIT_S = 60.0  # while somebody else moves the aliases, before giving up (exit code 75)


def run(
    ingest: Path, reports: Path, releases: Path, params: PromoteParams, *, dry_run: bool = False, again: bool = False
) -> None:
    """Promote a student's release, or say what would happen; Refused, exit code 3, when the gate says no.

    If no student is named and the gate refuses the evaluation's choice, the best student on dev is offered in turn.
    Paths are relative to the project's root.
    """
    with metrics_of(reports) as metrics:
        ignored = bool(metrics.get("settings", {}).get("ignore_identical_ids"))
    judged = read_test_sets(ingest, ignored)  # first: without any nothing could be promoted, whatever dvc.lock records
    stages = check_evaluation(reports, ingest)
    first, *alternatives = choose_students(params.student, reports, releases, params.policy)

    def offered(student: str) -> bool:
        """Whether this student is to be the champion in place of another; Refused when the gate says no."""
        check_measured(student, releases / student, reports)
        evaluation = with_reported_slices(read_evaluation(ingest, judged, SLICE_WORDS), reports)
        candidate = read_candidate(student, reports, releases, evaluation)
        with reaching():
            registry = Registry(params.name)
            origin = read_origin(registry, stages, student, candidate.release, ingest)
            champion = registry.aliases().get(CHAMPION)
            print(f"promote: {student} ({candidate.release}) to {params.name}, champion: {champion or 'none'}")
            if dry_run:
                existing = find_version(registry, candidate.evidence.release)
                if existing is not None and existing != champion and not again:
                    refuse_rolled_back(registry, existing)
                recorded = champion_evidence(registry, champion, candidate.evidence, judged, keep=False)
                decision = decide(candidate.evidence, recorded, params.policy)
                print("\n".join(decision.lines()))
                if not decision.approved:
                    raise Refused(f"{student} would be refused for the reasons above")
                return champion is None or existing != champion
            registry.ensure({} if tracking_uri().startswith("sqlite:") else {"lock": lock_place(registry)})
            outcome = promote(registry, _lock(registry, params), candidate, origin, judged, params, again=again)
        for note in outcome.notes:
            print(f"promote: {note}")
        if outcome.decision is None:
            print(f"promote: {params.name}/{outcome.version} is the champion already; nothing to do")
            return False
        print("\n".join(outcome.decision.lines()))
        moved = f"models:/{params.name}@champion is version {outcome.version} now"
        print(f"promote: {moved}, previous: {champion or 'none'}")
        return True

    try:
        offered(first)
    except RolledBack:
        raise  # somebody did not want what this run made
    except Refused as refusal:
        if not alternatives:
            raise
        print(f"promote: the gate refuses {first}; {alternatives[0]}, the best by nDCG@10, is offered in its place")
        if not offered(alternatives[0]):
            raise
        print(f"promote: {refusal}")


def run_rollback(params: PromoteParams) -> None:
    """Let the previous champion serve again, once for each SLIMTOWER_AIRFLOW_RUN."""
    run = os.environ.get("SLIMTOWER_AIRFLOW_RUN", "")
    with reaching():
        registry = Registry(params.name)
        move, notes = roll_back(registry, _lock(registry, params), run=run)
    for note in notes:
        print(f"rollback: {note}")
    if move is None:
        print(f"rollback: {run} went back already; nothing to do")
        return
    print(
        f"rollback: models:/{params.name}@champion is version {move.version} again, was {move.champion};"
        f" previous: {move.then_previous or 'none'}"
    )
    print(
        "rollback: if you deployed this release to a vector engine, that engine still serves it; undo it there with"
        " `make deploy TO=... DEPLOY_FLAGS=--rollback`"
    )


def run_history(params: PromoteParams) -> None:
    """Print the audit trail and the present aliases."""
    with reaching():
        registry = Registry(params.name)
        rows, aliases = history(registry), registry.aliases()
    print(as_table(rows) if rows else f"{params.name}: nothing was promoted yet")
    print(", ".join(f"{alias}: {version}" for alias, version in sorted(aliases.items())))


def run_lineage(reference: str, params: PromoteParams) -> None:
    """Print what a model was made of, or what was made of a commit, a dvc.lock or data, as YAML."""
    with reaching():
        names_model = "@" in reference or "/" in reference
        answer = made_of(reference) if names_model else made_from(Registry(params.name), reference)
    print(yaml.safe_dump(answer, sort_keys=False, allow_unicode=True, width=120).rstrip())


def _lock(registry: Registry, params: PromoteParams) -> Lock:
    return Lock(lock_store(registry), params.name, LOCK_WAIT_S, params.lock_expires_s)

"""One run of the whole pipeline, or of what the named stages need.

Checks params.yaml and the machine, lists the data outside the project, and is done where DVC finds nothing changed.
Else it lets DVC run `ingest`, checks the data, compares document vectors that were given with the teacher's, says about
how long the rest takes, lets DVC run it, then closes the MLflow run and links the stages that were reused to the runs
that made them.
"""

import codecs
import io
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

from pipeline import forecast, preflight, surroundings
from pipeline.data_check import check_data
from pipeline.lineage import finish_or_wait, send_finished, waits
from pipeline.local_models import write_models
from pipeline.params import Params, load_params
from pipeline.stopping import stop_when_asked
from pipeline.task.children import chunks, stop
from steps.core.bases import LISTED, MODELS, carried
from steps.core.errors import OutOfMemory, UserError, line
from steps.ingest.listing import write_listing
from steps.promote.dvc_lock import lock_stages
from steps.teach.kinds.contrastive import Contrastive

INGEST, SOURCES = Path("data/ingest"), Path("sources.json")
_STAGE = re.compile(r"(Running stage|Stage) '([^']+)'")
_ALL_DONE = "Data and pipelines are up to date."  # DVC says it of `ingest` alone, too


def main() -> None:
    """Run it all; exits with the code of the command that failed."""
    params, wanted, root = load_params(), sys.argv[1:], Path.cwd()
    stop_when_asked()
    surroundings.lay_out(root)
    surroundings.mend_locks(root)
    machine = preflight.examine(root)
    _tell([str(machine), *(f"WARNING: {line}" for line in preflight.warnings(machine))])
    if not surroundings.in_git(root):
        surroundings.without_git(root)
        _tell(["no git checkout: MLflow's runs name no commit"])
    write_listing(params.ingest, SOURCES)
    write_models(params, MODELS)
    os.environ[LISTED] = "yes"
    stages, up_to_date = ask_dvc(wanted)
    if waits():
        try:
            send_finished()
        except UserError as error:
            _tell([line(error)])
    if up_to_date:
        _tell(["nothing to do, every stage is up to date"])
        return
    progress = Progress([] if wanted else stages)
    os.environ.setdefault("SLIMTOWER_PIPELINE", uuid.uuid4().hex)
    try:
        code = _run(params, wanted, stages, machine.precision, progress)
    except (UserError, KeyboardInterrupt, SystemExit):
        print(f"pipeline: failed; {finish_or_wait(failed=True)}; {progress.seconds:.0f} s", flush=True)
        raise
    locked = lock_stages()
    known = [stage for stage in progress.stages if stage in locked]  # dvc.lock also remembers stages that are gone
    done = finish_or_wait(failed=code != 0, names=known or None)
    print(f"pipeline: {'failed; ' if code else ''}{done}; {progress.seconds:.0f} s")
    raise SystemExit(code)


def ask_dvc(wanted: list[str]) -> tuple[list[str], bool]:
    """Names of all stages, cells of a matrix each for itself, and whether DVC would run none of those `wanted`.

    A pipeline that DVC cannot read has no stages: `dvc repro` says why.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo() as repo:
            names = [stage.addressing for stage in repo.index.stages]
            return names, not repo.status(targets=wanted or None, with_deps=bool(wanted))
    except DvcException:
        return [], False


def left_to_run(stages: list[str]) -> set[str]:
    """Those of the stages that changed or have not run yet, and all behind them; all where DVC cannot tell."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo
    from networkx import ancestors

    try:
        with Repo() as repo:
            graph = repo.index.graph  # from each stage to those that it reads from
            changed = [stage for name in repo.status() for stage in repo.stage.collect(name)]
            return {each.addressing for stage in changed for each in ancestors(graph, stage) | {stage}}
    except DvcException:
        return set(stages)


class Progress:
    """Where a run is: says which stage starts, of how many, and how much time is gone of how much."""

    def __init__(self, stages: list[str]) -> None:
        """`stages` are all that there are; empty where only some are wanted."""
        self.stages, self.expected = stages, 0.0
        self._seen: list[str] = []
        self._started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Since the run started."""
        return time.perf_counter() - self._started

    def line(self, text: str) -> str | None:
        """What to print for a line of DVC's; None for what was said before."""
        found = _STAGE.match(text)
        if not found:
            return None if text == _ALL_DONE else text
        verb, stage = found.groups()
        if stage in self._seen:
            return None
        self._seen.append(stage)
        if verb == "Stage":
            return text
        of = f" of {len(self.stages)}" if self.stages else ""
        about = f" of about {forecast.in_words(self.expected)}" if self.seconds < self.expected else ""
        return f"Running stage '{stage}' ({len(self._seen)}{of}; {self.seconds / 60:.1f} minutes{about} gone)"


def _run(params: Params, wanted: list[str], stages: list[str], precision: str, progress: Progress) -> int:
    """Ingest, check what it made, and run the rest; returns the exit code of what failed. UserError for bad data."""
    code = _reproduce(["ingest"], progress)
    if code or wanted == ["ingest"]:
        return code
    _tell(check_data(params, INGEST))
    left = left_to_run(stages) if progress.stages or params.ingest.document_vectors else set()
    if params.ingest.document_vectors and "embed" in left and (code := _compare_given_vectors()):
        return code
    if progress.stages:
        progress.expected = _expected(params, precision, left)
    if progress.expected:
        _tell([f"about {forecast.in_words(progress.expected)} on this machine"])
    return _reproduce(wanted, progress)


def _compare_given_vectors() -> int:
    """Before anything trains; in a process of its own, whose memory is free again. Returns its exit code.

    OutOfMemory where it was killed.
    """
    code = subprocess.run([sys.executable, "-m", "pipeline.given_vectors"]).returncode
    if code == -signal.SIGKILL:
        raise OutOfMemory("comparing the given document vectors was killed, most likely for the memory it took")
    return code


def _tell(lines: Iterable[str]) -> None:
    for text in lines:
        print(f"pipeline: {text}", flush=True)


def _expected(params: Params, precision: str, stages: set[str]) -> float:
    """About how many seconds these stages take; 0 where that cannot be told."""
    teacher = params.teach.described(params.teach.index)
    base = teacher.base if isinstance(teacher, Contrastive) else ""
    folder = Path(carried(base))
    operations = forecast.layer_operations(folder)
    if operations is None or not stages:
        return 0.0
    data = forecast.measure(INGEST, params)
    speed, vocabulary = forecast.speed(precision), forecast.vocabulary_size(folder)
    each = forecast.forecast(data, params, *operations, speed, vocabulary)
    return sum(seconds for stage, seconds in each.items() if stage in stages)


def _reproduce(targets: list[str], progress: Progress) -> int:
    """Let DVC run the stages, with a line of ours for each; returns its exit code.

    They are a process group of their own, of which nothing is left when this returns or is stopped.
    """
    command = [sys.executable, "-m", "dvc", "repro", *targets]
    running = subprocess.Popen(command, env=_environment(), stdout=subprocess.PIPE, start_new_session=True)
    assert running.stdout is not None
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
    try:
        begun = ""
        for chunk in chunks(running, running.stdout.fileno()):
            *whole, begun = (begun + decoder.decode(chunk)).split("\n")
            _show(whole, progress)
        if begun := begun + decoder.decode(b"", final=True):
            _show([begun], progress)
        return running.wait()
    finally:
        stop(running)
        running.stdout.close()


def _show(lines: Iterable[str], progress: Progress) -> None:
    for text in lines:
        if (shown := progress.line(text)) is not None:
            print(shown, flush=True)


def _environment() -> dict[str, str]:
    own_bin = str(Path(sys.executable).parent)  # stages say `python`; it must be this one
    path = f"{own_bin}{os.pathsep}{os.environ.get('PATH', '')}"
    return os.environ | {"PATH": path, "PYTHONUNBUFFERED": "1"}

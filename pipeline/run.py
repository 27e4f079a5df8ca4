"""One run of the whole pipeline, or of what the named stages need.

After prepare.py it lets DVC run `ingest`, checks the data, compares document vectors that a vector engine gave with the
teacher's, says if an index becomes useless and about how long the rest takes, lets DVC run it, then closes the MLflow
run and links the stages that were reused to the runs that made them.
"""

import codecs
import io
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Collection, Iterable
from pathlib import Path

from pipeline import preflight, surroundings
from pipeline.data_check import check_data
from pipeline.lineage import finish_or_wait
from pipeline.params import Params, load_params
from pipeline.pending import Pending, pending
from pipeline.progress import Progress, expected_seconds, in_words, record_seconds
from pipeline.task.children import chunks, stop
from slimtower.common.errors import OutOfMemory, UserError
from slimtower.common.settings import read_mapping
from steps.core.progress import bold, over_bar
from steps.core.tables import row_count
from steps.promote.dvc_lock import lock_stages
from steps.teach.kinds.base import OnTriplets

INGEST = Path("data/ingest")
_DOCUMENT_KNOBS = (  # on which the vectors of documents depend
    "kind", "base", "model", "epochs", "document_prompt", "document", "max_document_length", "untied", "pooling", "dim",
    "dimensions",
)  # fmt: skip


def run(stages: list[str], targets: list[str]) -> int:
    """Run the `targets`, all `stages` if none is named; returns the exit code of the command that failed, else 0."""
    params, root = load_params(), Path.cwd()
    machine = preflight.examine(root)
    _tell([str(machine), *(f"WARNING: {line}" for line in preflight.warnings(machine))])
    if not surroundings.in_git(root):
        _tell(["no git checkout: MLflow's runs name no commit"])
    if hidden := surroundings.hide_lock(root):
        _tell([hidden])
    progress = Progress(0 if targets else len(stages))
    os.environ.setdefault("SLIMTOWER_PIPELINE", uuid.uuid4().hex)
    try:
        code = _run_stages(params, targets, stages, progress)
    except (UserError, KeyboardInterrupt, SystemExit):
        print(f"pipeline: failed; {finish_or_wait(failed=True)}; {progress.seconds:.0f} s", flush=True)
        raise
    locked = lock_stages()
    # dvc.lock also remembers stages that are gone.
    stage_names = [] if targets else [stage for stage in stages if stage in locked]
    done = finish_or_wait(failed=code != 0, names=stage_names or None)
    print(f"pipeline: {'failed; ' if code else ''}{done}; {progress.seconds:.0f} s")
    return code


def _run_stages(params: Params, targets: list[str], stages: list[str], progress: Progress) -> int:
    """Ingest, check what it made, and run the rest; returns the exit code of what failed. UserError for bad data."""
    code = _reproduce(["ingest"], progress)
    if code or targets == ["ingest"]:
        return code
    _tell(check_data(params, INGEST))
    remaining = pending(stages, targets)
    if params.ingest.document_vectors and "embed" in remaining.run and (code := _compare_given_vectors()):
        return code
    documents = row_count(INGEST, "corpus")
    expected = expected_seconds(remaining.run, documents)
    _tell(embedded_anew(params, remaining.run, INGEST, expected.get("embed", 0.0)))
    progress.expect(expected, progress.started + remaining.count)
    _tell(_ahead(remaining, len(stages), sum(expected.values())))
    code = _reproduce(targets, progress)
    record_seconds(progress.took(done=code == 0), documents)
    return code


def embedded_anew(params: Params, stages: Collection[str], ingest: Path, seconds: float) -> list[str]:
    """A line if the teacher of the index is trained or changed, with what that costs; `stages` are those to run.

    `seconds` is what `embed` is expected to take, 0 if that is not known.
    """
    name = params.teach.index
    if f"teach@{name}" not in stages or params.ingest.document_vectors:
        return []
    teacher = params.teach.described(name)
    if isinstance(teacher, OnTriplets) and teacher.epochs:
        why, index = "is trained", "an index that you have"
    elif changed := _changed(name):
        why, index = f"has another {', '.join(changed)} than in the last run", "the index of that run"
    else:
        return []
    cost = f"{row_count(ingest, 'corpus'):,} texts" + (f", about {in_words(seconds)}" if seconds else "")
    return [f"teach.{name} {why}: every document has to be embedded anew ({cost}), and {index} cannot be used"]


def _changed(name: str) -> list[str]:
    """The knobs on which document vectors depend and that differ from the last run's; none if there was no run here.

    A dvc.lock alone is no run: a clone and a recipe's first run have the one that is tracked.
    """
    stages = lock_stages() if Path("data/embed").is_dir() else {}
    previous = stages.get(f"teach@{name}", {}).get("params", {}).get("params.yaml", {}).get(f"teach.teacher.{name}")
    if "embed" not in stages or not previous:
        return []
    current = read_mapping(Path("params.yaml"))["teach"]["teacher"][name]
    return [knob for knob in _DOCUMENT_KNOBS if previous.get(knob) != current.get(knob)]


def _ahead(remaining: Pending, stages: int, seconds: float) -> list[str]:
    """A line on what has to run, and about how long that takes here."""
    if not remaining.run:
        return [f"nothing has to be computed: DVC's cache has what {n} stages make"] if (n := remaining.count) else []
    is_partial = len(remaining.run) < stages - 1  # `ingest` is done
    which = f"{len(remaining.run)} of {stages} stages have to run" if is_partial else ""
    time = f"about {in_words(seconds)} on this machine" if seconds else ""
    return [", ".join(filter(None, (which, time)))] if which or time else []


def _compare_given_vectors() -> int:
    """Exit code of a comparison before training, in a process of its own to free memory; OutOfMemory if killed."""
    code = subprocess.run([sys.executable, "-m", "pipeline.given_vectors"]).returncode
    if code == -signal.SIGKILL:
        raise OutOfMemory("comparing the given document vectors was killed, most likely for the memory it took")
    return code


def _tell(lines: Iterable[str]) -> None:
    for text in lines:
        print(f"pipeline: {text}", flush=True)


def _reproduce(targets: list[str], progress: Progress) -> int:
    """Let DVC run the stages, in a process group that ends with this, with a line of ours for each; its exit code."""
    command = [sys.executable, "-m", "dvc", "repro", *targets]
    running = subprocess.Popen(command, env=_environment(), stdout=subprocess.PIPE, start_new_session=True)
    assert running.stdout is not None
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
    try:
        partial = ""
        for chunk in chunks(running, running.stdout.fileno()):
            *lines, partial = (partial + decoder.decode(chunk)).split("\n")
            _show(lines, progress)
        if partial := partial + decoder.decode(b"", final=True):
            _show([partial], progress)
        return running.wait()
    finally:
        stop(running)
        running.stdout.close()


def _show(lines: Iterable[str], progress: Progress) -> None:
    for text in lines:
        if (output := progress.line(text)) is not None:
            starts = output.startswith(("Running stage ", "Restored stage "))
            print(over_bar(bold(output, sys.stdout) if starts else output, sys.stdout), flush=True)


def _environment() -> dict[str, str]:
    own_bin = str(Path(sys.executable).parent)  # stages say `python`; it must be this one
    path = f"{own_bin}{os.pathsep}{os.environ.get('PATH', '')}"
    return os.environ | {"PATH": path, "PYTHONUNBUFFERED": "1"}

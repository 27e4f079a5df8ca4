"""What the pipeline says while DVC runs its stages, and the order in which it goes about them."""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dvc.repo import Repo

from pipeline import __main__ as entry
from pipeline import lineage, prepare
from pipeline import run as pipeline
from pipeline.pending import Pending, ask_dvc, pending
from pipeline.preflight import Machine
from pipeline.progress import Progress
from slimtower.common.errors import OutOfMemory, UserError

STAGES = ["ingest", "mine@click", "teach"]
SKIPPED = "Stage 'ingest' didn't change, skipping"


@dataclass
class Clock:
    """A clock that a test sets."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds


def started(text: str | None) -> str:
    """What a line of a stage that starts says in parentheses."""
    assert text is not None
    return text.partition(" (")[2].removesuffix(")")


def test_a_stage_that_starts_is_counted_and_timed() -> None:
    run = Progress(3, clock := Clock())
    assert started(run.line("Running stage 'ingest':")) == "1 of 3; 0.0 minutes gone"
    assert run.line(SKIPPED) is None, "by the second call of DVC"
    run.expect({"mine@click": 60, "teach": 600}, 3)
    clock.seconds = 90
    text = run.line("Running stage 'mine@click':")
    assert text == "Running stage 'mine@click' (2 of 3; 1.5 minutes gone, about 11 minutes to go)"
    for text in ("on stage 'teach'", "api: 6,000 documents", "ERROR: failed to reproduce 'teach'"):
        assert run.line(text) == text
    assert run.took(done=False) == {"ingest": 90.0}  # the last one failed
    clock.seconds = 120
    assert run.took(done=True) == {"ingest": 90.0, "mine@click": 30.0}
    assert started(Progress().line("Running stage 'teach':")) == "1; 0.0 minutes gone", "of how many is not known"


def test_the_rest_is_said_however_late_a_run_is_and_follows_what_was_measured() -> None:
    """Stages take three times what was forecast: the first minute is not trusted whole, later ones are."""
    run = Progress(4, clock := Clock())
    run.expect(dict.fromkeys("abcd", 600.0), 4)
    estimates = []
    for stage in "abcd":
        run.line(f"Running stage '{stage}':")
        estimates.append(run.remaining())
        clock.seconds += 1800
    assert estimates[0] == 2400
    truth = [5400, 3600, 1800]
    assert all(0.8 * true < estimate <= true for true, estimate in zip(truth, estimates[1:], strict=True))


def test_a_stage_that_costs_nothing_is_no_part_of_the_rest() -> None:
    run = Progress(3, Clock())
    run.expect({"ingest": 600, "mine@click": 600, "teach": 600}, 2)
    assert run.line(SKIPPED) is None
    assert run.remaining() == 1200
    cached = run.line("Stage 'mine@click' is cached - skipping run, checking out outputs")
    assert cached == "Restored stage 'mine@click' from DVC's cache (1 of 2)"
    assert started(run.line("Running stage 'teach':")) == "2 of 2; 0.0 minutes gone, about 10 minutes to go"


@pytest.mark.slow
def test_no_line_of_dvc_itself_is_left_of_a_run_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a first run, of one that makes all anew and of one from the cache."""
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    Repo.init().close()
    Path("dvc.yaml").write_text(TOY)
    for content in ("1", "2", "1"):
        Path("given").write_text(content)
        done = subprocess.run([sys.executable, "-m", "dvc", "repro"], capture_output=True, text=True, check=True)
        run = Progress(3)
        printed = [text for line in done.stdout.splitlines() if (text := run.line(line)) is not None]
        assert len(printed) == 3 and all(re.match(r"(Running|Restored) stage '", text) for text in printed)


@pytest.fixture
def flow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Any, list[str]]]:
    """Run `main` with everything around it replaced; returns its exit code or error, and what it did in order."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLIMTOWER_PIPELINE", "one")

    def run(
        *words: str,
        listed: str = "",
        codes: tuple[int, ...] = (0, 0),
        changed: bool = True,
        bad: str = "",
        given_vectors: int | None = None,
        remain: frozenset[str] = frozenset({"embed"}),
    ) -> tuple[Any, list[str]]:
        did: list[str] = []
        remaining_codes = list(codes)

        def step(name: str, result: Any = 0, refusal: str = "") -> Any:
            did.append(name)
            if refusal:
                raise UserError(refusal)
            return result

        fakes: dict[str, Any] = {
            "load_params": lambda: SimpleNamespace(ingest=SimpleNamespace(document_vectors=given_vectors is not None)),
            "pending": lambda stages, targets: Pending(set(remain)),
            "embedded_anew": lambda *arguments: [],
            "lock_stages": lambda: {"ingest": {}},
            "_reproduce": lambda targets, progress: step(" ".join(["repro", *targets]), remaining_codes.pop(0)),
            "check_data": lambda params, ingest: step("check", [], bad),
            "_compare_given_vectors": lambda: step("compare", given_vectors or 0),
            "row_count": lambda ingest, table: 1000,
            "expected_seconds": lambda *arguments: dict.fromkeys(remain, 600.0),
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(pipeline, name, fake)
        before: dict[str, Any] = {
            "checked_models": lambda: {},
            "load_section": lambda *section: None,
            "write_listing": lambda params, path: step("list", None, listed),
            "ask_dvc": lambda targets: (STAGES, not changed),
        }
        for name, fake in before.items():
            monkeypatch.setattr(prepare, name, fake)
        Path("params.yaml").touch()
        monkeypatch.setattr(
            lineage, "finish", lambda failed, names=None: step("failed" if failed else "finished", "closed")
        )
        monkeypatch.setattr(prepare.surroundings, "settle", lambda: None)
        monkeypatch.setattr(pipeline.surroundings, "in_git", lambda root: True)
        monkeypatch.setattr(pipeline.preflight, "examine", lambda root: Machine(2, 1.0, 50.0, "fp32", "AVX2"))
        monkeypatch.setattr(sys, "argv", ["pipeline", *words])
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # with other cores than two it would be warned of
        try:
            entry.main()
        except (SystemExit, UserError) as ended:
            return getattr(ended, "code", ended), did
        return 0, did

    return run


def test_the_data_are_checked_between_ingest_and_the_rest(
    flow: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert flow() == (0, ["list", "repro ingest", "check", "repro", "finished"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "pipeline: 2 threads, fp32 (AVX2), 1.0 GiB of memory and 50 GiB of disk free"
    assert lines[1].startswith("pipeline: WARNING: only 1.0 GiB of memory are free")
    assert lines[2] == "pipeline: 1 of 3 stages have to run, about 10 minutes on this machine"
    assert re.fullmatch(r"pipeline: closed; \d+ s", lines[3])


def test_only_the_wanted_stages_run(flow: Callable[..., Any]) -> None:
    assert flow("embed")[1] == ["list", "repro ingest", "check", "repro embed", "finished"]
    assert flow("ingest")[1] == ["list", "repro ingest", "finished"]


def test_where_nothing_changed_no_run_is_opened(flow: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert flow(changed=False) == (0, ["list"])
    assert "nothing to do, every stage is up to date" in capsys.readouterr().out


def test_what_fails_ends_the_run_as_failed(flow: Callable[..., Any]) -> None:
    for settings, ended, did in (
        ({"listed": "no such folder"}, "no such folder", []),
        ({"codes": (255,)}, "255", ["repro ingest", "failed"]),
        ({"bad": "no text at all"}, "no text at all", ["repro ingest", "check", "failed"]),
        ({"codes": (0, 255)}, "255", ["repro ingest", "check", "repro", "failed"]),
    ):
        code, done = flow(**settings)
        assert (str(code), done) == (ended, ["list", *did])


def test_vectors_that_were_given_are_compared_before_anything_trains(flow: Callable[..., Any]) -> None:
    before = ["list", "repro ingest", "check", "compare"]
    assert flow(given_vectors=0) == (0, [*before, "repro", "finished"])
    assert flow("distill", given_vectors=0)[1] == [*before, "repro distill", "finished"]
    assert flow(given_vectors=2) == (2, [*before, "failed"])
    assert "compare" not in flow(given_vectors=2, remain=frozenset({"evaluate"}))[1]  # `embed` has compared them


def test_a_comparison_that_was_killed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline.subprocess, "run", lambda command: SimpleNamespace(returncode=-9))
    with pytest.raises(OutOfMemory, match="comparing the given document vectors was killed"):
        pipeline._compare_given_vectors()


def has_ended(number: Path) -> bool:
    """Whether the process of that number is gone; a killed one takes a moment."""
    state, deadline = Path(f"/proc/{int(number.read_text())}/stat"), time.monotonic() + 10
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("stopped", [True, False])
def test_what_a_stage_started_ends_with_the_run(
    stopped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a run that is stopped, where a stage that went on would write beside the next run; and where a killed stage
    left a process, which holds the pipe open: what it would write is not waited for."""
    program = tmp_path / "python"
    ends = "echo started\nwait" if stopped else "printf 'a\\nsign \\303'\nexit 9"
    program.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path}/left\n{ends}\n")
    program.chmod(0o755)
    monkeypatch.setattr(pipeline.sys, "executable", str(program))

    class Stopped(Progress):
        def line(self, text: str) -> str | None:
            raise SystemExit(143)

    began = time.monotonic()
    if stopped:
        with pytest.raises(SystemExit):
            pipeline._reproduce([], Stopped())
    else:
        assert pipeline._reproduce([], Progress()) == 9 and time.monotonic() - began < 20
        assert capsys.readouterr().out == "a\nsign \N{REPLACEMENT CHARACTER}\n"
    assert has_ended(tmp_path / "left")


TOY = """stages:
  first: {cmd: cp given one, deps: [given], outs: [one]}
  second:
    matrix: {name: [a, b]}
    cmd: cp one two-${item.name}
    deps: [one]
    outs: ["two-${item.name}"]
"""


@pytest.mark.medium
def test_what_is_up_to_date_or_in_the_cache_is_not_left_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ask_dvc([]) == ([], False)  # no project: `dvc repro` will say so
    Repo.init(no_scm=True).close()
    Path("dvc.yaml").write_text(TOY)
    Path("given").write_text("1")
    names = ["first", "second@a", "second@b"]
    assert ask_dvc([]) == (names, False) and pending(names, []) == Pending(set(names))
    with Repo() as repo:
        repo.reproduce()
    assert ask_dvc([]) == (names, True) and pending(names, []) == Pending()
    Path("two-b").unlink()
    assert ask_dvc([]) == (names, False) and pending(names, []) == Pending(restored={"second@b"})
    assert ask_dvc(["second@a"]) == (names, True) and pending(names, ["second@a"]) == Pending()
    assert pending(names, ["second"]) == Pending(restored={"second@b"})
    Path("dvc.lock").rename("lock")
    assert pending(names, []) == Pending(restored=set(names))
    Path("one").unlink()
    assert pending(names, []) == Pending({"second@a", "second@b"}, {"first"})  # what they read cannot be told yet
    Path("lock").rename("dvc.lock")
    Path("given").write_text("2")
    assert pending(names, []) == Pending(set(names))  # what comes behind will have changed
    assert ask_dvc(["second@a"]) == (names, False)  # what it needs would run
    with Repo() as repo:
        repo.reproduce()
    Path("given").write_text("1")
    assert pending(names, []).restored == {"first"}
    shutil.rmtree(".dvc/cache/files")
    assert pending(names, []) == Pending(set(names))
    Path("dvc.yaml").write_text("stages: [")
    assert ask_dvc([]) == ([], False) and pending(names, []) == Pending(set(names))

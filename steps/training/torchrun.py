"""A stage in several processes, started by torchrun.

SLIMTOWER_PROCESSES says how many on this host (default 1: none are started). Over several hosts the same command is
given on each, with SLIMTOWER_HOSTS, their number, SLIMTOWER_HOST_RANK, from 0, and SLIMTOWER_RDZV, `host:port` of
host 0. Rank 0 writes outputs and the tracked run; the hosts share SLIMTOWER_CACHE, where checkpoints lie.
"""

import importlib
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from slimtower.common.errors import (
    EXIT_BUG,
    OutOfMemory,
    TransientError,
    UserError,
    end_with_parent,
    exhausted,
    guarded,
    line,
)
from slimtower.common.files import read_json, write_json
from slimtower.common.imports import uncollected_imports
from slimtower.common.masking import masked_traceback
from slimtower.common.settings import Section, load_section
from steps.frame.exit_file import VARIABLE, read_exit, record_exit
from steps.frame.self_check import require_cuda
from steps.frame.stage import stage_main
from steps.tracking.run_ids import pipeline_key
from steps.tracking.runs import NullRun, Run

FAILURES = "SLIMTOWER_RANK_FAILURES"  # folder in which a rank leaves why it failed
MEET_S = 900  # how long hosts wait for each other
_KINDS: dict[int, type[UserError]] = {kind.exit_code: kind for kind in (UserError, TransientError, OutOfMemory)}


@dataclass(frozen=True)
class SharedStage(Generic[Section]):
    """What `stage_main` is called with; `shares`: whether several processes can share the work, by its params."""

    name: str
    model: type[Section]
    body: Callable[[Section, Run], None]
    cell: str | None = None
    shares: Callable[[Section], bool] = lambda _: True

    def main(self) -> None:
        """Run it in as many processes as SLIMTOWER_PROCESSES and SLIMTOWER_HOSTS ask for."""
        if "TORCHELASTIC_RUN_ID" in os.environ:
            _as_rank(self)
        elif "--self-check" in sys.argv:
            self.run_alone()
        else:
            guarded(lambda: _launch(self))

    def run_alone(self) -> None:
        """Run it in this process."""
        stage_main(self.name, self.model, self.body, self.cell)


def _launch(stage: SharedStage[Section]) -> None:
    code: int | None = None
    try:
        processes, hosts = _number("SLIMTOWER_PROCESSES"), _number("SLIMTOWER_HOSTS")
        if processes * hosts > 1 and stage.shares(load_section(stage.name, stage.model)):
            code = _run_ranks(stage, processes, hosts)
        elif processes * hosts > 1:
            code = None if hosts == 1 or _host_rank(hosts) == 0 else 0
            on_host = "" if code is None else ", on host 0"
            print(f"{stage.name}: one process does this{on_host}; no other is started", file=sys.stderr)
    except UserError:
        with record_exit():
            raise
    if code is None:
        stage.run_alone()
        return
    last = read_exit(Path(os.environ.get(VARIABLE, "")))
    if last and last[0] == code:  # with what rank 0 says about it
        raise SystemExit(code)
    with record_exit():  # rank 0 may have been taken down, or killed, for what another rank did
        raise SystemExit(code)


def _number(name: str, default: str = "1", minimum: int = 1) -> int:
    value = os.environ.get(name) or default
    if not value.isdigit() or int(value) < minimum:
        raise UserError(f"{name} is {value!r}; give a whole number from {minimum}")
    return int(value)


def _run_ranks(stage: SharedStage[Section], processes: int, hosts: int) -> int:
    """Run this command in `processes` ranks of this host; returns its exit code, or raises why they failed."""
    require_cuda()
    import torch
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if torch.cuda.is_available() and processes > torch.cuda.device_count():
        raise UserError(
            f"SLIMTOWER_PROCESSES is {processes}, but this host has {torch.cuda.device_count()} GPUs; each process"
            " needs one"
        )
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    os.environ["SLIMTOWER_PIPELINE"] = pipeline_key()  # the ranks are called by this process, not by the pipeline
    logging.disable(logging.ERROR)  # torchrun's own report of a failure
    with tempfile.TemporaryDirectory(prefix="slimtower-ranks.") as scratch:
        failures = Path(scratch) / "failures"
        failures.mkdir()
        os.environ[FAILURES] = str(failures)
        config = LaunchConfig(
            min_nodes=hosts,
            max_nodes=hosts,
            nproc_per_node=processes,
            run_id=f"slimtower-{stage.name}",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=str(Path(scratch) / "logs")),
            **_meeting_point(hosts),
        )
        try:
            elastic_launch(config, sys.executable)("-u", "-m", f"steps.{stage.name}", *sys.argv[1:])
        except ChildFailedError as error:
            return explain(failures, {rank: failed.exitcode for rank, failed in error.failures.items()})
        except SignalException as error:
            return 128 + int(error.sigval)
        except (RendezvousError, torch.distributed.DistError) as error:
            raise TransientError(
                f"SLIMTOWER_RDZV {os.environ.get('SLIMTOWER_RDZV')}: the {hosts} hosts did not meet ({error}); check"
                " that each runs, has its own SLIMTOWER_HOST_RANK and reaches that port"
            ) from None
    return 0


def _meeting_point(hosts: int) -> dict[str, Any]:
    """Where the processes meet: a free port of this host, or SLIMTOWER_RDZV for several hosts."""
    if hosts == 1:
        return {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0"}
    endpoint = os.environ.get("SLIMTOWER_RDZV", "")
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdigit():
        raise UserError(f"SLIMTOWER_RDZV is {endpoint!r}; give host:port of host 0, the same on every host")
    return {
        "rdzv_backend": "static",
        "rdzv_endpoint": endpoint,
        "rdzv_configs": {"rank": _host_rank(hosts), "timeout": MEET_S},
    }


def _host_rank(hosts: int) -> int:
    number = _number("SLIMTOWER_HOST_RANK", default="", minimum=0)
    if number >= hosts:
        raise UserError(f"SLIMTOWER_HOST_RANK is {number}; with SLIMTOWER_HOSTS={hosts} it is 0 to {hosts - 1}")
    return number


def explain(folder: Path, codes: Mapping[int, int]) -> int:
    """Raise the UserError that ended the training, or say what else did and return the exit code.

    `codes` are the exit codes of the failed ranks, minus the signal if one was killed. A rank that fails takes the
    others with it: so a reason in `folder` that a person can fix comes first, then a kill, then the earliest traceback.
    """
    reasons = sorted((read_json(path) for path in folder.glob("*.json")), key=lambda reason: reason["time"])
    for reason in reasons:
        if reason["code"] in _KINDS:
            raise _KINDS[reason["code"]](reason["message"])
    for rank, code in sorted(codes.items()):
        if code == -signal.SIGKILL:
            raise OutOfMemory(f"process {rank} of the training was killed, most likely for the memory it took")
        if code < 0 and code != -signal.SIGTERM:
            print(f"slimtower: process {rank} of the training ended by signal {-code}", file=sys.stderr)
            return 128 - code
    for reason in reasons[:1]:
        print(f"process {reason['rank']} of the training failed:\n{reason['message']}", file=sys.stderr)
        return int(reason["code"])
    return next((code for _, code in sorted(codes.items()) if code > 0), EXIT_BUG)


def _as_rank(stage: SharedStage[Section]) -> None:
    """One of the processes: rank 0 is the tracked stage, the others only train along."""
    end_with_parent()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # lets rank 0 close its run as failed

    def run_together(params: Section, run: Run) -> None:
        try:
            with uncollected_imports():
                from steps.training.distributed import join_processes

                importlib.import_module(f"steps.{stage.name}.run")
            if not stage.shares(params):
                raise UserError(f"{stage.name}: one process does this; start it without torchrun or accelerate")
            with join_processes():
                stage.body(params, run)
        except Exception as error:
            _leave_reason(error)
            raise

    if os.environ["RANK"] == "0":
        stage_main(stage.name, stage.model, run_together, stage.cell)
    else:
        guarded(lambda: run_together(load_section(stage.name, stage.model), NullRun()))


def _leave_reason(error: Exception) -> None:
    """Write why this rank fails, for the launcher to tell, and exit; returns under a torchrun that is not ours."""
    if not (folder := os.environ.get(FAILURES)):
        return
    user_error = error if isinstance(error, UserError) else exhausted(error)
    code = user_error.exit_code if user_error else EXIT_BUG
    message = line(user_error) if user_error else masked_traceback(error)
    rank = os.environ["RANK"]
    reason = {"rank": rank, "code": code, "message": message, "time": time.time_ns()}
    write_json(Path(folder) / f"{rank}.json", reason)
    raise SystemExit(code) from None

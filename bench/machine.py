"""What kind of machine a measurement was made on, without its name, and the record that says so."""

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from bench.recorded_code import RecordEntry, code_digests, entry_of, origins, record_name
from bench.tables.expected import EXPECTED, read_expected
from slimtower.common.errors import UserError, guarded
from slimtower.common.files import write_json
from steps.encoders.precision import resolve_precision
from steps.evaluate.latency import processor
from steps.tracking.run_ids import git_commit

_ROOT = Path(__file__).parents[1]
_WRITTEN = ("bench/results/", "docs/images/")
_begun: tuple[str, dict[str, str]] | None = None  # commit and digests when the benchmark began


def machine() -> dict[str, object]:
    """Cores, memory in GiB, processor family, what `precision: auto` means there, GPU name or none, and versions."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "processor": processor(),
        "precision_auto": resolve_precision("auto"),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def peak_gib() -> float:
    """Peak resident memory of this process alone; getrusage would begin with the parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 2**20


def clean_commit() -> str:
    """The commit that a record names; UserError if code differs from it: nobody could measure that again.

    Records and pictures may differ: benchmarks write them.
    """
    commit = git_commit()
    if not commit.endswith("+dirty"):
        return commit
    changes = subprocess.run(["git", "status", "--porcelain", "-uno"], cwd=_ROOT, capture_output=True, text=True)
    paths = [line[3:].split(" -> ")[-1].strip('"') for line in changes.stdout.splitlines()]
    if code := [path for path in paths if not path.startswith(_WRITTEN)] or not paths:
        raise UserError(f"differs from its commit: {', '.join(code) if paths else commit}; commit that, then measure")
    return commit.removesuffix("+dirty")


def is_committed(cell: Mapping[str, Any]) -> bool:
    """Whether a finished cell may be used again: not if its code was not committed, but today's is."""
    return not cell["git_commit"].endswith("+dirty") or git_commit().endswith("+dirty")


def begin_record() -> None:
    """Keep what the record will name; UserError if code is not committed."""
    global _begun
    _begun = clean_commit(), _all_digests()


def recording(main: Callable[[], None]) -> None:
    """Run a benchmark that writes a record, unless code is not committed. What it measured is what was there first."""

    def checked() -> None:
        if not {"-h", "--help"} & set(sys.argv):
            begin_record()
        main()

    guarded(checked)


def measured_code(path: Path) -> dict[str, str]:
    """Digests of the code that a record measures, as it was when the benchmark began."""
    names = entry_of(record_name(path), _records()).code
    return {name: _begun[1][name] for name in names} if _begun else code_digests(names, _ROOT)


def _records() -> dict[str, RecordEntry]:
    return read_expected(_ROOT / EXPECTED).records


def _all_digests() -> dict[str, str]:
    return code_digests({name for entry in _records().values() for name in entry.code}, _ROOT)


def check_committed(path: Path, figures: Mapping[str, Any]) -> None:
    """UserError if a part of a record's figures comes from code that is not committed."""
    if any("+dirty" in part["git_commit"] for part in origins(figures)):
        raise UserError(f"{path}: a part was measured with uncommitted code; measure that part again")


def write_record(path: Path, figures: Mapping[str, Any]) -> None:
    """Write figures and say where, with digests of the measured code, and with commit and machine if they name none.

    UserError if they come from code that is not committed.
    """
    check_committed(path, figures)
    here = {} if "machines" in figures else {"machine": machine()}
    commit = _begun[0] if _begun else clean_commit()
    write_json(path, {**here, "git_commit": commit, **figures, "code_digests": measured_code(path)})
    print(f"wrote {path}")

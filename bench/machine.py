"""What kind of machine a measurement was made on, without its name, and the record that says so."""

import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from bench.recorded_code import code_digests, entry_of, origins, record_name
from bench.tables.expected import EXPECTED, read_expected
from slimtower.common.errors import UserError, guarded
from slimtower.common.files import write_json
from steps.encoders.precision import resolve_precision
from steps.evaluate.latency import processor
from steps.tracking.run_ids import git_commit

_ROOT = Path(__file__).parents[1]


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


def clean_commit() -> str:
    """The commit that a record names; UserError if tracked files differ from it: nobody could measure that again."""
    if (commit := git_commit()).endswith("+dirty"):
        raise UserError(f"{commit.removesuffix('+dirty')[:8]}: tracked files differ from it; commit them, then measure")
    return commit


def recording(main: Callable[[], None]) -> None:
    """Run a benchmark that writes a record, unless the tree is not committed."""

    def checked() -> None:
        clean_commit()
        main()

    guarded(checked)


def measured_code(path: Path) -> dict[str, str]:
    """Digests of the code that a record measures, as it is now."""
    records = read_expected(_ROOT / EXPECTED).records
    return code_digests(entry_of(record_name(path), records).code, _ROOT)


def write_record(path: Path, figures: Mapping[str, Any]) -> None:
    """Write figures with machine, commit and digests of the measured code, unless they name the first two, and say so.

    UserError if they come from code that is not committed.
    """
    if any("+dirty" in part["git_commit"] for part in origins(figures)):
        raise UserError(f"{path}: a part was measured with uncommitted code; remove what .cache has of it, and measure")
    here = {} if "machines" in figures else {"machine": machine()}
    write_json(path, {**here, "git_commit": clean_commit(), **figures, "code_digests": measured_code(path)})
    print(f"wrote {path}")

"""What libraries raise on a disk that is really full, and in a folder that really cannot be written, has its code.

In a mount namespace of its own, where the system lets this user have one.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slimtower.common.errors import EXIT_DATA, EXIT_TRANSIENT
from steps.frame.exit_file import read_exit

pytestmark = [pytest.mark.medium, pytest.mark.faults("full disk")]

WRITERS = {
    "torch": "import torch; torch.save(torch.zeros(10**6), where / 'x')",
    "safetensors": "import torch, safetensors.torch as st; st.save_file({'x': torch.zeros(10**6)}, where / 'x')",
    "numpy": "import numpy; numpy.save(where / 'x', numpy.zeros(10**6))",
    "numpy's map": "from steps.core.vector_store import new_array; new_array(where / 'x', 'float32', (10**6,))[:] = 1",
    "pyarrow": "import pyarrow, pyarrow.parquet as pq; pq.write_table(pyarrow.table([range(10**6)], 'x'), where / 'x')",
    "faiss": "import faiss; index = faiss.IndexFlatL2(10**6); index.codes.resize(8 * 10**6); index.ntotal = 2;"
    "faiss.write_index(index, str(where / 'x'))",
    "duckdb": "import duckdb; duckdb.execute(f\"copy (select random() from range(1000000)) to '{where}/x'\")",
    "sqlite": "import sqlite3; sqlite3.connect(where / 'x').execute('create table t as select zeroblob(9000000) x')",
    "python": "(where / 'x').write_bytes(bytes(10**7))",
}
COMMAND = """
import sys
from pathlib import Path
from slimtower.common.errors import guarded
from steps.frame.exit_file import record_exit
from slimtower.common.files import staged_folder
def command():
    with record_exit(), staged_folder(Path(sys.argv[1]) / "output") as where:
        exec(sys.argv[2])
guarded(command)
"""
HIDDEN = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]


def run(folder: Path, options: str, writer: str) -> subprocess.CompletedProcess[str]:
    """Write below a small file system that is mounted on the folder, and print what is left there."""
    folder.mkdir()
    script = 'mount -t tmpfs -o "$1" tmpfs "$2" || exit; small=$2; shift 2; "$@"; code=$?; ls -A "$small"; exit $code'
    words = [
        *HIDDEN,
        "sh",
        "-c",
        script,
        "sh",
        options,
        str(folder),
        sys.executable,
        "-c",
        COMMAND,
        str(folder),
        writer,
    ]
    environment = os.environ | {"SLIMTOWER_EXIT_FILE": str(folder.with_name("exit"))}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    if "unshare failed" in done.stderr or "mount:" in done.stderr:
        pytest.skip("no mount namespaces here")
    return done


@pytest.mark.parametrize("writer", sorted(WRITERS))
def test_a_full_disk_is_one_line_that_says_so(tmp_path: Path, writer: str) -> None:
    done = run(tmp_path / "small", "size=1m", WRITERS[writer])
    (message,) = done.stderr.splitlines()
    assert message.startswith("slimtower: full disk: ") and message.endswith("; free some space, then run again"), (
        message
    )
    assert done.returncode == EXIT_TRANSIENT and not done.stdout, "nothing is left"
    assert read_exit(tmp_path / "exit") == (EXIT_TRANSIENT, message.removeprefix("slimtower: "))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    done = run(tmp_path / "read-only", "ro", "")
    (message,) = done.stderr.splitlines()
    assert (
        f"Read-only file system: '{tmp_path}/read-only/" in message and "write here and in SLIMTOWER_CACHE" in message
    )
    assert done.returncode == EXIT_DATA

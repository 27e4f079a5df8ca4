"""python under_limit.py BYTES RESULT COMMAND...: run a command that may take so much memory, and write what it took.

Private memory that can be written is what the kernel refuses beyond BYTES (RLIMIT_DATA; 0: no limit); torch, DuckDB and
faiss take theirs from there. The peak is that of the largest process and counts what it has mapped from files, too.
A process of its own does this: the peak of a child begins with that of its parent.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    """Run it; exits with its code."""
    limit, result, command = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    if limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    started = time.monotonic()
    code = subprocess.run(command).returncode
    usage = {
        "peak_bytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        "seconds": round(time.monotonic() - started, 1),
    }
    result.write_text(json.dumps(usage))
    raise SystemExit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()

"""A script in a process of its own, which finds other code than the project's: what it answers to a request."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slimtower.common.errors import EXIT_TRANSIENT, TransientError, UserError
from slimtower.common.masking import redacted


def ask(
    script: Path,
    request: Any,
    environment: Mapping[str, str],
    subject: str,
    timeout_s: float,
    advise: Callable[[str], str] = lambda reason: "",
) -> Any:
    """The JSON of the last line that `python -P script` prints when it reads the request; errors name the `subject`.

    UserError with its last line on stderr, and what `advise` says to that, if it fails; TransientError if it reached no
    server or store (exit code 75), was killed, or took more than `timeout_s` seconds.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(script)],
            env=environment,
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise TransientError(
            f"{subject}: stopped after {timeout_s:g} s; look at what else runs here and at the artefact store, then run"
            " again"
        ) from None
    if done.returncode < 0:
        raise TransientError(
            f"{subject}: killed by signal {-done.returncode}, most likely for its memory; give it more, then run again"
        )
    reason = (redacted(done.stderr).strip().splitlines() or ["nothing"])[-1][:500]
    if done.returncode == EXIT_TRANSIENT:
        raise TransientError(f"{subject}: not reached: {reason}; try again")
    if done.returncode:
        raise UserError(f"{subject}: it does not load and answer: {reason}{advise(reason)}")
    return json.loads(done.stdout.splitlines()[-1])

"""What Airflow makes of a task's exit code, whichever runner started it.

    0    done
    99   nothing to do: skipped
    3    wrong data or settings, or a gate: failed, never retried
    75   transient: retried as often as the deployment says
    137  killed or out of memory: retried once, with a smaller micro-batch where the stage has one
    143  asked to stop (a drained node): as 75
    else a defect: failed, never retried

A task that ended without a code (engine or cluster not reached, node lost) is retried as after 75. Tries after one that
was killed stay small, however those between them ended.
"""

from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

NOTHING, REFUSED, TRANSIENT, KILLED, STOPPED = 99, 3, 75, 137, 143
_WORDS = {
    REFUSED: "wrong data or settings",
    TRANSIENT: "transient",
    KILLED: "killed or out of memory",
    STOPPED: "stopped",
}
_MEMORY = "killed_try"  # key of the task's store, which outlives a try: the try that was killed; 0: none


def is_second_chance(context: Any) -> bool:
    """Tell whether a try before this one was killed."""
    killed = context["task_state_store"].get(_MEMORY)
    return bool(killed and killed < context["ti"].try_number)


def settle(code: int, context: Any, last_line: str = "") -> None:
    """Return for 0, otherwise raise what makes Airflow skip, retry or fail; `last_line` is what the task said last."""
    second = is_second_chance(context)
    if second and code not in (TRANSIENT, STOPPED):  # this is the end; who clears the task starts anew
        context["task_state_store"].set(_MEMORY, 0)
    if code == 0:
        return
    reason = f"exit code {code}, {_WORDS.get(code, 'a defect')}" + (f": {last_line}" if last_line else "")
    if code == NOTHING:
        raise AirflowSkipException("exit code 99: nothing to do")
    if code == KILLED and second:
        raise AirflowFailException(f"{reason}; and before this try too. Give it more memory (deployment.yaml: stages)")
    if code not in (TRANSIENT, KILLED, STOPPED):
        raise AirflowFailException(reason)
    if code == KILLED:
        context["task_state_store"].set(_MEMORY, context["ti"].try_number)
    raise AirflowException(reason)

"""Processes of a pool end with the one that started them, however it ends."""

import signal
import subprocess
import sys
import time

import psutil
import pytest

POOL = """
import sys, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from slimtower.common.errors import end_with_parent
if __name__ == "__main__":
    with ProcessPoolExecutor(2, get_context("spawn"), end_with_parent) as pool:
        waiting = [pool.submit(time.sleep, seconds) for seconds in (0, 0, 60, 60)]
        waiting[0].result(), waiting[1].result()
        print("both are there", flush=True)
"""


@pytest.mark.medium
@pytest.mark.faults("files")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_a_killed_process_leaves_none_of_its_pool() -> None:
    with subprocess.Popen([sys.executable, "-c", POOL], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "both are there\n"
        workers = [each for each in psutil.Process(process.pid).children() if "spawn_main" in " ".join(each.cmdline())]
        assert len(workers) == 2
        process.send_signal(signal.SIGKILL)
        until = time.monotonic() + 20
        while any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in workers):
            assert time.monotonic() < until
            time.sleep(0.05)

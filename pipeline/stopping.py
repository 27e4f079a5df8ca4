"""How a command ends that is asked to stop: by an exception, so that what it started is stopped on the way out."""

import signal
from types import FrameType


def stop_when_asked() -> None:
    """Raise SystemExit, 128 and the signal, on SIGTERM, and where the terminal closes unless it runs under `nohup`."""
    signal.signal(signal.SIGTERM, _stopped)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _stopped)


def _stopped(number: int, frame: FrameType | None) -> None:
    for stop_signal in (signal.SIGTERM, signal.SIGHUP):  # asked twice, the way out is cut short
        signal.signal(stop_signal, signal.SIG_IGN)
    raise SystemExit(128 + number)

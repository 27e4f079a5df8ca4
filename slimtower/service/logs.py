"""The service's own log: one JSON object a line. What people search for is not in it unless asked for."""

import json
import logging
import traceback
from datetime import UTC, datetime
from typing import Any

LOGGER = logging.getLogger("slimtower.serve")


class JsonLines(logging.Formatter):
    """A record as JSON: time, level, process, event, and the fields of its `data`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line. Of an exception its type and place are told, not its text, which may hold a query."""
        row: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "pid": record.process,
            "event": record.getMessage(),
        }
        row |= getattr(record, "data", {})
        if record.exc_info and record.exc_info[0]:
            row["exception"] = record.exc_info[0].__name__
            frames = traceback.extract_tb(record.exc_info[2])
            row["where"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames][-8:]
        return json.dumps(row, ensure_ascii=False, default=str)


class ShortLines(logging.Formatter):
    """A record as a person reads it at a terminal: what happened, and what the error says."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; of an exception its type alone, as its text may hold a query."""
        facts = getattr(record, "data", {})
        kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else ""
        parts = [record.getMessage(), *(str(facts[name]) for name in ("system", "error") if name in facts), kind]
        return f"serve: {': '.join(part for part in parts if part)}"


def log_config(*, terminal: bool = False) -> dict[str, Any]:
    """For logging.config.dictConfig, which uvicorn calls in every process; at a terminal warnings and errors alone."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "json": {"()": "slimtower.service.logs.JsonLines"},
            "short": {"()": "slimtower.service.logs.ShortLines"},
        },
        "handlers": {
            "out": {
                "class": "logging.StreamHandler",
                "formatter": "short" if terminal else "json",
                "stream": "ext://sys.stdout",
            }
        },
        "loggers": {
            "slimtower": {"handlers": ["out"], "level": "WARNING" if terminal else "INFO", "propagate": False},
            "uvicorn": {"handlers": ["out"], "level": "WARNING", "propagate": False},
        },
    }

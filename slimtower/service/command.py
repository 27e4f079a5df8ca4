"""`slimtower serve --release models/release`: releases over HTTP, and a page to search with."""

import argparse
import logging
import logging.config
import os
import secrets
import socket
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from slimtower.common.errors import UserError
from slimtower.common.settings import validated
from slimtower.service.settings import SALT, Settings
from slimtower.serving.choice import run_root

if TYPE_CHECKING:
    from slimtower.service.watcher import Watcher

KEPT_S = 75  # so long an idle connection is kept: longer than proxies keep theirs, who would send into a closed one
LOOPBACK = ["localhost", "127.0.0.1", "::1"]
CONNECTIONS = 4  # for each request that may run at once
STOP_S = 30  # so long may requests take that run when the service is asked to stop


def main(words: list[str]) -> None:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when faiss is loaded: idle threads must not spin
    arguments = _parser().parse_args(words)
    settings = _settings(arguments)
    _check_free(arguments.host, arguments.port)
    with ExitStack() as stack:
        if arguments.workers > 1:  # where the processes add their counts up
            shared = stack.enter_context(tempfile.TemporaryDirectory(prefix="slimtower-serve-"))
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = shared
        try:
            _serve(settings, arguments)
        except KeyboardInterrupt:
            print("serve: stopped", file=sys.stderr)


def _serve(settings: Settings, arguments: argparse.Namespace) -> None:
    import uvicorn

    from slimtower.service.app import build_app
    from slimtower.service.service import open_service
    from slimtower.service.telemetry import log_config

    # at a terminal a line for each letter that somebody types is noise, unless the queries are asked for
    log_settings = log_config(terminal=sys.stdout.isatty() and not settings.log_queries)
    logging.config.dictConfig(log_settings)
    service = open_service(settings)
    if settings.release:  # of a registry one waits for the first champion
        _load(service.watcher)
    host = "localhost" if arguments.host in ("127.0.0.1", "0.0.0.0", "::") else arguments.host
    systems = ", ".join(service.watcher.current.students) if service.watcher.current else settings.model
    print(f"serve: {systems} at http://{host}:{arguments.port}  (Ctrl-C stops)", file=sys.stderr, flush=True)
    alone = settings.workers == 1
    if not alone:
        settings.to_environment()
    uvicorn.run(
        build_app(service) if alone else "slimtower.service.app:from_environment",
        factory=not alone,
        workers=settings.workers,
        host=arguments.host,
        port=arguments.port,
        http="slimtower.service.limits:Connection",
        ws="none",
        limit_concurrency=CONNECTIONS * settings.max_requests,
        log_config=log_settings,
        access_log=False,  # it would hold queries
        server_header=False,
        proxy_headers=bool(arguments.trusted_proxies),
        forwarded_allow_ips=arguments.trusted_proxies or None,
        timeout_keep_alive=KEPT_S,
        timeout_graceful_shutdown=STOP_S,
        timeout_worker_healthcheck=60,
    )


def _load(watcher: "Watcher") -> None:
    """Look for releases once. UserError if none loads, which is then said once, and not in the log as well."""
    logger = logging.getLogger("slimtower.serve")
    logger.addFilter(_is_no_error)
    watcher.refresh()
    logger.removeFilter(_is_no_error)
    if watcher.current is None:
        raise UserError("; ".join(failure.message for failure in watcher.failures.values()))
    for name, failure in watcher.failures.items():
        logger.error("not loaded", extra={"data": {"system": name, "error": failure.message}})


def _is_no_error(record: logging.LogRecord) -> bool:
    return record.levelno < logging.ERROR


def _settings(arguments: argparse.Namespace) -> Settings:
    if arguments.recipe and (arguments.release or arguments.model):
        raise UserError("serve: --recipe takes the releases of its run; leave --release and --model out")
    release = arguments.release or ("" if arguments.model else str(run_root(arguments.recipe) / "models/release"))
    values = vars(arguments) | {
        "release": str(Path(release)) if release else "",
        "hosts": named(arguments.hosts) or (LOOPBACK if arguments.host in LOOPBACK else []),
        "threads": arguments.threads or processors(),
        "salt": os.environ.get(SALT) or secrets.token_hex(32),
    }
    values = {name: value for name, value in values.items() if name in Settings.model_fields}
    return validated(Settings, values, "serve")


def named(hosts: str) -> list[str]:
    """Names that commas part, in lower case."""
    return [name.strip().lower() for name in hosts.split(",") if name.strip()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slimtower serve", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--recipe", default="", help="the releases of this recipe's run, e.g. recipes/beir.yaml")
    add("--host", default="127.0.0.1", help="address to listen at; 0.0.0.0 for all")
    add("--hosts", default="", help="names that requests may call it by, parted by commas (this machine's own where it"
        " listens to this machine alone, else any)")  # fmt: skip
    add("--port", type=int, default=8000, help="port to listen at")
    add("--trusted-proxies", default="", help="addresses whose X-Forwarded-For tells the client, such as 10.0.0.0/8")
    for name, field in Settings.model_fields.items():
        flag, kind = name.removesuffix("_s").replace("_", "-"), cast(Any, field.annotation)
        common: dict[str, Any] = {"dest": name, "default": field.default, "help": field.description}
        if not field.description:
            continue
        if kind is bool and field.default:
            add(f"--no-{flag}", action="store_false", **common)
        elif kind is bool:
            add(f"--{flag}", action="store_true", **common)
        elif choices := get_args(kind):
            add(f"--{flag}", choices=choices, **common)
        else:
            add(f"--{flag}", type=kind, metavar=flag.upper().replace("-", "_"), **common)
    return parser


def processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_free(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"serve: {host}:{port}: {reason}; name another port (PORT=8001) or --host") from None

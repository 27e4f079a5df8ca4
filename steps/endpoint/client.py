"""Asks a server with `POST /v1/embeddings` for vectors: within limits, again where that may help, nothing unchecked.

It is OpenAI's own client that talks; waiting is done here, because a limit is shared by all threads.
"""

import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import islice
from math import ceil
from pathlib import Path
from random import random
from typing import Any, BinaryIO

import numpy as np

from slimtower.common.errors import TransientError, UserError
from slimtower.common.masking import redacted, remember
from steps.endpoint.answer import MalformedAnswer, TransientAnswer, is_transient, read_answer, tokens_of, vectors_of
from steps.endpoint.params import Connection

_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0  # seconds before another try, doubled each time
_LONGEST_ASKED = 3600.0  # seconds that a server may ask to wait
BATCH_TOKENS = 50_000  # of a request, at most, by estimate
_EXCERPT = 200  # characters of an answer that a message shows


class OtherDimensions(UserError):
    """The server answered with vectors of another length than before."""


@dataclass(frozen=True)
class Batch:
    """Texts of one request under their keys, and about how many tokens they have together."""

    keys: list[bytes]
    texts: list[str]
    tokens: int


class TokenLedger:
    """Tokens that answers have cost, kept in a file that all runs on one cache share.

    A line is `tokens estimated reserved`: what the server said, what had been estimated, and what a request under way
    may cost, which is taken back when it is answered. What a killed run reserved stays: the server may have answered.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._lock, self._offset = path, threading.Lock(), 0
        self.tokens = self.estimated = self.reserved = 0
        self.refresh()

    def refresh(self) -> None:
        """Read what has been added since, by any run."""
        if self.path.is_file():
            with self._lock, self.path.open("rb") as handle:
                self._catch_up(handle)

    def hold(self, estimated: int, limit: int, model: str) -> int:
        """Set aside and return what a request may cost; UserError if all runs' would pass `limit` (0 = none)."""
        with self._lock_file() as handle:
            needed = ceil(self.expected_tokens(estimated))
            if limit and self.tokens + self.reserved + needed > limit:
                under_way = f" {self.reserved:,} are under way or were when a run was killed," if self.reserved else ""
                raise UserError(
                    f"{model}: {self.tokens:,} tokens are spent,{under_way} about {needed:,} come next, and"
                    f" max_tokens_total is {limit:,}; raise it to go on (nothing is paid for twice)"
                )
            self._write(handle, 0, 0, needed)
        return needed

    def add(self, tokens: int, estimated: int, reserved: int) -> None:
        """Note at once what a request cost for which so much was reserved: a killed run has paid for it too."""
        with self._lock_file() as handle:
            self._write(handle, tokens, estimated, -reserved)

    @contextmanager
    def _lock_file(self) -> Iterator[BinaryIO]:
        """The file, read to its end, which no other thread or run writes to meanwhile."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock, self.path.open("a+b") as handle:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            self._catch_up(handle)
            yield handle

    def _catch_up(self, handle: BinaryIO) -> None:
        handle.seek(self._offset)
        while (line := handle.readline()).endswith(b"\n"):
            self._offset += len(line)
            if len(figures := line.split()) == 3:
                self._count(*map(int, figures))

    def _write(self, handle: BinaryIO, *figures: int) -> None:
        torn = handle.seek(0, os.SEEK_END) - self._offset  # what a killed run left of a line
        line = b" . . .\n" * bool(torn) + f"{' '.join(map(str, figures))}\n".encode()
        handle.write(line)
        handle.flush()
        self._offset += torn + len(line)
        self._count(*figures)

    def _count(self, tokens: int, estimated: int, reserved: int) -> None:
        self.tokens, self.estimated = self.tokens + tokens, self.estimated + estimated
        self.reserved += reserved

    def expected_tokens(self, estimated: int) -> float:
        """Tokens that so many estimated ones will be, by what was seen so far; never fewer."""
        return estimated * max(1.0, self.tokens / self.estimated if self.estimated else 1.0)


class Pace:
    """Lets requests begin one after the other, so that no minute has more of them, or of their tokens, than allowed."""

    def __init__(self, requests: int, tokens: int) -> None:
        """`requests` and `tokens` a minute; 0 = any number."""
        self.requests, self.tokens = requests, tokens
        self._free = self._paused = 0.0
        self._lock = threading.Lock()
        self.over = threading.Event()  # nobody wants the answers any more

    def wait(self, tokens: int) -> None:
        """Wait for the turn of a request with so many tokens; a pause gives new turns to all that wait."""
        start = self._turn(tokens)
        while (remaining := max(start, self._paused) - time.monotonic()) > 0:
            if self.over.wait(remaining):
                return
            if start < self._paused:
                start = self._turn(tokens)

    def _turn(self, tokens: int) -> float:
        with self._lock:
            start = max(time.monotonic(), self._free, self._paused)
            interval = 60 / self.requests if self.requests else 0.0
            self._free = start + max(interval, 60 * tokens / self.tokens if self.tokens else 0.0)
        return start

    def pause(self, seconds: float) -> None:
        """Let no request begin before that."""
        with self._lock:
            self._paused = max(self._paused, time.monotonic() + seconds)


class WaitClock:
    """Seconds in which requests were held back here and none was under way."""

    def __init__(self) -> None:
        self.seconds = self._since = 0.0
        self._waiting = self._asking = 0
        self._lock = threading.Lock()

    @contextmanager
    def during(self, *, waiting: int = 0, asking: int = 0) -> Iterator[None]:
        """So many more requests are held back, or under way, meanwhile."""
        self._turn(waiting, asking)
        try:
            yield
        finally:
            self._turn(-waiting, -asking)

    def _turn(self, waiting: int, asking: int) -> None:
        with self._lock:
            moment = time.monotonic()
            if self._waiting and not self._asking:
                self.seconds += moment - self._since
            self._waiting, self._asking, self._since = self._waiting + waiting, self._asking + asking, moment


class Client:
    """One model of one server in one role. The key is read from the environment, and shown nowhere."""

    def __init__(
        self,
        model: str,
        dimensions: int,
        body: dict[str, Any],
        connection: Connection,
        spent: TokenLedger,
        dim: int = 0,
    ) -> None:
        """`dimensions` are asked for where above 0; `dim`: what every vector has; 0 = what the first one has."""
        try:
            import openai
        except ImportError:
            raise UserError("an endpoint is asked by OpenAI's client; `pip install openai`") from None
        self.model, self.body, self.connection, self.spent, self.dim = model, body, connection, spent, dim
        self.more: dict[str, Any] = {"dimensions": dimensions} if dimensions else {}
        self.pace = Pace(connection.requests_per_minute, connection.tokens_per_minute)
        self.wait_clock = WaitClock()
        self._key = _key(connection.key_variable)
        self._openai = openai.OpenAI(
            api_key=self._key or "none", base_url=connection.base_url, timeout=connection.timeout_s, max_retries=0
        )

    def answers(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, np.ndarray]]:
        """Every batch with its vectors `(texts, dim)`, float32, as soon as they are there.

        Where one cannot be had, what was asked beside it is given first: it is paid for. UserError, TransientError
        where the server stayed busy, or where the next batch would pass max_tokens_total.
        """
        waiting, running = iter(batches), dict[Future[np.ndarray], Batch]()
        failed: BaseException | None = None
        self.pace.over.clear()
        with ThreadPoolExecutor(self.connection.concurrency) as threads, ExitStack() as stack:
            stack.callback(self.pace.over.set)  # stopped, it does not wait as long as a server asked for
            while True:
                for batch in islice(waiting, 0 if failed else self.connection.concurrency - len(running)):
                    running[threads.submit(self._embed_batch, batch)] = batch
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    batch = running.pop(future)
                    if missed := future.exception():
                        failed = failed or missed
                    else:
                        yield batch, future.result()
        if failed:
            raise failed

    def _embed_batch(self, batch: Batch) -> np.ndarray:
        problem = ""
        for attempt in range(self.connection.tries):
            with self.wait_clock.during(waiting=1):
                self.pace.wait(ceil(self.spent.expected_tokens(batch.tokens)))
            if self.pace.over.is_set():
                break
            with self.wait_clock.during(asking=1):
                asked_to_wait, problem, vectors = self._try_once(batch)
            if vectors is not None:
                return vectors
            if attempt + 1 < self.connection.tries:
                backoff = min(_FIRST_WAIT * 2**attempt, _LONGEST_WAIT) * (0.5 + random() / 2)
                if asked_to_wait is None:
                    self.pace.over.wait(backoff)
                else:
                    self.pace.pause(max(asked_to_wait, backoff))  # servers say 0 and are busy again
        raise TransientError(
            f"{self.connection.base_url}: no usable answer in {self.connection.tries} tries (last: {problem}); what was"
            " answered is kept, so run again later, with a smaller concurrency or lower limits if it was busy"
        )

    def _try_once(self, batch: Batch) -> tuple[float | None, str, np.ndarray | None]:
        """One request: seconds that the server asks to wait, what went wrong, and the vectors where nothing did."""
        import openai

        reserved, usage = self.spent.hold(batch.tokens, self.connection.max_tokens_total, self.model), 0
        content = b""
        try:
            # the client's own reading of an answer hides what came
            content = self._openai.embeddings.with_raw_response.create(
                model=self.model, input=batch.texts, extra_body=self.body, **self.more
            ).content
            answer = read_answer(content)
            usage = tokens_of(answer) or batch.tokens
            vectors = vectors_of(answer, len(batch.texts))
        except openai.APIStatusError as error:
            problem = self._mask(f"{error.status_code}, {error.message}")
            spent = getattr(error, "code", None) == "insufficient_quota"
            if spent or not is_transient(error.status_code):
                raise UserError(
                    f"{self.connection.base_url}: refused {self.model}: {problem}; check base_url, model, dimensions,"
                    " body, max_length (counted by tokenizer), batch_texts and the key in"
                    f" {self.connection.key_variable or 'key_variable (none)'}"
                ) from None
            return _retry_after(error.response.headers.get("retry-after")), problem, None
        except MalformedAnswer as error:
            raise UserError(
                f"{self.connection.base_url}: {self.model} answered with {error}; asking again would cost the same, so"
                f" the stage stops. It came: {self._mask(content.decode('utf-8', 'replace'))[:_EXCERPT]}"
            ) from None
        except TransientAnswer as error:
            usage = batch.tokens if error.billed else 0
            return None, f"{error}: {self._mask(content.decode('utf-8', 'replace'))[:_EXCERPT]}", None
        except (openai.OpenAIError, OSError, ValueError, TypeError, AttributeError) as error:
            usage = batch.tokens if _was_sent(error) else 0  # the server may have answered
            return None, self._mask(f"{type(error).__name__}: {error}"), None
        finally:  # where it cannot be noted, on a full disk, asking again would only cost
            self.spent.add(usage, batch.tokens if usage else 0, reserved)
        self.dim = self.dim or vectors.shape[1]
        if vectors.shape[1] != self.dim:
            raise OtherDimensions(
                f"{self.connection.base_url}: {self.model} answered with {vectors.shape[1]} dimensions, not {self.dim}:"
                " another model is behind the name now; give the name of the old one"
            )
        return None, "", vectors

    def _mask(self, text: str) -> str:
        plain = text.replace(self._key, "***") if self._key else text
        return " ".join(redacted(plain).split())[:300]


def _was_sent(error: Exception) -> bool:
    """Whether a request that got no answer may have reached the server, which then bills it."""
    return type(error.__cause__).__name__ in {
        "ReadTimeout",
        "ReadError",
        "RemoteProtocolError",
        "WriteError",
        "WriteTimeout",
    }


def _key(variable: str) -> str:
    if not variable:
        return ""
    if not (key := os.environ.get(variable, "").strip()):
        raise UserError(f'{variable} is not set; export the API\'s key there, or set key_variable: ""')
    remember(key)
    if not (key.isascii() and key.isprintable()):
        raise UserError(f"{variable} holds characters that no key has, as a text's dash; copy the key again")
    return key


def _retry_after(value: str | None) -> float | None:
    """Seconds of the header Retry-After, a number or a date; None without one that can be read."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):
            return None
    return min(max(seconds, 0.0), _LONGEST_ASKED)


def batches(texts: Iterable[tuple[bytes, str]], tokens: Callable[[str], int], limits: Connection) -> Iterator[Batch]:
    """Texts with their keys, in batches of at most batch_texts texts and BATCH_TOKENS, or a minute's, tokens."""
    keys, pending, total = list[bytes](), list[str](), 0
    most = min(BATCH_TOKENS, limits.tokens_per_minute or BATCH_TOKENS)
    for key, text in texts:
        count = tokens(text)
        if pending and (len(pending) == limits.batch_texts or total + count > most):
            yield Batch(keys, pending, total)
            keys, pending, total = [], [], 0
        keys.append(key)
        pending.append(text)
        total += count
    if pending:
        yield Batch(keys, pending, total)

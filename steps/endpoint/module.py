"""A module of a tower that a server reads for: texts go to `/v1/embeddings`, each once, and vectors come back.

What is known is known by what is sent. A server without roles is sent the same for both, so a text that is a document
and a query is paid for once.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from sentence_transformers.base.modules.input_module import InputModule
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from slimtower.common.errors import UserError
from slimtower.common.files import cache_root, read_json, staged_file, write_json
from slimtower.common.settings import Strict
from steps.core.cosines import cosines
from steps.core.vector_store import Embeddings, VectorCache
from steps.endpoint.client import Client, OtherDimensions, TokenLedger, batches
from steps.endpoint.params import Connection

PROBES = (
    "how to sum the rows of a matrix",
    "The liver stores vitamins; its enzymes break down what would harm the body.",
    "Straße, naïve, 東京, здравствуйте",
    "a",
)
_SAME = 0.999  # cosine of a probe's vectors from one model; batches and processors make up to 0.0005 of difference
_PROBES, _CONNECTION = "probes.safetensors", "connection.json"


@dataclass
class WaitTime:
    """Seconds that requests were held back here, by limits or because the server asked for it; how many requests."""

    seconds: float = 0.0
    requests: int = 0


_anew: ContextVar[WaitTime | None] = ContextVar("anew", default=None)


@contextmanager
def asking_anew() -> Iterator[WaitTime]:
    """Let endpoints ask the server for every text, known or not, as an application would: for timing."""
    waited = WaitTime()
    token = _anew.set(waited)
    try:
        yield waited
    finally:
        _anew.reset(token)


class Model(Strict):
    """What decides the vectors: the model's name, dimensions to ask for (0 = its own), what else a request has."""

    model: str
    dimensions: int
    body: dict[str, Any]
    max_length: int

    def sent(self) -> str:
        """All that a request says besides its texts."""
        return json.dumps(self.model_dump(exclude={"max_length"}), sort_keys=True)


class Endpoint(InputModule):
    """Embeddings of one role by a server. Its tokenizer only counts: the model's own is not known.

    `probes` are its vectors of PROBES, `(4, dim)`: what it is known by. Each process that asks it anything asks for
    them first. Answers are kept below SLIMTOWER_CACHE, request by request.
    """

    def __init__(
        self, model: Model, connection: Connection, tokenizer: PreTrainedTokenizerBase, probes: np.ndarray | None = None
    ) -> None:
        """Without `probes` the server is asked for them; UserError where it has another model than it once had."""
        super().__init__()
        self.model, self.connection, self.tokenizer = model, connection, tokenizer
        self._count = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())  # reads a text whole
        self._count.no_truncation()
        self._count.no_padding()
        self._clients: dict[str, Client] = {}
        self._caches: dict[str, VectorCache] = {}
        self.probes = self._first_probes() if probes is None else probes

    def share(self, other: "Endpoint") -> None:
        """Ask as the other does, and know what it knows, where both send the same."""
        self._clients, self._caches = other._clients, other._caches

    def get_embedding_dimension(self) -> int:
        return int(self.probes.shape[1])

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **_: Any) -> dict[str, Any]:
        """The texts as they are sent, behind the prompt."""
        return {"texts": [(prompt or "") + str(text) for text in inputs]}

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        features["sentence_embedding"] = torch.from_numpy(self.embed(features["texts"]))
        return features

    def embed(self, texts: list[str]) -> np.ndarray:
        """Vectors of texts as they are, but cut to max_length tokens, `(len(texts), dim)`; asked for once each.

        UserError and TransientError as `Client.answers` has them.
        """
        sent = [self.cut(text) for text in texts]
        if not sent:
            return np.zeros((0, self.get_embedding_dimension()), dtype=np.float32)
        if (waited := _anew.get()) is not None:
            client = self._client
            before = client.wait_clock.seconds
            vectors = self._request_vectors(client, sent)
            waited.seconds += client.wait_clock.seconds - before
            waited.requests += 1
            return vectors
        missing = list(batches(self._cache.missing(sent), self.tokens, self.connection))
        for batch, vectors in self._client.answers(missing) if missing else ():
            self._cache.add(batch.keys, Embeddings(vectors, np.linalg.norm(vectors, axis=1)))
        return self._cache.load(sent)

    def announce(self, texts: Iterable[str], prompt: str, caption: str) -> int:
        """Say on stderr what is left to ask, in tokens and money; how many texts. UserError past max_tokens_total."""
        return announce([(self, (prompt + text for text in texts))], caption)

    def outstanding(self, texts: Iterable[str], seen: set[bytes]) -> tuple[int, int]:
        """How many of these texts, prompt and all, are still to be asked for, and about how many tokens they have.

        Those whose keys are in `seen` are not; it grows by the others.
        """
        count = estimated = 0
        for _, text in self._cache.missing((self.cut(text) for text in texts), seen):
            count, estimated = count + 1, estimated + self.tokens(text)
        return count, estimated

    def tokens(self, text: str) -> int:
        """About how many tokens the text has."""
        return len(self._count.encode(text).ids)

    def cut(self, text: str, limit: int = 0) -> str:
        """The text up to `limit` tokens, by default max_length; a blank for an empty one, which servers refuse."""
        limit = limit or self.model.max_length
        if len(text.encode(errors="replace")) > limit:  # a token has a byte at least
            offsets = self._count.encode(text, add_special_tokens=False).offsets
            if len(offsets) > limit:
                text = text[: offsets[limit - 1][1]]
        return text or " "

    def so_far(self) -> str:
        """What all answers to this model's name have cost."""
        return self.connection.cost(self.spent.tokens)

    @cached_property
    def _folder(self) -> Path:
        """What a model of this name and dimensions was known by: its probes."""
        named = self.model.model_dump_json(include={"model", "dimensions"})
        return cache_root() / "endpoint" / sha256(named.encode()).hexdigest()[:24]

    @cached_property
    def _key(self) -> str:
        return sha256(self.model.sent().encode() + self.probes.tobytes()).hexdigest()[:24]

    @property
    def _cache(self) -> VectorCache:
        if self._key not in self._caches:
            self._caches[self._key] = VectorCache(cache_root() / "vectors" / self._key, "float32")
        return self._caches[self._key]

    @cached_property
    def spent(self) -> TokenLedger:
        """Tokens that all answers to this model's name have cost."""
        name = sha256(self.model.model.encode()).hexdigest()[:24]
        return TokenLedger(cache_root() / "endpoint" / f"spent-{name}.txt")

    @property
    def _client(self) -> Client:
        """Asks the server, which is the one that it was."""
        if self._key not in self._clients:
            client = self._connect(self.get_embedding_dimension())
            if not _alike(self._request_vectors(client, PROBES), self.probes):
                raise self._changed_error()
            self._clients[self._key] = client
        return self._clients[self._key]

    def _connect(self, dim: int) -> Client:
        return Client(self.model.model, self.model.dimensions, self.model.body, self.connection, self.spent, dim)

    def _request_vectors(self, client: Client, texts: Sequence[str]) -> np.ndarray:
        keyed = ((number.to_bytes(8), text) for number, text in enumerate(texts))  # their order is that of the texts
        by_key = dict[bytes, np.ndarray]()
        try:
            for batch, vectors in client.answers(batches(keyed, self.tokens, self.connection)):
                by_key |= dict(zip(batch.keys, vectors, strict=True))
        except OtherDimensions:
            raise self._changed_error() from None
        return np.stack([by_key[number.to_bytes(8)] for number in range(len(texts))])

    def _first_probes(self) -> np.ndarray:
        """The probes saved for a model of this name, so that it stays the same to the bit, or new ones."""
        probes = self._request_vectors(self._connect(0), PROBES)
        prefix = sha256(self.model.sent().encode()).hexdigest()[:16]
        target = self._folder / f"{prefix}-{sha256(self.connection.base_url.encode()).hexdigest()[:16]}.npy"
        for path in sorted(self._folder.glob(f"{prefix}-*.npy")):
            if _alike(probes, saved := np.load(path)):
                return saved
        if target.is_file():
            raise self._changed_error()
        with staged_file(target) as staging, staging.open("wb") as handle:
            np.save(handle, probes)
        return probes

    def _changed_error(self) -> UserError:
        return UserError(
            f"{self.connection.base_url}: {self.model.model} answers with other vectors than it did: another model is"
            " behind the name now, and what was embedded does not belong to it; give the name of the old one, or, to"
            f" pay for all texts anew with this one, remove {self._folder} and run `dvc repro -f teach`"
        )

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        """Write what it is and what it is known by; of the key only the variable's name."""
        folder = Path(output_path)
        write_json(folder / "config.json", self.model.model_dump())
        write_json(folder / _CONNECTION, self.connection.model_dump())
        save_file({"probes": self.probes}, folder / _PROBES)
        self.save_tokenizer(output_path)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", *_: Any, **__: Any) -> Self:
        """Read what `save` wrote; asks no server."""
        folder = Path(model_name_or_path, subfolder)
        return cls(
            Model.model_validate(read_json(folder / "config.json")),
            Connection.model_validate(read_json(folder / _CONNECTION)),
            AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False),
            load_file(folder / _PROBES)["probes"],
        )


def announce(jobs: Iterable[tuple[Endpoint, Iterable[str]]], caption: str) -> int:
    """Say on stderr what is still to be asked of texts, prompts and all, in tokens and money; returns how many texts.

    Nothing is said where all are known. The endpoints are roles of one model; what two of them send alike counts once.
    UserError where all jobs together would pass max_tokens_total.
    """
    count = estimated = 0
    seen = defaultdict[str, set[bytes]](set)
    for endpoint, texts in jobs:
        more, tokens = endpoint.outstanding(texts, seen[endpoint.model.sent()])
        count, estimated = count + more, estimated + tokens
    if not count:
        return 0
    connection, spent = endpoint.connection, endpoint.spent
    spent.refresh()
    needed, limit = spent.expected_tokens(estimated), connection.max_tokens_total
    message = f"{caption}: {count:,} texts to ask {endpoint.model.model} for, about {connection.cost(needed)}"
    print(f"{message}; spent before: {connection.cost(spent.tokens)}", file=sys.stderr)
    if limit and spent.tokens + spent.reserved + needed > limit:
        raise UserError(
            f"{message}; {spent.tokens + spent.reserved:,} are spent and max_tokens_total is {limit:,}: raise it, or"
            " embed fewer texts"
        )
    return count


def _alike(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether both are probes of one model: the same directions, and the same lengths to a hundredth."""
    if first.shape != second.shape:
        return False
    first_lengths, second_lengths = np.linalg.norm(first, axis=1), np.linalg.norm(second, axis=1)
    return bool((cosines(first, second) >= _SAME).all()) and np.allclose(first_lengths, second_lengths, rtol=0.01)

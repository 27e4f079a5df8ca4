"""What a run leaves of a data set's index for the next one, under SLIMTOWER_CACHE.

What is trained (centroids, quantisers, codebooks) is kept until more than RETRAIN_AFTER of the vectors have
changed since. The vectors themselves are not kept: the exact index is as quickly copied from the present ones.
"""

import os
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

import faiss
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slimtower.common.errors import UserError, line
from slimtower.common.files import cache_root, last_used, read_json, staged_folder, write_json
from steps.core.code import code_digest
from steps.index.incremental import Match, match
from steps.index.params import IndexParams
from steps.index.semantic_ids import SemanticIds
from steps.index.tuning import ExactTopK

KEPT_STATES = 4  # states of one data set: a champion's, its challenger's, and two that someone tries out
_IDS, _TOP = ("books", "codes", "left"), ("rows", "scores")


@dataclass(frozen=True)
class TunedSettings:
    """The settings that were chosen for the approximate index of this factory string, and how far they were tuned."""

    factory: str
    settings: dict[str, int]
    target: float
    met: bool


@dataclass(frozen=True)
class State:
    """What an index was trained on and what was made of it; `changed`: vectors exchanged since.

    `tuned`: None for an index in shards or none; `top`: exact hits of the queries with the digest `asked`.
    """

    trained_on: int
    changed: int
    tuned: TunedSettings | None
    ids: SemanticIds
    top: ExactTopK | None
    asked: str


@dataclass(frozen=True)
class Previous:
    """A state, which of the present documents it knows, and its index's open file, whatever becomes of the folder."""

    state: State
    match: Match
    file: BinaryIO | None

    def changed(self) -> int:
        """Vectors changed since training, this time included."""
        return self.state.changed + self.match.exchanged

    def drift(self) -> float:
        """The same as a share of those trained on."""
        return self.changed() / self.state.trained_on

    def index(self) -> faiss.Index | None:
        """The approximate index as it was, where the state is tuned; None, and a line, when it cannot be read."""
        assert self.file is not None
        self.file.seek(0)
        try:
            return faiss.read_index(faiss.PyCallbackIOReader(self.file.read))  # type: ignore[attr-defined]
        except RuntimeError as error:
            _tell(self.file.name, error)
            return None


def state_folder(teacher: str, dataset: str, params: IndexParams) -> Path:
    """Cache folder of one data set's index: all that decides how it is trained is in its name."""
    knobs = params.model_dump(exclude={"target_recall"})
    settings = (code_digest("steps.index.dataset"), teacher, sorted(knobs.items()), faiss.__version__)
    return cache_root() / "index" / dataset / sha256(repr(settings).encode()).hexdigest()[:24]


def load(folder: Path, doc_ids: pa.ChunkedArray, digests: np.ndarray) -> Previous | None:
    """The state in `folder`, matched with the present documents by id and vector digest; None when there is none.

    None, too, when another run replaced it meanwhile, or, with a line, when it cannot be read, as after a power
    failure. A run over a past window (SLIMTOWER_BACKFILL) neither goes on from a state nor leaves one.
    """
    if os.environ.get("SLIMTOWER_BACKFILL") or not (folder / "state.json").is_file():
        return None
    before = _identity(folder)
    try:
        previous = _read_state(folder, doc_ids, digests)
    except MemoryError:  # pyarrow's is an ArrowException too
        raise
    except (OSError, UserError, ValueError, LookupError, TypeError, EOFError, pa.ArrowException) as error:
        if before == _identity(folder):
            _tell(folder, error)
        return None
    return previous if before == _identity(folder) else None


def _tell(source: Path | str, error: Exception) -> None:
    print(f"index: WARNING: {source} cannot be read ({line(error)[:200]}); the index is built anew", file=sys.stderr)


def _identity(folder: Path) -> tuple[int, int] | None:
    with suppress(FileNotFoundError):
        status = folder.stat()
        return status.st_ino, status.st_mtime_ns
    return None


def _read_state(folder: Path, doc_ids: pa.ChunkedArray, digests: np.ndarray) -> Previous:
    os.utime(folder / "state.json")  # used: prune keeps it
    values: dict[str, Any] = read_json(folder / "state.json")
    documents = pq.read_table(folder / "documents.parquet")
    top = {name: np.load(folder / f"{name}.npy") for name in _TOP if (folder / f"{name}.npy").is_file()}
    state = State(
        trained_on=values["trained_on"],
        changed=values["changed"],
        tuned=TunedSettings(**values["tuned"]) if values["tuned"] else None,
        ids=SemanticIds(**{name: np.load(folder / f"{name}.npy") for name in _IDS}),
        top=ExactTopK(**top) if top else None,
        asked=values["asked"],
    )
    file = (folder / "ann.faiss").open("rb") if state.tuned else None
    return Previous(state, match(documents["doc_id"], documents["digest"].to_numpy(), doc_ids, digests), file)


def save(folder: Path, state: State, doc_ids: pa.ChunkedArray, digests: np.ndarray, ann: Path) -> None:
    """Keep a state and a copy of its approximate index, the file `ann`; old states of the data set go."""
    if os.environ.get("SLIMTOWER_BACKFILL"):
        return
    with staged_folder(folder) as staging:
        if state.tuned:
            shutil.copyfile(ann, staging / "ann.faiss")
        table = pa.table({"doc_id": doc_ids, "digest": pa.array(digests)})
        pq.write_table(table, staging / "documents.parquet", use_dictionary=False)
        for arrays, names in ((state.ids, _IDS), (state.top, _TOP)):
            for name in names if arrays else ():
                np.save(staging / f"{name}.npy", getattr(arrays, name))
        values = {name: getattr(state, name) for name in ("trained_on", "changed", "asked")}
        write_json(staging / "state.json", values | {"tuned": vars(state.tuned) if state.tuned else None})
    prune(folder.parent)


def prune(folder: Path) -> None:
    """Remove all states in a data set's folder but the KEPT_STATES used last."""
    states = sorted(folder.glob("*/state.json"), key=last_used, reverse=True)
    for path in states[KEPT_STATES:]:
        path.unlink(missing_ok=True)  # without it what a kill leaves is no state
        shutil.rmtree(path.parent, ignore_errors=True)

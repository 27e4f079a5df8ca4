"""What every teacher has as knobs in params.yaml, what it is made of, and where it leaves what it was before."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from slimtower.common.files import write_json
from slimtower.common.settings import Strict
from steps.core.params import Capability

EARLIER, TOWERS = "earlier", "towers.json"  # a folder of what a teacher was before, and its list


class Teacher(Strict):
    """Base of all kinds. A subclass in a module of this package is known by its `kind` in params.yaml.

    `steps/teach/<kind>.py` makes it: `teach(inputs, output, params, run)` writes `output/tower` and
    `output/report.json`, which names the kind. It may leave towers that it was before as well,
    `output/earlier/<name>`, for `evaluate` to compare it with: `list_towers` names them.
    """

    gives: ClassVar[frozenset[Capability]] = frozenset({"vectors", "local"})

    trains_in_processes: ClassVar[bool] = False  # whether several train it together; of these rank 0 alone may write

    kind: str
    """What the teacher is."""

    @property
    def embeds(self) -> Literal["pooled", "joint"] | None:
        """What its embeddings of pairs are of: a text, given the document, or both; None if it embeds no pairs."""
        return None

    @property
    def checking_ranker(self) -> str:
        """The ranker that checks the hard negatives of its rounds; "" for none."""
        return ""


class Inputs(NamedTuple):
    """Folders that a teacher is made of: tables of `ingest`, triplets of `mine`, and a folder for each ranker."""

    ingest: Path
    mine: Path
    rankers: Path


def list_towers(output: Path, names: Sequence[str]) -> None:
    """Write `output/earlier/towers.json`: the names of the towers there, the oldest first."""
    write_json(output / EARLIER / TOWERS, list(names))


class Prompted(Strict):
    """Text in front of texts, which is saved with the teacher: all that it reads and all that it trains on have it."""

    query_prompt: str | None = None
    """Text in front of each query, such as "query: " for E5; null = as the base was saved, "" = none."""
    document_prompt: str | None = None
    """Text in front of each document, such as "passage: " for E5; null = as the base was saved, "" = none."""

"""Section `rank` of params.yaml."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from slimtower.common.errors import UserError
from slimtower.common.settings import Strict
from steps.core.params import Capability, Name
from steps.training.params import CROSS_ENCODER_GIVES, RankerTraining

DEPTH = 50  # candidates of each searcher that are scored, a query; of the ranker's order `mine` reads as many ranks


class CrossEncoderParams(RankerTraining):
    """A cross encoder that scores candidates of the training queries, which triplets are then mined from."""

    gives: ClassVar[frozenset[Capability]] = CROSS_ENCODER_GIVES
    embeds: ClassVar[str] = "joint"

    kind: Literal["cross_encoder"] = "cross_encoder"
    max_queries: int = Field(default=0, ge=0)
    """Training queries whose candidates are scored; 0 = all."""
    dev_queries: int = Field(default=300, ge=0)
    """Judged dev queries on which it is compared with BM25's order; 0 = no comparison."""


class RankParams(Strict):
    """The rankers by name, and which of them, if any, a run trains.

    A ranker shares its folder below models/teach with the teachers: that teach.teachers does not have its name as well
    is checked where all sections are read.
    """

    rankers: list[Name]
    """Those of a run: at most one of those described in `ranker`; [] = none. It can score for students as well
    (score.teachers), so no teacher may have its name.
    """
    ranker: dict[Name, CrossEncoderParams]
    """The rankers by name."""

    def described(self, name: str) -> CrossEncoderParams:
        """What `ranker` says of one of them; UserError for a name that it does not have."""
        if name not in self.ranker:
            raise UserError(f"rank.ranker has no {name!r}; it describes {sorted(self.ranker)}")
        return self.ranker[name]

    @model_validator(mode="after")
    def _names_belong_together(self) -> Self:
        if len(self.rankers) > 1:
            raise ValueError(f"rankers names {self.rankers}, but triplets are mined from one; name one, or none: []")
        if missing := [name for name in self.rankers if name not in self.ranker]:
            raise ValueError(f"rankers names {missing}, but ranker has {sorted(self.ranker)}; describe it there")
        return self

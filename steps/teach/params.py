"""Section `teach` of params.yaml."""

from typing import Self

from pydantic import Field, model_validator

from slimtower.common.errors import UserError
from slimtower.common.settings import Strict
from steps.core.params import Name
from steps.teach.kinds import AnyTeacher
from steps.teach.kinds.base import Teacher


class TeachParams(Strict):
    """The teachers by name, which of them a run trains, and which of those makes the index."""

    teachers: list[Name] = Field(min_length=1)
    """Those of a run; each is described in `teacher` and trained by itself."""
    index: Name
    """One of them, whose document vectors are the index and whose query vectors students learn. The others may score
    (score.teachers).
    """
    teacher: dict[Name, AnyTeacher]
    """The teachers by name; `kind` says what each is."""

    def described(self, name: str) -> Teacher:
        """What `teacher` says of one of them; UserError for a name that it does not have."""
        if name not in self.teacher:
            raise UserError(f"teach.teacher has no {name!r}; it describes {sorted(self.teacher)}")
        return self.teacher[name]

    @model_validator(mode="after")
    def _names_belong_together(self) -> Self:
        if missing := [name for name in self.teachers if name not in self.teacher]:
            raise ValueError(f"teachers names {missing}, but teacher has {sorted(self.teacher)}; describe it there")
        if len(set(self.teachers)) < len(self.teachers):
            raise ValueError(f"teachers names one of {self.teachers} twice; name each once")
        if self.index not in self.teachers:
            raise ValueError(f"index is {self.index!r}, but teachers names only {self.teachers}; add it there")
        if "vectors" not in (chosen := self.teacher[self.index]).gives:
            raise ValueError(
                f"index is {self.index!r}, a {chosen.kind}, which gives a text no vector of its own to search by;"
                " name a dual encoder there, and this one in score.teachers"
            )
        return self

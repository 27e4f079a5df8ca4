"""Knobs of the stage `score`."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from slimtower.common.names import key_name
from slimtower.common.settings import Strict
from steps.core.params import Name

Count = Annotated[int, Field(ge=0)]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _most_texts(value: Any) -> Any:
    if isinstance(value, dict):
        for name, count in value.items():
            if not _is_count(count):
                raise ValueError(f"{name} is {count!r}; give a whole number, 0 for all")
            key_name(name if isinstance(name, str) else "")
    elif not _is_count(value):
        raise ValueError("give a whole number, 0 for all, or one for each teacher, such as {cross: 8000}")
    return value


MostTexts = Annotated[Count | dict[Name, Count], BeforeValidator(_most_texts)]


class ScoreParams(Strict):
    """Which teachers score, how many texts with how many documents each, and how many texts at once."""

    teachers: list[Name]
    """Who scores each alignment text with its nearest documents (embed.neighbours), for students to learn besides the
    vectors: teachers of teach.teachers, never teach.index, or the ranker. [] = none.
    """
    depth: int = Field(ge=0)
    """How many of those documents, the nearest first; 0 = all."""
    positives: int = Field(ge=0)
    """Known positives of a training query that are scored besides where they are not among those documents, drawn at
    random where it has more; 0 = none.
    """
    max_texts: MostTexts
    """Texts that are scored, drawn at random; 0 = all. A cross encoder reads max_texts * depth pairs. {cross: 8000}: by
    teacher, all for one that is not named.
    """
    pairs: int = Field(ge=0)
    """Nearest documents of each text with which a cross encoder's embeddings are kept too, for the losses
    pooled_embedding and joint_embedding; 0 = none. EmbedDistill embeds labelled pairs; these are the nearest documents,
    labelled or not.
    """
    layers: bool
    """Whether each layer of a late interaction model or a cross encoder scores as well, for layer_distillation.
    Late interaction then reads nearly every pair, as a cross encoder does.
    """
    batch_size: int = Field(ge=1)
    """Texts such a teacher reads at once."""
    shard_texts: int = Field(ge=1)
    """Texts whose scores are kept at once: what a killed run repeats at most."""
    precision: Literal["auto", "fp32", "bf16"]
    """`auto`: bf16 where the processor computes it natively, else fp32."""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len(set(self.teachers)) < len(self.teachers):
            raise ValueError(f"teachers names one of {self.teachers} twice; name each once")
        named = self.max_texts if isinstance(self.max_texts, dict) else {}
        if unknown := sorted(named.keys() - set(self.teachers)):
            raise ValueError(f"max_texts names {unknown}, but teachers only {self.teachers}; add them there")
        return self

    def texts_of(self, teacher: str) -> int:
        """Most texts that a teacher scores; 0 = all."""
        return self.max_texts.get(teacher, 0) if isinstance(self.max_texts, dict) else self.max_texts

"""Knobs of the stage `score`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from steps.core.params import Name, Strict


class ScoreParams(Strict):
    """Which teachers score, how many texts with how many documents each, and how many texts at once."""

    teachers: list[Name]
    """Teachers of teach.teachers, besides teach.index, or the ranker, each of which scores every alignment text with
    its nearest documents (embed.neighbours): what a student may learn from besides the vectors. [] = none.
    """
    depth: int = Field(ge=0)
    """The nearest so many of those documents; 0 = all of them."""
    max_texts: int = Field(ge=0)
    """Texts that are scored, drawn by seed; 0 = all. A cross encoder reads max_texts * depth pairs."""
    pairs: int = Field(ge=0)
    """Nearest documents of each text with which a cross encoder's embeddings are kept too, for students whose losses
    are pooled_embedding or joint_embedding; 0 = none.
    """
    batch_size: int = Field(ge=1)
    """Texts such a teacher reads at once."""
    shard_texts: int = Field(ge=1)
    """Texts whose scores are kept at once: what a killed run repeats at most."""
    precision: Literal["auto", "fp32", "bf16"]
    """`auto`: bf16 where the processor computes it natively, else fp32."""
    seed: int = Field(ge=0)
    """Draws the texts."""

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len(set(self.teachers)) < len(self.teachers):
            raise ValueError(f"teachers names one of {self.teachers} twice; name each once")
        return self

"""The kind `llm_dual_encoder`."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from steps.core.params import Strict
from steps.core.tracking import Run
from steps.teach.kinds.contrastive import Contrastive


class LoraParams(Strict):
    """Low-rank matrices that train in place of a network's own weights, and what they are added to."""

    rank: int = Field(ge=1)
    alpha: int = Field(ge=1)
    target_modules: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)


class LlmDualEncoder(Contrastive):
    """Two towers that begin as one causal language model and read prompts (ScalingNote, Sec. 3.2)."""

    kind: Literal["llm_dual_encoder"]
    dim: int = Field(ge=1)
    lora: LoraParams | None
    gradient_checkpointing: bool

    def teach(self, ingest: Path, mine: Path, rankers: Path, output: Path, run: Run) -> None:
        """Train it, or keep its base as it is."""
        from steps.teach.llm_dual_encoder import teach_llm_dual_encoder

        teach_llm_dual_encoder(ingest, mine, rankers, output, self, run)

"""The kind `llm_dual_encoder`."""

from pathlib import Path
from typing import Literal

from pydantic import Field

from steps.teach.kinds.contrastive import Contrastive
from steps.tracking.runs import Run


class LlmDualEncoder(Contrastive):
    """Two towers that begin as one causal language model and read prompts (ScalingNote, Sec. 3.2)."""

    kind: Literal["llm_dual_encoder"]
    """Its loss is summed over a document's three embeddings. ingest.document must have a line break behind the title;
    max_document_length counts the prompt (about 60 tokens). See recipes/llm_teacher.yaml.
    """
    dim: int = Field(default=128, ge=1)
    """Dimensions of the embeddings, to which a linear map takes the model's states."""

    def teach(self, ingest: Path, mine: Path, rankers: Path, output: Path, run: Run) -> None:
        """Train it, or keep its base as it is."""
        from steps.teach.llm_dual_encoder import teach_llm_dual_encoder

        teach_llm_dual_encoder(ingest, mine, rankers, output, self, run)

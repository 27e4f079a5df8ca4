"""The kind `llm_dual_encoder`."""

from typing import ClassVar, Literal

from pydantic import Field

from steps.core.params import Capability
from steps.teach.kinds.base import Contrastive


class LlmDualEncoder(Contrastive):
    """Two towers that begin as one causal language model and read prompts (ScalingNote, Sec. 3.2)."""

    gives: ClassVar[frozenset[Capability]] = frozenset({"vectors", "scores", "local"})

    kind: Literal["llm_dual_encoder"]
    """Its loss is summed over a document's three embeddings. ingest.document must have a line break behind the title;
    max_document_length counts the prompt (about 60 tokens). ScalingNote's prompt has a field for the topic; here a
    topic is part of the content. Its variants without title loss or summary (Table 5) cannot be chosen. See
    recipes/llm_teacher.yaml.
    """
    dim: int = Field(default=128, ge=1)
    """Dimensions of the embeddings, to which a linear map takes the model's states."""

"""The kind `llm_dual_encoder`."""

from typing import ClassVar, Literal

from pydantic import Field

from slimtower.common.settings import Strict
from steps.core.params import Capability
from steps.teach.kinds.base import Contrastive

TOPIC = "Topic: "


class Prompt(Strict):
    """What a document's prompt asks for. ScalingNote's has a topic; its Table 5 leaves title loss or summary out."""

    title_loss: bool = True
    """Whether it asks for a query of the title, which trains too."""
    summarize: bool = True
    """Whether it asks to combine the queries; else what is indexed is the content's."""
    topic: bool = False
    """Whether it names the topic: ingest.document is then "{title}\\nTopic: {topic}\\n{content}". Without a title a
    topic is part of the content.
    """


class LlmDualEncoder(Contrastive):
    """Two towers that begin as one causal language model and read prompts (ScalingNote, Sec. 3.2)."""

    gives: ClassVar[frozenset[Capability]] = frozenset({"vectors", "scores", "local"})

    kind: Literal["llm_dual_encoder"]
    """Its loss is summed over a document's three embeddings. ingest.document must have a line break behind the title;
    max_document_length counts the prompt (about 60 tokens). See recipes/llm_teacher.yaml.
    """
    dim: int = Field(default=128, ge=1)
    """Dimensions of the embeddings, to which a linear map takes the model's states."""
    prompt: Prompt = Prompt()
    """Variants of what it reads."""

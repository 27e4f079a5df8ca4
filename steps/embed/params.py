"""Knobs of the stage `embed`."""

from typing import Literal

from pydantic import Field

from slimtower.common.settings import Strict
from steps.core.params import Seed
from steps.core.tables import Part


class EmbedParams(Strict):
    """Which texts the teacher embeds, and how."""

    parts: list[Part] = Field(min_length=1)
    """Texts on which students are aligned; a text that several parts have belongs to the first of them in this order.
    documents: the first words of each, for students with a document_share. titles, sentences: of the corpus. spans:
    windows of consecutive words of each document, most as long as training queries are, some as long as sentences or
    passages. words: the 10,000 that most documents of each data set have, for queries of one word. perturbed_queries:
    each training query with one or two typos, or, where the teacher tells them apart, in another case. random_queries:
    random draws of words of the training queries, as many as there are generated_queries, of which they are a control.
    EmbedDistill's is stronger: whole queries, as unlabelled_queries are.
    """
    max_part_texts: int = Field(ge=0)
    """Most texts of each part and data set; more are sampled. The unlabelled queries are one data set. 0 = no limit."""
    least_texts: int = Field(ge=0)
    """Texts of each data set at least: if the parts give fewer, spans of its documents are added, of mixed lengths,
    some of them two short ones joined, and as many of each document as it takes. 0 = off.
    """
    neighbours: int = Field(ge=1)
    """Nearest documents of each text that are kept; students and scorers cannot have more."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """`auto`: bf16 where the processor computes it natively, else fp32."""
    batch_size: int = Field(default=64, ge=1)
    """Texts the teacher reads at once."""
    seed: Seed = 7
    """Draws the sample of a part that is too large, spans, perturbed and random queries."""

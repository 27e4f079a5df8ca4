"""Knobs of the stage `embed`."""

from typing import Literal

from pydantic import Field

from slimtower.common.settings import Strict
from steps.core.params import Seed
from steps.core.tables import Part


class CheckParams(Strict):
    """How many given vectors of documents are compared with the teacher's, and the cosine that each must have."""

    documents: int = Field(default=100, ge=1)
    """Documents of each data set, drawn by seed, that the teacher reads anew."""
    cosine: float = Field(default=0.99, gt=0, le=1)
    """Cosine that each of them must have to its given vector; else the stage says what would match, and stops."""


class EmbedParams(Strict):
    """Which texts the teacher embeds, and how."""

    parts: list[Part] = Field(min_length=1)
    """Texts on which students are aligned; a text that several parts have belongs to the first of them in this order.
    titles, sentences: of the corpus. spans: windows of consecutive words of each document, as long as training queries
    are. perturbed_queries: each training query with one or two typos, or, where the teacher tells them apart, in
    another case. random_queries: random draws of words of the training queries, as many as there are generated_queries,
    of which they are the control.
    """
    max_words: int = Field(default=48, ge=1)
    """Words at which a text is cut: queries are short, and long texts cost training time."""
    max_part_texts: int = Field(ge=0)
    """Most texts of a part; a larger one is sampled; 0 = no limit."""
    least_texts: int = Field(ge=0)
    """Texts at least: where the parts give fewer, spans of the documents are added, of mixed lengths, some of them two
    short ones joined, and as many of each document as it takes. 0 = off.
    """
    spans_per_document: int = Field(default=1, ge=1)
    """Windows of each document in the part spans."""
    case_share: float = Field(default=0.25, ge=0, le=1)
    """Share of perturbed_queries in UPPER, Title or lower case; the rest has typos, as all have for an uncased
    teacher.
    """
    check: CheckParams = CheckParams()
    """The comparison with document vectors that are given (ingest.document_vectors)."""
    neighbours: int = Field(ge=1)
    """Nearest documents of each text that are kept; students and scorers cannot have more."""
    neighbour_documents: int = Field(default=500_000, ge=0)
    """Documents among which they are sought; of more a sample by seed, in which small data sets are whole; 0 = all.
    Time grows with it, memory does not.
    """
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """`auto`: bf16 where the processor computes it natively, else fp32."""
    batch_size: int = Field(default=64, ge=1)
    """Texts the teacher reads at once."""
    shard_texts: int = Field(default=4096, ge=1)
    """Texts written to the cache at once: what a killed run repeats at most."""
    seed: Seed = 7
    """Draws the sample of a part that is too large, spans, perturbed and random queries."""

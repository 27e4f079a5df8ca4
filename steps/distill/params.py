"""Knobs of the stage `distill`."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from steps.core.errors import UserError
from steps.core.names import plain_name
from steps.core.params import Strict
from steps.core.tables import Part

LossName = Literal["squared_error", "l2", "cosine"]
Term = Literal[
    "label_softmax",  # EmbedDistill, Eq. 8
    "label_binary",  # Eq. 9
    "score_softmax",  # Eq. 10
    "score_binary",  # Eq. 11
    "score_squared",  # Eq. 12
    "query_matching",  # Eq. 5
    "document_matching",  # what Eq. 4 adds to Eq. 5; symmetric students only
]
DOCUMENT_PARTS: frozenset[Part] = frozenset({"titles", "sentences", "spans"})
Weight = Annotated[float, Field(ge=0)]
Widths = list[Annotated[int, Field(ge=1)]]  # of Matryoshka embeddings
BASELINES = frozenset({"bm25", "teacher"})


def _student_name(name: str) -> str:
    if name in BASELINES:
        raise ValueError("that is what evaluate calls a baseline; choose another name")
    return plain_name(name)  # it becomes a folder, which a run replaces


StudentName = Annotated[str, AfterValidator(_student_name)]


class Schedule(Strict):
    """How long and how fast a student is trained."""

    epochs: float = Field(gt=0)
    batch_size: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    warmup_ratio: float = Field(ge=0, lt=1)
    weight_decay: float = Field(default=0.0, ge=0)
    token_rate: float = Field(default=1.0, gt=0)
    documents_first: float = Field(default=0.0, ge=0, lt=1)


class Ranking(Strict):
    """Terms that compare candidate documents of a query, and where candidates and labels come from."""

    terms: dict[Term, Weight] = Field(min_length=1)
    labels: Literal["train", "teacher"] = "train"
    temperature: float = Field(default=0.05, gt=0)
    neighbours: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _terms_have_what_they_compare(self) -> Self:
        if not any(self.terms.values()):
            raise ValueError("terms: every weight is 0; give one of them a weight")
        if self.labels == "teacher" and not self.neighbours:
            raise ValueError(
                "labels: teacher takes the nearest of the teacher's neighbours; set neighbours to 1 or more"
            )
        return self


class Refinement(Ranking):
    """A second training of the query tower, against the frozen document embeddings."""

    epochs: float = Field(gt=0)
    learning_rate: float = Field(gt=0)

    @model_validator(mode="after")
    def _documents_are_frozen(self) -> Self:
        if self.terms.get("document_matching"):
            raise ValueError("terms.document_matching: frozen documents cannot be trained; leave it out")
        return self


class Fresh(Strict):
    """A new BERT: `layers` of `width` with `heads`; `vocabulary` new WordPiece tokens, or 0 for the teacher's.

    A text's embedding is the mean of its tokens, or the first token: cls, as in EmbedDistill and ScalingNote.
    """

    layers: int = Field(ge=1)
    width: int = Field(ge=8)
    heads: int = Field(ge=1)
    vocabulary: int = Field(ge=0)
    pooling: Literal["mean", "cls"] = "mean"

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"heads ({self.heads}) must divide width ({self.width})")
        return self


class Student(Schedule):
    """What every student has."""

    refine: Refinement | None = None


class TransformerStudent(Student):
    """A transformer: some layers of the teacher, a pretrained encoder, or a new one."""

    layers: list[int] = Field(default_factory=list)
    base: str = ""
    fresh: Fresh | None = None

    @model_validator(mode="after")
    def _one_start(self) -> Self:
        if [bool(self.layers), bool(self.base), self.fresh is not None].count(True) != 1:
            raise ValueError("give one of layers, base and fresh: what the student starts from")
        return self


class AlignmentParams(TransformerStudent):
    """Query-encoder alignment: embeddings of queries alone."""

    method: Literal["alignment"]
    loss: LossName
    widths: Widths = Field(default_factory=list)


class EmbedDistillParams(TransformerStudent, Ranking):
    """EmbedDistill: any weighted sum of its losses, over inherited documents or with a document tower of its own."""

    method: Literal["embed_distill"]
    towers: Literal["asymmetric", "symmetric"] = "asymmetric"
    max_document_length: int = Field(default=128, ge=4)

    @model_validator(mode="after")
    def _documents_can_be_matched(self) -> Self:
        if self.towers == "asymmetric" and self.terms.get("document_matching"):
            raise ValueError("terms.document_matching: inherited documents are the teacher's; use towers: symmetric")
        if self.towers == "symmetric" and self.refine:
            raise ValueError("refine: it compares with the teacher's frozen documents; use towers: asymmetric")
        return self


class QkdParams(TransformerStudent):
    """ScalingNote's query distillation (Eq. 15); `cosine_weight` is its lambda."""

    method: Literal["qkd"]
    widths: Widths = Field(default_factory=list)
    cosine_weight: float = Field(default=1.0, ge=0)


class StaticParams(Student):
    """One vector a token and their mean: no transformer at query time."""

    method: Literal["static"]
    loss: LossName
    token_weights: Literal["idf", "uniform", "learned"] = "idf"
    added_words: int = Field(default=0, ge=0)
    added_pairs: int = Field(default=0, ge=0)


StudentParams = Annotated[
    AlignmentParams | EmbedDistillParams | QkdParams | StaticParams, Field(discriminator="method")
]


class DistillParams(Strict):
    """The students, and what they all share."""

    students: list[StudentName] = Field(min_length=1)
    seed: int
    mixture: dict[Part, Weight]
    required_parts: list[Part] = Field(default_factory=list)
    max_length: int = Field(ge=4)
    validation_texts: int = Field(ge=1)
    precision: Literal["auto", "fp32", "bf16"]
    student: dict[StudentName, StudentParams]

    def described(self, student: str) -> StudentParams:
        """What `student` says of one student; UserError for a name that it does not have."""
        if student not in self.student:
            raise UserError(f"distill.student has no {student!r}; it describes {sorted(self.student)}")
        return self.student[student]

    @model_validator(mode="after")
    def _required_parts_have_a_weight(self) -> Self:
        idle = [part for part in self.required_parts if not self.mixture.get(part)]
        if idle:
            raise ValueError(f"required_parts names {idle}, to which mixture gives no weight; give it one in mixture")
        return self

    @model_validator(mode="after")
    def _every_student_is_described(self) -> "DistillParams":
        missing = [name for name in self.students if name not in self.student]
        if missing:
            raise ValueError(f"students names {missing} but student describes only {sorted(self.student)}")
        symmetric = [name for name in self.students if getattr(self.student[name], "towers", "") == "symmetric"]
        if symmetric:
            raise ValueError(
                f"students names {symmetric}, whose towers are symmetric: none can be released, as the index holds the"
                " teacher's documents; distil them alone with `python -m steps.distill --student NAME`"
            )
        return self

"""Section `distill` of params.yaml."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from slimtower.common.errors import UserError
from slimtower.common.names import key_name
from slimtower.common.settings import Strict
from steps.core.params import Seed
from steps.core.tables import DOCUMENTS, Part
from steps.distill.losses import AnyLoss
from steps.distill.losses.base import Loss, Need
from steps.distill.starts import Fresh, Layers, Start, Static

VECTORS_ALONE = (
    "is behind an API, which gives vectors alone; start from static, base or fresh with a vocabulary of its own, learn"
    " stored targets (recipes/endpoint_teacher.yaml has all three)"
)
BASELINES = frozenset({"bm25", "teacher"})


def _student_name(name: str) -> str:
    if name in BASELINES:
        raise ValueError("that is what evaluate calls a baseline; choose another name")
    return key_name(name)  # it becomes a folder, which a run replaces


StudentName = Annotated[str, AfterValidator(_student_name)]
Repeats = Annotated[float, Field(ge=0)]


def _epochs(value: Any) -> Any:
    if value == "auto" or (isinstance(value, int | float) and not isinstance(value, bool) and value >= 0):
        return value
    raise ValueError("give auto, which ends when it has converged, or a number; 0.0 trains nothing")


Epochs = Annotated[Literal["auto"] | float, BeforeValidator(_epochs)]


class Convergence(Strict):
    """When a student whose `epochs` are `auto` has learned enough."""

    min_steps: int = Field(ge=8)
    """Training steps at least. The first phase also makes at least an epoch, if `max_steps` allow it; further phases
    (`then`) see the same texts again.
    """
    max_steps: int = Field(ge=8)
    """Training steps at most."""
    min_gain: float = Field(ge=0, lt=1)
    """Training goes on until a quarter more steps gain less than this on held-out texts, twice in a row. Then the
    learning rate falls to zero over the last quarter of all steps. The gain is that of the mean cosine to the teacher,
    as a share of the way from the cosine of the teacher's mean vector up to 1.
    """

    @model_validator(mode="after")
    def _the_fewest_steps_are_within_the_most(self) -> Self:
        if self.min_steps > self.max_steps:
            raise ValueError(f"min_steps ({self.min_steps}) must be at most max_steps ({self.max_steps})")
        return self


Labels = Literal["train", "pseudo", "source"]
_OF_OTHERS = {Need.SCORES, Need.JOINT}  # of any teacher


class Phase(Strict):
    """Losses, the candidates that they compare, and how long and how fast they are trained."""

    losses: list[AnyLoss] = Field(default_factory=list)
    """Their weighted sum is learned; `kind` says what each is. They see vectors in units of the teacher's mean length,
    so that a temperature means the same for any teacher. One at least, but with epochs: 0.0 none.
    """
    labels: Labels = "train"
    """train: mined and judged positives of training queries; pseudo: the teacher's nearest document; source: the
    document that a text is taken from, which a teacher may rank lower, and of a query the teacher's nearest. Of several
    positives one is drawn at each step; the others are no negatives of that text.
    """
    teacher_top_k: int = Field(default=0, ge=0)
    """Documents nearest to each text that it adds to the batch's candidates."""
    epochs: Epochs = "auto"
    """Passes over the texts (distill.repeats); auto: one at least, until it has converged (distill.convergence). 0.0
    trains nothing: `whole: {start: {layers: [0, 1, 2, 3, 4, 5]}, epochs: 0.0}` is a teacher of six layers itself, which
    is released in int8 as students are.
    """
    learning_rate: float = Field(default=0.0, ge=0)
    """Of AdamW. For a static embedding, as if its vectors had length 1. Above 0, but with epochs: 0.0. Gradients are
    clipped to length 1.
    """
    targets: Literal["stored", "online", "joint"] = "stored"
    """stored: the vectors that `embed` wrote; online: the teacher runs along, which is slower and gives the same
    student; joint: the teacher trains along: a late_interaction or cross_encoder that the losses name, or that of the
    index, with towers: symmetric.
    """
    joint_candidates: Literal["own", "batch"] | None = None
    """What such a late_interaction or cross_encoder scores for each text: its own candidates, or those of the batch, as
    LEAD has it (cross-batch negatives). null: batch for a late_interaction, which reads each document once in either
    case, own for a cross_encoder, which reads each pair.
    """

    def needs(self, need: Need) -> list[Loss]:
        """The losses that need it."""
        return [loss for loss in self.losses if need in loss.needs]

    @property
    def trained(self) -> str | None:
        """Name of the teacher that trains along, "" for that of the index; None where none does."""
        return next(iter(self._compared), "") if self.targets == "joint" else None

    @property
    def teachers(self) -> list[str]:
        """Names of the teachers whose score tables are read."""
        learned = {loss.teacher for loss in self.needs(Need.SCORES)}
        return sorted(learned - {"", self.trained})

    @property
    def _compared(self) -> list[str]:
        """Names of the teachers whose scores, or layers, its losses compare or train; "" = that of the index."""
        return sorted({loss.teacher for loss in self.losses if loss.needs & _OF_OTHERS})

    @property
    def all_teachers(self) -> list[str]:
        """Names of the teachers besides that of the index whom its losses learn from."""
        return sorted({loss.teacher for loss in self.losses} - {""})

    @property
    def trains(self) -> bool:
        """Whether it trains at all."""
        return self.epochs != 0

    @model_validator(mode="after")
    def _what_trains_has_losses_and_a_rate(self) -> Self:
        if self.trains and not self.losses:
            raise ValueError("losses: give one or more, or epochs: 0.0 for a student that stays as it starts")
        if self.trains and not self.learning_rate:
            raise ValueError(
                "learning_rate: give a number above 0, or epochs: 0.0 for a student that stays as it starts"
            )
        return self

    @model_validator(mode="after")
    def _losses_have_what_they_compare(self) -> Self:
        names = [loss.name for loss in self.losses]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"losses: {', '.join(repeated)} is named twice; give it once, with the sum of the weights")
        if self.targets == "joint" and self.epochs == "auto":
            raise ValueError("epochs: auto watches the cosine to a teacher that stays; targets: joint needs a number")
        if self.joint_candidates and not self.trained:
            raise ValueError(
                "joint_candidates are of a late_interaction or cross_encoder that trains along; set targets: joint, and"
                " name it in the losses, or leave joint_candidates out"
            )
        if self.targets != "joint" and (trained := self.needs(Need.JOINT)):
            raise ValueError(f"losses: {trained[0].kind} trains the teacher; set targets: joint")
        if self.targets == "joint" and len(self._compared) > 1:
            named = " and ".join(name or "that of the index" for name in self._compared)
            raise ValueError(f"targets: joint trains one teacher, but losses compare with {named}; let all name one")
        single = [loss.kind for loss in self.losses if loss.is_single]
        if several := sorted({kind for kind in single if single.count(kind) > 1}):
            raise ValueError(f"losses: {several[0]} compares with one teacher; name one")
        if self.labels != "train" and not self.teacher_top_k:
            raise ValueError(
                f"labels: {self.labels} takes the teacher's nearest document; set teacher_top_k to 1 or more"
            )
        for loss in self.losses:
            if loss.teacher and not (loss.needs & _OF_OTHERS or loss.takes_teacher):
                raise ValueError(f"losses: {loss.kind} has no use for a teacher's scores; leave `teacher` out")
            if loss.teacher and Need.CANDIDATES in loss.needs and not self.teacher_top_k:
                raise ValueError(f"losses: {loss.name} compares the documents that it scored; set teacher_top_k")
            if getattr(loss, "own_candidates", False) and not self.teacher_top_k:
                raise ValueError(f"losses: own_candidates of {loss.name} are nearest documents; set teacher_top_k")
        return self


class StudentParams(Phase):
    """A student: what it starts from, what it learns, and how long and how fast."""

    start: Start
    """What it starts from. It ends in a projection to the teacher's dimension where its own differs."""
    batch_size: int = Field(default=128, ge=1)
    """Texts a step."""
    warmup_ratio: float = Field(default=0.05, ge=0, lt=1)
    """Share of the steps in which the learning rate rises from 0; of `convergence.min_steps` if epochs are auto."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Of AdamW."""
    document_share: float = Field(default=0.0, ge=0, lt=1)
    """Share of documents (embed.parts) among the texts of an epoch. Read as if they were queries, they teach which
    documents are near each other, and how long texts are read.
    """
    vocabulary: Literal["all", "used"] = "all"
    """used: only tokens that the corpus or the alignment texts hold, and single letters. Of a model of a hundred
    languages a small share is left; words that are neither in the corpus nor in the texts are read in more pieces.
    """
    embedding_lr_multiplier: float = Field(default=1.0, gt=0)
    """Factor of the learning rate of token embeddings."""
    towers: Literal["asymmetric", "symmetric", "joint"] = "asymmetric"
    """asymmetric: the documents are the teacher's, frozen; symmetric: the student's one network reads queries and
    documents (EmbedDistill's students of cross encoders have two); joint: the teacher's document tower trains along,
    unless it is a language model. Only an asymmetric student can be released.
    """
    max_document_length: int = Field(default=128, ge=4)
    """Tokens of a document that its own document tower reads."""
    seed: Seed | None = None
    """Seed of this student; null = distill.seed. Of students that differ in nothing else, such as 4l_b: {<<: *4l, seed:
    8}, `evaluate` reports the mean retention and its spread.
    """
    then: list[Phase] = Field(default_factory=list)
    """Further trainings, one after the other. One that learns scores of score.teachers sees only texts that one of them
    scored.
    """

    @property
    def phases(self) -> list[Phase]:
        """All trainings in their order."""
        return [self, *self.then]

    @model_validator(mode="after")
    def _what_stays_as_it_starts_is_alone(self) -> Self:
        still = [phase for phase in self.phases if not phase.trains]
        if still and (self.then or self.towers != "asymmetric" or self.losses or self.targets != "stored"):
            raise ValueError("epochs: 0.0 trains nothing: leave losses, targets, then and towers out")
        return self

    @model_validator(mode="after")
    def _documents_can_be_matched(self) -> Self:
        for phase in self.phases:
            symmetric = phase.needs(Need.OWN_DOCUMENTS)
            if symmetric and self.towers != "symmetric":
                raise ValueError(f"losses: {symmetric[0].kind} trains a document tower; it needs towers: symmetric")
            if phase.trained == "" and self.towers != "symmetric":
                raise ValueError("targets: joint moves the teacher's documents too; it needs towers: symmetric")
            if phase.trained and self.towers == "joint":
                raise ValueError(
                    f"towers: joint trains the index's teacher, targets: joint {phase.trained}; choose one"
                )
            for loss in phase.losses:
                if complaint := loss.complain_of_start(type(self.start).__name__.lower()):
                    raise ValueError(f"losses: {loss.kind} {complaint}")
        if self.towers == "joint" and self.then:
            raise ValueError("then: it compares with the teacher's frozen documents; use towers: asymmetric")
        if self.towers == "joint" and not self.needs(Need.CANDIDATES):
            raise ValueError("towers: joint trains on documents, and no loss compares any; add one, as label_softmax")
        if isinstance(self.start, Static) and self.towers == "symmetric":
            raise ValueError("towers: a static embedding reads no documents; use towers: asymmetric")
        return self


def wants_inside(student: StudentParams) -> str:
    """What a student wants of the index's teacher besides its vectors, in words; "" for nothing."""
    match student.start:
        case Layers():
            return "start: {layers: [...]} takes its layers"
        case Fresh(fresh=encoder) if not encoder.vocabulary:
            return "start: {fresh: {vocabulary: 0}} takes its token embeddings"
    if student.towers == "joint":
        return "towers: joint trains its documents"
    for phase in student.phases:
        if phase.targets == "online" or phase.trained == "":
            return f"targets: {phase.targets} runs it"
        for loss in phase.losses:
            if loss.looks_inside and not loss.teacher:
                return f"losses: {loss.kind} looks inside it"
    return ""


class DistillParams(Strict):
    """The students, and what they all share."""

    students: list[StudentName] = Field(min_length=1)
    """Each is distilled, released and evaluated; `student` may describe more."""
    seed: Seed
    """Of new weights, the held-out texts and their order."""
    repeats: dict[Part, Repeats]
    """How often an epoch sees each text of a part: 1 once, 0 never, 2.5 twice and half of them a third time. A part
    without texts is left out, and a line says so. How often documents are seen follows from a student's document_share.
    """
    required_parts: list[Part]
    """Parts whose absence stops the run."""
    max_length: int = Field(ge=4)
    """Tokens of an alignment text that a student reads at most; if the student or the teacher reads fewer, so many."""
    validation_texts: int = Field(ge=1)
    """Texts held out to watch the cosine to the teacher; a tenth of all at most."""
    precision: Literal["auto", "fp32", "bf16"]
    """`auto`: bf16 where the processor computes it natively, else fp32."""
    convergence: Convergence
    """When a student whose epochs are auto has learned enough."""
    student: dict[StudentName, StudentParams]
    """The students by name: a start, losses, and how they are trained."""

    def described(self, student: str) -> StudentParams:
        """What `student` says of one student; UserError for a name that it does not have."""
        if student not in self.student:
            raise UserError(f"distill.student has no {student!r}; it describes {sorted(self.student)}")
        return self.student[student]

    @model_validator(mode="after")
    def _documents_have_a_share(self) -> Self:
        if DOCUMENTS in self.repeats:
            raise ValueError("repeats names documents; give a student a document_share instead")
        return self

    @model_validator(mode="after")
    def _required_parts_are_seen(self) -> Self:
        idle = [part for part in self.required_parts if not self.repeats.get(part)]
        if idle:
            raise ValueError(f"required_parts names {idle}, which repeats leaves out; give it a number in repeats")
        return self

    @model_validator(mode="after")
    def _every_student_is_described(self) -> Self:
        missing = [name for name in self.students if name not in self.student]
        if missing:
            raise ValueError(f"students names {missing} but student describes only {sorted(self.student)}")
        if len(set(self.students)) < len(self.students):
            raise ValueError(f"students names one of {self.students} twice; name each once")
        for towers in ("symmetric", "joint"):
            if names := [name for name in self.students if self.student[name].towers == towers]:
                raise ValueError(
                    f"students names {names}, whose towers are {towers}: none can be released, as the index holds the"
                    " teacher's documents; distil them alone with `python -m steps.distill --student NAME`"
                )
        return self

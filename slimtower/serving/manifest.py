"""What a release says of itself: digests of everything in it, the facts both sides share, and queries to prove them."""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from slimtower.common.errors import UserError
from slimtower.common.files import read_json, write_json
from slimtower.common.names import inner_path, plain_name
from slimtower.common.settings import Strict
from slimtower.lexical.fusion import Fusion

FORMAT = 5
REMEDY = "encoder and index must come from one run: run `dvc repro` (or `make demo`) to build the release again"
SHARED = ("teacher", "dim", "metric", "modules", "pooling", "normalised", "prompts", "document", "faiss")


PlainName = Annotated[str, AfterValidator(plain_name)]
Digests = dict[Annotated[str, AfterValidator(inner_path)], str]


class Probe(Strict):
    """A query, and its embeddings `(dim,)` by the student in PyTorch and by the exported encoder."""

    text: str
    student_vector: list[float]
    exported_vector: list[float]


class Collection(Strict):
    """What the index holds of one data set."""

    vectors: int
    corpus_digest: str


class EncoderSettings(Strict):
    """How queries become embeddings; equal to serving.json, where the query encoder reads it.

    `width`: of the rows of a token table that are narrower than embeddings; absent from the file where none are.
    """

    format: str
    precision: str
    dim: int
    max_length: int | None
    normalise: bool
    pooling: str
    prompt: str
    pad_id: int
    width: int | None = None

    @model_serializer(mode="wrap")
    def _without_absent(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = serialize(self)
        return {name: value for name, value in fields.items() if name != "width" or value is not None}


class LexicalIndex(Strict):
    """The BM25 indexes below lexical/, one a data set, and how their hits and those of the dense index are fused.

    `bm25s`: version of the package that wrote and reads them. `files`: path below lexical/ -> sha256. `tokenizer`: how
    texts became terms; 1, of releases of before there was another, is absent from the file.
    """

    bm25s: str
    tokenizer: int = 1
    files: Digests
    fusions: dict[PlainName, Fusion]


class Manifest(Strict):
    """manifest.json of a release. The fields of SHARED are equal in the index's own manifest.

    `student_files`, `serving_files`, `index_files`: path below query_encoder/, serving/, index/ -> sha256, of every
    file but the index's manifest, whose sha256 is `index_manifest`. `checksum`: sha256 over all other fields.
    `document`: the template by which title, topic and content became the text that was embedded, and that BM25 reads.
    `lexical`: absent from the file where there is none. `dims`: fewer first dimensions that the student was trained for
    (Matryoshka); absent where there are none.
    """

    format: int
    student: PlainName
    student_files: Digests
    serving_files: Digests
    encoder_settings: EncoderSettings
    index_manifest: str
    index_files: Digests
    datasets: dict[PlainName, Collection]
    teacher: dict[str, str]
    dim: int
    metric: str
    modules: list[str]
    pooling: list[str]
    normalised: bool
    prompts: dict[str, str]
    document: str
    faiss: str
    probes: list[Probe]
    probe_tolerance: float
    lexical: LexicalIndex | None = None
    dims: list[int] = Field(default_factory=list)
    checksum: str = ""

    def with_checksum(self) -> "Manifest":
        """The same manifest with the checksum of its other fields."""
        fields = {name: value for name, value in self.as_dict().items() if name != "checksum"}
        text = json.dumps(fields, sort_keys=True, ensure_ascii=False)
        return self.model_copy(update={"checksum": hashlib.sha256(text.encode("utf-8")).hexdigest()})

    def write(self, path: Path) -> None:
        write_json(path, self.with_checksum().as_dict())

    def as_dict(self) -> dict[str, Any]:
        """Field name -> value, as JSON holds it; without `lexical` and `dims` where there are none."""
        fields = {name: value for name, value in self.model_dump().items() if value or name not in ("lexical", "dims")}
        if self.lexical and self.lexical.tokenizer == 1:
            del fields["lexical"]["tokenizer"]
        return fields


def read_manifest(path: Path) -> Manifest:
    """Read a release manifest; UserError when fields are missing, unknown, of another type or of another format."""
    raw: Any = read_json(path)
    version = raw.get("format") if isinstance(raw, dict) else None
    if version != FORMAT:
        raise UserError(f"{path}: format of the release is {version!r}, this version reads {FORMAT}; {REMEDY}")
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(key) for key in first["loc"] if key != "[key]")
        message = first["msg"].removeprefix("Value error, ")
        raise UserError(f"{path}: {field}: {message[:1].lower()}{message[1:]}; {REMEDY}") from None

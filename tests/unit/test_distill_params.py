"""params.yaml: what a student may be, and the mistakes that are named before anything is trained."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.params import check_params
from steps.core.errors import UserError
from steps.distill.params import DistillParams

SCHEDULE = {"epochs": 1.0, "batch_size": 16, "learning_rate": 1e-3, "warmup_ratio": 0.1}
TERMS = {"score_softmax": 1.0, "query_matching": 1.0}
ALIGNMENT = SCHEDULE | {"method": "alignment", "loss": "l2", "layers": [0, -1]}
RANKED = SCHEDULE | {"method": "embed_distill", "layers": [0, -1], "terms": TERMS, "neighbours": 4}
FRESH = {"layers": 2, "width": 16, "heads": 4, "vocabulary": 500}
QKD = SCHEDULE | {"method": "qkd", "fresh": FRESH}
STATIC = SCHEDULE | {"method": "static", "loss": "cosine"}
REFINE = {"epochs": 1.0, "learning_rate": 1e-4, "terms": {"label_softmax": 1.0}}


def distill(student: dict[str, Any], names: list[str] | None = None) -> DistillParams:
    """The tracked params with one student, `it`, through the check that every command makes."""
    raw: dict[str, Any] = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    others = raw["distill"]["student"]
    raw["distill"] |= {"student": {"it": student} | others, "students": names or ["it"]}
    raw["promote"]["student"] = ""
    return check_params(raw, "params.yaml").distill


@pytest.mark.parametrize(
    "student",
    [
        ALIGNMENT,
        ALIGNMENT | {"layers": [], "base": "all-MiniLM-L6-v2", "widths": [64, 128]},
        ALIGNMENT | {"loss": "l2", "documents_first": 0.5, "token_rate": 10.0},
        RANKED,
        RANKED | {"labels": "teacher", "terms": TERMS | {"label_binary": 2.0}, "temperature": 0.1},
        RANKED | {"refine": REFINE},
        QKD | {"cosine_weight": 0.0, "widths": [8]},
        STATIC | {"refine": REFINE | {"labels": "teacher", "neighbours": 3}},
    ],
)
def test_what_a_student_may_be(student: dict[str, Any]) -> None:
    assert distill(student).student["it"].model_dump(exclude_unset=True) == student


NO_START = {key: value for key, value in ALIGNMENT.items() if key != "layers"}


@pytest.mark.parametrize(
    ("student", "complaint"),
    [
        (NO_START, "give one of layers, base and fresh"),
        (ALIGNMENT | {"base": "all-MiniLM-L6-v2"}, "give one of layers, base and fresh"),
        (ALIGNMENT | {"fresh": FRESH}, "give one of layers, base and fresh"),
        (QKD | {"base": "all-MiniLM-L6-v2"}, "give one of layers, base and fresh"),
        (QKD | {"fresh": FRESH | {"heads": 3}}, r"heads \(3\) must divide width \(16\)"),
        (QKD | {"fresh": FRESH | {"layers": 0}}, r"fresh\.layers is 0"),
        (RANKED | {"terms": {}}, r"terms is \{\}"),
        (RANKED | {"terms": {"score_softmax": 0.0, "query_matching": 0.0}}, "terms: every weight is 0"),
        (RANKED | {"terms": {"score_softmax": -1.0}}, r"terms\.score_softmax is -1\.0"),
        (RANKED | {"terms": {"kl": 1.0}}, r"terms\.kl"),
        (RANKED | {"labels": "teacher", "neighbours": 0}, "labels: teacher takes the nearest .* set neighbours"),
        (RANKED | {"terms": {"document_matching": 1.0}}, "terms.document_matching: .*use towers: symmetric"),
        (RANKED | {"towers": "symmetric", "refine": REFINE}, "refine: .*use towers: asymmetric"),
        (RANKED | {"widths": [8]}, "widths is unknown"),
        (RANKED | {"temperature": 0.0}, r"temperature is 0\.0"),
        (STATIC | {"refine": REFINE | {"labels": "teacher"}}, "labels: teacher takes the nearest"),
        (STATIC | {"refine": REFINE | {"terms": {"document_matching": 1.0}}}, "document_matching: frozen documents"),
        (STATIC | {"refine": REFINE | {"epoch": 1.0}}, r"refine\.epoch is unknown"),
        (STATIC | {"layers": [0]}, "layers is unknown"),
        (ALIGNMENT | {"widths": [0]}, r"widths\.0 is 0"),
        (ALIGNMENT | {"documents_first": 1.0}, r"documents_first is 1\.0"),
        (ALIGNMENT | {"method": "align"}, "align"),
    ],
)
def test_a_mistake_is_named_with_its_key(student: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=rf"^params\.yaml: distill\.student\.it.*{complaint}"):
        distill(student)


def test_a_symmetric_student_can_be_described_but_not_released() -> None:
    symmetric = RANKED | {"towers": "symmetric", "terms": TERMS | {"document_matching": 1.0}}
    assert distill(symmetric, names=["2l"]).student["it"].method == "embed_distill"
    with pytest.raises(UserError, match=r"students names \['it'\], whose towers are symmetric: none can be released"):
        distill(symmetric, names=["2l", "it"])


BAD_NAMES = [
    "",
    "..",
    ".",
    "/abs",
    "../evil",
    "a/b",
    "a\\b",
    "2l\n",
    "2l\nx",
    "-x",
    ".x",
    "a..b",
    "a b",
    "ä",
    "x" * 65,
    "a\0",
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_students_name_is_a_plain_name_as_it_becomes_a_folder(name: str) -> None:
    with pytest.raises(
        UserError, match=r"distill\.students\.0 is .*a name is 1 to 64 of the characters.*choose another"
    ):
        distill(ALIGNMENT, [name])
    raw = distill(ALIGNMENT).model_dump(exclude_unset=True)
    with pytest.raises(ValueError, match="a name is 1 to 64 of the characters"):
        DistillParams.model_validate(raw | {"student": raw["student"] | {name: ALIGNMENT}})


@pytest.mark.parametrize("name", ["bm25", "teacher"])
def test_a_student_is_not_called_what_a_baseline_is(name: str) -> None:
    with pytest.raises(UserError, match=rf"distill\.students\.0 is '{name}'.*a baseline; choose another name"):
        distill(ALIGNMENT, [name])


def test_a_student_that_no_one_described_is_refused() -> None:
    params = distill(ALIGNMENT)
    assert params.described("it") == params.student["it"]
    for name in ("../it", "its"):
        with pytest.raises(UserError, match=r"distill\.student has no .*; it describes \["):
            params.described(name)


def test_release_refuses_a_name_that_would_lead_out_of_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    from steps.release import __main__ as command

    monkeypatch.setattr("sys.argv", ["steps.release", "--student", "../../elsewhere"])
    monkeypatch.setattr(command, "stage_main", lambda *_, **__: pytest.fail("a folder outside would be replaced"))
    with pytest.raises(UserError, match=r"--student: '\.\./\.\./elsewhere': a name is 1 to 64"):
        command.main()


def test_a_required_part_needs_a_weight() -> None:
    raw = distill(ALIGNMENT).model_dump(exclude_unset=True)
    assert DistillParams.model_validate(raw | {"required_parts": list(raw["mixture"])[:1]}).required_parts
    with pytest.raises(ValueError, match=r"required_parts names \['random_queries'\], to which mixture gives no"):
        DistillParams.model_validate(raw | {"required_parts": ["random_queries"]})
    with pytest.raises(ValueError, match="Input should be 'train_queries'"):
        DistillParams.model_validate(raw | {"required_parts": ["train_querys"]})

"""params.yaml: what a student may be, and the mistakes that are named before anything is trained."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.params import check_params
from slimtower.common.errors import UserError
from steps.distill.params import DistillParams

pytestmark = pytest.mark.medium

SCHEDULE = {"epochs": 1.0, "batch_size": 16, "learning_rate": 1e-3, "warmup_ratio": 0.1}
LAYERS = SCHEDULE | {"start": {"layers": [0, -1]}}
ALIGNED = LAYERS | {"losses": [{"kind": "embedding", "distance": "l2"}]}
LOSSES = [{"kind": "score_softmax", "temperature": 0.1}, {"kind": "embedding", "distance": "l2", "weight": 0.3}]
RANKED = LAYERS | {"losses": LOSSES, "teacher_top_k": 4}
ENCODER = {"layers": 2, "dim": 16, "heads": 4, "vocabulary": 500}
QKD = SCHEDULE | {"start": {"fresh": ENCODER}, "losses": [{"kind": "qkd"}]}
STATIC = SCHEDULE | {"start": {"static": {}}, "losses": [{"kind": "embedding", "distance": "cosine"}]}
STILL = {"start": {"layers": [0, 1, 2, 3, 4, 5]}, "epochs": 0.0}
THEN = {"epochs": 1.0, "learning_rate": 1e-4, "losses": [{"kind": "label_softmax"}]}

LAYERS = {"kind": "layer_distillation", "layers": 2}
JOINT = RANKED | {"losses": [LAYERS, {"kind": "teacher_label_softmax"}], "towers": "symmetric", "targets": "joint"}


def distill(student: dict[str, Any], names: list[str] | None = None) -> DistillParams:
    """The tracked params with one student, `it`, through the check that every command makes."""
    raw: dict[str, Any] = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
    others = raw["distill"]["student"]
    raw["distill"] |= {"student": {"it": student} | others, "students": names or ["it"]}
    raw["promote"]["student"] = ""
    teachers = ["dense", "cross"]  # the second one scores
    raw["teach"] |= {"teachers": teachers, "teacher": dict.fromkeys(teachers, raw["teach"]["teacher"]["dense"])}
    raw["score"]["teachers"] = ["cross"]
    return check_params(raw, "params.yaml").distill


@pytest.mark.parametrize(
    "student",
    [
        ALIGNED,
        ALIGNED | {"start": {"base": "all-MiniLM-L6-v2"}, "losses": [{"kind": "embedding", "dims": [64, 128]}]},
        ALIGNED | {"embedding_lr_multiplier": 10.0, "targets": "online"},
        RANKED,
        RANKED | {"labels": "pseudo", "losses": [*LOSSES, {"kind": "label_binary", "weight": 2.0}]},
        RANKED | {"losses": [*LOSSES, {"kind": "score_softmax", "teacher": "cross", "dims": [8]}]},
        RANKED | {"then": [THEN, THEN | {"learning_rate": 1e-5}]},
        RANKED | {"losses": [LAYERS | {"selection": "weighted", "state_dim": 64}]},
        QKD | {"losses": [{"kind": "qkd", "dims": [8], "magnitude": False}]},
        STATIC | {"then": [THEN | {"labels": "pseudo", "teacher_top_k": 3}]},
        STILL,
        STILL | {"start": {"static": {}}},
    ],
)
def test_what_a_student_may_be(student: dict[str, Any]) -> None:
    assert distill(student).student["it"].model_dump(exclude_unset=True) == student


ALONG = RANKED | {"targets": "joint", "teacher_top_k": 2, "epochs": 1.0,
                  "losses": [{"kind": "teacher_label_softmax", "teacher": "cross"}]}  # fmt: skip
NO_START = {key: value for key, value in ALIGNED.items() if key != "start"}
DOCUMENTS = {"kind": "document_embedding"}


def learning(*losses: dict[str, Any], **more: Any) -> dict[str, Any]:
    return RANKED | {"losses": list(losses)} | more


@pytest.mark.parametrize(
    ("student", "complaint"),
    [
        (NO_START, "start is missing"),
        (ALIGNED | {"start": {}}, "give one of layers, base, fresh, static and adapter"),
        (ALIGNED | {"start": {"layers": [0], "base": "x"}}, "give one of layers, base, fresh, static and adapter"),
        (QKD | {"start": {"fresh": ENCODER | {"heads": 3}}}, r"heads \(3\) must divide dim \(16\)"),
        (ALIGNED | {"epochs": "aut"}, r"epochs is 'aut': give auto, .* or a number; 0.0 trains nothing$"),
        (ALIGNED | {"epochs": -1.0}, r"epochs is -1\.0: give auto, .* or a number; 0.0 trains nothing$"),
        (learning(), "losses: give one or more, or epochs: 0.0"),
        (ALIGNED | {"learning_rate": 0.0}, "learning_rate: give a number above 0, or epochs: 0.0"),
        (ALIGNED | {"epochs": 0.0}, "epochs: 0.0 trains nothing: leave losses, targets, then and towers out"),
        (STILL | {"then": [THEN]}, "epochs: 0.0 trains nothing: leave losses, targets, then"),
        (RANKED | {"then": [THEN | {"epochs": 0.0}]}, "epochs: 0.0 trains nothing: leave losses"),
        (STILL | {"targets": "online"}, "epochs: 0.0 trains nothing: leave .* targets"),
        (learning({"kind": "kl"}), "kl"),
        (learning({"kind": "embedding", "temperature": 1.0}), r"temperature is unknown"),
        (learning({"kind": "embedding"}, {"kind": "embedding"}), "embedding is named twice"),
        (learning({"kind": "embedding", "teacher": "cross"}), "embedding has no use for a teacher's scores"),
        (learning({"kind": "score_softmax", "teacher": "cross"}, teacher_top_k=0), "set teacher_top_k"),
        (RANKED | {"labels": "pseudo", "teacher_top_k": 0}, "labels: pseudo takes the .* set teacher_top_k"),
        (learning(DOCUMENTS), "document_embedding trains a document tower; it needs towers: symmetric"),
        (RANKED | {"targets": "joint"}, "joint moves the teacher's documents too; it needs towers: symmetric"),
        (JOINT | {"epochs": "auto"}, "targets: joint needs a number"),
        (
            JOINT | {"losses": [*JOINT["losses"], {"kind": "score_kl", "teacher": "cross"}], "teacher_top_k": 2},
            "joint trains one teacher, but losses compare with that of the index and cross; let all name one",
        ),
        (ALONG | {"towers": "joint"}, "towers: joint trains the index's teacher, targets: joint cross; choose one"),
        (ALONG | {"teacher_top_k": 0}, "compares the documents that it scored; set teacher_top_k"),
        (JOINT | {"joint_candidates": "batch"}, "joint_candidates are of a late_interaction or cross_encoder"),
        (RANKED | {"joint_candidates": "own"}, "joint_candidates are of a late_interaction or cross_encoder"),
        (ALONG | {"targets": "stored"}, "teacher_label_softmax trains the teacher; set targets: joint"),
        (STATIC | {"losses": [LAYERS], "teacher_top_k": 2}, "a static embedding has none; leave it out"),
        (learning({"kind": "attention", "dims": [8]}), "attention compares maps; leave dims out"),
        (
            ALONG | {"losses": [{"kind": "teacher_label_softmax", "dims": [8]}]},
            "teacher_label_softmax trains the teacher; leave dims out",
        ),
        (
            STATIC | {"start": {"adapter": "x"}, "losses": [LAYERS], "teacher_top_k": 2},
            "an adapter's encoder stays as it is; leave it out",
        ),
        (STATIC | {"towers": "symmetric"}, "a static embedding reads no documents"),
        (RANKED | {"towers": "joint", "then": [THEN]}, "then: .*use towers: asymmetric"),
        (ALIGNED | {"towers": "joint"}, "towers: joint trains on documents, and no loss compares any; add one"),
        (STATIC | {"then": [THEN | {"epoch": 1.0}]}, r"epoch is unknown"),
        (ALIGNED | {"method": "alignment"}, "method is unknown"),
    ],
)
def test_a_mistake_is_named_with_its_key(student: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=rf"^params\.yaml: distill\.student\.it.*{complaint}"):
        distill(student)


@pytest.mark.parametrize(("towers", "losses"), [("symmetric", [*LOSSES, DOCUMENTS]), ("joint", LOSSES)])
def test_a_student_with_documents_of_its_own_can_be_described_but_not_released(towers: str, losses: list[Any]) -> None:
    student = learning(*losses, towers=towers)
    assert distill(student, names=["2l"]).student["it"].towers == towers
    with pytest.raises(UserError, match=rf"students names \['it'\], whose towers are {towers}: none can be released"):
        distill(student, names=["2l", "it"])


def test_a_student_of_a_teacher_that_the_stage_does_not_have_can_be_described_but_not_named() -> None:
    assert distill(ALONG, names=["2l"]).student["it"].trained == "cross"
    assert distill(ALONG, names=["2l"]).student["it"].teachers == []
    with pytest.raises(UserError, match=r"targets: joint trains cross, .* `python -m steps\.distill --student it`"):
        distill(ALONG, names=["it"])


def test_a_student_whose_teacher_trains_along_can_be_described() -> None:
    warmed_up = RANKED | {"towers": "symmetric", "then": [THEN | {"targets": "joint", "losses": JOINT["losses"]}]}
    for student in (JOINT, warmed_up):
        assert distill(student, names=["2l"]).student["it"].model_dump(exclude_unset=True) == student


@pytest.mark.parametrize("name", ["", "..", "/abs", "../evil", "2l\n", "-x", "a b", "x" * 65])
def test_a_students_name_is_a_plain_name_as_it_becomes_a_folder(name: str) -> None:
    with pytest.raises(
        UserError, match=r"distill\.students\.0 is .*a name is 1 to 64 of the characters.*choose another"
    ):
        distill(ALIGNED, [name])
    raw = distill(ALIGNED).model_dump(exclude_unset=True)
    with pytest.raises(ValueError, match="a name is 1 to 64 of the characters"):
        DistillParams.model_validate(raw | {"student": raw["student"] | {name: ALIGNED}})


@pytest.mark.parametrize("name", ["bm25", "teacher"])
def test_a_student_is_not_called_what_a_baseline_is(name: str) -> None:
    with pytest.raises(UserError, match=rf"distill\.students\.0 is '{name}'.*a baseline; choose another name"):
        distill(ALIGNED, [name])


def test_a_student_that_no_one_described_is_refused() -> None:
    params = distill(ALIGNED)
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


def test_a_required_part_must_be_seen() -> None:
    raw = distill(ALIGNED).model_dump(exclude_unset=True)
    assert DistillParams.model_validate(raw | {"required_parts": list(raw["repeats"])[:1]}).required_parts
    with pytest.raises(ValueError, match="document_share"):
        DistillParams.model_validate(raw | {"repeats": {"documents": 1.0}})
    with pytest.raises(ValueError, match=r"required_parts names \['random_queries'\], which repeats leaves out"):
        DistillParams.model_validate(raw | {"required_parts": ["random_queries"]})

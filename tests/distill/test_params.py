"""params.yaml: what a student may be, and the mistakes that are named before anything is trained."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.params import check_params
from slimtower.common.errors import UserError
from steps.distill.params import DistillParams
from steps.release import __main__ as release

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
    students = raw["distill"]["student"]
    raw["distill"] |= {"student": {"it": student} | students, "students": names or ["it"]}
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
        (ALIGNED | {"start": {"layers": [0], "base": "x"}}, "give one of layers, base, fresh"),
        (QKD | {"start": {"fresh": ENCODER | {"heads": 3}}}, r"heads \(3\) must divide dim \(16\)"),
        (ALIGNED | {"epochs": "aut"}, "epochs is 'aut'"),
        (ALIGNED | {"epochs": -1.0}, r"epochs is -1\.0"),
        (learning(), "losses: give one or more, or epochs: 0.0"),
        (ALIGNED | {"learning_rate": 0.0}, "learning_rate: give a number above 0"),
        (ALIGNED | {"epochs": 0.0}, "epochs: 0.0 trains nothing"),
        (RANKED | {"then": [THEN | {"epochs": 0.0}]}, "epochs: 0.0 trains nothing"),
        (STILL | {"targets": "online"}, "epochs: 0.0 trains nothing: leave .* targets"),
        (learning({"kind": "embedding", "temperature": 1.0}), "temperature is unknown"),
        (learning({"kind": "embedding"}, {"kind": "embedding"}), "embedding is named twice"),
        (learning({"kind": "embedding", "teacher": "cross"}), "no use for a teacher's scores"),
        (learning({"kind": "score_softmax", "teacher": "cross"}, teacher_top_k=0), "set teacher_top_k"),
        (RANKED | {"labels": "pseudo", "teacher_top_k": 0}, "labels: pseudo .* set teacher_top_k"),
        (learning(DOCUMENTS), "it needs towers: symmetric"),
        (RANKED | {"targets": "joint"}, "it needs towers: symmetric"),
        (JOINT | {"epochs": "auto"}, "targets: joint needs a number"),
        (
            JOINT | {"losses": [*JOINT["losses"], {"kind": "score_kl", "teacher": "cross"}], "teacher_top_k": 2},
            "joint trains one teacher",
        ),
        (ALONG | {"towers": "joint"}, "towers: joint trains the index's teacher"),
        (ALONG | {"teacher_top_k": 0}, "set teacher_top_k"),
        (JOINT | {"joint_candidates": "batch"}, "joint_candidates are of a late_interaction or cross_encoder"),
        (RANKED | {"joint_candidates": "own"}, "joint_candidates are of a late_interaction or cross_encoder"),
        (ALONG | {"targets": "stored"}, "set targets: joint"),
        (STATIC | {"losses": [LAYERS], "teacher_top_k": 2}, "a static embedding has none"),
        (STATIC | {"start": {"adapter": "x"}, "losses": [LAYERS], "teacher_top_k": 2}, "an adapter's encoder stays"),
        (
            learning({"kind": "attention"}, {"kind": "attention", "teacher": "cross"}),
            "attention compares with one teacher",
        ),
        (STATIC | {"losses": [{"kind": "attention"}]}, "over the teacher's tokens"),
        (learning({"kind": "attention", "dims": [8]}), "leave dims out"),
        (learning(LAYERS | {"dims": [8]}), "leave dims out"),
        (learning({"kind": "pooled_embedding", "teacher": "cross", "dims": [8]}), "leave dims out"),
        (learning({"kind": "pooled_embedding", "teacher": ""}), "teacher"),
        (learning({"kind": "joint_embedding", "teacher": "cross"}, teacher_top_k=0), "set teacher_top_k"),
        (ALONG | {"losses": [{"kind": "teacher_label_softmax", "dims": [8]}]}, "leave dims out"),
        (STATIC | {"towers": "symmetric"}, "a static embedding reads no documents"),
        (RANKED | {"towers": "joint", "then": [THEN]}, "then: .*use towers: asymmetric"),
        (ALIGNED | {"towers": "joint"}, "no loss compares any"),
        (STATIC | {"then": [THEN | {"epoch": 1.0}]}, "epoch is unknown"),
    ],
)
def test_a_mistake_is_named_with_its_key(student: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError, match=rf"^params\.yaml: distill\.student\.it.*{complaint}"):
        distill(student)


@pytest.mark.parametrize(("towers", "losses"), [("symmetric", [*LOSSES, DOCUMENTS]), ("joint", LOSSES)])
def test_a_student_with_documents_of_its_own_can_be_described_but_not_released(towers: str, losses: list[Any]) -> None:
    student = learning(*losses, towers=towers)
    assert distill(student, names=["2l"]).student["it"].towers == towers
    with pytest.raises(UserError, match=f"towers are {towers}"):
        distill(student, names=["2l", "it"])


def test_a_student_whose_teacher_trains_along_is_released_if_the_index_stays() -> None:
    warmed_up = RANKED | {"towers": "symmetric", "then": [THEN | {"targets": "joint", "losses": JOINT["losses"]}]}
    for student in (JOINT, warmed_up, ALONG):
        assert distill(student, names=["2l"]).student["it"].model_dump(exclude_unset=True) == student
    described = distill(ALONG, names=["2l"]).student["it"]
    assert described.trained == "cross" and described.teachers == []
    with pytest.raises(
        UserError, match="'dual_encoder', which does not train along"
    ):  # recipes/lead.yaml has one that does
        distill(ALONG, names=["it"])
    with pytest.raises(UserError, match="towers are symmetric"):
        distill(JOINT, names=["it"])


@pytest.mark.parametrize("name", ["", "..", "/abs", "../evil", "2l\n", "a b", "bm25", "teacher"])
def test_a_students_name_is_a_plain_name_and_no_baselines_as_it_becomes_a_folder(name: str) -> None:
    with pytest.raises(UserError, match=r"distill\.students\.0 is .*choose another"):
        distill(ALIGNED, [name])
    raw = distill(ALIGNED).model_dump(exclude_unset=True)
    with pytest.raises(ValueError, match="name"):
        DistillParams.model_validate(raw | {"student": raw["student"] | {name: ALIGNED}})


def test_a_student_that_no_one_described_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a name that would lead the release out of its folder."""
    params = distill(ALIGNED)
    assert params.described("it") == params.student["it"]
    for name in ("../it", "its"):
        with pytest.raises(UserError, match=r"distill\.student has no"):
            params.described(name)
    monkeypatch.setattr("sys.argv", ["steps.release", "--student", "../../elsewhere"])
    monkeypatch.setattr(release, "stage_main", lambda *_, **__: pytest.fail("a folder outside would be replaced"))
    with pytest.raises(UserError, match=r"--student: '\.\./\.\./elsewhere'"):
        release.main()


def test_a_required_part_must_be_seen() -> None:
    raw = distill(ALIGNED).model_dump(exclude_unset=True)
    assert DistillParams.model_validate(raw | {"required_parts": list(raw["repeats"])[:1]}).required_parts
    with pytest.raises(ValueError, match="document_share"):
        DistillParams.model_validate(raw | {"repeats": {"documents": 1.0}})
    with pytest.raises(ValueError, match=r"required_parts .*random_queries"):
        DistillParams.model_validate(raw | {"required_parts": ["random_queries"]})

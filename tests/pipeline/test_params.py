"""params.yaml: the tracked file is valid, and every mistake names its key, its value and the fix."""

import copy
import json
import random
import re
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from cross_encoders import CROSS, DUAL
from ruamel.yaml import YAML

from pipeline.params import Params, check_params, load_params
from slimtower.common.errors import UserError, line
from slimtower.common.names import key_name
from slimtower.common.settings import read_mapping
from steps.core.params import load_index_teacher
from steps.mine.params import RELEVANCE_DEPTH, SKIPPED
from steps.rank.params import DEPTH
from steps.teach.kinds.endpoint import Endpoint

TRACKED = yaml.safe_load(Path("params.yaml").read_text(encoding="utf-8"))
DENSE = TRACKED["teach"]["teacher"]["dense"]
UNUSED_ROUND = DENSE | {"rounds": {"more": 1}, "loss": {"hard_negatives": "none"}}
LATE = {key: value for key, value in DENSE.items() if key not in {"loss", "rounds"}}
LATE |= {"kind": "late_interaction", "dim": 0, "hard_negatives": "softmax"}
RENTED = {"kind": "endpoint", "model": "new", "query": {}, "document": {}}
RENTED |= {"connection": {"base_url": "http://localhost:1/v1", "key_variable": "", "max_tokens_total": 0}}
SEEDS = [
    "ingest.seed", "teach.teacher.dense.seed", "rank.ranker.cross.seed", "generate.seed", "embed.seed", "distill.seed",
    "distill.student.4l.seed", "index.seed", "evaluate.seed", "promote.policy.seed",
]  # fmt: skip
HERE = str(Path.cwd())


def check(raw: dict[str, Any], message: str = "") -> None:
    """Check params, which are refused with `said` unless it is empty."""
    with pytest.raises(UserError, match=message) if message else nullcontext():
        check_params(raw, "params.yaml")


def changed(key: str, value: Any) -> dict[str, Any]:
    """The tracked params with another value of a key, without the key where it is None."""
    raw: dict[str, Any] = copy.deepcopy(TRACKED)
    *parents, last = key.split(".")
    section = raw
    for parent in parents:
        section = section[parent]
    section[last] = value
    if value is None:
        del section[last]
    return raw


def taught(**teachers: Any) -> dict[str, Any]:
    """The tracked params with these teachers, of which the first is that of the index."""
    names = list(teachers)
    return changed("teach", {"teachers": names, "index": names[0], "teacher": teachers})


def learns(teacher: str) -> list[dict[str, Any]]:
    return [{"kind": "score_softmax", "teacher": teacher}]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("distill.methd", "x", r"distill\.methd is unknown; did you mean distill\."),
        ("teach.teacher.dense.epoch", 1, r"epoch is unknown; did you mean teach\.teacher\.dense\.epochs\?"),
        (
            "distill.student.static.start",
            {"static": {"widht": 256}},
            r"static\.start\.static\.widht is unknown; did you mean distill\.student\.static\.start\.static\.width\?",
        ),
        ("teech", {}, r"teech is unknown; did you mean teach\?"),
        ("distill.student.2l.epoch", 1.0, r"epoch is unknown; did you mean distill\.student\.2l\.epochs\?"),
        ("teach.teacher.dense.batch_size", "32", r"teach\.teacher\.dense\.batch_size is '32'"),
        ("teach.teacher.dense.learning_rate", -1.0, r"teach\.teacher\.dense\.learning_rate is -1\.0"),
        ("mine.planner", None, r"mine\.planner is missing; add it"),
        ("teach.teacher.dense.kind", "cross", r"teach\.teacher\.dense\.kind is 'cross'; it may be '"),
        ("teach.teacher.dense.kind", None, r"teach\.teacher\.dense has no 'kind'; add it"),
        ("teach.teachers", ["dense", "gone"], r"teach: teachers names \['gone'\], but teacher has \['dense'\]"),
        ("teach.teachers", ["dense", "dense"], "twice"),
        ("teach.index", "gone", r"teach: index is 'gone', but teachers names only \['dense'\]"),
        ("teach.index", "../x", r"teach\.index is '../x'"),
        ("score.teachers", ["gone"], r"names 'gone', but teach\.teachers and rank\.rankers have only \['dense'\]"),
        ("score.teachers", ["cross"], r"names 'cross', but teach\.teachers and rank\.rankers have only"),
        ("score.teachers", ["dense"], r"score\.teachers names 'dense', the teacher of the index \(teach\.index\)"),
        ("score.teachers", ["a", "a"], "twice"),
        ("rank.rankers", ["gone"], r"rank: rankers names \['gone'\], but ranker has \['cross'\]"),
        ("rank.ranker.cross.base", "models/teach/dense/tower", "would be made of its own judgements"),
        ("candidates.base", "models/teach/dense/tower", "would be made of its own judgements"),
        ("candidates.searchers", ["lucene"], r"candidates\.searchers\.0 is 'lucene'"),
        ("candidates.depth", 10, r"candidates\.depth is 10, but hard negatives are those after the first 10"),
        ("distill.students", ["2l", "2l"], "twice"),
        ("distill.students", ["2l", "9l"], r"students names \['9l'\]"),
        ("distill.student.4l.losses", learns("gone"), r"4l: a loss names the teacher 'gone', but score\.teachers has"),
        ("distill.student.4l.losses", learns("dense"), r"4l: a loss names the teacher 'dense', that of the index"),
        ("teach.teacher.dense.rounds.ranker", "cross", r"dense\.rounds\.ranker is 'cross', but rank\.rankers has"),
        ("teach.teacher.dense.rounds.ranker", "../x", r"rounds\.ranker is '\.\./x'"),
        ("teach.teacher.dense", UNUSED_ROUND, r"rounds\.more: rounds find hard negatives"),
        *((key, seed, rf"{re.escape(key)} is {seed}") for key in SEEDS for seed in (-1, 20261127030500)),
        ("teach", taught(late=LATE)["teach"], r"index is 'late', a late_interac"),
        ("ingest.until", date(2026, 1, 31), r'ingest\.until is .*: a date has quotes here: "2026-01-31"'),
        ("teach.teacher.dense.base", "./models/teach/old/tower", "teachers do not wait for each other"),
        ("distill.student.4l.start", {"adapter": "models/teach/new/tower"}, "name 'new' there, or a copy of that"),
        ("distill.student.4l.start", {"base": "models/teach/new/tower"}, r"neither the index's nor in score\.teachers"),
        ("distill.student.4l.start", {"base": f"{HERE}/models/teach/new/tower"}, r"nor in score\.teachers"),
        ("distill.student.4l.start", {"base": "./models/distill/static/query_encoder"}, "students do not wait"),
        ("distill.student.4l.start", {"adapter": f"{HERE}/models/release/static/query_encoder"}, "copy that folder"),
    ],
)
def test_a_mistake_is_named(key: str, value: Any, message: str) -> None:
    check(changed(key, value), message)


def test_what_another_run_made_may_be_started_from() -> None:
    """Of a recipe's run the project's own models are another run's."""
    raw = changed("distill.student.4l.start", {"base": f"{HERE}/models/release/2l/query_encoder"})
    check_params(raw, "recipes/x.yaml", Path.cwd() / "runs/x")
    check(raw, "students do not wait for each")


def test_a_name_that_dvc_does_not_find_is_refused_and_others_are_found_as_text() -> None:
    """It reads `distill.student.v1.5` as three keys, and 1e5 in a list as a number."""
    for name in ("v1.5", "1e5", "1_000", "nan", "True", "off", "0x1f", "0o17"):
        raw = changed("distill.student", {name: TRACKED["distill"]["student"]["4l"]})
        raw["distill"]["students"] = [name]
        check(raw, "DVC takes no name that holds a full stop, or reads as a number or truth")
    for name in ("4l", "1l", "static", "v1-5", "face", "e5", "2e5l", "0_1_x", "nano"):
        assert key_name(name) == name and YAML(typ="safe").load(name) == name == yaml.safe_load(name)


def test_what_dvc_tracks_has_no_default_that_only_the_code_knows() -> None:
    """DVC stops at a tracked key that is missing, hours after the check of params.yaml."""
    stages = read_mapping(Path("dvc.yaml"))["stages"].values()
    listed = [key for stage in stages for key in stage.get("do", stage).get("params", [])]
    keys = [key for key in listed if isinstance(key, str) and "." in key and "${" not in key]
    assert len(keys) > 15
    for key in keys:
        check(changed(key, None), f"{key.rpartition('.')[2]} is missing")


def test_a_rented_model_may_score_but_not_adapt_or_rerank(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = taught(dense=DENSE, rented=RENTED)
    raw["score"]["teachers"] = ["rented"]
    check(raw)
    student = {"start": {"adapter": "models/teach/rented/tower"}, "losses": [{"kind": "score_kl", "teacher": "rented"}]}
    raw["distill"]["student"]["4l"] = student | {"learning_rate": 1e-5, "teacher_top_k": 2}
    check(raw, r"4l: adapter is the teacher 'rented', which is behind an API")
    raw["distill"]["student"]["4l"] = TRACKED["distill"]["student"]["4l"]
    raw["evaluate"]["rerankers"] = ["rented"]
    check(raw, r"rerankers names 'rented', which is behind an API")
    monkeypatch.setattr(Endpoint, "gives", frozenset({"vectors"}))
    check(raw, r"score\.teachers names 'rented', a teacher of kind 'endpoint', which does not")


@pytest.mark.parametrize(
    ("student", "message"),
    [
        ({"start": {"layers": [-1]}}, r"start: {layers: \[\.\.\.\]} takes its layers"),
        ({"start": {"fresh": {"layers": 1, "dim": 8, "heads": 1, "vocabulary": 0}}}, "takes its token embeddings"),
        ({"start": {"base": "x"}, "targets": "online"}, "targets: online runs it"),
        (
            {"start": {"base": "x"}, "then": [{"losses": [{"kind": "embedding"}], "targets": "online"}]},
            "targets: online runs it",
        ),
        ({"start": {"base": "x"}, "losses": [{"kind": "layer_distillation", "layers": 1}], "teacher_top_k": 2},
         "losses: layer_distillation looks inside it"),
        ({"start": {"base": "x"}}, ""),
        ({"start": {"fresh": {"layers": 1, "dim": 8, "heads": 1, "vocabulary": 90}}}, ""),
    ],
)  # fmt: skip
def test_what_is_inside_a_rented_teacher_is_refused_before_a_text_is_paid_for(
    student: dict[str, Any], message: str
) -> None:
    raw = taught(rented=RENTED)
    described = {"losses": [{"kind": "embedding"}], "learning_rate": 1e-4, "epochs": 1.0} | student
    described["then"] = [phase | {"learning_rate": 1e-4} for phase in described.get("then", [])]
    raw["distill"] |= {"students": ["4l"], "student": {"4l": described}}
    check(raw, message and rf"student\.4l: .*{message}, but the teacher rented is behind an API.*start from")


def test_vectors_of_an_index_are_no_trained_teachers() -> None:
    stored = {"kind": "files", "path": "vectors.parquet"}
    raw = changed("ingest.document_vectors", {source["name"]: stored for source in TRACKED["ingest"]["sources"]})
    raw["teach"]["teacher"]["dense"] = DENSE | {"epochs": 0.0}
    check(raw)
    raw["teach"]["teacher"]["dense"] = DENSE | {"epochs": 0.5}
    check(raw, r"document_vectors .*\(teach\.teacher\.dense\).*set its epochs to 0, or leave document_vectors out")
    raw["teach"] |= {"teachers": ["kept", "dense"], "index": "kept"}
    raw["teach"]["teacher"]["kept"] = DENSE | {"epochs": 0.0}
    check(raw)


def test_an_adapter_of_a_model_with_a_query_prompt_is_refused_before_it_is_paid_for(tmp_path: Path) -> None:
    saved = tmp_path / "config_sentence_transformers.json"
    saved.write_text(json.dumps({"prompts": {"query": "query: ", "document": "passage: "}}))
    new = DENSE | {"base": str(tmp_path)}
    for encoder in (str(tmp_path), "models/teach/new/tower"):
        student = {"start": {"adapter": encoder}, "losses": [{"kind": "score_kl", "teacher": "new"}]}
        raw = taught(dense=DENSE, new=new)
        raw["score"]["teachers"] = ["new"]
        raw["distill"]["student"]["4l"] = student | {"learning_rate": 1e-5, "teacher_top_k": 2}
        for students, message in ((["4l"], "4l: adapter .* reads queries with the prompt 'query: ',"), (["2l"], "")):
            raw["distill"]["students"] = students
            check(raw, message)
        raw["distill"]["students"] = ["4l"]
        before = saved.read_text()
        for prompts in ({}, {"prompts": {"query": None}}, {"prompts": {"document": "passage: "}}):
            saved.write_text(json.dumps(prompts))
            check(raw)
        saved.write_text(before)
    new["query_prompt"] = "ask: "
    check(raw, "with the prompt 'ask: '")


def test_a_late_interaction_teacher_scores_as_many_documents_as_students_compare() -> None:
    raw = taught(dense=DENSE, late=LATE)
    raw["score"] |= {"teachers": ["late"], "depth": 10}
    raw["distill"]["student"]["4l"] |= {"losses": learns("late"), "teacher_top_k": 10}
    check(raw)
    raw["distill"]["student"]["4l"]["teacher_top_k"] = 11
    check(raw, r"scores 10 documents of a text \(score\.depth\), but teacher_top_k is 11")


def test_the_constants_of_candidates_ranker_and_miner_fit() -> None:
    params = check_params(changed("rank.rankers", ["cross"]), "params.yaml")
    assert min(DEPTH, params.candidates.depth) >= RELEVANCE_DEPTH and SKIPPED * 5 <= DEPTH


def with_cross_encoders(losses: list[dict[str, Any]], pairs: int) -> dict[str, Any]:
    raw = taught(dense=DENSE, cls=CROSS, dual=DUAL, other=DENSE)
    raw["distill"]["student"]["4l"]["losses"] = losses
    raw["rank"]["rankers"] = ["cross"]
    raw["candidates"]["queries"] = "all"
    raw["score"] |= {"teachers": ["cls", "dual", "other", "cross"], "pairs": pairs}
    return raw


def test_a_teacher_may_score_fewer_texts_than_another() -> None:
    raw = with_cross_encoders([{"kind": "embedding", "distance": "l2"}], 1)
    for max_texts, expected in ((7, [7, 7]), ({"cls": 5}, [5, 0]), ({"cls": 0, "cross": 3}, [0, 3])):
        raw["score"]["max_texts"] = max_texts
        score = check_params(raw, "params.yaml").score
        assert [score.texts_of(name) for name in ("cls", "cross")] == expected
    for wrong, message in (
        ("many", " is 'many': give a whole number"),
        (-1, " is -1: give a whole number"),
        ({"cls": "x"}, ": cls is 'x'; give a whole number"),
        ({"cls": True}, ": cls is True; give a whole number"),
        ({"../x": 5}, ": a name is"),
        ({7: 5}, ": a name is"),
    ):
        raw["score"]["max_texts"] = wrong
        with pytest.raises(UserError, match=re.escape(f"params.yaml: score.max_texts{message}")) as caught:
            check_params(raw, "params.yaml")
        assert "constrained" not in str(caught.value) and str(caught.value).count("max_texts") == 1
    raw["score"]["max_texts"] = {"gone": 5}
    check(raw, r"score: max_texts names \['gone'\], but teachers only \['cls'")


def test_a_student_learns_embeddings_of_pairs_from_a_cross_encoder_of_the_right_pooling() -> None:
    pooled, joint = ({"kind": f"{name}_embedding"} for name in ("pooled", "joint"))
    advice = r"learns the embeddings of a cross encoder with pooling: "
    for losses, pairs, message in (
        ([pooled | {"teacher": "dual"}, joint | {"teacher": "cls"}], 1, ""),
        ([joint | {"teacher": "cross"}], 1, ""),
        ([pooled | {"teacher": "dual"}], 0, r"4l: pooled_embedding@dual learns .* score\.pairs is 0; set it to 1"),
        ([pooled | {"teacher": "cls"}], 1, advice + "special_tokens or segments"),
        ([pooled | {"teacher": "cross"}], 1, advice + "special_tokens or segments"),
        ([pooled | {"teacher": "other"}], 1, advice),
        ([joint | {"teacher": "dual"}], 1, advice + "cls"),
    ):
        check(with_cross_encoders(losses, pairs), message)


def test_a_key_in_the_place_of_its_variables_name_is_refused_and_not_shown() -> None:
    letters = "".join(map(chr, random.Random(7).choices(range(97, 123), k=1000)))  # so long a one is cut in messages
    planted = ("sk-proj-Planted0123", "Planted0123456789abcdefghijklmno", letters[:199], letters)
    prefixed = (f"{prefix}_{letters[:24]}" for prefix in ("hf", "gsk", "ghp", "sk_live"))
    for key in (*planted, *prefixed):
        raw = taught(rented=RENTED | {"connection": RENTED["connection"] | {"key_variable": key}})
        with pytest.raises(UserError, match=r"key_variable.*is no variable's name") as caught:
            check_params(raw, "params.yaml")
        message = line(caught.value)
        assert key not in message and letters[:8] not in message and key[-8:] not in message


def test_a_reranker_is_a_teacher_beside_that_of_the_index_with_a_name_of_its_own() -> None:
    raw = taught(dense=DENSE, late=LATE, other=DENSE)
    for names, message in (
        (["late", "other"], ""),
        (["gone"], r"evaluate\.rerankers names 'gone'.*teach.teachers and rank.rankers have only"),
        (["dense"], r"evaluate\.rerankers names 'dense'.*whose hits are what is re-ranked"),
    ):
        raw["evaluate"]["rerankers"] = names
        check(raw, message)
    for name in ("bm25", "teacher", "base"):
        raw = taught(dense=DENSE, **{name: LATE})
        raw["evaluate"] |= {"rerankers": [name], "earlier_towers": True}
        check(raw, f"names '{name}', which is the name of another system")


@pytest.mark.parametrize("name", ["base", "round_0"])
def test_a_student_may_be_named_as_an_earlier_tower_only_where_none_is_measured(name: str) -> None:
    raw = changed("distill.student." + name, TRACKED["distill"]["student"]["static"])
    raw["distill"]["students"].append(name)
    check(raw)
    raw["evaluate"]["earlier_towers"] = True
    check(raw, rf"distill\.students names '{name}'.*rename the student")


def test_the_tracked_file_is_valid_and_each_section_is_a_stage() -> None:
    check(TRACKED)
    stages = yaml.safe_load(Path("dvc.yaml").read_text(encoding="utf-8"))["stages"]
    without_files = {"promote", "deploy"}  # these move aliases
    assert set(stages) | without_files == set(Params.model_fields) == set(TRACKED)
    assert all(Path("steps", stage, "__main__.py").is_file() for stage in [*stages, "promote"])


def test_the_teacher_of_the_index_is_read_by_name(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("teach: {index: dense}")
    assert load_index_teacher(path) == "dense"
    for text in ("teach: {teachers: [dense]}", "teach: {index: [dense]}", "teach: 1", "teach: {index: ../elsewhere}"):
        path.write_text(text)
        with pytest.raises(UserError, match=r"teach\.index"):
            load_index_teacher(path)
    with pytest.raises(UserError, match="not found"):
        load_params(tmp_path / "none.yaml")

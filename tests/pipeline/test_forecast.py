"""The forecast: it grows with what costs time, and agrees with a count by hand."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import forecast
from pipeline.forecast import DENOISER, FIXED, Data, in_words, layer_operations, measure, vocabulary_size
from pipeline.params import Params, check_params
from pipeline.recipe import overlay
from slimtower.common.settings import read_mapping
from steps.core.tables import SCHEMAS, table_from_rows, write_table

DATA = Data(documents=1000, document_tokens=50.0, train_queries=200, texts=3000)
LAYER, LAYERS, SPEED = 3.5e6, 6, 1e11


def params(**distill: Any) -> Params:
    """The tracked params with a ranker, a second teacher, which scores, and a changed section `distill`."""
    raw = read_mapping(Path("params.yaml"))
    other = raw["teach"]["teacher"]["dense"]
    two = {"teach": {"teachers": ["dense", "other"], "teacher": {"other": other}}, "score": {"teachers": ["other"]}}
    changes = {"distill": distill, "rank": {"rankers": ["cross"]}}
    return check_params(overlay(overlay(raw, two), changes), "params.yaml")


def seconds(data: Data = DATA, params: Params | None = None, speed: float = SPEED) -> dict[str, float]:
    chosen = params or check_params(read_mapping(Path("params.yaml")), "")
    return forecast.forecast(data, chosen, LAYER, LAYERS, speed)


def test_every_stage_has_a_share_and_at_least_its_fixed_one() -> None:
    found = seconds(params=params(students=["static", "2l"]))
    assert {name.partition("@")[0] for name in found} == set(FIXED)
    assert {"distill@static", "distill@2l", "release@static", "release@2l"} <= set(found)
    assert all(found[name] >= FIXED[name.partition("@")[0]] for name in found)


@pytest.mark.parametrize(
    ("larger", "stages"),
    [
        (replace(DATA, documents=2000), {"embed", "score@other"}),
        (replace(DATA, document_tokens=80.0), {"embed", "teach@dense", "teach@other", "score@other"}),
        (replace(DATA, train_queries=400), {"generate"}),
        (replace(DATA, texts=6000), {"embed", "score@other", "distill@static", "distill@2l", "distill@4l"}),
    ],
    ids=["documents", "tokens", "queries", "texts"],
)
def test_more_data_takes_longer_where_it_is_read(larger: Data, stages: set[str]) -> None:
    names = ["static", "2l", "4l"]
    chosen = params(students=names, student={name: {"epochs": 1.0} for name in names})
    before, after = seconds(params=chosen), seconds(larger, chosen)
    assert {name for name in before if after[name] > before[name]} == stages
    assert all(after[name] == before[name] for name in before if name not in stages)


def test_deeper_students_and_more_of_them_take_longer() -> None:
    once = {name: {"epochs": 1.0} for name in ("1l", "2l", "4l")}
    found = seconds(params=params(students=list(once), student=once))
    work = [found[f"distill@{name}"] - FIXED["distill"] for name in ("1l", "2l", "4l")]
    assert work[1] == pytest.approx(2 * work[0])
    assert work[2] == pytest.approx(4 * work[0])
    assert sum(found.values()) > sum(seconds(params=params(students=["1l"], student=once)).values())


def test_a_student_by_hand() -> None:
    """Texts x tokens x passes x layers x operations a token and layer, three times as a step goes back too."""
    chosen = params(students=["2l"], student={"2l": {"epochs": 2.0}})
    layer = 2.0 * (4 * 384 * 384 + 2 * 384 * 1536)  # four projections, two of the feed-forward part
    found = forecast.forecast(DATA, chosen, layer, 6, 5e10)["distill@2l"]
    assert found - FIXED["distill"] == pytest.approx(3000 * 19 * 2.0 * 2 * layer * 3 / 5e10)


def test_the_small_bart_by_hand_trains_on_no_more_queries_than_it_may() -> None:
    raw = read_mapping(Path("params.yaml"))
    own = {"max_queries": 2000, "least_sources": 0, "sigmas": [0.1, 0.2]}
    small = {"max_queries": 20_000, "corpus_texts": 3000, "epochs": 1.2}
    chosen = check_params(overlay(raw, {"generate": own | {"small": small}}), "")
    for queries, trained in ((4_000, 4_000), (10_000_000, 20_000)):
        data = replace(DATA, train_queries=queries)
        work = DENOISER * (1.2 * (trained + 3000) + 2 * 2000)
        assert seconds(data, chosen)["generate"] - FIXED["generate"] == pytest.approx(work / SPEED)


def test_nearest_documents_are_sought_among_no_more_than_there_may_be() -> None:
    raw = read_mapping(Path("params.yaml"))
    layer, found = 2.0 * (4 * 384 * 384 + 2 * 384 * 1536), {}
    for most in (0, 500_000):
        chosen = check_params(overlay(raw, {"embed": {"neighbour_documents": most}}), "")
        found[most] = forecast.forecast(replace(DATA, documents=2_000_000), chosen, layer, 6, SPEED)["embed"]
    assert found[0] - found[500_000] == pytest.approx(2 * 384 * DATA.texts * 1_500_000 / SPEED)


def test_of_documents_whose_vectors_are_given_a_sample_is_read() -> None:
    raw = read_mapping(Path("params.yaml"))
    stored = {each["name"]: {"kind": "files", "path": "x"} for each in raw["ingest"]["sources"]}
    given = {"ingest": {"document_vectors": stored}, "teach": {"teacher": {"dense": {"epochs": 0.0}}}}
    given |= {"embed": {"check": {"documents": 100}}}
    before, after = (seconds(params=check_params(overlay(raw, each), ""))["embed"] for each in ({}, given))
    unread = (1000 - 100 * len(stored)) * 50 * LAYER * LAYERS / SPEED
    assert before - after == pytest.approx(unread) and unread > 0
    few = replace(DATA, documents=10)
    assert seconds(few, check_params(overlay(raw, given), ""))["embed"] == pytest.approx(seconds(few)["embed"])


def test_a_dual_encoder_reads_the_documents_that_it_scores() -> None:
    raw = overlay(read_mapping(Path("params.yaml")), {"teach": {"teachers": ["dense", "other"]}})
    raw["teach"]["teacher"]["other"] = raw["teach"]["teacher"]["dense"]
    raw["score"] |= {"teachers": ["other"], "max_texts": 20, "depth": 4}
    large = replace(DATA, documents=1_000_000)
    found = seconds(large, check_params(raw, ""))["score@other"] - FIXED["score"]
    assert found == pytest.approx((20 * 4 * 50 + 20 * 19) * LAYER * LAYERS / SPEED)
    raw["score"]["max_texts"] = 0
    found = seconds(params=check_params(raw, ""))["score@other"] - FIXED["score"]
    assert found == pytest.approx((1000 * 50 + 3000 * 19) * LAYER * LAYERS / SPEED)


def test_an_adapter_is_read_and_not_trained() -> None:
    same = {"losses": [{"kind": "embedding"}], "labels": "train", "teacher_top_k": 0, "epochs": 1.0}
    starts = {"base": {"base": "x"}, "adapter": {"adapter": "x"}}
    students = {name: same | {"start": start, "learning_rate": 1e-3} for name, start in starts.items()}
    found = seconds(params=params(students=[*starts], student=students))
    base, adapter = (found[f"distill@{name}"] - FIXED["distill"] for name in starts)
    assert base == pytest.approx(3 * adapter) and adapter > 0


def test_a_ranker_by_hand_with_a_cap_and_without() -> None:
    """Pairs x tokens x layers x operations: trained three times as a step goes back too, then scored once."""
    for most, asked in ((150, 150), (0, 200), (5000, 200)):
        knobs = {
            "max_queries": most,
            "max_triplets": 0,
            "epochs": 1.0,
            "depth": 40,
            "dev_queries": 30,
            "max_length": 96,
        }
        raw = overlay(read_mapping(Path("params.yaml")), {"rank": {"rankers": ["cross"], "ranker": {"cross": knobs}}})
        pairs = 3 * 4 * 200 * (1 + 2 + 1) + (asked + 30) * 40
        found = seconds(params=check_params(raw, ""))["rank@cross"]
        assert found - FIXED["rank"] == pytest.approx(pairs * 96 * LAYER * LAYERS / SPEED)


def test_each_teacher_scores_as_many_texts_as_it_is_to() -> None:
    raw = overlay(read_mapping(Path("params.yaml")), {"teach": {"teachers": ["dense", "other"]}})
    raw["teach"]["teacher"]["other"] = raw["teach"]["teacher"]["dense"]
    found = []
    for most in ({"other": 100}, 100, {}, 0):
        raw["score"] |= {"teachers": ["other"], "max_texts": most}
        found.append(seconds(params=check_params(raw, ""))["score@other"])
    assert found[0] == found[1] < found[2] == found[3]


def test_a_machine_of_twice_the_speed_halves_all_but_the_fixed_part() -> None:
    slow, fast = seconds(), seconds(speed=2 * SPEED)
    for name, fixed in ((name, FIXED[name.partition("@")[0]]) for name in slow):
        assert slow[name] - fixed == pytest.approx(2 * (fast[name] - fixed))


def test_without_training_queries_nothing_is_trained_or_generated() -> None:
    found = seconds(replace(DATA, train_queries=0))
    assert found["teach@dense"] == FIXED["teach"]
    assert found["generate"] == FIXED["generate"]


def test_each_tower_that_the_teacher_was_before_reads_the_corpus_once_more() -> None:
    def of_evaluate(earlier_towers: bool, more: int = 0, epochs: float = 1.0) -> float:
        teacher = {"epochs": epochs, "rounds": {"more": more}}
        changes = {"evaluate": {"earlier_towers": earlier_towers}, "teach": {"teacher": {"dense": teacher}}}
        raw = overlay(read_mapping(Path("params.yaml")), changes)
        return seconds(params=check_params(raw, ""))["evaluate"]

    without = of_evaluate(False, more=2)
    assert of_evaluate(True, more=2) - without == pytest.approx(3 * 1000 * 50 * LAYER * LAYERS / SPEED)
    assert of_evaluate(True) - without == pytest.approx(1000 * 50 * LAYER * LAYERS / SPEED)
    assert of_evaluate(True, epochs=0.0) == without == of_evaluate(False)


def test_the_tables_are_counted(tmp_path: Path) -> None:
    words = " ".join(["word"] * 30)
    rows: dict[str, list[tuple[str, ...]]] = {
        "corpus": [(f"a/{at}", "a", "title", "", words) for at in range(10)],
        "queries": [(f"a/q{at}", "a", "text", split) for at, split in enumerate(["train"] * 4 + ["test"] * 3)],
        "unlabelled_queries": [("a/q7", "a", "text")],
    }
    for name, given in rows.items():
        columns = SCHEMAS[name].names
        write_table(tmp_path, name, table_from_rows(name, [dict(zip(columns, row, strict=False)) for row in given]))
    found = measure(tmp_path, params())
    assert (found.documents, found.train_queries) == (10, 4)
    assert found.document_tokens == pytest.approx(1.4 * 30 + 6)
    counted = 4 + 2 * 4 + 10 + 10 * 30 // 15 + 1
    assert found.texts == counted + 10 * 30  # spans make up for missing texts, about one a word
    for least, texts in ((counted, counted), (100, 100)):
        chosen = params()
        embed = chosen.embed.model_copy(update={"least_texts": least})
        assert measure(tmp_path, chosen.model_copy(update={"embed": embed})).texts == texts


def test_no_document_is_no_division(tmp_path: Path) -> None:
    for name in ("corpus", "queries", "unlabelled_queries"):
        write_table(tmp_path, name, table_from_rows(name, []))
    assert measure(tmp_path, params()) == Data(0, 0.0, 0, 0)


def test_a_network_that_does_not_say_its_size_has_no_forecast(tmp_path: Path) -> None:
    assert layer_operations(tmp_path) is None
    config = tmp_path / "config.json"
    for text in ("{", "{}", '{"hidden_size": null, "intermediate_size": 4, "num_hidden_layers": 1}', "[]"):
        config.write_text(text)
        assert layer_operations(tmp_path) is None
    config.write_text(json.dumps({"hidden_size": 2, "intermediate_size": 3, "num_hidden_layers": 5}))
    assert layer_operations(tmp_path) == (2.0 * (16 + 12), 5)


def test_every_token_of_the_teachers_vocabulary_is_read_alone(tmp_path: Path) -> None:
    assert vocabulary_size(tmp_path) == 30_000
    (tmp_path / "config.json").write_text('{"vocab_size": 250002}')
    assert vocabulary_size(tmp_path) == 250_002
    chosen = check_params(read_mapping(Path("params.yaml")), "")
    less, more = (forecast.forecast(DATA, chosen, LAYER, LAYERS, SPEED, size)["embed"] for size in (30_000, 250_002))
    assert more - less == pytest.approx(3 * 220_002 * LAYER * LAYERS / SPEED)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_speed_of_this_machine_is_found_quickly(precision: str) -> None:
    assert 1e8 < forecast.speed(precision, seconds=0.05) < 1e16


@pytest.mark.parametrize(
    ("guess", "said"),
    [(10, "less than a minute"), (44, "less than a minute"), (45, "a minute"), (89, "a minute"), (90, "2 minutes"),
     (620, "10 minutes")],
)  # fmt: skip
def test_a_guess_is_said_as_people_say_it(guess: float, said: str) -> None:
    assert in_words(guess) == said


def test_layers_of_late_interaction_read_each_texts_documents_once_more() -> None:
    def of_score(layers: bool) -> float:
        late = {"kind": "late_interaction", "base": "x", "epochs": 0.0}
        changes = {
            "teach": {"teachers": ["dense", "late"], "teacher": {"late": late}},
            "score": {"teachers": ["late"], "layers": layers, "depth": 3, "max_texts": 100},
        }
        return seconds(params=check_params(overlay(read_mapping(Path("params.yaml")), changes), ""))["score@late"]

    assert of_score(True) - of_score(False) == pytest.approx(100 * 3 * 50 * LAYER * LAYERS / SPEED)


@pytest.mark.parametrize(("texts", "longer"), [(3_000, 1), (512_000, 10), (10**9, 50)])
def test_a_training_until_convergence_takes_the_fewest_steps_or_an_epoch(texts: int, longer: int) -> None:
    chosen = params(students=["2l"])
    limits, student = chosen.distill.convergence, chosen.distill.student["2l"]
    assert (limits.min_steps, limits.max_steps, student.batch_size) == (400, 20_000, 128)
    few = forecast._texts(student, student, replace(DATA, texts=3000), chosen)
    assert forecast._texts(student, student, replace(DATA, texts=texts), chosen) == pytest.approx(longer * few)


def test_a_training_until_convergence_takes_no_longer_than_its_clock_allows() -> None:
    chosen = params(students=["4l"])
    found = seconds(replace(DATA, texts=10**7), chosen)["distill@4l"]
    assert found == pytest.approx(FIXED["distill"] + 60 * chosen.distill.convergence.max_minutes)
    counted = chosen.distill.student["4l"].model_copy(update={"epochs": 1.0})
    chosen = chosen.model_copy(update={"distill": chosen.distill.model_copy(update={"student": {"4l": counted}})})
    assert seconds(replace(DATA, texts=10**7), chosen)["distill@4l"] > 2 * found

"""Rounds of hard negatives: which documents may be one, and that a killed run ends as one that was left alone."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from other_versions import LIBRARIES, install_another
from recorder import Recorder
from safetensors.torch import load_file, save_file
from teach_fakes import PARAMS, documents, queries, table, triplets, write_tower, write_world
from torch import nn
from transformers import TrainerCallback

import steps.teach.contrastive_training as contrastive_training
import steps.teach.dual_encoder as dual_encoder
import steps.teach.hard_negatives as hard_negatives
import steps.teach.rounds as rounds
from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from slimtower.common.fingerprints import fingerprint
from slimtower.common.settings import validated
from steps.core.tables import read_table, write_table
from steps.core.texts import fold
from steps.encoders.towers import encode, load_tower
from steps.teach.hard_negatives import SearchedCorpus, allowed_rows, mine_negatives
from steps.teach.kinds.base import RoundParams
from steps.teach.kinds.dual_encoder import DualEncoder
from steps.teach.run import run as teach
from steps.teach.training_triplets import TextTriplet, choose_triplets, known_positives
from steps.tracking.runs import NullRun
from steps.training.params import TripletTraining

ALL = RoundParams(more=1, skip=0, depth=500, margin=0.0, ranker="")
KEYS = np.arange(100, dtype=np.uint64)
WORDS = "0.model.embeddings.word_embeddings.weight"
NONE = np.zeros(0, dtype=np.int64)


@pytest.mark.parametrize(
    ("positive", "margin", "expected"),
    [
        (0.5, 0.0, [1, 2, 3]),
        (0.5, 0.2, [2, 3]),  # at most 0.4
        (-0.1, 0.0, [3]),
        (-0.1, 0.5, []),  # at most -0.15
        (-0.1, 0.1, [3]),  # at most -0.11
    ],
)
def test_a_negative_stays_a_share_of_the_positive_s_score_below_it(
    positive: float, margin: float, expected: list[int]
) -> None:
    rows, scores = np.arange(4), np.array([0.9, 0.45, 0.3, -0.12])
    rule = RoundParams(more=1, skip=0, depth=4, margin=margin, ranker="")
    assert allowed_rows(rows, scores, positive, NONE, KEYS, rule).tolist() == expected


def two_data_sets(folder: Path) -> tuple[Path, Path]:
    """The world twice, as data sets `d` and `e`; the last five documents are the first ones but for a mark."""
    rows = documents()
    for row, first in zip(rows[35:], rows[:5], strict=True):
        row |= {"title": f"{first['title']}!", "content": first["content"]}
    all_queries, mined = queries(), triplets()
    all_queries.append(all_queries[1] | {"query_id": "d/again", "text": all_queries[1]["text"].upper()})
    mined.append(mined[0] | {"query_id": "d/again", "positive_id": rows[7]["doc_id"]})
    mined.append(mined[0] | {"negative_id": rows[9]["doc_id"]})

    def in_other_set(row: dict[str, Any]) -> dict[str, Any]:
        named = {key: f"e{value[1:]}" for key, value in row.items() if key.endswith("_id") and value}
        return row | named | ({"dataset": "e"} if "dataset" in row else {})

    ingest, mine = folder / "ingest", folder / "mine"
    judged = [{"query_id": "d/q2", "dataset": "d", "doc_id": rows[4]["doc_id"], "grade": 2, "split": "train"}]
    for name, table_rows in (("corpus", rows), ("queries", all_queries), ("triplets", mined)):
        write_table(
            mine if name == "triplets" else ingest, name, table(name, [*table_rows, *map(in_other_set, table_rows)])
        )
    write_table(ingest, "qrels", table("qrels", judged))
    write_table(ingest, "impressions", table("impressions", []))
    return ingest, mine


Mined = tuple[list[TextTriplet], list[dict[str, Any]], Callable[..., np.ndarray], np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def mined(tmp_path_factory: pytest.TempPathFactory) -> Mined:
    """Triplets, documents, a search by params and number, and the exact scores of triplets' queries and positives."""
    folder = tmp_path_factory.mktemp("mined")
    tower = load_tower(write_tower(folder / "model"))
    ingest, mine = two_data_sets(folder)
    tables = {name: read_table(ingest, name) for name in ("corpus", "queries")}
    mined_triplets = read_table(mine, "triplets")
    chosen = choose_triplets(mined_triplets, tables["queries"], ingest, TripletTraining(seed=3)).chosen
    searched = SearchedCorpus(ingest, known_positives(mined_triplets, tables["queries"], ingest))
    corpus = tables["corpus"].to_pylist()
    vectors = encode(tower, list(searched.texts()), "document").astype(np.float64)
    query_vectors = encode(tower, [triplet.query for triplet in chosen], "query").astype(np.float64)
    scores = query_vectors @ vectors.T
    rows = {row["doc_id"]: number for number, row in enumerate(corpus)}
    positive = np.array([scores[position, rows[triplet.positive_id]] for position, triplet in enumerate(chosen)])
    count = iter(range(1000))

    def search(rule: RoundParams, number: int = 1, seed: int = 3) -> np.ndarray:
        params = PARAMS.model_copy(update={"rounds": rule, "seed": seed})
        scratch = folder / f"round {next(count)}" / "search"
        return mine_negatives(tower, chosen, searched, params, number, scratch)

    return chosen, corpus, search, scores, positive


def expected(mined: Mined, position: int, rule: RoundParams, positive_ids: Sequence[str]) -> set[int]:
    """Rows that may be the negative of a triplet, by a sort in float64 of the documents of its data set."""
    chosen, corpus, _, scores, positive = mined
    dataset_rows = [row for row, document in enumerate(corpus) if document["dataset"] == chosen[position].dataset]
    ranked = sorted(dataset_rows, key=lambda row: -scores[position, row])[rule.skip : rule.depth]
    texts = {text_of(corpus[row]) for row in range(len(corpus)) if corpus[row]["doc_id"] in positive_ids}
    limit = positive[position] - rule.margin * abs(positive[position])
    return {row for row in ranked if scores[position, row] <= limit and text_of(corpus[row]) not in texts}


def text_of(document: dict[str, Any]) -> str:
    return fold(f"{document['title']}. {document['content']}")


def positives_of(chosen: list[TextTriplet], triplet: TextTriplet) -> list[str]:
    """Positives of a query by its folded text, from all triplets (all train) and the judgement of `two_data_sets`."""
    ids = [sibling.positive_id for sibling in chosen if fold(sibling.query) == fold(triplet.query)]
    return [*ids, documents()[4]["doc_id"]] if fold(triplet.query) == fold(queries()[2]["text"]) else ids


@pytest.mark.medium
@pytest.mark.parametrize(
    "rule",
    [
        ALL,
        RoundParams(more=1, skip=3, depth=12, margin=0.02, ranker=""),
        RoundParams(more=1, skip=0, depth=6, margin=0.02, ranker=""),
    ],
)
def test_a_negative_is_a_hit_that_may_be_one(mined: Mined, rule: RoundParams) -> None:
    chosen, corpus, search, _, _ = mined
    negatives = search(rule)
    assert len(negatives) == len(chosen)
    for position, (triplet, row) in enumerate(zip(chosen, negatives.tolist(), strict=True)):
        may = expected(mined, position, rule, positives_of(chosen, triplet))
        assert row in may if may else row == -1, triplet
        if row >= 0:
            assert corpus[row]["dataset"] == triplet.dataset
            assert text_of(corpus[row]) != fold(triplet.positive)
    assert (negatives >= 0).any()
    assert rule == ALL or (negatives < 0).any()


@pytest.mark.medium
def test_draws_follow_seed_and_round_and_reach_all_that_is_allowed(mined: Mined) -> None:
    chosen, _, search, _, _ = mined
    first = search(ALL)
    assert first.tolist() == search(ALL).tolist()
    assert first.tolist() != search(ALL, number=2).tolist()
    assert first.tolist() != search(ALL, seed=4).tolist()
    position = next(position for position, triplet in enumerate(chosen) if triplet.query.isupper())
    may = expected(mined, position, ALL, positives_of(chosen, chosen[position]))
    of_rounds = [search(ALL, number=number)[position] for number in range(40)]
    assert set(of_rounds) <= may and len(set(of_rounds)) > len(may) / 2
    again = [position for position, triplet in enumerate(chosen) if triplet.query == chosen[0].query]
    assert len(again) > 1  # triplets of one query draw for themselves
    assert any(len({search(ALL, number=number)[position] for position in again}) > 1 for number in range(3))


@pytest.fixture
def base(tmp_path: Path, own_cache: Path, dropout: None) -> Path:
    return write_tower(tmp_path / "model")


def params(base: Path, more: int, **changes: Any) -> DualEncoder:
    rule = RoundParams(more=more, skip=0, depth=20, margin=0.0, ranker="")
    return PARAMS.model_copy(update={"base": str(base), "rounds": rule, "epochs": 1.0, **changes})


def losses_of(run: Recorder) -> list[tuple[str, int]]:
    """Names and steps of the losses."""
    return [(name, step) for name, _, step in run.history if name.endswith("loss") and step is not None]


def train(folder: Path, teacher_params: DualEncoder, name: str, run: NullRun | None = None) -> Path:
    ingest, mine = write_world(folder)
    teach(ingest, mine, folder / name, teacher_params, run or NullRun())
    return folder / name


@pytest.mark.medium
def test_a_round_trains_on_over_new_negatives_and_says_so(
    tmp_path: Path, base: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained: list[list[TextTriplet]] = []
    states: list[torch.Tensor] = []

    def recorded(tower: Any, round_triplets: list[TextTriplet], *rest: Any) -> None:
        states.append(tower.state_dict()[WORDS].clone())
        trained.append(round_triplets)
        contrastive_training.train_tower(tower, round_triplets, *rest)
        states.append(tower.state_dict()[WORDS].clone())

    monkeypatch.setattr(dual_encoder, "train_tower", recorded)
    run = Recorder()
    report = read_json(train(tmp_path, params(base, 2), "teach", run) / "report.json")
    first, second, third = trained
    text_of = {
        row["doc_id"]: DocumentTemplate().text(row["title"], row["topic"], row["content"]) for row in documents()
    }
    for old, new in ((first, second), (second, third)):
        changed = sum(triplet.negative != successor.negative for triplet, successor in zip(old, new, strict=True))
        assert changed > len(old) / 2
        assert [replace(triplet, negative="", negative_id="") for triplet in old] == [
            replace(triplet, negative="", negative_id="") for triplet in new
        ]
        assert all(text_of[triplet.negative_id] == triplet.negative for triplet in new)
        assert all(fold(triplet.negative) != fold(triplet.positive) for triplet in new)
    assert torch.equal(states[1], states[2]) and torch.equal(states[3], states[4])  # each from the one before
    saved = load_tower(tmp_path / "teach/tower").state_dict()[WORDS]
    assert torch.equal(saved, states[5])
    earlier = tmp_path / "teach/earlier"
    assert read_json(earlier / "towers.json") == ["base", "round_0", "round_1"]
    assert {path.name for path in earlier.iterdir()} == {"base", "round_0", "round_1", "towers.json"}
    for name, state in (("base", states[0]), ("round_0", states[1]), ("round_1", states[3])):
        assert torch.equal(load_tower(earlier / name).state_dict()[WORDS], state)
    assert len({fingerprint(folder).weights for folder in (*earlier.glob("*/"), tmp_path / "teach/tower")}) == 4
    zero_shot = train(tmp_path, params(base, 0, epochs=0.0), "zero_shot")
    assert fingerprint(zero_shot / "tower") == fingerprint(earlier / "base")  # the length it reads is part of it
    assert [entry["round"] for entry in report["rounds"]] == [1, 2]
    round_one, two = report["rounds"]
    assert round_one["new_negatives"] + round_one["kept_negatives"] == report["triplets"] == len(first)
    assert round_one["new_negatives"] >= sum(
        old.negative != new.negative for old, new in zip(first, second, strict=True)
    )
    assert two["comparison"] == report["comparison"]
    assert two["against_previous"]["ndcg_previous"] == round_one["comparison"]["ndcg_teacher"]
    assert two["against_previous"]["ndcg_teacher"] == report["comparison"]["ndcg_teacher"]
    assert (
        f"teach: round 1: {round_one['new_negatives']} of 35 triplets have a new negative; nDCG"
        in capsys.readouterr().err
    )
    assert {name for name, _ in losses_of(run)} == {"loss", "round_1.loss", "round_2.loss"}
    assert not [
        path for path in own_cache.rglob("*") if path.is_file() and path.parent.name != "locks"
    ]  # removed after success


def test_a_round_that_is_worse_on_dev_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    counts = {"new_negatives": 1200, "kept_negatives": 34}
    base, before = {"a": 0.1, "b": 0.1, "c": 0.1}, {"a": 0.5, "b": 0.4, "c": 0.45}
    worse = rounds._report_round(2, counts, base, before, {"a": 0.3, "b": 0.25, "c": 0.2})
    stderr = capsys.readouterr().err
    assert "round 2: 1,200 of 1,234 triplets have a new negative; nDCG@10 on 3 dev queries 0.2500, before it" in stderr
    assert "WARNING: worse than without this round; set rounds.more: 1" in stderr
    assert worse["against_previous"]["ndcg_previous"] == pytest.approx(0.45)
    assert worse["comparison"]["ndcg_base"] == pytest.approx(0.1)
    rounds._report_round(1, counts, base, before, before | {"a": 0.49})  # less, as chance would have it
    assert "WARNING" not in capsys.readouterr().err
    assert rounds._report_round(1, counts, {}, {}, {})["comparison"] is None


def killed_in_search(patch: pytest.MonkeyPatch) -> None:
    """In the search for round 1, when the documents are embedded."""

    def interrupt(*arguments: Any) -> None:
        raise KeyboardInterrupt

    patch.setattr(hard_negatives, "_search", interrupt)


def killed_in_round(patch: pytest.MonkeyPatch) -> None:
    """At the fourth step of round 1, which has a checkpoint of its second."""

    class Killer(contrastive_training.LossLog, TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            if state.global_step == 4 and isinstance(self.run, rounds._RoundRun):
                raise KeyboardInterrupt

    patch.setattr(contrastive_training, "LossLog", Killer)


def killed_after_round(patch: pytest.MonkeyPatch) -> None:
    """When round 1 is finished and its weights are kept."""
    keep = rounds._keep

    def interrupt(tower: Any, folder: Path) -> None:
        keep(tower, folder)
        if len(list(folder.parent.glob("*/trained.pt"))) == 2:
            raise KeyboardInterrupt

    patch.setattr(rounds, "_keep", interrupt)


@pytest.mark.slow
def test_a_killed_run_goes_on_between_and_inside_rounds_to_the_same_weights(
    tmp_path: Path, base: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher_params = params(base, 2)
    undisturbed = train(tmp_path, teacher_params, "whole")
    every = [(f"round_{number}.loss", step) for number in (1, 2) for step in range(1, 6)]
    for kill, remaining in ((killed_in_search, every), (killed_in_round, every[2:]), (killed_after_round, every[5:])):
        with monkeypatch.context() as patch:
            kill(patch)
            with pytest.raises(KeyboardInterrupt):
                train(tmp_path, teacher_params, "killed")
        assert not (tmp_path / "killed").exists()
        run = Recorder()
        resumed = train(tmp_path, teacher_params, "killed", run)
        assert losses_of(run) == remaining, kill.__doc__
        ones, twos = (load_file(folder / "tower/model.safetensors") for folder in (undisturbed, resumed))
        assert all(torch.equal(twos[name], tensor) for name, tensor in ones.items()), kill.__doc__
        assert read_json(resumed / "report.json") == read_json(undisturbed / "report.json")
        for name in ("base", "round_0", "round_1"):
            assert fingerprint(resumed / "earlier" / name) == fingerprint(undisturbed / "earlier" / name), kill.__doc__
        assert not [path for path in own_cache.rglob("*") if path.is_file() and path.parent.name != "locks"]
        (tmp_path / "killed").rename(tmp_path / kill.__name__)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("trained.pt", 0),
        ("checkpoint-2/trained.pt", 60),
        *(
            pytest.param(*damage, marks=pytest.mark.nightly)
            for damage in (
                ("trained.pt", 60),
                ("negatives.npy", 0),
                ("negatives.npy", 60),
                ("checkpoint-2/trained.pt", 0),
            )
        ),
    ],
)
def test_a_run_gets_past_what_was_cut_to_the_same_weights(
    tmp_path: Path, base: Path, own_cache: Path, capsys: pytest.CaptureFixture[str], name: str, size: int
) -> None:
    teacher_params = params(base, 1)
    undisturbed = train(tmp_path, teacher_params, "whole")
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        killed_in_round(patch)
        train(tmp_path, teacher_params, "killed")
    [file] = own_cache.glob(f"teach/*/{name}")
    os.truncate(file, size)
    capsys.readouterr()
    resumed = train(tmp_path, teacher_params, "killed")
    damaged = file.parent if name.startswith("checkpoint") else file
    assert capsys.readouterr().err.count(f"teach: {damaged} cannot be read (") == 1
    ones, twos = (load_file(folder / "tower/model.safetensors") for folder in (undisturbed, resumed))
    assert all(torch.equal(twos[name], tensor) for name, tensor in ones.items())


@pytest.mark.medium
def test_what_a_round_continues_from_follows_from_what_it_searches(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest, _ = write_world(tmp_path)
    searched = SearchedCorpus(ingest, {"a": {"x", "y"}})
    before = searched.digest()
    assert before == SearchedCorpus(ingest, {"a": {"y", "x"}}).digest() != SearchedCorpus(ingest, {"a": {"x"}}).digest()
    changed = documents()
    changed[0]["content"] += " and more"
    write_table(ingest, "corpus", table("corpus", changed))
    assert searched.digest() != before
    ranker = write_tower(tmp_path / "ranker")  # any folder of weights
    checked = replace(searched, ranker=ranker)
    of_ranker = checked.digest()
    assert of_ranker != searched.digest()
    weights = load_file(ranker / "model.safetensors")
    save_file({name: weight + 1 for name, weight in weights.items()}, ranker / "model.safetensors")
    assert checked.digest() != of_ranker
    tower, chosen = load_tower(base), [TextTriplet("q", "p", "n", "judged", "x", "y", "d")]
    teacher_params = params(base, 1)
    dims, rule = (
        teacher_params.loss.model_copy(update={"dims": [4]}),
        teacher_params.rounds.model_copy(update={"ranker": "cross"}),
    )
    folders = set()

    def add(of_round: str = "0 a", triplets: list[TextTriplet] = chosen, positives: Any = None, **changes: Any) -> None:
        knobs = teacher_params.model_copy(update=changes)
        folders.add(rounds.checkpoint_folder(tower, triplets, positives or {}, knobs, of_round))

    for of_round in ("0 a", "1 a", "0 b"):
        add(of_round)
    add(triplets=[replace(chosen[0], negative="m")])
    for changes in ({"rounds": params(base, 2).rounds}, {"loss": dims}, {"rounds": rule}):
        add(**changes)
    for library in LIBRARIES:
        with monkeypatch.context() as patch:
            install_another(library, patch)
            add()
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    add()
    tower.register_parameter("scale", nn.Parameter(torch.tensor(2.0)))  # a weight without dimensions
    add()
    add(positives={"q": {"z"}})
    assert len(folders) == 13


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"skip": 50}, r"rounds: skip is 50 and depth 50; negatives rank behind skip, down to depth"),
        ({"margin": 1.0}, r"rounds\.margin is 1\.0: input should be less than 1"),
        ({"more": -1}, r"rounds\.more is -1"),
    ],
)
def test_rounds_are_checked(change: dict[str, Any], complaint: str) -> None:
    raw = PARAMS.model_dump()
    with pytest.raises(UserError, match=complaint):
        validated(DualEncoder, raw | {"rounds": raw["rounds"] | change}, "params.yaml")


def test_only_ranks_behind_skip_down_to_depth_are_allowed() -> None:
    rows, scores = np.array([9, 3, 7, 1, 5, 2]), np.array([0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    rule = RoundParams(more=1, skip=2, depth=5, margin=0.0, ranker="")
    assert allowed_rows(rows, scores, 1.0, NONE, KEYS, rule).tolist() == [1, 5, 7]
    assert allowed_rows(np.array([4, 8, 6, -1, -1, -1]), scores, 1.0, NONE, KEYS, rule).tolist() == [6]
    assert allowed_rows(np.array([4, -1, -1, -1, -1, -1]), scores, 1.0, NONE, KEYS, rule).tolist() == []


def test_no_positive_and_no_text_equal_to_one_is_allowed() -> None:
    rows, scores, keys = np.array([5, 4, 3, 2, 1]), np.zeros(5), KEYS.copy()
    keys[3] = keys[20]  # row 3 reads like row 20, a positive that was not found
    assert allowed_rows(rows, scores, 1.0, np.array([4, 20]), keys, ALL).tolist() == [1, 2, 5]

"""Layers of other teachers score: LEAD's Eq. 2 and 3 of each layer's own states, and what the stage leaves of them."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from late_fakes import write_late_teacher
from rank_fakes import write_cross_teacher
from stages import SCORE, corpus_texts, reading, run_score

from slimtower.common.files import read_json, write_json
from slimtower.common.fingerprints import fingerprint
from steps.core.tables import read_table
from steps.retrieval.late_interaction import load_late_interaction
from steps.retrieval.rankers import Pooling, dual_pooled, load_ranker, pair_scores
from steps.score import run
from steps.scorers import open_scorer
from steps.scorers.base import Scorer

pytestmark = pytest.mark.medium

TEXTS = ["how to add records", "to order all fields", "show pictures"]
DOCUMENTS = ["sum rows. to sum all rows at once", "", "sort columns — naïve ✓", " ".join(["plot images"] * 40)]
PLACES = np.array([[0, 3], [2, 1], [3, 0]])


@pytest.fixture
def teach(tmp_path: Path) -> Path:
    """A ranker as the stage `rank` leaves it."""
    return write_cross_teacher(tmp_path / "models/teach/cross", tmp_path / "model")


def scorer(teach: Path, scratch: Path, batch_size: int = 2) -> Scorer:
    params = SCORE.model_copy(update={"batch_size": batch_size})
    return open_scorer(teach, fingerprint(teach / "tower").id, DOCUMENTS, scratch, reading(params))


def hidden(network: Any, features: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """States of each layer of one text's tokens, float64 `(length, width)`."""
    inputs = {name: features[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in features}
    with torch.no_grad():
        return [state[0].double() for state in network(**inputs, output_hidden_states=True).hidden_states[1:]]


def test_a_cross_encoders_head_reads_the_first_token_of_each_layer(teach: Path, tmp_path: Path) -> None:
    scores = scorer(teach, tmp_path / "texts").layer_scores(TEXTS, PLACES)
    ranker: Any = load_ranker(teach / "tower")
    network = ranker.model
    for row, text in enumerate(TEXTS):
        for column, position in enumerate(PLACES[row].tolist()):
            states = hidden(network.bert, ranker.preprocess([(text, DOCUMENTS[position])]))
            for layer, state in enumerate(states):
                dense, head = network.bert.pooler.dense, network.classifier
                pooled = torch.tanh(state[0] @ dense.weight.double().T + dense.bias.double())
                expected = (pooled @ head.weight.double()[0] + head.bias.double()[0]).detach()
                assert scores[row, column, layer] == pytest.approx(float(expected), abs=1e-5)
    assert scores.shape == (3, 2, len(states)) and scores.dtype == np.float32 and len(states) > 1
    pairs = [
        (text, DOCUMENTS[position])
        for text, positions in zip(TEXTS, PLACES.tolist(), strict=True)
        for position in positions
    ]
    last = pair_scores(load_ranker(teach / "tower"), pairs, precision="fp32", batch_size=2)
    np.testing.assert_allclose(scores[:, :, -1].reshape(-1), last, atol=1e-5)
    np.testing.assert_allclose(scorer(teach, tmp_path / "texts").scores(TEXTS, PLACES).reshape(-1), last, atol=1e-5)


@pytest.mark.parametrize("pooling", ["special_tokens", "segments"])
def test_dual_pooling_pools_each_layer(teach: Path, tmp_path: Path, pooling: Pooling) -> None:
    pooled_ranker = dual_pooled(str(tmp_path / "model/encoder"), pooling, 0.1, 24)
    pooled_ranker.save_pretrained(str(teach / "tower"), create_model_card=False)
    scores = scorer(teach, tmp_path / "texts").layer_scores(TEXTS, PLACES)
    ranker: Any = load_ranker(teach / "tower")
    sep = ranker.tokenizer.sep_token_id
    features = ranker.preprocess([(TEXTS[1], DOCUMENTS[2])])
    ids = features["input_ids"][0].tolist()
    middle, last = (position for position, token in enumerate(ids) if token == sep)
    for layer, state in enumerate(hidden(ranker[0].auto_model, features)):
        if pooling == "special_tokens":
            query, document = state[0], state[middle]
        else:
            query, document = (
                segment.sum(dim=0) / len(segment) ** 0.5 for segment in (state[1:middle], state[middle + 1 : last])
            )
        assert scores[1, 0, layer] == pytest.approx(0.1 * float(query @ document), abs=1e-4)


def test_late_interaction_compares_the_states_of_all_layers_as_they_are(tmp_path: Path, tiny_tower: Path) -> None:
    teach = write_late_teacher(tmp_path / "late", tiny_tower)
    scores = scorer(teach, tmp_path / "texts").layer_scores(TEXTS, PLACES)
    model: Any = load_late_interaction(teach / "tower")
    for row, text in enumerate(TEXTS):
        for column, position in enumerate(PLACES[row].tolist()):
            sides = ((text, "query"), (DOCUMENTS[position], "document"))
            query_states, document_states = (
                hidden(model[0].auto_model, model.preprocess([side], prompt=None, task=task)) for side, task in sides
            )
            for layer in range(4):
                expected = (query_states[layer] @ document_states[layer].T).max(dim=1).values.sum()
                assert scores[row, column, layer] == pytest.approx(float(expected), rel=1e-4)
    assert scores.shape == (3, 2, 4)
    first, again = scorer(teach, tmp_path / "texts"), scorer(teach, tmp_path / "texts")
    before = first.scores(TEXTS, PLACES)
    again.layer_scores(TEXTS, PLACES)
    np.testing.assert_array_equal(again.scores(TEXTS, PLACES), before)


@pytest.mark.parametrize("kind", ["late", "cross"])
def test_the_stage_leaves_a_row_of_layers_for_each_of_the_tables(
    teach: Path, tmp_path: Path, embedded: Path, tiny_tower: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SEED", 1)  # draws texts of which some positives are not among the nearest documents
    if kind == "late":
        write_late_teacher(tmp_path / "models/teach/late", tiny_tower)
    shutil.copytree(embedded / "data", tmp_path / "data")
    changes = {"layers": True, "positives": 2, "depth": 3, "max_texts": 120}
    output = run_score(tmp_path, kind, SCORE.model_copy(update=changes))
    table, layers = read_table(output, "scores").to_pylist(), np.load(output / "layers.npy")
    assert layers.shape == (len(table), read_json(output / "report.json")["layers"]) and layers.dtype == np.float16
    assert read_json(output / "report.json")["positives"] > 0
    texts = read_table(tmp_path / "data/embed", "alignment_texts")["text"].to_pylist()
    corpus = corpus_texts(tmp_path)
    params = SCORE.model_copy(update={"batch_size": 4})
    folder = tmp_path / "models/teach" / kind
    opened = open_scorer(folder, fingerprint(folder / "tower").id, corpus, tmp_path / "texts", reading(params))
    lengths = {text: sum(row["text_row"] == text for row in table) for text in {row["text_row"] for row in table}}
    longest = sorted(lengths, key=lengths.__getitem__)[-2:]
    assert lengths[longest[-1]] > 3, "a positive stands behind the nearest"
    for text in (longest[-1], longest[-2], next(iter(lengths))):
        table_rows = [table_row for table_row, row in enumerate(table) if row["text_row"] == text]
        scores = opened.layer_scores(
            [texts[text]], np.array([[table[table_row]["doc_row"] for table_row in table_rows]])
        )[0]
        np.testing.assert_allclose(layers[table_rows], scores - scores.max(axis=0), rtol=2e-3, atol=2e-3)
        assert (layers[table_rows].max(axis=0) == 0).all()


def test_a_teacher_whose_layers_do_not_score_leaves_none(tmp_path: Path, linked: Path, tiny_tower: Path) -> None:
    shutil.copytree(tiny_tower, tmp_path / "models/teach/other/tower")
    write_json(tmp_path / "models/teach/other/report.json", {"kind": "dual_encoder"})
    output = run_score(tmp_path, "other", SCORE.model_copy(update={"layers": True}))
    assert sorted(path.name for path in output.iterdir()) == ["report.json", "scores.parquet"]

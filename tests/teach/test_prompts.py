"""Prompts of a local teacher: from the params or as its base was saved, in training and wherever it reads texts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from late_fakes import LATE
from safetensors.torch import load_file
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from teach_fakes import PARAMS, documents, write_tower, write_world

from slimtower.common.files import read_json
from steps.encoders.towers import encode, load_tower
from steps.retrieval.late_interaction import load_late_interaction, token_vectors
from steps.teach.dual_encoder import tell_prompts
from steps.teach.kinds.dual_encoder import DualEncoder
from steps.teach.kinds.late_interaction import LateInteraction
from steps.teach.rounds import checkpoint_folder
from steps.teach.run import run as teach
from steps.teach.training_triplets import TextTriplet
from steps.tracking.runs import NullRun

ASKED, HELD = "how to ", "at once "
SET = {"query_prompt": ASKED, "document_prompt": HELD}
TEXTS = [row["content"] for row in documents()[:4]]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write_tower(tmp_path / "model")


def saved_with(base: Path, folder: Path, **prompts: str) -> Path:
    tower = SentenceTransformer(str(base), device="cpu")
    tower.prompts = prompts  # type: ignore[assignment]
    tower.save_pretrained(str(folder), create_model_card=False)
    return folder


def teach_prompted(folder: Path, base: Path, of: DualEncoder | LateInteraction = PARAMS, **changes: Any) -> Path:
    ingest, mine = write_world(folder)
    params = of.model_validate(of.model_dump() | {"base": str(base), "epochs": 0.0} | changes)
    teach(ingest, mine, folder / "teach", params, NullRun())
    return folder / "teach/tower"


def behind(prompt: str, tower: SentenceTransformer) -> np.ndarray:
    return tower.encode([prompt + text for text in TEXTS], prompt="")


@pytest.mark.medium
def test_prompts_of_the_params_are_saved_with_the_tower_and_told(
    tmp_path: Path, base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tower = SentenceTransformer(str(teach_prompted(tmp_path, base, **SET)), device="cpu")
    assert f"teach: prompts: query {ASKED!r}, document {HELD!r}\n" in capsys.readouterr().err
    bare = load_tower(base)
    np.testing.assert_allclose(tower.encode_query(TEXTS), behind(ASKED, bare), atol=1e-6)
    np.testing.assert_allclose(tower.encode_document(TEXTS), behind(HELD, bare), atol=1e-6)
    assert not np.allclose(tower.encode_document(TEXTS), behind("", bare), atol=1e-3)
    teach_prompted(tmp_path, base)
    assert "prompt" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "names", [["s2p_query"], ["search_query", "search_document"], ["retrieval.query"], ["web_search_query"]]
)
def test_saved_prompts_of_other_names_are_told(
    tmp_path: Path, base: Path, capsys: pytest.CaptureFixture[str], names: list[str]
) -> None:
    saved = saved_with(base, tmp_path / "saved", **dict.fromkeys(names, ASKED))
    model = load_tower(saved)
    tell_prompts(model, PARAMS)
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1 and all(name in stderr for name in names)
    assert "set query_prompt and document_prompt" in stderr
    tell_prompts(model, PARAMS.model_copy(update={"query_prompt": ASKED, "document_prompt": ""}))
    assert "used for neither" not in capsys.readouterr().err


@pytest.mark.medium
@pytest.mark.parametrize("name", ["passage", "corpus"])
def test_a_saved_prompt_for_passages_is_that_of_documents(tmp_path: Path, base: Path, name: str) -> None:
    saved = saved_with(base, tmp_path / "saved", **{"query": ASKED, name: HELD})
    expected = behind(HELD, load_tower(base))
    np.testing.assert_allclose(encode(load_tower(saved), TEXTS, "document"), expected, atol=1e-6)
    alone = SentenceTransformer(str(teach_prompted(tmp_path, saved)), device="cpu")
    np.testing.assert_allclose(alone.encode_document(TEXTS), expected, atol=1e-6)


@pytest.mark.medium
def test_one_of_the_params_takes_its_place_even_where_it_is_empty(tmp_path: Path, base: Path) -> None:
    saved = saved_with(base, tmp_path / "saved", query=ASKED, passage=HELD)
    tower = load_tower(teach_prompted(tmp_path, saved, document_prompt=""))
    np.testing.assert_allclose(encode(tower, TEXTS, "document"), behind("", load_tower(base)), atol=1e-6)
    np.testing.assert_allclose(encode(tower, TEXTS, "query"), behind(ASKED, load_tower(base)), atol=1e-6)


@pytest.mark.medium
@pytest.mark.parametrize("untied", [False, True])
def test_training_reads_texts_behind_the_prompts(tmp_path: Path, base: Path, untied: bool) -> None:
    saved = saved_with(base, tmp_path / "saved", query=ASKED, document=HELD)
    changes = {"epochs": 1.0, "dev_queries": 4, "untied": untied}
    runs = {"set": (base, SET), "saved": (saved, {}), "bare": (base, {})}
    towers = {name: teach_prompted(tmp_path / name, source, **changes, **more) for name, (source, more) in runs.items()}
    weights = {
        name: [load_file(path) for path in sorted(tower.rglob("*.safetensors"))] for name, tower in towers.items()
    }

    def same(first: str, two: str) -> bool:
        return all(torch.equal(a[n], b[n]) for a, b in zip(weights[first], weights[two], strict=True) for n in a)

    assert same("set", "saved") and not same("set", "bare")
    reports = {name: read_json(tower.parent / "report.json") for name, tower in towers.items()}
    assert reports["set"]["fingerprint"] == reports["saved"]["fingerprint"] != reports["bare"]["fingerprint"]
    before = load_tower(towers["set"].parent / "earlier/base")
    np.testing.assert_allclose(encode(before, TEXTS, "document"), behind(HELD, load_tower(base)), atol=1e-6)


def test_a_checkpoint_belongs_to_the_prompts_it_was_trained_with(base: Path) -> None:
    tower, chosen = load_tower(base), [TextTriplet("q", "p", "n", "judged", "x", "y", "d")]
    bare = checkpoint_folder(tower, chosen, {}, PARAMS)
    tower.prompts["document"] = HELD
    assert checkpoint_folder(tower, chosen, {}, PARAMS) != bare


@pytest.mark.medium
@pytest.mark.parametrize("query_prompt", ["params", "encoder", "model"])
def test_a_late_interaction_model_has_them_too(tmp_path: Path, base: Path, query_prompt: str) -> None:
    source, changes = base, SET
    if query_prompt != "params":
        source, changes = saved_with(base, tmp_path / "saved", query=ASKED, passage=HELD), {}
    if query_prompt == "model":  # which was itself saved so
        model = MultiVectorEncoder(str(teach_prompted(tmp_path / "first", base, LATE)), device="cpu")
        model.prompts = {"query": ASKED, "passage": HELD}
        model.save_pretrained(str(source := tmp_path / "late"), create_model_card=False)
    model = load_late_interaction(teach_prompted(tmp_path, source, LATE, **changes))
    bare = MultiVectorEncoder(str(teach_prompted(tmp_path / "bare", base, LATE)), device="cpu")
    for role, prompt in (("query", ASKED), ("document", HELD)):
        vectors = token_vectors(model, TEXTS, role, precision="fp32", batch_size=4)  # type: ignore[arg-type]
        embed = bare.encode_query if role == "query" else bare.encode_document
        expected = embed([prompt + text for text in TEXTS])
        for vector, by_hand in zip(vectors, expected, strict=True):
            np.testing.assert_allclose(vector, by_hand, atol=1e-5)

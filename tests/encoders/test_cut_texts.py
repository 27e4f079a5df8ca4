"""What share of texts is longer than a model reads: counted as the model reads them, told from one in a hundred on."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from late_fakes import write_late_teacher
from rank_fakes import write_cross_teacher
from stages import run_embed, run_score
from towers import write_static

from slimtower.common.files import read_json
from steps.encoders.cut_texts import SAMPLE, Cut, cut_documents, cut_of_tokens, cut_pairs, sample_rows
from steps.encoders.towers import load_tower
from steps.retrieval.late_interaction import load_late_interaction
from steps.retrieval.rankers import load_ranker

WORDS = ["graph", "axis", "file", "window"]  # a token each
TEXTS = [" ".join(WORDS[:3]), " ".join(WORDS), " ".join(3 * WORDS), ""]  # with [CLS] and [SEP] 5, 6, 14 and 2


@pytest.mark.parametrize(("limit", "prompt", "share"), [(14, "", 0.0), (13, "", 0.25), (5, "", 0.5), (5, "sum ", 0.75)])
def test_documents_are_counted_with_special_tokens_and_prompt(
    tiny_tower: Path, limit: int, prompt: str, share: float
) -> None:
    tower = load_tower(tiny_tower)
    tower.max_seq_length, tower.prompts["document"] = limit, prompt
    assert cut_documents(tower, TEXTS) == Cut(share, limit, "documents", "max_document_length")
    assert tower.max_seq_length == limit  # as it was


def test_a_table_of_tokens_cuts_nothing(tmp_path: Path) -> None:
    assert cut_documents(load_tower(write_static(tmp_path / "table", WORDS)), TEXTS) is None


@pytest.mark.medium
def test_pairs_and_documents_of_late_interaction(tiny_tower: Path, tmp_path: Path) -> None:
    ranker = load_ranker(tiny_tower, 10)  # [CLS] query [SEP] document [SEP]
    pairs = [("graph", text) for text in TEXTS]
    assert cut_pairs(ranker, pairs) == Cut(0.25, 10, "pairs of a query and a document", "max_length")
    assert cut_pairs(load_ranker(tiny_tower, 7), pairs) == Cut(0.5, 7, "pairs of a query and a document", "max_length")
    late: Any = load_late_interaction(write_late_teacher(tmp_path / "late", tiny_tower) / "tower")
    late[0].document_length = 5
    assert cut_of_tokens(late, TEXTS) == Cut(0.5, 5, "documents", "max_document_length")


def test_one_in_a_hundred_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    Cut(0.009, 256, "documents", "k").tell("embed", "k")
    assert not capsys.readouterr().err
    Cut(0.368, 256, "documents", "k").tell("embed", "teach.teacher.dense.k")
    warning = "embed: 37 % of documents are longer than 256 tokens; their ends are not read (teach.teacher.dense.k)\n"
    assert capsys.readouterr().err == warning


def test_few_texts_are_all_looked_at_and_many_by_seed() -> None:
    assert sample_rows(3, 1).tolist() == [0, 1, 2] and not len(sample_rows(0, 1))
    rows, again, reseeded = (sample_rows(10**5, seed) for seed in (1, 1, 2))
    assert len(np.unique(rows)) == SAMPLE and np.array_equal(rows, again) and not np.array_equal(rows, reseeded)


@pytest.mark.slow
def test_embed_and_score_say_it_and_report_it(
    tiny_tower: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_embed(tmp_path / "whole", tiny_tower)
    assert "longer than" not in capsys.readouterr().err
    assert read_json(tmp_path / "whole/data/embed/report.json")["cut_documents"] == 0
    short = load_tower(tiny_tower)
    short.max_seq_length = 8
    short.save_pretrained(str(tmp_path / "short"), create_model_card=False)
    run_embed(tmp_path, tmp_path / "short")
    knob = "teach.teacher.dense.max_document_length"
    warning = f"embed: 100 % of documents are longer than 8 tokens; their ends are not read ({knob})\n"
    assert warning in capsys.readouterr().err
    assert read_json(tmp_path / "data/embed/report.json")["cut_documents"] == 1
    teachers = tmp_path / "models/teach"
    ranker = load_ranker(write_cross_teacher(tmp_path / "cross", tmp_path / "model") / "tower", 8)
    ranker.save_pretrained(str(teachers / "cross/tower"), create_model_card=False)
    (teachers / "cross/report.json").write_text('{"kind": "cross_encoder"}')
    (teachers / "dense/report.json").write_text('{"kind": "dual_encoder"}')
    for name, unit in (("cross", "pairs of a query and a document"), ("dense", "documents")):
        report = read_json(run_score(tmp_path, name) / "report.json")
        assert report["cut"] == 1
        limit = "max_length" if name == "cross" else "max_document_length"
        warning = f"score: 100 % of {unit} are longer than 8 tokens; their ends are not read ({limit} of {name})\n"
        assert warning in capsys.readouterr().err

"""From teach to release with a teacher behind an API: what it gives is what the same teacher gives here."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from embedding_server import KEY, EmbeddingServer, serving, tower_reader
from endpoint_fakes import teach
from stages import STATIC, TWO_LAYERS, distill_params, run_distill, run_embed, run_release

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from slimtower.serving.release import load_release
from steps.distill.initialisation import _word_pieces
from steps.encoders.towers import load_tower
from steps.endpoint.module import PROBES

pytestmark = pytest.mark.slow
STUDENTS = {
    "static": STATIC,
    "fresh": TWO_LAYERS | {"start": {"fresh": {"layers": 1, "dim": 16, "heads": 2, "vocabulary": 300}}},
}


@pytest.fixture
def server(tiny_tower: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddingServer]:
    monkeypatch.setenv("PLANTED_KEY", KEY)
    with serving(tower_reader(load_tower(tiny_tower))) as state:
        yield state


def test_the_budget_is_for_all_that_the_stage_asks_before_it_asks_anything(
    server: EmbeddingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _word_pieces(["how to sum the axis of a matrix"], 300).save_pretrained(tmp_path / "tokenizer")
    caption = "embed: documents, alignment texts and tokens together: "
    counts = []
    for limit in (0, 6_400):  # the documents alone would not pass it
        limits = {"batch_texts": 32, "max_tokens_total": limit}
        tower = teach(tmp_path / str(limit), server, limits, tokenizer=str(tmp_path / "tokenizer"))
        paid = sum(server.paid.values())
        if limit:
            shutil.rmtree(Path(os.environ["SLIMTOWER_CACHE"]) / "vectors")
            with pytest.raises(UserError, match=rf"^{caption}.*max_tokens_total is 6,400"):
                run_embed(tmp_path / "again", tower)
            assert sum(server.paid.values()) == paid
        else:
            run_embed(tmp_path / "first", tower)
            counts.append(sum(server.paid.values()) - paid - len(PROBES))  # which every process asks for
    stderr = capsys.readouterr().err
    assert f"{caption}{counts[0]:,} texts to ask tiny for" in stderr
    assert all(line in stderr for line in ("embed documents: 64 texts", "embed alignment: ", "embed tokens: "))


def test_a_student_of_an_endpoint_is_released_over_its_index(
    server: EmbeddingServer, tiny_tower: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["how to sum the axis", "mean of the matrix string file window graph"]
    _word_pieces(words, 300).save_pretrained(tmp_path / "tokenizer")
    tower = teach(tmp_path / "teach", server, {"batch_texts": 32}, tokenizer=str(tmp_path / "tokenizer"))
    run_embed(tmp_path / "there", tower)
    run_embed(tmp_path / "here", tiny_tower)
    for name in ("documents", "alignment", "nearest"):
        here, there = (np.load(tmp_path / root / f"data/embed/{name}.npy") for root in ("here", "there"))
        np.testing.assert_allclose(there, here, atol=1e-3 if name == "alignment" else 1e-5)
    tokens = np.load(tmp_path / "there/data/embed/tokens.npy")
    vocabulary = load_tower(tower, "query").tokenizer.get_vocab()
    word, row = next((word, row) for word, row in sorted(vocabulary.items()) if word.isalpha() and len(word) > 2)
    np.testing.assert_allclose(tokens[row], load_tower(tiny_tower).encode(word), atol=1e-5)

    params = distill_params(student=STUDENTS, students=["static", "fresh"])
    root = tmp_path / "there"
    paid = 0
    for student in ("fresh", "static"):
        run_distill(root, student, params)
        paid = paid or sum(server.paid.values())
        release = load_release(run_release(root, student))
        assert release.search("one", release.encode(["how to sum the axis"]), 3)[1][0]
    assert release.manifest.teacher == read_json(root / "data/embed/report.json")["teacher"]
    # students learn what is stored; `index` asks for the eight dev queries, once, and `release` for nothing
    assert sum(server.paid.values()) == paid + 8 + len(PROBES)
    assert capsys.readouterr().err.count("index: dev queries: 8 texts to ask tiny for, about") == 1

"""A killed `embed` goes on where it was, and gives what an undisturbed one gives."""

from pathlib import Path

import numpy as np
import pytest
import stages
from killed_program import run_until
from recorder import Recorder
from sentence_transformers import SentenceTransformer
from stages import corpus_texts, run_embed
from tokenizers.normalizers import BertNormalizer

from slimtower.common.files import read_json
from steps.core.vector_store import Embeddings
from steps.embed import alignment_texts
from steps.embed import run as stage
from steps.encoders import vector_cache
from steps.encoders.towers import encode_with_lengths, load_tower

pytestmark = pytest.mark.medium

SCRIPT = """
import sys
from pathlib import Path
import steps.embed.run as run
import steps.encoders.vector_cache as vector_cache
from stages import run_embed

encode = vector_cache.encode_with_lengths

def slow(tower, texts, *words, **named):
    import time
    time.sleep(0.3)
    return encode(tower, texts, *words, **named)

vector_cache.encode_with_lengths = slow
run.SHARD_TEXTS = 32
run_embed(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def shards(cache: Path) -> int:
    return len(list(cache.glob("vectors/*/shard-*/vectors.npy")))


@pytest.mark.slow
def test_a_killed_embed_repeats_at_most_one_shard(
    tiny_tower: Path, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_until(lambda: shards(own_cache) >= 3, SCRIPT, tmp_path, tiny_tower)
    cached = shards(own_cache)
    assert not (tmp_path / "data/embed").exists()

    encoded: list[int] = []
    encode = vector_cache.encode_with_lengths

    def counted(tower: object, texts: list[str], *words: object, **named: object) -> Embeddings:
        encoded.append(len(texts))
        return encode(tower, texts, *words, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(vector_cache, "encode_with_lengths", counted)
    monkeypatch.setattr(stage, "SHARD_TEXTS", 32)
    run_embed(tmp_path, tiny_tower)
    assert len(encoded) == shards(own_cache) - cached  # not one shard twice

    monkeypatch.setenv("SLIMTOWER_CACHE", str(tmp_path / "another-cache"))
    run_embed(tmp_path / "again", tiny_tower)
    for path in sorted((tmp_path / "data/embed").iterdir()):
        assert path.read_bytes() == (tmp_path / "again/data/embed" / path.name).read_bytes(), path.name


def test_documents_are_in_corpus_order_tokens_have_their_row_and_the_nearest_documents_the_largest_inner_product(
    embedded: Path, tiny_tower: Path
) -> None:
    tower = load_tower(tiny_tower)
    names = ("documents", "tokens", "alignment", "nearest")
    documents, tokens, vectors, nearest = (np.load(embedded / f"data/embed/{name}.npy") for name in names)
    expected = tower.encode_document(corpus_texts(embedded), batch_size=1)
    np.testing.assert_allclose(documents, expected, atol=1e-5)
    row = tower.tokenizer.convert_tokens_to_ids("axis")
    np.testing.assert_allclose(tokens[row], tower.encode("axis"), atol=1e-5)
    assert tokens.shape == (len(tower.tokenizer), 32)
    scores = vectors.astype(np.float64) @ documents.T.astype(np.float64)
    assert nearest.shape == (len(vectors), stages.EMBED.neighbours) and nearest.dtype == np.int32
    best = -np.sort(-scores, axis=1)[:, : nearest.shape[1]]
    np.testing.assert_allclose(np.take_along_axis(scores, nearest, axis=1), best, atol=1e-6)


@pytest.mark.parametrize(("least_texts", "more"), [(0, ""), (20_000, "; embed.least_texts is 20,000, but")])
def test_what_was_chosen_is_said_reported_and_tracked(
    tiny_tower: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    least_texts: int,
    more: str,
) -> None:
    changes = {"least_texts": least_texts, "parts": ["titles", "sentences"]}
    monkeypatch.setattr(alignment_texts, "MAX_WORDS", 3)
    monkeypatch.setattr(stages, "EMBED", stages.EMBED.model_copy(update=changes))
    run = Recorder()
    monkeypatch.setattr(stages, "NullRun", lambda: run)
    run_embed(tmp_path, tiny_tower)
    texts = stage.read_table(tmp_path / "data/embed", "alignment_texts").num_rows
    report = read_json(tmp_path / "data/embed/report.json")
    spans = report["parts"].get("spans", {"kept": 0})["kept"]
    assert (least_texts <= texts) == (not more) and (spans > 0) == (least_texts > 0)
    assert report["chosen"].startswith(f"{texts:,} texts: ") and (f"{spans} spans" in report["chosen"]) == (spans > 0)
    assert f"embed: {report['chosen']}{more}" in capsys.readouterr().err
    assert run.last["texts"] == texts and run.last.get("texts.spans.kept", 0) == spans


@pytest.mark.parametrize("lowercase", [True, False])
def test_only_a_teacher_that_tells_case_apart_gets_queries_in_another_case(
    tiny_tower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lowercase: bool
) -> None:
    tower = load_tower(tiny_tower)
    tower.tokenizer.backend_tokenizer.normalizer = BertNormalizer(lowercase=lowercase)
    monkeypatch.setattr(stage, "load_tower", lambda _: tower)
    monkeypatch.setattr(stages, "EMBED", stages.EMBED.model_copy(update={"parts": ["perturbed_queries"]}))
    monkeypatch.setattr(alignment_texts, "CASE_SHARE", 1.0)
    run_embed(tmp_path, tiny_tower)
    texts_by_id = {
        row["query_id"]: row["text"] for row in stage.read_table(tmp_path / "data/ingest", "queries").to_pylist()
    }
    alignment = stage.read_table(tmp_path / "data/embed", "alignment_texts").to_pylist()
    assert alignment
    assert all((row["text"].lower() == texts_by_id[row["source_id"]].lower()) != lowercase for row in alignment)


@pytest.mark.slow
@pytest.mark.parametrize("normalised", [True, False])
def test_a_texts_length_is_that_of_its_vector_before_normalisation(
    tiny_tower: Path, tmp_path: Path, normalised: bool
) -> None:
    tower = load_tower(tiny_tower)
    bare = SentenceTransformer(modules=[tower[0], tower[1]], device="cpu", similarity_fn_name="dot")
    if not normalised:
        bare.save_pretrained(str(tmp_path / "bare"), create_model_card=False)
    run_embed(tmp_path, tiny_tower if normalised else tmp_path / "bare")
    folder = tmp_path / "data/embed"
    texts = stage.read_table(folder, "alignment_texts")["text"].to_pylist()
    raw = np.stack([bare.encode_query(text) for text in texts]).astype(np.float64)
    expected = np.sqrt((raw**2).sum(axis=1))
    lengths, vectors = (np.load(folder / f"{name}.npy") for name in ("lengths", "alignment"))
    assert lengths.dtype == np.float32
    np.testing.assert_allclose(lengths, expected, rtol=1e-5)
    np.testing.assert_allclose(vectors, raw / expected[:, None] if normalised else raw, atol=2e-3)
    spread = read_json(folder / "report.json")["lengths"]
    assert spread["min"] == pytest.approx(expected.min()) and spread["max"] == pytest.approx(expected.max())


def test_a_tower_that_cuts_its_vectors_does_so_behind_its_normalisation(tiny_tower: Path) -> None:
    tower = load_tower(tiny_tower)
    tower.truncate_dim = 8
    texts = ["a text", "another one"]
    vectors = encode_with_lengths(tower, texts, "query").vectors
    np.testing.assert_allclose(vectors, tower.encode_query(texts), atol=1e-6)

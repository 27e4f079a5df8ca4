"""Queries that a causal language model writes for documents, and the round trip that they have to pass."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from generate_fakes import PARAMS, TEXTS, queries, write_bart, write_world
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from teach_fakes import write_tower
from tiny_models import BERT, masked_language_model
from transformers import Qwen2Config, Qwen2ForCausalLM

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.core.tables import read_table
from steps.generate import run as stage
from steps.generate import writer as module
from steps.generate.denoiser import train_tokenizer
from steps.generate.run import Source
from steps.generate.writer import DOCUMENT_TOKENS, CausalWriter, finds_document, load_writer, write_queries
from steps.tracking.runs import NullRun

pytestmark = pytest.mark.medium


def write_causal(folder: Path, positions: int = 4096) -> Path:
    """A tiny random language model whose tokenizer ends each text with </s>."""
    tokenizer = train_tokenizer(TEXTS, 400)
    torch.manual_seed(0)
    sizes = BERT | {"vocab_size": len(tokenizer), "max_position_embeddings": positions, "num_key_value_heads": 1}
    Qwen2ForCausalLM(Qwen2Config(**sizes, eos_token_id=2, pad_token_id=1)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def causal(folder: Path) -> CausalWriter:
    loaded = load_writer(PARAMS.model_copy(update={"document_model": str(write_causal(folder))}))
    assert isinstance(loaded, CausalWriter)
    return loaded


def test_a_prompt_is_examples_and_the_beginning_of_the_document(tmp_path: Path) -> None:
    writer = causal(tmp_path)
    short, long = (writer.tokenizer.decode(ids) for ids in writer.prompts(["sum\n\nrows", "sum " * 500]))
    assert short.startswith("<s>") and short.endswith("Document: sum rows\nSearch query:") and "</s>" not in short
    assert short.count("Search query:") == 4 and "oldest french lighthouse" in short
    assert long.count("sum") - short.count("sum") == DOCUMENT_TOKENS - 1  # each is a token, and the short one has one


def test_a_document_has_the_same_query_in_any_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMTOWER_PRECISION", "fp32")
    monkeypatch.setattr(module, "TOP_K", 1)
    writer = causal(tmp_path)
    documents = ["sum all the rows", "sort " * 40, "", "plot"]
    together = write_queries(writer, documents, 1, PARAMS.model_copy(update={"batch_size": 64}))
    assert together == [write_queries(writer, [document], 2, PARAMS)[0] for document in documents]
    assert len(set(together)) > 1


def test_a_query_ends_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = causal(tmp_path)
    ids = writer.tokenizer(" sum  all rows\n\nDocument: more", add_special_tokens=False)["input_ids"]

    def continued(prompts: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.cat([prompts, torch.tensor([ids] * len(prompts))], dim=1)

    monkeypatch.setattr(writer.model, "generate", continued)
    assert writer.write(["one", "another one"]) == ["sum all rows"] * 2


def test_a_model_with_too_few_positions_is_refused(tmp_path: Path) -> None:
    params = PARAMS.model_copy(update={"document_model": str(write_causal(tmp_path, positions=300))})
    with pytest.raises(UserError, match="has 300 positions, but its prompt and query take"):
        load_writer(params)


def test_the_stage_writes_the_queries_that_find_their_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = write_tower(tmp_path / "judge")
    monkeypatch.setattr(CausalWriter, "write", lambda _, documents: [text.split(".")[0] + " now" for text in documents])
    monkeypatch.setattr(stage, "finds_document", lambda _, texts, documents, depth: np.arange(len(texts)) % 2 == 0)
    changes = {"document_model": str(write_causal(tmp_path / "writer")), "least_sources": 6, "judge": str(judge)}
    ingest, output = write_world(tmp_path, queries()[-2:]), tmp_path / "generate"
    stage.run(ingest, output, PARAMS.model_copy(update=changes), NullRun())
    rows = read_table(output, "generated_queries").to_pylist()
    assert len(rows) == 3 and all(row["text"].endswith(" now") for row in rows)
    entry = read_json(output / "report.json")["document_model"]
    assert (entry["read"], entry["queries"], entry["not_found"]) == (6, 3, 3)


def test_of_equal_queries_the_one_that_finds_its_document_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "write_queries", lambda *_: ["rows of a file", "rows of a file"])
    monkeypatch.setattr(stage, "finds_document", lambda *_: np.array([False, True]))
    sources = [Source(f"d/{name}#document", name) for name in ("one", "two")]
    judge: Any = "read by nobody"
    rows, _ = stage.generate_from_documents(CausalWriter(None, None), judge, sources, set(), set(), PARAMS)
    assert [row["query_id"] for row in rows] == ["d/two#document#0"]


def test_a_model_that_reads_what_follows_is_refused(tmp_path: Path) -> None:
    params = PARAMS.model_copy(update={"document_model": str(masked_language_model(tmp_path))})
    with pytest.raises(UserError, match="is not causal"):
        load_writer(params)


def test_in_bf16_positions_stay_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMTOWER_PRECISION", "bf16")
    model = causal(tmp_path).model
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    exact = [buffer for name, buffer in model.named_buffers() if name.endswith("inv_freq")]
    assert exact and all(buffer.dtype == torch.float32 for buffer in exact)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("depth", [1, 3])
def test_the_round_trip_is_exact(similarity: str, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", 7)
    rng = np.random.default_rng(1)
    words = [f"w{number}" for number in range(60)]
    tokenizer = train_tokenizer(words, 400)
    judge = SentenceTransformer(
        modules=[StaticEmbedding(tokenizer._tokenizer, embedding_dim=8)], similarity_fn_name=similarity
    )
    texts = [" ".join(rng.choice(words, 4)) for _ in range(40)]
    query_texts = [text.rpartition(" ")[0] for text in texts]
    queries, documents = (judge.encode(strings).astype(np.float64) for strings in (query_texts, texts))
    if similarity == "cosine":
        queries /= np.linalg.norm(queries, axis=1, keepdims=True)
        documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    order = np.argsort(-queries @ documents.T, axis=1)[:, :depth]
    expected = [row in order[row] for row in range(40)]
    assert finds_document(judge, query_texts, texts, depth).tolist() == expected and 0 < sum(expected) < 40
    assert finds_document(judge, [], [], depth).tolist() == []


def test_a_judge_that_compares_by_distance_is_refused_only_for_the_round_trip(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(TEXTS, 400)
    judge = SentenceTransformer(
        modules=[StaticEmbedding(tokenizer._tokenizer, embedding_dim=8)], similarity_fn_name="euclidean"
    )
    judge.save_pretrained(str(tmp_path / "judge"), create_model_card=False)
    changes = {"document_model": str(write_causal(tmp_path / "writer")), "least_sources": 43, "max_queries": 40}
    params = PARAMS.model_copy(
        update=changes | {"judge": str(tmp_path / "judge"), "model": str(write_bart(tmp_path / "bart"))}
    )
    ingest = write_world(tmp_path)
    with pytest.raises(UserError, match=r"generate\.judge: .* compares by euclidean"):
        stage.run(ingest, tmp_path / "generate", params, NullRun())
    stage.run(ingest, tmp_path / "generate", params.model_copy(update={"round_trip": 0}), NullRun())
    assert read_json(tmp_path / "generate" / "report.json")["document_model"]["not_found"] == 0

"""The towers of a causal language model: which states they pool, and what of them survives being saved."""

from pathlib import Path

import numpy as np
import pytest
import torch
from llm_fakes import END, TEXTS, laid_out, states_before, write_llm
from safetensors import safe_open
from sentence_transformers import SentenceTransformer
from stages import run_embed, run_score
from teach_fakes import write_tower
from transformers import AutoModel

from slimtower.common.document_texts import DocumentTemplate
from slimtower.common.errors import UserError
from slimtower.common.files import write_json
from slimtower.common.fingerprints import fingerprint
from steps.core.tables import read_table
from steps.encoders.towers import encode, load_tower, route
from steps.teach.llm_tower import check_prompt_length, llm_tower


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llm(tmp_path_factory.mktemp("llm"))


@pytest.fixture(scope="module")
def saved(base: Path) -> Path:
    folder = base / "tower"
    llm_tower(str(base), 8, seed=1).save_pretrained(str(folder), create_model_card=False)
    return folder


@pytest.mark.medium
def test_the_saved_tower_pools_the_state_before_the_last_placeholder_not_at_it(base: Path, saved: Path) -> None:
    tower = SentenceTransformer(str(saved), device="cpu")
    documents = route(tower, "document")
    with torch.inference_mode():
        features = documents.preprocess(TEXTS)
        pooled = documents[1](documents[0](features))["sentence_embedding"]
        expected = torch.stack([states_before(base, tower, text)[2] for text in TEXTS])
        projected = documents[2].linear(expected)
    torch.testing.assert_close(pooled, expected, rtol=1e-4, atol=1e-5)
    unit = torch.nn.functional.normalize(projected, dim=1).numpy()
    np.testing.assert_allclose(tower.encode_document(TEXTS), unit, atol=1e-5)
    tokens = [documents.tokenizer.decode(ids[mask.bool()]) for ids, mask in zip(features["input_ids"],
              features["attention_mask"], strict=True)]  # fmt: skip
    assert "'title': }" in tokens[-1] and "'content': to add tables\n\nat once}" in tokens[-1]
    assert tokens == [laid_out(text).removesuffix('[EMB]".') for text in TEXTS]


@pytest.mark.medium
def test_a_query_is_its_text_and_an_end(base: Path, saved: Path) -> None:
    tower = SentenceTransformer(str(saved), device="cpu")
    queries = route(tower, "query")
    ids = queries.preprocess(["sum tables"])["input_ids"]
    assert queries.tokenizer.decode(ids[0]) == f"sum tables{END}"
    with torch.inference_mode():
        state = AutoModel.from_pretrained(str(base)).eval()(input_ids=ids).last_hidden_state[:, -1]
        expected = torch.nn.functional.normalize(queries[2].linear(state), dim=1).numpy()
    np.testing.assert_allclose(tower.encode_query(["sum tables"]), expected, atol=1e-5)
    assert queries.tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"] == [0, 1]


@pytest.mark.slow
def test_the_stages_after_teach_read_it(base: Path, saved: Path, tmp_path: Path) -> None:
    run_embed(tmp_path, saved)
    tower, embed = load_tower(saved), tmp_path / "data/embed"
    corpus = read_table(tmp_path / "data/ingest", "corpus").to_pylist()
    texts = [DocumentTemplate().text(row["title"], row["topic"], row["content"]) for row in corpus]
    np.testing.assert_allclose(np.load(embed / "documents.npy"), encode(tower, texts, "document"), atol=1e-5)
    token, _ = route(tower, "query").tokenizer("s").input_ids
    np.testing.assert_allclose(np.load(embed / "tokens.npy")[token], encode(tower, ["s"], "query")[0], atol=1e-5)
    write_json(tmp_path / "models/teach/dense/report.json", {"kind": "llm_dual_encoder"})
    scores = read_table(run_score(tmp_path, "dense"), "scores")["score"].to_numpy()
    asked, nearest = np.load(embed / "alignment.npy").astype(np.float64), np.load(embed / "nearest.npy")
    expected = np.einsum("td,tkd->tk", asked, np.load(embed / "documents.npy")[nearest])
    np.testing.assert_allclose(scores, expected.reshape(-1), atol=5e-3)  # alignment.npy is in half precision


@pytest.mark.medium
def test_a_fingerprint_tells_prompts_apart(saved: Path, tmp_path: Path) -> None:
    tower = load_tower(saved)
    route(tower, "document").tokenizer.chat_template += "!"
    tower.save_pretrained(str(tmp_path / "other"), create_model_card=False)
    assert fingerprint(tmp_path / "other").id != fingerprint(saved).id


@pytest.mark.medium
def test_padding_on_either_side_gives_the_same_embedding(saved: Path) -> None:
    tower = load_tower(saved)
    for role in ("query", "document"):
        right = encode(tower, TEXTS, role)  # type: ignore[arg-type]
        route(tower, role).tokenizer.padding_side = "left"  # type: ignore[arg-type]
        left = encode(tower, TEXTS, role)  # type: ignore[arg-type]
        alone = np.concatenate([encode(tower, [text], role) for text in TEXTS])  # type: ignore[arg-type]
        np.testing.assert_allclose(left, right, atol=1e-5)
        np.testing.assert_allclose(alone, right, atol=1e-5)


@pytest.mark.medium
def test_a_long_document_keeps_the_end_of_its_prompt(saved: Path) -> None:
    tower = load_tower(saved)
    tower.max_seq_length = 100
    documents = route(tower, "document")
    long, _ = documents.preprocess(["sum\n" + "to sum all tables " * 50, "sum"])["input_ids"]
    assert len(long) == 100
    assert documents.tokenizer.decode(long).endswith('compress the above content into one word:"')
    check_prompt_length(tower, 100)
    with pytest.raises(UserError, match=r"max_document_length is 40, but the prompt of a document alone has \d+ tok"):
        check_prompt_length(tower, 40)


@pytest.mark.medium
def test_both_towers_begin_alike_and_every_making_is_the_same(base: Path, saved: Path, tmp_path: Path) -> None:
    llm_tower(str(base), 8, seed=1).save_pretrained(str(tmp_path / "again"), create_model_card=False)
    assert fingerprint(tmp_path / "again").id == fingerprint(saved).id
    tower = load_tower(saved)
    weights = [route(tower, role)[2].linear.weight for role in ("query", "document")]  # type: ignore[arg-type]
    assert torch.equal(*weights)
    torch.testing.assert_close(weights[0] @ weights[0].T, torch.eye(8), rtol=0, atol=1e-5)


@pytest.mark.medium
def test_a_bf16_checkpoint_stays_bf16(tmp_path: Path) -> None:
    tower = llm_tower(str(write_llm(tmp_path / "llm", torch.bfloat16)), 8, seed=1)
    assert {weight.dtype for weight in tower.parameters()} == {torch.bfloat16}
    tower.save_pretrained(str(tmp_path / "tower"), create_model_card=False)
    for path in (tmp_path / "tower").rglob("*.safetensors"):
        with safe_open(path, "pt") as file:
            assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118
    again = load_tower(tmp_path / "tower")
    np.testing.assert_allclose(encode(again, TEXTS, "document"), encode(tower, TEXTS, "document"), atol=0.05)


def test_a_network_that_reads_both_ways_is_refused(tmp_path: Path) -> None:
    write_tower(tmp_path / "model")
    with pytest.raises(UserError, match=r"bert: is not causal; give a causal language model, or set kind: dual_enc"):
        llm_tower(str(tmp_path / "model/bert"), 8, seed=1)
    with pytest.raises(UserError, match=r"model .*: cannot be loaded"):
        llm_tower(str(tmp_path / "nothing"), 8, seed=1)

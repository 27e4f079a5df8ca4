"""Dual pooling by hand, on tokens of any tokenizer, and what is saved of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_fakes import write_encoder
from sentence_transformers import CrossEncoder
from torch import Tensor

from slimtower.common.errors import UserError
from slimtower.common.fingerprints import fingerprint
from steps.retrieval.rankers import (
    DualPooling,
    Pooling,
    dual_pooled,
    has_random_head,
    is_dual_pooled,
    load_ranker,
    pair_embeddings,
    pair_scores,
)

CLS, SEP, PAD = 2, 3, 0
PAIRS = [("how to add", "sum rows. to sum all rows"), ("", "sort"), ("show", ""), ("add " * 50, "sum " * 70)]


def features(ids: list[list[int]], states: Tensor) -> dict[str, Any]:
    tokens = torch.tensor(ids)
    return {"input_ids": tokens, "attention_mask": (tokens != PAD).long(), "token_embeddings": states}


def test_two_tokens_by_hand() -> None:
    """[CLS] a b [SEP] c [SEP] and padding, whose states must not count."""
    states = torch.tensor([[[1.0, 2], [3, 0], [1, 4], [5, 1], [2, 3], [7, 7], [100, 100]]])
    ids = [[CLS, 8, 9, SEP, 10, SEP, PAD]]
    pooled = DualPooling("special_tokens", 1.0, CLS, SEP).forward(features(ids, states))
    assert pooled["query_embedding"].tolist() == [[1, 2]] and pooled["document_embedding"].tolist() == [[5, 1]]
    assert pooled["scores"].tolist() == [[7]]
    pooled = DualPooling("segments", 0.5, CLS, SEP).forward(features(ids, states))
    torch.testing.assert_close(pooled["query_embedding"], torch.tensor([[4.0, 4.0]]) / 2**0.5)  # (a + b) / sqrt(2)
    assert pooled["document_embedding"].tolist() == [[2, 3]]
    torch.testing.assert_close(pooled["scores"], torch.tensor([[0.5 * (8 + 12) / 2**0.5]]))
    pooled = DualPooling("segments", 1.0, CLS, SEP).forward(features([[CLS, SEP, 8, SEP, PAD]], torch.ones(1, 5, 3)))
    assert pooled["query_embedding"].tolist() == [[0, 0, 0]] and pooled["scores"].tolist() == [[0]], (
        "a text without tokens"
    )


@pytest.mark.parametrize("pooling", ["special_tokens", "segments"])
def test_embeddings_and_scores_are_the_papers_in_float64(pooling: Pooling) -> None:
    """Pairs as BERT and as RoBERTa (two [SEP] between) write them, and padding on the left."""
    ids = [
        [CLS, 8, 9, 9, SEP, 10, SEP, PAD, PAD],
        [CLS, 8, SEP, SEP, 10, 11, 12, SEP, PAD],
        [PAD, PAD, CLS, 8, SEP, 10, 11, 12, SEP],
    ]
    positions = [([1, 2, 3], [5], 0, 4), ([1], [4, 5, 6], 0, 2), ([3], [5, 6, 7], 2, 4)]
    states = torch.randn(3, 9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pooled = DualPooling(pooling, 0.3, CLS, SEP).forward(features(ids, states.requires_grad_()))
    for row, (query, document, first, separator) in enumerate(positions):
        tokens = states[row].detach().numpy()
        if pooling == "segments":
            expected = [sum(tokens[at] / np.sqrt(len(at_all)) for at in at_all) for at_all in (query, document)]
        else:
            expected = [tokens[first], tokens[separator]]
        for name, vector in zip(("query_embedding", "document_embedding"), expected, strict=True):
            np.testing.assert_allclose(pooled[name][row].detach().numpy(), vector, rtol=1e-12)
        assert pooled["scores"][row].item() == pytest.approx(0.3 * expected[0] @ expected[1], rel=1e-12)

    def scores(token_states: Tensor) -> Tensor:
        outputs: Tensor = DualPooling(pooling, 0.3, CLS, SEP).forward(features(ids, token_states))["scores"]
        return outputs

    assert torch.autograd.gradcheck(scores, (states,))


@pytest.mark.medium
@pytest.mark.parametrize("pooling", ["special_tokens", "segments"])
def test_a_saved_one_scores_and_embeds_as_before(tmp_path: Path, pooling: Pooling) -> None:
    unsaved = dual_pooled(str(write_encoder(tmp_path / "model")), pooling, 0.5, 24)
    expected = pair_scores(unsaved, PAIRS, precision="fp32", batch_size=4)
    unsaved.save_pretrained(str(tmp_path / "saved"), create_model_card=False)
    assert {path.suffix for path in (tmp_path / "saved").rglob("*") if path.is_file()} == {".json", ".safetensors"}
    ranker = load_ranker(tmp_path / "saved")
    assert is_dual_pooled(ranker) and ranker.max_seq_length == 24 and not has_random_head(ranker, tmp_path / "saved", 0)
    np.testing.assert_allclose(pair_scores(ranker, PAIRS, precision="fp32", batch_size=3), expected, atol=1e-5)
    assert np.ptp(expected) > 0.1
    for row, vector in enumerate(pair_embeddings(ranker, PAIRS, precision="fp32", batch_size=3)):
        alone = ranker(ranker.preprocess([PAIRS[row]]))
        np.testing.assert_allclose(vector, alone["query_embedding"][0].detach().numpy(), atol=1e-5)
    rescaled = dual_pooled(str(tmp_path / "model/encoder"), pooling, 0.25, 24)
    rescaled.save_pretrained(str(tmp_path / "other"), create_model_card=False)
    assert fingerprint(tmp_path / "other").id != fingerprint(tmp_path / "saved").id
    rounded = pair_scores(ranker, PAIRS, precision="bf16", batch_size=4)
    assert not np.array_equal(rounded, torch.from_numpy(rounded).bfloat16().float().numpy())


@pytest.mark.medium
def test_the_joint_embedding_is_what_the_last_layer_reads(tmp_path: Path) -> None:
    ranker = load_ranker(write_encoder(tmp_path / "model"), 24, seed=5)
    head: Any = ranker.model.classifier  # type: ignore[union-attr]
    with torch.no_grad():
        head.bias.fill_(0.25)
    embedded = pair_embeddings(ranker, PAIRS, precision="fp32", batch_size=3).astype(np.float64)
    weight = head.weight[0].detach().double().numpy()
    plain = CrossEncoder.predict(ranker, PAIRS, activation_fn=torch.nn.Identity())
    np.testing.assert_allclose(embedded @ weight + 0.25, plain, atol=1e-5)


@pytest.mark.medium
def test_a_tokenizer_without_special_tokens_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from steps.retrieval import rankers

    tower = rankers.load_tower(write_encoder(tmp_path / "model"))
    tower[0].tokenizer.sep_token = None
    monkeypatch.setattr(rankers, "load_tower", lambda *_: tower)
    with pytest.raises(UserError, match=r"no tokens \[CLS\] and \[SEP\] .* or set pooling: cls"):
        dual_pooled("some", "segments", 1.0, 24)

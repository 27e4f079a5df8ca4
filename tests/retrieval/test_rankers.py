"""Rankers of several kinds: each reading of a pair is of the same input, and what a kind cannot give is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.cross_encoder.modules.logit_score import LogitScore
from tiny_models import BERT, NAMES, WORDS, cross_encoder, write_network
from transformers import (
    AlbertConfig,
    AlbertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Qwen2Config,
    Qwen2ForSequenceClassification,
)

from slimtower.common.errors import UserError
from steps.encoders.cut_texts import cut_pairs
from steps.retrieval.rankers import (
    check_layer_scores,
    layer_logits,
    load_ranker,
    pair_embeddings,
    pair_layer_scores,
    pair_scores,
)

pytestmark = pytest.mark.medium
PAIRS = [("how to add rows", "sum of the rows"), ("plot", "a table of text words more than few rows"), ("add", "sum")]


def albert(folder: Path) -> Path:
    """Its pooler is a plain linear layer over all tokens."""
    config = AlbertConfig(**BERT, embedding_size=8, num_labels=1)
    return write_network(folder, AlbertForSequenceClassification, config)


def decoder(folder: Path) -> Path:
    """Its head reads every token."""
    config = Qwen2Config(**BERT, num_key_value_heads=1, num_labels=1, pad_token_id=0)
    return write_network(folder, Qwen2ForSequenceClassification, config)


def language_model(folder: Path) -> Path:
    """Its score is the difference of two tokens' logits."""
    config = GPT2Config(
        vocab_size=len(NAMES), n_embd=16, n_layer=2, n_head=2, n_positions=128, initializer_range=0.3, bos_token_id=2,
        eos_token_id=3,
    )  # fmt: skip
    network = Transformer(
        str(write_network(folder / "lm", GPT2LMHeadModel, config)), transformer_task="text-generation"
    )
    ranker = CrossEncoder(modules=[network, LogitScore(NAMES.index("do"), NAMES.index("few"))])
    ranker.save_pretrained(str(folder / "ranker"), create_model_card=False)
    return folder / "ranker"


def test_every_reading_of_a_pair_has_the_prompt_that_was_saved(tmp_path: Path) -> None:
    ranker = load_ranker(cross_encoder(tmp_path / "plain"), 32)
    ranker.prompts, ranker.default_prompt_name = {"web": "how to plot text "}, "web"
    ranker.save_pretrained(str(tmp_path / "prompted"), create_model_card=False)
    plain, ranker = (load_ranker(tmp_path / name, 32) for name in ("plain", "prompted"))
    scores = pair_scores(ranker, PAIRS, precision="fp32", batch_size=2)
    assert abs(scores - pair_scores(plain, PAIRS, precision="fp32", batch_size=2)).max() > 1e-3
    prompted = [("how to plot text " + query, document) for query, document in PAIRS]
    np.testing.assert_allclose(pair_scores(plain, prompted, precision="fp32", batch_size=2), scores, atol=1e-5)
    by_layer = pair_layer_scores(ranker, PAIRS, precision="fp32", batch_size=2)
    np.testing.assert_allclose(by_layer[:, -1], scores, atol=1e-5)
    head = ranker.model.classifier
    embedded = torch.from_numpy(pair_embeddings(ranker, PAIRS, precision="fp32", batch_size=2))
    np.testing.assert_allclose((embedded @ head.weight.T + head.bias).flatten().detach(), scores, atol=1e-5)
    np.testing.assert_allclose(layer_logits(ranker, PAIRS, [1]).flatten().detach(), scores, atol=1e-5)
    plain.max_seq_length = ranker.max_seq_length = 12  # tokens, of which the prompt takes four
    cuts = [cut_pairs(model, PAIRS) for model in (plain, ranker)]
    assert [cut and round(3 * cut.share) for cut in cuts] == [1, 2]


@pytest.mark.parametrize("write", [albert, decoder])
def test_what_a_kind_cannot_give_is_refused(write: Callable[[Path], Path], tmp_path: Path) -> None:
    ranker = load_ranker(write(tmp_path / "model"), 32)
    assert pair_scores(ranker, PAIRS, precision="fp32", batch_size=2).shape == (3,)
    with pytest.raises(UserError, match=r"set score\.layers: false"):
        check_layer_scores(ranker)
    if write is decoder:
        with pytest.raises(UserError, match=r"set score\.pairs: 0"):
            pair_embeddings(ranker, PAIRS, precision="fp32", batch_size=3)


@pytest.mark.parametrize("trains", [True, False])
def test_layers_of_a_sound_kind_pass_and_a_training_goes_on(trains: bool, tmp_path: Path) -> None:
    ranker = load_ranker(cross_encoder(tmp_path / "model"), 32).train(trains)
    check_layer_scores(ranker)
    assert ranker.training == ranker.model.training == trains


@pytest.mark.parametrize("write", [cross_encoder, language_model])
def test_bf16_keeps_scores_apart(write: Callable[[Path], Path], tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    pairs = [(" ".join(draw.choice(WORDS, 4)), " ".join(draw.choice(WORDS, 12))) for _ in range(200)]
    ranker = load_ranker(write(tmp_path / "model"), 64)
    counts = [
        len(np.unique(pair_scores(ranker, pairs, precision=precision, batch_size=32))) for precision in ("fp32", "bf16")
    ]
    assert counts == [200, 200]

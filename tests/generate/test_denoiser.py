"""x' = Dec(Enc(mask(x)) + eps): the masking, the noise, and that equal seeds give equal texts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from generate_fakes import PARAMS, TEXTS, random_bart

from steps.generate import denoiser as module
from steps.generate.denoiser import (
    Denoiser,
    add_noise,
    denoising_loss,
    encoder_states,
    load_denoiser,
    mask_tokens,
    new_small_bart,
    tokenize,
    train_tokenizer,
    write_variants,
)

MASK = 4


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_every_row_loses_a_token_long_ones_the_asked_share_and_short_ones_by_bernoulli_or_one() -> None:
    def masked(rows: int, tokens: int) -> torch.Tensor:
        ids = torch.full((rows, tokens), 9)
        return mask_tokens(ids, torch.ones_like(ids, dtype=torch.bool), 0.1, MASK, seeded()) == MASK

    assert masked(200, 500).float().mean().item() == pytest.approx(0.1, abs=0.003)
    counts = masked(50_000, 8).sum(dim=1)
    assert counts.min() == 1
    # chance of one masked token: binomial of one, and of none, which is raised to one
    expected = 8 * 0.1 * 0.9**7 + 0.9**8
    assert (counts == 1).float().mean().item() == pytest.approx(expected, abs=0.01)
    assert (counts == 2).float().mean().item() == pytest.approx(28 * 0.01 * 0.9**6, abs=0.01)


def test_masking_repeats_itself_leaves_its_input_alone_and_can_be_off() -> None:
    ids = torch.arange(5, 105).reshape(4, 25)
    maskable = torch.ones_like(ids, dtype=torch.bool)
    maskable[3] = False
    assert torch.equal(mask_tokens(ids, maskable, 0.9, 1000, seeded())[3], ids[3])
    first, second = (mask_tokens(ids, maskable, 0.3, MASK, seeded(1)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, mask_tokens(ids, maskable, 0.3, MASK, seeded(2)))
    assert torch.equal(ids, torch.arange(5, 105).reshape(4, 25))
    assert torch.equal(mask_tokens(ids, maskable, 0.0, MASK, seeded()), ids)


def test_the_decoder_reads_encoder_states_plus_noise_of_deviation_sigma() -> None:
    denoiser, sigma = random_bart(), 0.2
    encoder_outputs: list[torch.Tensor] = []
    decoder_inputs: list[torch.Tensor] = []

    def after_encoder(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        encoder_outputs.append(output.last_hidden_state.clone())

    def before_decoder(module: Any, args: Any, kwargs: Any) -> None:
        if len(decoder_inputs) < len(encoder_outputs):
            decoder_inputs.append(kwargs["encoder_hidden_states"].clone())

    denoiser.model.get_encoder().register_forward_hook(after_encoder, with_kwargs=True)
    denoiser.model.get_decoder().register_forward_pre_hook(before_decoder, with_kwargs=True)
    write_variants(denoiser, TEXTS, sigma, 0, PARAMS)
    assert len(encoder_outputs) == len(decoder_inputs) > 1
    pairs = zip(encoder_outputs, decoder_inputs, strict=True)
    noise = torch.cat([(after - before).flatten() for before, after in pairs])
    assert noise.std().item() == pytest.approx(sigma, rel=0.03)
    assert noise.mean().item() == pytest.approx(0.0, abs=sigma / 50)
    assert noise.square().mean().item() / noise.std().item() ** 2 == pytest.approx(1.0, abs=0.01)


def test_noise_is_drawn_anew_for_each_state() -> None:
    noise = add_noise(torch.zeros(500, 20, 8), 1.0, seeded())
    correlation = torch.corrcoef(noise.reshape(500, -1).T)
    correlation.fill_diagonal_(0)
    assert correlation.abs().max() < 0.25


@pytest.mark.medium
def test_variants_keep_the_order_of_their_sources_and_repeat_themselves() -> None:
    denoiser = random_bart()
    first, second = (write_variants(denoiser, TEXTS, 0.1, 5, PARAMS) for _ in range(2))
    assert first == second
    assert len(first.texts) == len(TEXTS)
    assert first.texts != write_variants(denoiser, TEXTS, 0.1, 6, PARAMS).texts
    assert first.masked_share > 0.1


def test_an_untrained_small_bart_copies() -> None:
    tokenizer = train_tokenizer(TEXTS, 400)
    denoiser = Denoiser(new_small_bart(len(tokenizer), 26, 1, width=192, heads=4).eval(), tokenizer)
    ids, attention, _ = tokenize(denoiser, TEXTS, 24)
    shifted = torch.cat([torch.full((len(ids), 1), 2), ids[:, :-1]], dim=1)
    logits = denoiser.model(input_ids=ids, attention_mask=attention, decoder_input_ids=shifted).logits
    assert (logits.argmax(dim=2) == ids)[attention.bool()].float().mean() > 0.9


def test_tokens_are_cut_at_the_limit_and_only_text_may_be_masked() -> None:
    denoiser = random_bart()
    texts = [TEXTS[3], "x", " ".join(TEXTS)]
    ids, attention, maskable = tokenize(denoiser, texts, 24)
    assert ids.shape == attention.shape == (3, 24)
    assert maskable.sum(dim=1).tolist() == [len(denoiser.tokenizer(text).input_ids) - 2 for text in texts[:2]] + [22]
    assert encoder_states(denoiser.model, ids, attention).shape == (3, 24, 64)


def test_denoising_loss_is_the_cross_entropy_of_masked_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_SHARE", 0.0)
    denoiser = random_bart()
    ids, attention, _ = tokenize(denoiser, TEXTS[:5], 24)
    loss = denoising_loss(denoiser.model, ids, 0.3, MASK, seeded(3))
    hidden = mask_tokens(ids, ids >= 5, 0.3, MASK, seeded(3))
    shifted = torch.cat([torch.full((5, 1), 2), ids[:, :-1]], dim=1)
    logits = denoiser.model(input_ids=hidden, attention_mask=attention, decoder_input_ids=shifted).logits
    scores = logits.detach().double().numpy()
    terms = [
        np.log(np.exp(scores[row, column]).sum()) - scores[row, column, ids[row, column]]
        for row in range(5)
        for column in range(ids.shape[1])
        if column == 0 or hidden[row, column] != ids[row, column]
    ]
    assert loss.item() == pytest.approx(np.mean(terms), rel=1e-5)


@pytest.mark.medium
def test_how_a_checkpoint_was_saved_to_generate_changes_no_text(tmp_path: Path) -> None:
    """BARTs for summaries have a least length, and forbid repeated words."""
    bart = random_bart()
    variants = []
    for name, settings in (("plain", {}), ("summaries", {"min_length": 20, "no_repeat_ngram_size": 2, "num_beams": 3})):
        for key, value in settings.items():
            setattr(bart.model.generation_config, key, value)
        bart.model.save_pretrained(str(tmp_path / name))
        bart.tokenizer.save_pretrained(str(tmp_path / name))
        loaded = load_denoiser(PARAMS.model_copy(update={"model": str(tmp_path / name)}))
        variants.append(write_variants(loaded, TEXTS, 0.1, 1, PARAMS).texts)
    assert variants[0] == variants[1]

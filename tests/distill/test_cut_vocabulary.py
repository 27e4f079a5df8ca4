"""A cut vocabulary: texts that it was cut for are read as before, others in pieces, and nothing is lost on disk."""

from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from stages import STATIC, distill_params, run_distill, run_release
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from slimtower.common.errors import UserError
from slimtower.serving.query_encoder import load_query_encoder
from steps.core.corpus import CorpusTexts
from steps.distill.cut_vocabulary import cut_tokenizer, cut_transformer, used_tokens
from steps.encoders.towers import encode, load_tower

TEXTS = ["how to sum the axis", "matrix of a window", "Computes the mean over a file."]
UNSEEN = "cumulative zebra, mean of naïveté 検"


def unigram() -> Tokenizer:
    """A tiny tokenizer as XLM-RoBERTa's is made."""
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁", *"sumaxi", "▁sum", "▁axis", "▁mean", "sum"]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0 - len(piece) / 9) for piece in pieces], unk_id=3))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    return tokenizer


def test_tokens_are_the_same_and_numbered_anew(tiny_tower: Path) -> None:
    for tokenizer, lost in ((unigram(), "▁mean"), (load_tower(tiny_tower).tokenizer._tokenizer, "zebra")):
        token_ids = used_tokens(tokenizer, ["sum axis", "the sum"])
        cut = cut_tokenizer(tokenizer, token_ids)
        assert cut.get_vocab_size() == len(token_ids) < tokenizer.get_vocab_size()
        for text in ("sum axis", "axis of the sum!"):
            before, after = tokenizer.encode(text), cut.encode(text)
            assert token_ids[after.ids].tolist() == before.ids or "of" in text
            assert after.special_tokens_mask == before.special_tokens_mask or "of" in text
        assert cut.token_to_id(lost) is None
        [word] = cut.encode(lost.removeprefix("▁"), add_special_tokens=False).tokens[:1]
        assert len(word.removeprefix("▁")) <= 1, "what was dropped is read letter by letter"
        assert Tokenizer.from_str(cut.to_str()).encode(UNSEEN).ids == cut.encode(UNSEEN).ids


def test_a_cut_transformer_embeds_its_texts_as_before_and_loads_again(tiny_tower: Path, tmp_path: Path) -> None:
    uncut, cut = load_tower(tiny_tower), load_tower(tiny_tower)
    cut_transformer(cut, TEXTS)
    assert len(cut.tokenizer) < len(uncut.tokenizer) / 10
    np.testing.assert_allclose(encode(cut, TEXTS, "query"), encode(uncut, TEXTS, "query"), atol=1e-6)
    cut.save_pretrained(str(tmp_path / "cut"))
    again = SentenceTransformer(str(tmp_path / "cut"), device="cpu")
    assert len(again.tokenizer) == len(cut.tokenizer)
    texts = [*TEXTS, UNSEEN]
    np.testing.assert_allclose(encode(again, texts, "query"), encode(cut, texts, "query"), atol=1e-6)


def test_a_prompt_that_stays_is_read_as_before(tiny_tower: Path) -> None:
    uncut, cut = load_tower(tiny_tower), load_tower(tiny_tower)
    for tower in (uncut, cut):
        tower.prompts = {"query": "zebra cumulative file: "}
    cut_transformer(cut, TEXTS[:1])
    np.testing.assert_allclose(encode(cut, TEXTS[:1], "query"), encode(uncut, TEXTS[:1], "query"), atol=1e-6)


def test_the_unknown_token_stays_where_it_is_no_added_one() -> None:
    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "sum": 1, "axis": 2, "mean": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    cut = cut_tokenizer(tokenizer, used_tokens(tokenizer, ["sum"]))
    assert cut.encode("sum zebra").tokens == ["sum", "[UNK]"]


def test_a_tokenizer_of_another_kind_is_refused() -> None:
    with pytest.raises(UserError, match="vocabulary: all"):
        used_tokens(Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")])), ["ab"])


@pytest.mark.medium
@pytest.mark.parametrize("start", [{"static": {"added_words": 5, "width": 8}}, {"layers": [-1]}])
def test_a_student_with_a_cut_vocabulary_is_released(embedded: Path, start: dict[str, object]) -> None:
    described = {"start": start, "vocabulary": "used"}
    run_distill(embedded, "static", distill_params(student={"static": STATIC | described}, students=["static"]))
    tower = load_tower(embedded / "models/distill/static/query_encoder")
    teacher = load_tower(embedded / "models/teach/dense/tower")
    tokenizer = getattr(tower.tokenizer, "_tokenizer", tower.tokenizer)
    assert tokenizer.get_vocab_size() < len(teacher.tokenizer) / 5
    documents = list(CorpusTexts(embedded / "data/ingest"))[:20]
    pieces = [teacher.tokenizer._tokenizer.encode(text).tokens for text in documents]
    assert [tokenizer.encode(text).tokens for text in documents] == pieces or "static" in start
    release = run_release(embedded, "static")
    served = load_query_encoder(release / "serving").encode([*TEXTS, UNSEEN])
    expected = tower.encode([*TEXTS, UNSEEN], convert_to_numpy=True)
    assert float((served * expected).sum(axis=1).min()) > 0.99

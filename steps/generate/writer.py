"""Models that write queries for documents: doc2query, or a causal language model that is shown examples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from slimtower.common.errors import UserError
from steps.encoders.bases import resolve_base
from steps.encoders.model_loading import check_tokenizer, is_causal, loading
from steps.encoders.precision import resolve_precision
from steps.encoders.towers import encode, positions_of
from steps.generate.denoiser import (
    MAX_TOKENS,
    TEMPERATURE,
    TOP_K,
    Denoiser,
    by_length,
    decode,
    encoder_states,
    load_seq2seq,
    ready_to_write,
    tokenize,
)
from steps.generate.params import GenerateParams

DOCUMENT_TOKENS = 256  # of a document that is read
_INSTEAD = (
    "generate.document_model a doc2query model such as doc2query/msmarco-t5-base-v1, a causal language model such as"
    ' gemma-3-270m-4bit, or "" for titles and sentences alone'
)
_EXAMPLES = (  # a question, a topic and a few keywords
    (
        "Bread rises because yeast feeds on the sugars of flour and gives off carbon dioxide. A net of gluten catches"
        " the gas, and the dough grows. In a cold kitchen it takes twice as long.",
        "why does bread rise slowly in a cold kitchen",
    ),
    (
        "Returns the smallest of two or more values. If several are equal, the first of them is returned. Raises a"
        " TypeError for values that cannot be compared.",
        "minimum of several values",
    ),
    (
        "The lighthouse of Cordouan stands in the sea at the mouth of the Gironde. It was begun in 1584, and none in"
        " France is older and still in use. Its keepers tend the lamp to this day.",
        "oldest french lighthouse",
    ),
)
_BEFORE, _BEHIND, _END = "Document:", "\nSearch query:", "\n"
_BLOCK = 1024  # queries whose scores are in memory at once


@dataclass(frozen=True)
class CausalWriter:
    """A causal language model and its tokenizer."""

    model: Any
    tokenizer: Any

    def prompts(self, documents: Sequence[str]) -> list[list[int]]:
        """Token ids of the examples and the first DOCUMENT_TOKENS of each document, up to where its query begins."""
        examples = "".join(f"{_BEFORE} {text}{_BEHIND} {query}{_END}{_END}" for text, query in _EXAMPLES)
        before: list[int] = self.tokenizer(examples + _BEFORE)["input_ids"]
        if before[-1] == self.tokenizer.eos_token_id:  # some end each text with it; the prompt goes on
            before.pop()
        behind: list[int] = self.tokenizer(_BEHIND, add_special_tokens=False)["input_ids"]
        texts = [" " + " ".join(document.split()) for document in documents]
        tokens = self.tokenizer(texts, add_special_tokens=False, truncation=True, max_length=DOCUMENT_TOKENS)
        return [before + ids + behind for ids in tokens["input_ids"]]

    def write(self, documents: Sequence[str]) -> list[str]:
        """A query for each document, by sampling: what the model continues its prompt with, up to the line's end."""
        prompts, padding = self.prompts(documents), self.tokenizer.pad_token_id
        longest = max(map(len, prompts))
        ids = torch.tensor([[padding] * (longest - len(prompt)) + prompt for prompt in prompts])
        attention = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        written: Tensor = self.model.generate(
            ids.to(self.model.device),
            attention_mask=attention.to(self.model.device),
            max_new_tokens=MAX_TOKENS,
            do_sample=True,
            temperature=TEMPERATURE,
            top_k=TOP_K,
            pad_token_id=padding,
            stop_strings=[_END],
            tokenizer=self.tokenizer,
        )
        texts = self.tokenizer.batch_decode(written[:, longest:], skip_special_tokens=True)
        return [" ".join(text.strip().partition(_END)[0].split()) for text in texts]


Writer = Denoiser | CausalWriter


def load_writer(params: GenerateParams) -> Writer:
    """The model `document_model`, seq2seq or causal, which computes in bf16 if the processor does so natively.

    UserError if it cannot be loaded, is of another kind, or reads too few tokens.
    """
    name = params.document_model
    folder = resolve_base(name)
    with loading(folder, _INSTEAD):
        is_seq2seq = AutoConfig.from_pretrained(folder, trust_remote_code=False).is_encoder_decoder
    if is_seq2seq:
        return load_seq2seq(name, _INSTEAD, "document_model", DOCUMENT_TOKENS)
    precision = torch.bfloat16 if resolve_precision("auto") == "bf16" else torch.float32
    with loading(folder, _INSTEAD):
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, truncation_side="right")
        model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False, dtype=precision)
        check_tokenizer(tokenizer, model, folder)
    writer = CausalWriter(ready_to_write(model), tokenizer)
    if not is_causal(writer.model.base_model):
        raise UserError(f"model {name}: is not causal, so it continues no text; give {_INSTEAD}")
    positions, needed = positions_of(model), len(writer.prompts([""])[0]) + DOCUMENT_TOKENS + MAX_TOKENS
    if positions is not None and positions < needed:
        raise UserError(
            f"params.yaml: generate.document_model: {name} has {positions} positions, but its prompt and query take"
            f" {needed}; name another one"
        )
    return writer


def write_queries(writer: Writer, documents: Sequence[str], seed: int, params: GenerateParams) -> list[str]:
    """A query for each document, of which the first DOCUMENT_TOKENS are read; in equal precision always the same.

    doc2query: Nogueira et al., 2019; a prompt with examples: InPars, Bonifacio et al., 2022.
    """

    def write(batch: list[str]) -> list[str]:
        if isinstance(writer, CausalWriter):
            return writer.write(batch)
        ids, attention, _ = tokenize(writer, batch, DOCUMENT_TOKENS)
        return decode(writer, encoder_states(writer.model, ids, attention), attention)

    # as many tokens as of a batch of queries, a prompt's examples not counted
    batch_size = max(1, params.batch_size * MAX_TOKENS // DOCUMENT_TOKENS)
    return by_length(documents, batch_size, seed, "queries of documents", write)


def finds_document(
    judge: SentenceTransformer, queries: Sequence[str], documents: Sequence[str], depth: int
) -> np.ndarray:
    """Whether the judge finds `documents[i]` among the `depth` of them nearest to `queries[i]`, boolean `(n,)`.

    The round trip of Promptagator (Dai et al., 2022, Sec. 3.3).
    """
    query_vectors = torch.from_numpy(encode(judge, list(queries), "query", caption="round trip, queries"))
    document_vectors = torch.from_numpy(encode(judge, list(documents), "document", caption="round trip, documents"))
    if judge.similarity_fn_name == "cosine":
        query_vectors, document_vectors = normalize(query_vectors), normalize(document_vectors)
    blocks = []
    for start in range(0, len(query_vectors), _BLOCK):
        scores = query_vectors[start : start + _BLOCK] @ document_vectors.T
        source_scores = scores[torch.arange(len(scores)), torch.arange(start, start + len(scores))]
        blocks.append((scores > source_scores[:, None]).sum(dim=1) < depth)
    return torch.cat(blocks).numpy() if blocks else np.zeros(0, dtype=bool)

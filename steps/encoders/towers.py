"""Towers: SentenceTransformer models that turn queries or documents into embeddings, and the one way to run them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Normalize
from torch import nn
from torch.nn import functional

from slimtower.common.errors import UserError
from slimtower.common.names import Role
from steps.core.progress import Bar, advance
from steps.core.vector_store import Embeddings
from steps.encoders.model_loading import check_model, loading
from steps.encoders.precision import Precision, device, resolve_precision
from steps.endpoint.module import Endpoint, announce

_SHORT = 128  # tokens
DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # what people call that of documents, best first
_MODULES = {f"{Endpoint.__module__}.{Endpoint.__name__}": Endpoint}  # ours, which no model's folder brings


def load_tower(source: str | Path, role: Role | None = None) -> SentenceTransformer:
    """Load a tower, or its route of a role, from a folder or a Hugging Face name, in fp32.

    UserError if it cannot be loaded, or lacks weights, a vocabulary or that route; TransientError if the hub is away.
    """
    with loading(source, "a sentence-transformers folder or a name on the hub"):
        tower = SentenceTransformer._load_with_module_classes(
            str(source), _MODULES, device=device(), trust_remote_code=False
        ).float()
        check_model(tower, source)
    forget_origin(tower)
    name_document_prompt(tower.prompts)
    endpoints = [module for module in tower.modules() if isinstance(module, Endpoint)]
    for endpoint in endpoints[1:]:
        endpoint.share(endpoints[0])
    return route(tower, role) if role else tower


@contextmanager
def remembering_states(network: Any) -> Iterator[None]:
    """Let a transformer give the states of all its layers."""
    before = network.config.output_hidden_states
    network.config.output_hidden_states = True
    try:
        yield
    finally:
        network.config.output_hidden_states = before


def name_document_prompt(prompts: dict[str, Any]) -> None:
    """Let documents without a prompt have the saved one for passages or a corpus, which the library would not use."""
    if prompt := next(filter(None, map(prompts.get, DOCUMENT_PROMPTS)), None):
        prompts["document"] = prompt


def forget_origin(tower: nn.Module) -> None:
    """Forget where its tokenizers were loaded from: it would be saved, and one model have several fingerprints."""
    for module in tower.modules():
        settings = getattr(getattr(module, "tokenizer", None), "init_kwargs", {})
        for origin in ("is_local", "local_files_only"):
            settings.pop(origin, None)


def route(tower: SentenceTransformer, role: Role) -> SentenceTransformer:
    """The tower that reads texts of a role, with the same weights; UserError for a Router without such a route."""
    first = tower[0]
    if not isinstance(first, Router):
        return tower
    if role not in first.sub_modules:
        raise UserError(
            f"a Router with the routes {sorted(first.sub_modules)} has none for {role!r}; make it with"
            " sentence-transformers' Router.for_query_document"
        )
    return tower_of([*first.sub_modules[role], *list(tower)[1:]], tower, tower.truncate_dim)  # type: ignore[misc]


def endpoint_of(tower: SentenceTransformer, role: Role) -> Endpoint | None:
    """The server that reads texts of a role for the tower; None of one that reads them here."""
    first = tower[0]
    if isinstance(first, Router) and role in first.sub_modules:
        first = first.sub_modules[role][0]  # type: ignore[index]
    return first if isinstance(first, Endpoint) else None


def endpoint_jobs(tower: SentenceTransformer, role: Role, texts: Iterable[str]) -> list[tuple[Endpoint, Iterable[str]]]:
    """What `announce` takes: the server that reads these texts in their role, and what it is sent; [] without one."""
    if (endpoint := endpoint_of(tower, role)) is None:
        return []
    prompt = tower.prompts.get(role) or ""
    return [(endpoint, (prompt + text for text in texts))]


def announce_texts(tower: SentenceTransformer, role: Role, texts: Iterable[str], caption: str) -> None:
    """If a server reads texts in their role, say what it is still to be asked; UserError if that is too much."""
    if jobs := endpoint_jobs(tower, role, texts):
        announce(jobs, caption)


def tower_of(
    modules: Iterable[nn.Module], tower: SentenceTransformer, truncate_dim: int | None = None
) -> SentenceTransformer:
    """A tower of these modules, with the prompts and the similarity of another."""
    return SentenceTransformer(
        modules=list(modules),
        device=device(),
        prompts={name: text or "" for name, text in tower.prompts.items()},
        default_prompt_name=tower.default_prompt_name,
        similarity_fn_name=tower.similarity_fn_name,
        truncate_dim=truncate_dim,
    )


def check_whole(tower: SentenceTransformer, source: str) -> None:
    """UserError for a tower that cuts its vectors behind its last module: they would no longer be of unit length."""
    if dim := tower.truncate_dim:
        raise UserError(
            f"{source}: cuts its vectors to {dim} dimensions (truncate_dim in config_sentence_transformers.json); save"
            f" it without, and set index.dim: {dim}"
        )


def positions_of(network: Any) -> int | None:
    """Tokens that a network has positions for, None without a limit; RoBERTa and MPNet count from behind padding's."""
    limit: int | None = getattr(getattr(network, "config", None), "max_position_embeddings", None)
    if limit is None:
        return None
    tables = (module for name, module in network.named_modules() if name.endswith("position_embeddings"))
    padding = getattr(next(tables, None), "padding_idx", None)
    return limit if padding is None else limit - padding - 1


def check_positions(network: Any, tokens: int, knob: str, base: str) -> None:
    """UserError if a network has fewer positions than a knob asks for."""
    positions = positions_of(network)
    if positions is not None and tokens > positions:
        raise UserError(f"{knob} is {tokens}, but {base} has {positions} positions; set it to {positions} or less")


def trains_with_plain_attention(precision: Precision, longest: int) -> bool:
    """Whether texts of at most `longest` tokens train faster without PyTorch's fused attention; both compute the same.

    In bf16 on a CPU the fused gradient takes 52 ms for 128 texts of 20 tokens, the plain one 5 ms.
    """
    return device() == "cpu" and resolve_precision(precision) == "bf16" and longest <= _SHORT


def autocast(precision: Precision) -> torch.autocast:
    """Autocast context for a precision on the present device."""
    return torch.autocast(device(), dtype=torch.bfloat16, enabled=resolve_precision(precision) == "bf16")


def encode(
    tower: SentenceTransformer,
    texts: list[str],
    role: Role,
    *,
    precision: Precision = "fp32",
    batch_size: int = 64,
    caption: str = "",
) -> np.ndarray:
    """Embed texts in their role, float32 `(len(texts), dim)`; shows progress when `caption` names the work.

    Texts are sorted by length within windows of 64 batches. An endpoint gets them all, and makes batches of its own.
    """
    if endpoint_of(tower, role):
        batch_size = max(1, len(texts))
    embed = tower.encode_query if role == "query" else tower.encode_document
    window = 64 * batch_size
    chunks = []
    with Bar(len(texts), caption, "texts") if caption else nullcontext(), _counting(tower):
        for start in range(0, len(texts), window):
            chunk_texts = texts[start : start + window]
            with torch.inference_mode(), autocast(precision):
                chunk = embed(chunk_texts, batch_size=batch_size, show_progress_bar=False, convert_to_tensor=True)
            chunks.append(chunk.float().cpu().numpy())
    dim = tower.get_embedding_dimension() or 0
    return np.concatenate(chunks) if chunks else np.zeros((0, dim), dtype=np.float32)


@contextmanager
def _counting(tower: SentenceTransformer) -> Iterator[None]:
    hook = tower[-1].register_forward_hook(
        lambda module, inputs, output: advance("texts", len(output["sentence_embedding"]))
    )
    try:
        yield
    finally:
        hook.remove()


def encode_with_lengths(
    tower: SentenceTransformer, texts: list[str], role: Role, *, precision: Precision = "fp32", batch_size: int = 64
) -> Embeddings:
    """`encode`, and how long each vector is before the tower's final Normalize, if it has one."""
    reader = route(tower, role)
    *before, last = reader
    if not isinstance(last, Normalize) or last.module_input_name != "sentence_embedding":
        vectors = encode(reader, texts, role, precision=precision, batch_size=batch_size)
        return Embeddings(vectors, np.linalg.norm(vectors, axis=1))
    raw = torch.from_numpy(encode(tower_of(before, tower), texts, role, precision=precision, batch_size=batch_size))
    vectors = functional.normalize(raw, dim=1)[:, : tower.truncate_dim].numpy()
    return Embeddings(vectors, raw.norm(dim=1).numpy())


def check_fast(tokenizer: Any, name: str) -> None:
    """UserError unless it is a fast one: training cuts texts by its offsets, and a release is read without Python's."""
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f"{name} has no fast tokenizer, which training and release read texts with; take one whose"
            " folder has a tokenizer.json, or save it anew with a PreTrainedTokenizerFast of transformers"
        )

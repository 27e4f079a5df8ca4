"""The one way to load a model of the libraries: what does not fit its network, or has no vocabulary, is refused."""

import logging
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers.integrations.peft
import transformers.modeling_utils
from sentence_transformers.base.modules import Dense, Router
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from torch import nn
from transformers.utils.logging import disable_progress_bar

from slimtower.common.errors import UserError
from slimtower.common.files import read_json
from steps.encoders.bases import not_loaded

_POINTER = b"version https://git-lfs"
_SHORT = 1024  # bytes; a pointer is shorter
_BUFFERS = ("position_ids", "token_type_ids", "inv_freq", "masked_bias", "attn.bias")  # computed, never learned
_PROBED = 20  # words of a vocabulary that are read
_LISTED = 3  # names in a message
_REPORTS: list[Any] = [transformers.modeling_utils, transformers.integrations.peft]  # call log_state_dict_report
_LOADING = threading.RLock()  # the libraries' report is replaced for all threads


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the libraries' warnings off the screen."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def loading(source: str | Path, instead: str, *, new_head: bool = False) -> Iterator[None]:
    """Within it the libraries load a model from a folder or a name on the hub; `instead` says what else to give.

    transformers draws missing weights at random; here UserError names them, and weights without a place. A pooler,
    buffers and heads of other tasks may differ, `new_head`: of a cross encoder too. TransientError if the hub is away.
    """

    def check(*, model: Any, pretrained_model_name_or_path: Any, loading_info: Any, **_: Any) -> None:
        _check_fit(model, pretrained_model_name_or_path or source, loading_info, new_head)

    disable_progress_bar()
    with _LOADING:
        reports = [module.log_state_dict_report for module in _REPORTS]
        for module in _REPORTS:
            module.log_state_dict_report = check
        try:
            _check_files(Path(source))
            yield
        except Exception as error:
            raise not_loaded(source, error, instead) from None
        finally:
            for module, report in zip(_REPORTS, reports, strict=True):
                module.log_state_dict_report = report


def _check_fit(model: Any, source: Any, info: Any, new_head: bool) -> None:
    """UserError unless the file has all weights of the network's body, of the right shapes, and no more layers."""
    kind, prefix = type(model).__name__, f"{model.base_model_prefix}."
    for name, stored, expected in sorted(info.mismatched_keys):
        more = f" ({len(info.mismatched_keys)} such tensors)" if len(info.mismatched_keys) > 1 else ""
        raise UserError(
            f"model {source}: {name} has the shape {tuple(stored)} in the file, and {tuple(expected)} by config.json"
            f"{more}; give the config.json that the weights were saved with"
        )
    if info.error_msgs or info.conversion_errors:
        raise UserError(
            f"model {source}: its weights cannot be read into {kind}:"
            f" {[*info.error_msgs, *info.conversion_errors.values()][0]}; save the model anew with save_pretrained"
        )
    headed = hasattr(model, model.base_model_prefix)
    body = {name.removeprefix(prefix).partition(".")[0] for name in model.state_dict()}
    missing = [name for name in info.missing_keys if not _may_differ(name)]
    if new_head:
        missing = [name for name in missing if headed and name.startswith(prefix)]
    elif headed:
        missing += [name for name in info.missing_keys - {*missing} if "pooler." in name]  # its head reads it
    unexpected = [
        name
        for name in info.unexpected_keys
        if not _may_differ(name) and name.removeprefix(prefix).partition(".")[0] in body
    ]
    if not missing and not unexpected:
        return
    defects = []
    if missing:
        defects.append(f"{len(missing)} of {len(model.state_dict())} weights are missing ({_join_names(missing)})")
    if extra := sorted(info.unexpected_keys if missing else unexpected):
        defects.append(f"{len(extra)} in the file have no place ({_join_names(extra)})")
    wrapper = _wrapper(missing, extra).removesuffix(prefix)
    then = (
        f"the names in the file begin with {wrapper!r}, as a wrapper leaves them: save the model inside it"
        if wrapper
        else "save the model anew with save_pretrained, or give the config.json of these weights"
    )
    raise UserError(f"model {source}: its weights do not fit {kind}: {', '.join(defects)}; {then}")


def _may_differ(name: str) -> bool:
    return name.endswith(_BUFFERS) or name.startswith("pooler.") or ".pooler." in name


def _join_names(names: Iterable[str]) -> str:
    names = sorted(names)
    return ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")


def _wrapper(missing: Iterable[str], unexpected: Iterable[str]) -> str:
    """What the file puts before the name of a missing weight; empty where it puts nothing."""
    pairs = ((name, suffix) for name in unexpected for suffix in (f".{weight}" for weight in missing))
    return next((name.removesuffix(suffix) + "." for name, suffix in pairs if name.endswith(suffix)), "")


def _check_files(folder: Path) -> None:
    """UserError for pointers of Git LFS instead of files, for ONNX alone, and for modules without their list."""
    if not folder.is_dir():
        return
    files = [path for path in (*folder.iterdir(), *folder.glob("*/*")) if path.is_file()]
    for path in files:
        if path.stat().st_size < _SHORT and path.read_bytes().startswith(_POINTER):
            raise UserError(
                f"{path}: is a pointer of Git LFS, not the file itself; run `git lfs pull` in that repository"
            )
    kinds = {path.suffix for path in files}
    if ".onnx" in kinds and not kinds & {".safetensors", ".bin"}:
        raise UserError(
            f"model {folder}: holds ONNX alone, which neither trains nor gives layers; give the folder with its"
            " PyTorch weights, model.safetensors"
        )
    named = folder / "config_sentence_transformers.json"
    late = named.is_file() and read_json(named).get("model_type") in {"MultiVectorEncoder", "ColBERT"}
    if (late or (folder / "1_Pooling").is_dir()) and not (folder / "modules.json").is_file():
        raise UserError(
            f"model {folder}: modules.json is missing, which lists what it is made of; copy the folder whole"
        )


def check_model(model: nn.Module, source: str | Path) -> None:
    """UserError if tokenizers have no vocabulary, or ids without a row, and if modules expect other widths."""
    paths = _module_paths(Path(source))
    _check_widths(list(model.children()), paths, source)
    for module in model.modules():
        if isinstance(module, StaticEmbedding):
            _check_vocabulary(module.tokenizer.get_vocab(), module.embedding.num_embeddings, source)
        elif isinstance(module, Transformer):
            check_tokenizer(getattr(module, "tokenizer", None), module.auto_model, source)


def check_tokenizer(tokenizer: Any, network: Any, source: str | Path) -> None:
    """UserError unless the tokenizer tells words apart, with ids that the network has rows for; it then can pad."""
    vocabulary: dict[str, int] = tokenizer.get_vocab() if tokenizer is not None else {}
    special: set[str] = set(tokenizer.all_special_tokens) if vocabulary else set()
    special |= {str(token) for token in getattr(tokenizer, "added_tokens_decoder", {}).values() if token.special}
    words = sorted(vocabulary.keys() - special)
    probed = words[:: max(1, len(words) // _PROBED)]
    encodings = {tuple(ids) for ids in tokenizer(probed, add_special_tokens=False).input_ids} if probed else set()
    if len(encodings) < 2:
        raise UserError(
            f"model {source}: no vocabulary: its tokenizer reads all words as the same tokens; put the tokenizer's"
            " files (tokenizer.json) beside the weights"
        )
    if tokenizer.pad_token is None:
        token = tokenizer.eos_token or tokenizer.sep_token
        if token is None:
            raise UserError(f"model {source}: its tokenizer has no pad_token, and no eos_token to take; set pad_token")
        tokenizer.pad_token = token
        _say(f"model {source}: its tokenizer has no pad_token: takes {token!r}, which ends a text")
    if getattr(network.config, "pad_token_id", 0) is None:
        network.config.pad_token_id = tokenizer.pad_token_id
    ids = {*tokenizer("a").input_ids, tokenizer.pad_token_id}
    used = {word: vocabulary[word] for word in words} | {str(token_id): token_id for token_id in ids}
    _check_vocabulary(used, getattr(network.get_input_embeddings(), "num_embeddings", None), source)


def _check_vocabulary(ids: Mapping[str, int], rows: int | None, source: str | Path) -> None:
    if rows is not None and (last := max(ids.values(), default=0)) >= rows:
        raise UserError(
            f"model {source}: its tokenizer can give ids up to {last}, but its embedding has {rows} rows; give the"
            " tokenizer that it was trained with"
        )


@cache
def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _check_widths(modules: list[nn.Module], paths: list[str], source: str | Path) -> None:
    """UserError for a module that expects vectors of another width than those before it give."""
    width: int | None = None
    for number, module in enumerate(modules):
        if isinstance(module, Router):
            for chain in module.sub_modules.values():
                _check_widths(list(chain.children()), [], source)
        expected = module.embedding_dimension if isinstance(module, Pooling) else None
        if isinstance(module, Dense) and module.module_input_name in {"sentence_embedding", "token_embeddings"}:
            expected = module.in_features
        if expected is not None and width is not None and expected != width:
            path = f"{paths[number]}/config.json" if number < len(paths) else f"the config of {type(module).__name__}"
            raise UserError(
                f"model {source}: {path} expects vectors of {expected} dimensions, but what comes before gives"
                f" {width}; correct it"
            )
        gives = getattr(module, "get_embedding_dimension", None)
        width = (gives() if gives else None) or width


def _module_paths(folder: Path) -> list[str]:
    listed = folder / "modules.json"
    return [str(module["path"]) for module in read_json(listed)] if listed.is_file() else []


def is_causal(network: Any) -> bool:
    """Whether a token's state stays the same if others follow it, but for rounding; the network then evaluates."""
    ids = torch.arange(8, device=network.device).unsqueeze(0)
    with torch.inference_mode():
        full, prefix = (
            network.eval()(input_ids=tokens).last_hidden_state[0, 3].float() for tokens in (ids, ids[:, :4])
        )
    rounding = torch.finfo(network.dtype).eps ** 0.5
    return torch.allclose(full, prefix, rtol=rounding, atol=rounding * float(prefix.abs().max()))


def prompt_of(ranker: Any) -> str | None:
    """What a cross encoder puts before each query by default; None without."""
    return ranker.prompts.get(ranker.default_prompt_name or "") or None

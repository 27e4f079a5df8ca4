"""A late interaction model (ColBERT): from triplets to the teacher, and the proof that training it was worth it."""

import json
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.base.modules.dense import Dense
from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
from sentence_transformers.util import load_file_path
from torch import nn

from slimtower.common.errors import UserError
from slimtower.common.names import ROLES
from steps.core.leases import release_and_delete
from steps.core.progress import progress
from steps.core.tables import read_table
from steps.encoders.bases import not_loaded, resolve_base
from steps.encoders.batch_check import check_batches
from steps.encoders.precision import device
from steps.encoders.towers import check_fast, check_positions, load_tower
from steps.retrieval.late_interaction import PIECE, load_late_interaction, max_similarities, token_vectors
from steps.teach.dev_comparison import DevTask, compare, dev_tasks, ndcg_of_scores
from steps.teach.dual_encoder import (
    keeps_base,
    nothing_to_mine,
    set_prompts,
    tell_comparison,
    tell_prompts,
    usable_triplets,
)
from steps.teach.hard_negatives import ENCODE_BATCH
from steps.teach.kinds.base import Inputs
from steps.teach.kinds.late_interaction import LateInteraction
from steps.teach.late_interaction_training import train_late_interaction
from steps.teach.rounds import checkpoint_folder
from steps.teach.teacher_folder import teacher_folder
from steps.teach.training_triplets import known_positives, named_documents
from steps.tracking.runs import Run


def teach(inputs: Inputs, output: Path, params: LateInteraction, run: Run) -> None:
    """Write `output/tower` (a MultiVectorEncoder folder) and `output/report.json`; untrained if `teach_tower` is."""
    ingest, mine, _ = inputs
    model = late_interaction_model(params)
    tell_prompts(model, params)
    report: dict[str, Any] = params.model_dump(include={"base", "kind", "epochs"})
    report |= {"comparison": None, "dim": model.get_embedding_dimension()}
    checkpoints: Path | None = None
    if params.epochs > 0 and nothing_to_mine(ingest, mine):
        report |= {"epochs": 0.0, "note": f"zero-shot: {keeps_base(params)}"}
    elif params.epochs > 0:
        triplets, queries = read_table(mine, "triplets"), read_table(ingest, "queries")
        choice = usable_triplets(triplets, queries, ingest, mine, params)
        positives = known_positives(triplets, queries, ingest, named_documents(choice.chosen))
        report |= choice.facts(math.ceil(params.epochs))
        tasks = dev_tasks(ingest, params)
        before = _ndcg(model, tasks, params, "base on dev")
        code = ("steps.teach.late_interaction_training",)
        checkpoints = checkpoint_folder(model, choice.chosen, positives, params, code=code)
        started = time.monotonic()
        train_late_interaction(model, choice.chosen, positives, params, checkpoints, run)
        run.metric("training_seconds", time.monotonic() - started)
        if before:
            report["comparison"] = compare(before, _ndcg(model, tasks, params, "teacher on dev"))
            tell_comparison(report["comparison"], run)
    with teacher_folder(output, model, report, run):
        pass
    if checkpoints:  # last: where the tracking server is away, the next try goes on from them
        release_and_delete(checkpoints)


def late_interaction_model(params: LateInteraction) -> MultiVectorEncoder:
    """The base as a late interaction model, which reads as many tokens as the params say, special ones too.

    Of an encoder every token's last state counts, normalised, with a linear layer to `dim` drawn by seed, or none for 0
    (LEAD, Sec. 3). A model of the kind stays as it is. UserError for a `dim` that it does not have, for lengths beyond
    its positions, and for a base without a transformer or a fast tokenizer.
    """
    base = resolve_base(params.base)
    model = load_late_interaction(base) if is_late_interaction(base) else _of_encoder(base, params)
    set_prompts(model, params)
    dim = model.get_embedding_dimension()
    if params.dim not in {0, dim}:
        raise UserError(
            f"teach.teacher: dim is {params.dim}, but {params.base} gives its tokens {dim} dimensions; set it to 0 or"
            f" {dim}"
        )
    first: Any = model[0]
    check_fast(first.tokenizer, f"teach.teacher: base {params.base}")
    for knob in ("max_query_length", "max_document_length"):
        check_positions(first.auto_model, getattr(params, knob), f"teach.teacher: {knob}", params.base)
    if first.query_expansion is None:  # which says itself how long a query is
        first.query_length = params.max_query_length
    first.document_length = params.max_document_length
    first.max_seq_length = max(params.max_query_length, params.max_document_length)
    for role in ROLES:
        embed = partial(token_vectors, model, role=role, precision="fp32", batch_size=ENCODE_BATCH)
        check_batches(embed, first.tokenizer, f"teach.teacher: base {params.base}")
    return model


def is_late_interaction(base: str) -> bool:
    """Whether a folder or a model on the hub holds a vector a token: sentence-transformers', PyLate's or Stanford's."""

    def settings(name: str) -> Any:
        path = load_file_path(base, name)
        try:
            return json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
        except ValueError as error:
            raise not_loaded(base, error, "a late interaction model's folder, or its name on the hub") from None

    saved_as = settings("config_sentence_transformers.json").get("model_type")
    native = "HF_ColBERT" in (settings("config.json").get("architectures") or [])
    return saved_as in {"MultiVectorEncoder", "ColBERT"} or native


def _of_encoder(base: str, params: LateInteraction) -> MultiVectorEncoder:
    tower = load_tower(base)
    first = tower[0]
    if not isinstance(first, Transformer):
        raise UserError(
            f"teach.teacher: base {params.base} is no transformer with a vector for each token; take an encoder, or a"
            " late interaction model"
        )
    modules: list[nn.Module] = [first]
    of_tokens: dict[str, Any] = {"module_input_name": "token_embeddings"}
    if params.dim:
        with torch.random.fork_rng():
            torch.manual_seed(params.seed)
            modules.append(Dense(first.get_embedding_dimension(), params.dim, False, nn.Identity(), **of_tokens))
    modules += [MultiVectorMask(), Normalize(**of_tokens)]
    prompts = {name: text or "" for name, text in tower.prompts.items()}
    return MultiVectorEncoder(modules=modules, device=device(), prompts=prompts)


def _ndcg(model: MultiVectorEncoder, tasks: list[DevTask], params: LateInteraction, caption: str) -> dict[str, float]:

    def scores(queries: list[str], texts: list[str]) -> np.ndarray:
        embed = partial(token_vectors, model, precision=params.precision, batch_size=ENCODE_BATCH)
        query_vectors = embed(queries, "query")
        columns, starts = [], range(0, len(texts), PIECE)
        for start in progress(starts, len(starts), caption):
            document_vectors = embed(texts[start : start + PIECE], "document")
            columns.append(np.stack([max_similarities(query, document_vectors) for query in query_vectors]))
        return np.concatenate(columns, axis=1)

    return ndcg_of_scores(scores, tasks)

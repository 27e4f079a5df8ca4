"""Distil one student and write it as plain sentence-transformers folders."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from steps.core.errors import UserError
from steps.core.files import folder_bytes, read_json, staged_folder, write_json
from steps.core.fingerprints import fingerprint
from steps.core.leakage import evaluation_keys
from steps.core.losses.embedding import LOSSES
from steps.core.params.distill import DistillParams, StudentParams, TokenTableParams
from steps.core.ranks import rank
from steps.core.tables import read_table
from steps.core.texts import fold
from steps.core.towers import load_tower, resolve_precision
from steps.core.tracking import Run
from steps.distill.checkpoints import Checkpoints, training_folder
from steps.distill.checks import check_mixture, check_student, check_targets, check_token_rows
from steps.distill.mixture import hold_out
from steps.distill.students import LayerSubset, Student, TokenTable, router
from steps.distill.token_weights import inverse_document_frequency
from steps.distill.tokens import Tokens, tokenize
from steps.distill.trainer import Alignment, train


def run(student: str, ingest: Path, embed: Path, teach: Path, output: Path, params: DistillParams, run: Run) -> None:
    """Write `query_encoder/` (the student), `router/` (student and teacher as two routes) and `report.json`.

    Of several processes rank 0 alone writes.
    """
    if student not in params.student:
        raise UserError(f"distill.student has no {student!r}; it describes {sorted(params.student)}")
    chosen = params.student[student]
    teacher_folder = teach / "tower"
    teacher = fingerprint(teacher_folder)
    embedded = read_json(embed / "report.json")
    if embedded["teacher"] != asdict(teacher):
        raise UserError(f"{embed}: embedded by another teacher than {teacher_folder}; run `dvc repro embed` again")
    table = read_table(embed, "alignment_texts")
    texts = table["text"].to_pylist()
    _refuse_evaluation_queries(texts, ingest)

    torch.manual_seed(params.seed)
    tower = load_tower(teacher_folder)
    special = not isinstance(chosen, TokenTableParams)
    tokens = tokenize(texts, tower.tokenizer, params.max_length, special=special)
    training, validation = hold_out(len(texts), params.validation_texts, params.seed)
    data = Alignment(
        tokens=tokens,
        vectors=np.load(embed / "alignment.npy", mmap_mode="r"),
        parts=np.array(table["part"].to_pylist()),
        training=training,
        validation=validation,
    )
    check_targets(embed, data.vectors, len(texts), tower)
    absent = check_mixture(params.mixture, data.parts, training, embedded["parts"])
    made = _student(chosen, teacher_folder, embed, tokens)
    check_student(made, tokens, data.vectors.shape[1])
    checkpoints = Checkpoints(_folder(made, data, chosen, params))
    measured = train(made, LOSSES[chosen.loss](), data, chosen, params, run, checkpoints)
    if rank() > 0:
        return

    with staged_folder(output) as staging:
        made.tower.save_pretrained(str(staging / "query_encoder"), create_model_card=False)
        router(made.tower, tower).save_pretrained(str(staging / "router"), create_model_card=False)
        sizes = {
            "parameters": sum(weight.numel() for weight in made.tower.parameters()),
            "bytes": folder_bytes(staging / "query_encoder"),
        }
        report = {
            "student": student,
            "teacher": asdict(teacher),
            "parts": dict(Counter(data.parts.tolist())),
            "parts_without_texts": absent,
            **sizes,
            **measured,
        }
        write_json(staging / "report.json", report)
    run.metrics({**sizes, **measured})
    run.model(output / "query_encoder", f"query-encoder-{student}")
    checkpoints.remove()  # last: where the tracking server is away, the next try goes on from it


def _student(chosen: StudentParams, teacher: Path, embed: Path, tokens: Tokens) -> Student:
    """The untrained student that params describe."""
    if isinstance(chosen, TokenTableParams):
        tower, rows = load_tower(teacher), np.load(embed / "tokens.npy")
        check_token_rows(embed, rows, tower)
        weights = inverse_document_frequency(tokens, len(rows))
        return TokenTable(tower, (rows * weights[:, None]).astype(np.float32))
    return LayerSubset(teacher, chosen)


def _folder(made: Student, data: Alignment, chosen: StudentParams, params: DistillParams) -> Path:
    """Where this training's checkpoint lies, by all that its result depends on."""
    knobs = chosen.model_dump() | {
        "mixture": params.mixture,
        "seed": params.seed,
        "computes_in": resolve_precision(params.precision),
    }
    arrays = {"ids": data.tokens.ids, "offsets": data.tokens.offsets, "parts": data.parts, "targets": data.vectors}
    return training_folder(made.tower, arrays | {"training": data.training}, knobs)


def _refuse_evaluation_queries(texts: list[str], ingest: Path) -> None:
    """UserError when a text equals a dev or test query after folding."""
    forbidden = evaluation_keys(read_table(ingest, "queries").to_pylist())
    leaked = [text for text in texts if fold(text) in forbidden]
    if leaked:
        raise UserError(
            f"data/embed: {len(leaked)} alignment texts are evaluation queries, such as {leaked[0]!r};"
            " run `dvc repro embed` to build them again"
        )

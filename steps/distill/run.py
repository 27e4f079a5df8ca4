"""Distil one student and write it as plain sentence-transformers folders."""

import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from slimtower.common.errors import UserError
from slimtower.common.files import folder_bytes, read_json, staged_folder, write_json
from slimtower.common.fingerprints import fingerprint
from steps.core.leakage import check_leaks, evaluation_keys
from steps.core.tables import read_table, write_table
from steps.distill.checkpoints import Checkpoints, training_folder
from steps.distill.checks import check_endpoint, check_repeats, check_size, check_student
from steps.distill.joint import JointDocuments, TrainedTeacher
from steps.distill.mixture import hold_out, rows_of, with_documents
from steps.distill.params import DistillParams
from steps.distill.phases import Trainings
from steps.distill.ranking import describe_ranking, expected_retention, ranking_kept, texts_to_rank
from steps.distill.sources import Sources
from steps.distill.student import readable_tokens
from steps.distill.students import router, untrained
from steps.distill.trainer import Alignment, embed_held_out, train, validate
from steps.encoders.precision import resolve_precision
from steps.encoders.towers import load_tower, route
from steps.tracking.runs import Run
from steps.training.distributed import rank


def run(
    student: str,
    ingest: Path,
    mine: Path,
    embed: Path,
    score: Path,
    teach: Path,
    output: Path,
    params: DistillParams,
    run: Run,
) -> None:
    """Write `query_encoder/` (the student), `router/` (student and document tower as two routes) and `report.json`.

    With `targets: joint` also `teacher/`, as it is after training along. The table `held_out` has the texts that
    validated it and trained nobody. Of several processes rank 0 alone writes.
    """
    chosen = params.described(student)
    if chosen.seed is not None:
        params = params.model_copy(update={"seed": chosen.seed})
    teacher = fingerprint(teach / "tower")
    embedded = read_json(embed / "report.json")
    if embedded["teacher"] != asdict(teacher):
        raise UserError(f"{embed}: embedded by another teacher than {teach / 'tower'}; run `dvc repro embed` again")
    sources = Sources(ingest, mine, embed, score)
    texts = sources.strings
    check_leaks(
        ((f"{embed}/alignment_texts.parquet", text) for text in texts),
        evaluation_keys(read_table(ingest, "queries").to_pylist()),
        "run `dvc repro embed` to build them again",
    )

    torch.manual_seed(params.seed)
    model = load_tower(teach / "tower")
    tower = route(model, "document")  # what the index holds, and the router's route of documents
    check_endpoint(chosen, tower)
    parts = np.array(sources.texts["part"].to_pylist())
    training, validation = hold_out(rows_of(parts, params.repeats), parts, params.validation_texts, params.seed)
    training, repeats = with_documents(training, parts, params.repeats, chosen.document_share)
    params = params.model_copy(update={"repeats": repeats})
    absent = check_repeats(params.repeats, parts, training, embedded["parts"], params.required_parts)
    encoder = untrained(chosen, teach / "tower", sources, training, params)
    if student in params.students:
        check_size(encoder.tower)
    is_used = np.isin(np.arange(len(texts)), np.concatenate([training, validation]))
    prompt = encoder.tower.prompts.get("query") or ""  # of a teacher that stays as it is; students have none
    limit = params.max_length
    if prompt:
        limit += len(encoder.tower.tokenizer.tokenize(prompt))
    limit = readable_tokens(limit, encoder.tower, route(model, "query"))
    inputs = [prompt + text if used else "" for text, used in zip(texts, is_used.tolist(), strict=True)]
    data = Alignment(encoder.tokenize(inputs, limit), sources.vectors, parts, training, validation)
    dims = [dim for phase in chosen.phases for loss in phase.losses for dim in loss.dims]
    check_student(encoder, data.tokens, sources.vectors.shape[1], dims)
    measured = dict.fromkeys(("texts_seen", "steps", "seconds", "still_rising"), 0.0)
    finished = []
    documents, cosine = tower, tower.similarity_fn_name == "cosine"
    trained: dict[str, TrainedTeacher] = {}  # by name; "" is the index's
    trainings = Trainings(chosen, encoder, teach / "tower", cosine, sources, training, params)
    for objective, schedule, rows in trainings:
        alignment = replace(data, training=rows)
        knobs = chosen.model_dump() | {
            "phase": schedule.name,
            "repeats": params.repeats,
            "convergence": params.convergence.model_dump(),
            "seed": params.seed,
            "computes_in": resolve_precision(params.precision),
        }
        arrays = data.tokens.arrays("texts") | {"parts": parts, "targets": data.vectors, "training": rows}
        folder = training_folder(
            encoder.tower, arrays | objective.arrays, knobs, objective.losses.values(), objective.teachers.code
        )
        checkpoints = Checkpoints(folder)
        figures = train(encoder, objective, alignment, schedule, params, run, checkpoints)
        finished.append(checkpoints)
        if isinstance(objective.teachers, JointDocuments):
            objective.teachers.reader.finish()
            documents = objective.teachers.reader.tower
        elif isinstance(objective.teachers, TrainedTeacher):
            trained[objective.teachers.name] = objective.teachers
        measured |= {key: measured[key] + figures[key] for key in ("texts_seen", "steps", "seconds")}
        measured["still_rising"] = max(measured["still_rising"], figures["still_rising"])
        measured["validation_cosine"] = figures["validation_cosine"]
    if chosen.towers == "asymmetric" and rank() == 0:  # the others search the teacher's documents
        held_out = embed_held_out(encoder, data, params)
        if not chosen.trains:
            measured["validation_cosine"] = validate(encoder, data, params, 0)
        compared, queries = texts_to_rank(parts[validation])
        vectors = data.vectors[validation[compared]], held_out[compared]
        origins = sources.origins[validation[compared]]
        ranking = ranking_kept(*vectors, sources.documents, params.seed, cosine=cosine, origins=origins)
        measured |= {f"held_out_{name}": value for name, value in ranking.items()}
        if queries:
            measured["expected_retention"] = expected_retention(ranking["ndcg"])
        if chosen.trains and not any(phase.all_teachers for phase in chosen.phases):  # else it is to rank as these do
            counted = any(phase.epochs != "auto" for phase in chosen.phases)
            imitates = not any(loss.wants_labels for phase in chosen.phases for loss in phase.losses)
            summary = describe_ranking(
                ranking, len(sources.documents), queries=queries, counted=counted, imitates=imitates
            )
            print(f"distill: {student} {summary}", file=sys.stderr)
    encoder.finish()
    measured["texts_per_second"] = measured["texts_seen"] / max(measured["seconds"], 1e-9)
    if rank() > 0:
        return

    with staged_folder(output) as staging:
        encoder.tower.save_pretrained(str(staging / "query_encoder"), create_model_card=False)
        if chosen.towers == "symmetric":
            documents = encoder.tower
        if chosen.towers != "asymmetric":
            documents.max_seq_length = chosen.max_document_length
        router(encoder.tower, documents).save_pretrained(str(staging / "router"), create_model_card=False)
        for name, trained_teacher in trained.items():  # a folder each if they are several
            folder = staging / "teacher"
            trained_teacher.save(folder if len(trained) == 1 else folder / (name or "index"))
        sizes = {
            "parameters": sum(weight.numel() for weight in encoder.tower.parameters()),
            "bytes": folder_bytes(staging / "query_encoder"),
        }
        report = {
            "student": student,
            "spec": chosen.model_dump(exclude={"seed"}),
            "seed": params.seed,
            "start": next(iter(type(chosen.start).model_fields)),
            "base": getattr(chosen.start, "base", getattr(chosen.start, "adapter", None)),
            "losses": [loss.name for loss in chosen.losses],
            "temperatures": {
                name: knobs["temperature"] for name, knobs in trainings.automatic.items() if "temperature" in knobs
            },
            "dims": sorted(set(dims)),
            "teacher": asdict(teacher),
            "computed_in": resolve_precision(params.precision),
            "parts": dict(Counter(data.parts.tolist())),
            "parts_without_texts": absent,
            **sizes,
            **measured,
        }
        write_table(staging, "held_out", sources.texts.take(pa.array(validation)))
        write_json(staging / "report.json", report)
    run.metrics({**sizes, **measured})
    run.model(output / "query_encoder", f"query-encoder-{student}")
    for checkpoints in finished:  # last: where the tracking server is away, the next try goes on from them
        checkpoints.remove()

"""python -m bench.any_corpus LABEL [--half HALF | --only CORPUS,...] [--against LABEL]: defaults on many corpora.

For each corpus of bench/corpora.yaml: a BEIR folder in disguise (bench.disguise), a kind that is made here
(bench.kinds) or several of them for one student; recipes/beir.yaml up to `embed` in runs/any_<corpus>; then the
students of params.yaml's `distill.student` that the file names, each with every seed. They are scored on dev and test
by exact search. DATA names the folder that holds the sources, UNLABELLED the pool of queries. What is finished is kept
below .cache: a killed bench goes on, and --half, --only and --students measure it in parts. Corpora that only report
are measured if one of the first two names them: nobody who chooses sees their figures by chance.

Adds them to bench/results/any_corpus/LABEL.json, each with its commit and processor; seeds that are not on record join
those that are. With --against each student is compared with another label's, query by query; data sets count alike.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args

import numpy as np
from pydantic import Field
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling

from bench.disguise import Corpus as Undisguised
from bench.disguise import disguised, read_beir, read_ingested, write
from bench.kinds import KINDS, build
from bench.machine import check_committed, machine, measured_code, recording
from bench.tables.cells import Cell, distill_params, measured, teacher_scores
from bench.tables.expected import parse_seeds
from bench.tables.pipeline import Pipeline, Scores, open_pipeline
from pipeline.params import load_params
from slimtower.common.errors import UserError
from slimtower.common.files import read_json, staged_folder, write_json
from slimtower.common.settings import Strict, read_mapping, validated
from steps.encoders.bases import resolve_base
from steps.encoders.towers import load_tower
from steps.evaluate.comparing import p_value
from steps.tracking.run_ids import git_commit

CORPORA = Path("bench/corpora.yaml")
RESULTS = Path("bench/results/any_corpus")
FOLDER = Path(".cache/any_corpus")
CLS_DOT = "cls_dot"
REPORTED = (
    "texts_seen",
    "steps",
    "validation_cosine",
    "held_out_overlap",
    "held_out_ndcg",
    "held_out_found",
    "held_out_found_by_teacher",
    "expected_retention",
    "training_seconds",
    "stage_seconds",
)


Half = Literal["disguises", "choosing", "reporting"]


class Corpus(Strict):
    """A source in disguise: its `changes`, with the pool of unlabelled queries or not, and its teacher."""

    title: str = Field(min_length=1)  # in bench/results/README.md
    source: list[str] = Field(min_length=1)  # folders below DATA, kinds of bench.kinds, demo: the embedded data
    half: Half = "disguises"  # on those of `choosing` knobs are chosen as well; `reporting` ones choose nothing
    changes: list[str] = Field(default_factory=list)
    pool: bool = False
    words: bool = False  # with the part `words`
    least_sources: int = Field(default=0, ge=0)  # generate.least_sources: queries from documents where others are few
    teacher: str = ""  # a base of pipeline.weights, or cls_dot: the bundled one read at [CLS], compared by dot product


class Bars(Strict):
    """What a student must reach: mean and worst retention on test over the corpora, minutes of its longest training."""

    mean: float = Field(gt=0)
    worst: float = Field(gt=0)
    minutes: float = Field(gt=0)


class Corpora(Strict):
    """The whole file. `labels`: by label and student, what its students had in place of what params.yaml says."""

    students: list[str] = Field(min_length=1)
    bars: dict[Half, dict[str, Bars]]
    labels: dict[str, dict[str, dict[str, Any]]] = Field(default_factory=dict)
    seeds: list[int] = Field(min_length=1)
    corpora: dict[str, Corpus] = Field(min_length=1)


def read_corpora() -> Corpora:
    """Read and check the file; UserError names what is wrong."""
    return validated(Corpora, read_mapping(CORPORA), str(CORPORA))


def check(names: list[str], students: list[str], against: str, corpora: Corpora) -> None:
    """UserError, before anything costs time, for a name that is not there and for a pool that is not there."""
    if unknown := [name for name in names if name not in corpora.corpora]:
        raise UserError(f"--only: {CORPORA} has no {', '.join(unknown)}; it has {', '.join(corpora.corpora)}")
    described = load_params(Path("params.yaml")).distill.student
    if unknown := [student for student in students if student not in described]:
        raise UserError(f"--students: params.yaml describes no {', '.join(unknown)}; it has {', '.join(described)}")
    if against and not (FOLDER / f"{against}.json").is_file():
        raise UserError(f"--against: nothing was measured as {against}; do that first")
    pool = os.environ.get("UNLABELLED") or ""
    if any(corpora.corpora[name].pool for name in names) and not Path(pool).is_file():
        raise UserError(
            f"UNLABELLED={pool}: let it name a pool of unlabelled queries, or leave corpora with a pool out"
        )


def embedded(name: str, corpus: Corpus, sources: Mapping[str, Undisguised]) -> Pipeline:
    """The corpus, its run up to `embed` brought up to date. A single data set is called `own`, as in the recipe."""
    names = corpus.source if len(corpus.source) > 1 else ["own"]
    folders = {dataset: FOLDER / name / dataset for dataset in names}
    for source, folder in zip(corpus.source, folders.values(), strict=True):
        write(disguised(sources[source], corpus.changes), folder)
    recipe = FOLDER / f"any_{name}.yaml"  # its name is the run's
    recipe.write_text(recipe_of(folders, corpus.teacher, corpus.least_sources, words=corpus.words), encoding="utf-8")
    words = [f"UNLABELLED={os.environ['UNLABELLED']}"] if corpus.pool else []
    ended = subprocess.run([sys.executable, "-m", "pipeline.recipe", str(recipe), *words, "embed"])
    if ended.returncode:
        raise UserError(f"{name}: its run ended with exit code {ended.returncode}; the reason stands above")
    return open_pipeline(Path("runs") / recipe.stem)


def read_source(name: str) -> Undisguised:
    """A source as it is; UserError if it cannot be had here."""
    data = os.environ.get("DATA") or ""
    if name == "demo":
        return read_ingested(Path("data/ingest"))
    if name in KINDS:
        return build(name)
    if not (Path(data) / name).is_dir():
        raise UserError(f"DATA={data}: has no folder {name}; let DATA name the folder that holds the sources")
    return read_beir(Path(data) / name)


def recipe_of(folders: Mapping[str, Path], teacher: str, least_sources: int = 0, *, words: bool = False) -> str:
    """recipes/beir.yaml over the folders, perhaps with another base, with queries from documents or with words."""
    text = Path("recipes/beir.yaml").read_text(encoding="utf-8")
    sources = [{"name": name, "kind": "beir", "path": str(path.resolve())} for name, path in folders.items()]
    text = re.sub(r"^  sources: .*$", lambda _: f"  sources: {json.dumps(sources)}", text, count=1, flags=re.M)
    if words:
        text = text.replace("spans]", "spans, words]", 1).replace("{spans: 1.0}", "{spans: 1.0, words: 1.0}", 1)
    if least_sources:
        text += f"\ngenerate: {{least_sources: {least_sources}}}\n"
    if teacher:
        base = json.dumps(str(cls_dot_teacher().resolve()) if teacher == CLS_DOT else teacher)
        text = text.replace("    dense:\n", f"    dense:\n      base: {base}\n", 1)  # as text: a dump drops quotes
    return text


def cls_dot_teacher() -> Path:
    """A base that nobody trained: the bundled encoder read at [CLS], without normalisation, compared by dot product."""
    folder = FOLDER / CLS_DOT
    if not folder.is_dir():
        tower = load_tower(resolve_base("all-MiniLM-L6-v2"))
        changed = SentenceTransformer(
            modules=[tower[0], Pooling(tower[0].get_embedding_dimension(), "cls")], similarity_fn_name="dot"
        )
        with staged_folder(folder) as staging:
            changed.save_pretrained(str(staging), create_model_card=False)
    return folder


def retention(scores: list[Scores], teacher: Scores, split: str) -> dict[str, Any]:
    """Share of the teacher's nDCG@10 that is kept: mean over data sets, spread over seeds, each seed's, each set's."""
    by_set = {
        name: fmean(fmean(seed[split][name]) for seed in scores) / fmean(values)
        for name, values in teacher[split].items()
    }
    retained = _spread(
        fmean(fmean(values) / fmean(teacher[split][name]) for name, values in seed[split].items()) for seed in scores
    )
    return retained | ({"by_set": by_set} if len(by_set) > 1 else {})


def measure(
    name: str,
    corpus: Corpus,
    sources: Mapping[str, Undisguised],
    students: list[str],
    seeds: list[int],
    changes: Mapping[str, dict[str, Any]],
) -> dict[str, Any]:
    """A corpus' line: its size, texts and teacher, and its students, with `changes` laid over what params.yaml says."""
    pipeline = embedded(name, corpus, sources)
    teacher = teacher_scores(pipeline, ())["0"]
    parts, counts = np.unique(pipeline.parts, return_counts=True)
    print(f"{name}: {len(pipeline.documents):,} documents, {len(pipeline.parts):,} texts", flush=True)
    return {
        "corpus": pipeline.data_digest,
        "documents": len(pipeline.documents),
        "texts": dict(zip(parts.tolist(), counts.tolist(), strict=True)),
        "teacher": {
            split: {"queries": sum(map(len, sets.values())), "ndcg": fmean(map(fmean, sets.values()))}
            for split, sets in teacher.items()
        },
        "students": {
            student: student_line(name, student, pipeline, teacher, seeds, changes.get(student, {}))
            for student in students
        },
    }


def student_line(
    name: str, student: str, pipeline: Pipeline, teacher: Scores, seeds: list[int], change: dict[str, Any]
) -> dict[str, Any]:
    """A student of a corpus: its retention, means of its figures over the seeds, and each query's nDCG@10."""
    run = pipeline.params
    repeats = {part: times for part, times in run.repeats.items() if times > 0}
    cells = []
    for seed in seeds:
        described = run.student[student].model_dump() | change
        cells.append(measured(Cell(distill_params(run, described, repeats, run.validation_texts, seed)), pipeline)[0])
    scores = [cell["scores"]["0"] for cell in cells]
    retained = {split: retention(scores, teacher, split) for split in teacher}
    means = {key: float(np.mean([cell[key] for cell in cells])) for key in REPORTED if key in cells[0]}
    shares = ", ".join(f"{split} {value['mean']:.1%}" for split, value in retained.items())
    print(f"{name} {student}: {shares}, {means['steps']:.0f} steps, {means['stage_seconds']:.0f} s", flush=True)
    queries = {
        split: {dataset: np.mean([seed[split][dataset] for seed in scores], axis=0).tolist() for dataset in sets}
        for split, sets in teacher.items()
    }
    return {
        "git_commit": git_commit(),
        "code_digests": measured_code(RESULTS / f"{name}.json"),
        "machine": machine(),
        "seeds": seeds,
        "retention": retained,
        **means,
        "by_query": queries,
    }


def compared(name: str, line: dict[str, Any], reference_lines: Mapping[str, Any]) -> None:
    """Add each student's paired difference to the other label on test; UserError if that measured another corpus."""
    reference = reference_lines.get(name, {"students": {}, "corpus": line["corpus"]})
    if reference["corpus"] != line["corpus"]:
        raise UserError(f"{name}: was another corpus when --against was measured; measure that label again")
    for student, row in line["students"].items():
        if student in reference["students"]:
            before = reference["students"][student]
            old = before["by_query"]["test"]
            differences = [np.subtract(new, old[dataset]) for dataset, new in row["by_query"]["test"].items()]
            row["against"] = {
                "retention": before["retention"]["test"]["mean"],
                "difference": fmean(float(values.mean()) for values in differences),
                "p": p_value(differences),
            }


def joined(older: dict[str, Any], newer: dict[str, Any]) -> dict[str, Any]:
    """A student's row of both, where the newer one has other seeds of the same corpus; else the newer one alone.

    Means and spreads are over all seeds, those by data set too. `joined` names the commit and the machine of the older
    ones, and `against` stays theirs where only they were compared.
    """
    if common := set(older["seeds"]) & set(newer["seeds"]):
        there = common == set(newer["seeds"]) and older["git_commit"] == newer["git_commit"]
        return older if there else newer  # it has joined before
    rows = older, newer
    counts = [len(row["seeds"]) for row in rows]
    retained = {
        split: _joined_retention([row["retention"][split] for row in rows], counts) for split in newer["retention"]
    }
    means = {key: float(np.average([row[key] for row in rows], weights=counts))
             for key in REPORTED if all(key in row for row in rows)}  # fmt: skip
    compared = {"against": {"seeds": older["seeds"]} | older["against"]} if "against" in older else {}
    origin = {key: older[key] for key in ("seeds", "git_commit", "code_digests", "machine") if key in older}
    seeds, origins = [*older["seeds"], *newer["seeds"]], [*older.get("joined", []), origin]
    return compared | newer | means | {"seeds": seeds, "retention": retained, "joined": origins}


def _joined_retention(parts: list[dict[str, Any]], counts: list[int]) -> dict[str, Any]:
    """What is kept over all seeds, of the rows' own; `counts` are their numbers of seeds."""
    retained = _spread(value for part, count in zip(parts, counts, strict=True) for value in _values(part, count))
    if not all("by_set" in part for part in parts):
        return retained
    names = parts[-1]["by_set"]
    means = {name: float(np.average([part["by_set"][name] for part in parts], weights=counts)) for name in names}
    return retained | {"by_set": means}


def _values(retained: Mapping[str, Any], seeds: int) -> list[float]:
    """Each seed's, from what is on record; UserError for rows that have only the mean of several."""
    if "values" not in retained and seeds > 1:
        raise UserError("a row of several seeds has no values by seed; measure it anew, with all its seeds")
    return list(retained.get("values", [retained["mean"]]))


def _spread(values: Iterable[float]) -> dict[str, Any]:
    """Mean and standard deviation of values by seed, and the values."""
    listed = list(values)
    sd = float(np.std(listed, ddof=1)) if len(listed) > 1 else None
    return {"mean": float(np.mean(listed)), "sd": sd, "values": listed}


def summary(lines: Mapping[str, Any], students: list[str]) -> dict[str, Any]:
    """By student: corpora, mean and worst test retention, seconds of the longest training, rms forecast error."""
    summaries = {}
    for student in students:
        rows = {name: line["students"][student] for name, line in lines.items() if student in line["students"]}
        if not rows:
            continue
        retained = {name: row["retention"]["test"]["mean"] for name, row in rows.items()}
        seconds = max(row["stage_seconds"] for row in rows.values())
        worst = min(retained, key=lambda name: retained[name])
        off = [row["expected_retention"] - retained[name] for name, row in rows.items() if "expected_retention" in row]
        summaries[student] = {"corpora": len(rows), "mean": float(np.mean(list(retained.values()))),
                          "worst": retained[worst], "worst_corpus": worst,
                          "longest_seconds": seconds,
                          "forecast_rms": float(np.sqrt(np.mean(np.square(off)))) if off else None}  # fmt: skip
    return summaries


def verdict(row: Mapping[str, Any], bars: Bars) -> str:
    """`OK`, or which bars a student's summary misses."""
    missed = [
        f"{name} below {getattr(bars, name):.0%}" for name in ("mean", "worst") if row[name] < getattr(bars, name)
    ]
    if row["longest_seconds"] > 60 * bars.minutes:
        missed.append(f"more than {bars.minutes:g} minutes")
    return ", ".join(missed) or "OK"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.any_corpus", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("label", help="of these defaults: one of the file's labels, or a new one for today's")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--half", choices=get_args(Half), help="absent = disguises and choosing")
    group.add_argument("--only", default="", help="corpora of any half, separated by commas")
    parser.add_argument("--students", default="", help="absent = those of the file")
    parser.add_argument("--seeds", default="", help="such as 1,2,3; absent = those of the file")
    parser.add_argument("--against", default="", help="another label, measured before")
    words = parser.parse_args()
    corpora = read_corpora()
    halves = [words.half] if words.half else ["disguises", "choosing"]
    of_halves = [name for name, corpus in corpora.corpora.items() if corpus.half in halves]
    names = words.only.split(",") if words.only else of_halves
    students = words.students.split(",") if words.students else corpora.students
    seeds = parse_seeds(words.seeds, corpora.seeds)
    check(names, students, words.against, corpora)
    source_names = sorted({source for name in names for source in corpora.corpora[name].source})
    sources = {
        source: read_source(source) for source in source_names
    }  # all of them, so that none is missing after hours
    reference_lines = read_json(FOLDER / f"{words.against}.json") if words.against else {}
    path = FOLDER / f"{words.label}.json"
    for name in names:
        line = measure(name, corpora.corpora[name], sources, students, seeds, corpora.labels.get(words.label, {}))
        compared(name, line, reference_lines)
        lines = read_json(path) if path.is_file() else {}
        older = lines.get(name, {}).get("students", {}) if lines.get(name, {}).get("corpus") == line["corpus"] else {}
        write_json(path, lines | {name: line | {"students": older | line["students"]}})
    record(words.label, corpora, read_json(path), {corpora.corpora[name].half for name in names})


def record(label: str, corpora: Corpora, measured_lines: Mapping[str, Any], halves: Set[str]) -> None:
    """Add what was measured here to the results that are on record, and print the summary of all of some halves."""
    target = RESULTS / f"{label}.json"
    check_committed(target, measured_lines)
    recorded = read_json(target)["corpora"] if target.is_file() else {}
    lines = {}
    for name in [name for name in corpora.corpora if name in measured_lines or name in recorded]:
        line = measured_lines.get(name, recorded.get(name))
        older = recorded.get(name, {"corpus": line["corpus"], "students": {}})
        students = dict(older["students"]) if older["corpus"] == line["corpus"] else {}
        for student, row in measured_lines.get(name, {"students": {}})["students"].items():
            new = {key: value for key, value in row.items() if key != "by_query"}
            students[student] = joined(students[student], new) if student in students else new
        lines[name] = line | {"students": students}
    summaries = {}
    for half in get_args(Half):
        names = [name for name, corpus in corpora.corpora.items() if corpus.half == half]
        summaries[half] = summary({name: lines[name] for name in names if name in lines}, corpora.students)
        for student, row in summaries[half].items():
            bars = corpora.bars.get(half, {}).get(student)
            row["verdict"] = verdict(row, bars) if bars else ""
            worst = f"worst {row['worst']:.1%} ({row['worst_corpus']})"
            count = f"{row['corpora']} of {len(names)} corpora"
            if half in halves:
                print(f"{half}, {student}: mean {row['mean']:.1%}, {worst}, {count} {row['verdict']}")
    write_json(target, {"summary": summaries, "corpora": lines})
    print(f"wrote {target}")


if __name__ == "__main__":
    recording(main)

"""Right after `ingest`, within seconds: what later stages would miss in data or teacher, before they cost minutes."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.params import Params
from slimtower.common.errors import UserError
from steps.core.corpus import corpus_batches
from steps.core.tables import FILLER, Part, row_count, table_path
from steps.distill.losses.base import Need
from steps.distill.params import StudentParams
from steps.distill.starts import Layers
from steps.index.params import TRAINING_VECTORS, IndexParams
from steps.mine.params import SKIPPED
from steps.teach.kinds.base import OnTriplets
from steps.teach.kinds.cross_encoder import CrossEncoder
from steps.teach.kinds.dual_encoder import DualEncoder

_FROM_TRAINING: frozenset[Part] = frozenset(
    {"train_queries", "generated_queries", "perturbed_queries", "random_queries"}
)


@dataclass(frozen=True)
class IngestFacts:
    """What the tables of `ingest` hold: documents and queries, and what training can be made of."""

    documents: Counter[str]  # by data set
    titles: bool
    contents: bool
    training_queries: Counter[str]  # by data set
    unlabelled: int  # unlabelled queries
    tested: frozenset[str]  # data sets with a judged test query
    labelled: bool  # a training query has a judged, clicked or scored document
    logged: bool  # there is an impression or a relevance score
    minable: bool  # a training query has a positive, and a document that may be its hard negative
    term_scores: bool


def check_data(params: Params, ingest: Path) -> list[str]:
    """Lines on what the run does without, by the tables in `ingest`; UserError for what would stop a later stage."""
    facts = _read_facts(ingest, params)
    if params.mine.planner == "table" and not facts.term_scores:
        raise UserError(
            "params.yaml: mine.planner: 'table' needs term scores and ingest read none; name a TSV of term and score in"
            " ingest.term_scores"
        )
    check_layers(params)
    for name in params.distill.students:
        _check_student(f"distill.student.{name}", params.distill.student[name], facts, params)
    for dataset, count in sorted(facts.documents.items()):
        _check_index(params.index, dataset, count)
    return [*_teachers(params, facts), *_repeats(params, facts), *_limits(params, facts), *_judgements(facts)]


def _teachers(params: Params, facts: IngestFacts) -> Iterator[str]:
    """A line for each teacher that nothing trains."""
    for name in params.teach.teachers:
        teacher, key = params.teach.described(name), f"teach.teacher.{name}.epochs"
        if not isinstance(teacher, OnTriplets | CrossEncoder) or teacher.epochs == 0 or facts.minable:
            continue
        if isinstance(teacher, CrossEncoder):
            raise UserError(
                f"params.yaml: {key} is {teacher.epochs:g}, but no triplet can be mined of these data, so a cross"
                f" encoder has nothing to train on; give ingest clicks or judgements, or take {name} off teach.teachers"
            )
        if facts.logged:
            raise UserError(
                f"params.yaml: {key} is {teacher.epochs:g}, but the log of the training queries does not have both"
                " clicked documents and such that were shown and not clicked, nor a query with more than"
                f" {SKIPPED} scores, and no training query is judged: there is nothing to train on; set"
                f" {key}: 0.0, or give ingest such a log"
            )
        yield (
            f"teach@{name}: the data have no click log, no relevance table and no judged training query with candidates"
            f" (candidates.searchers), so {teacher.base} stays as it is"
        )


def _repeats(params: Params, facts: IngestFacts) -> Iterator[str]:
    """A line that names the parts without texts."""
    distill = params.distill
    repeated = sorted(part for part, times in distill.repeats.items() if times > 0)
    unread = [part for part in repeated if part not in (*params.embed.parts, FILLER)]
    empty = [part for part in repeated if part not in unread and not _has_texts(part, params, facts)]
    if lacking := [part for part in distill.required_parts if part in unread]:
        raise UserError(
            f"params.yaml: distill.required_parts names {', '.join(lacking)}, but embed.parts does not: add it there,"
            " or take it off the list"
        )
    if lacking := [part for part in distill.required_parts if part in empty]:
        raise UserError(
            f"params.yaml: distill.required_parts names {', '.join(lacking)}, but the data give no such text; give"
            " ingest what it comes from, or take it off the list"
        )
    if len(empty) + len(unread) == len(repeated):
        raise UserError(
            f"params.yaml: distill.repeats: the data give no text of {', '.join(repeated) or 'any part'}, so students"
            " have nothing to learn from; name other parts, in embed.parts too"
        )
    if missed := [part for part in empty if part != "generated_queries" or params.generate.max_queries]:
        yield f"distill: the data have no {_words(missed)}, so students learn from the other texts"
    if unread:
        yield f"distill: embed.parts does not name {', '.join(unread)}, so students do not learn from them"


def _words(names: Sequence[str]) -> str:
    """Names of which none is there, as a person lists them."""
    spaced = [name.replace("_", " ") for name in names]
    return " or ".join(filter(None, (", ".join(spaced[:-1]), spaced[-1])))


def _has_texts(part: Part, params: Params, facts: IngestFacts) -> bool:
    """Whether the part has a text before repeated ones are left out."""
    if part in ("generated_queries", "random_queries") and not params.generate.max_queries:
        return False
    if part == "generated_queries" and params.generate.least_sources > 0:  # documents are read too
        return bool(facts.training_queries) or facts.titles or facts.contents
    if part in _FROM_TRAINING:
        return bool(facts.training_queries)
    if part == "unlabelled_queries":
        return facts.unlabelled > 0
    if part == "spans":
        derived = part in params.embed.parts or params.embed.least_texts > 0
        return derived and (facts.titles or facts.contents)
    if part == "words":
        return facts.titles or facts.contents
    return facts.titles if part == "titles" else facts.contents


def _limits(params: Params, facts: IngestFacts) -> Iterator[str]:
    """Lines on limits that leave most of the data unused."""
    training, limit = facts.training_queries.total(), params.generate.max_queries
    if training > 2 * limit > 0:
        yield f"generate: reads only {limit:,} of {training:,} training queries (generate.max_queries)"
    counts = {"train_queries": max(facts.training_queries.values(), default=0), "unlabelled_queries": facts.unlabelled}
    counts |= {"titles": max(facts.documents.values(), default=0)} if facts.titles else {}
    limit = params.embed.max_part_texts
    cut = {part: count for part, count in counts.items() if part in params.embed.parts and count > 2 * limit > 0}
    if cut:
        listed = ", ".join(f"{count:,} {part}" for part, count in cut.items())
        yield f"embed: reads only {limit:,} texts of each of these: {listed} (embed.max_part_texts, 0 = all)"


def _judgements(facts: IngestFacts) -> Iterator[str]:
    unjudged = sorted(facts.documents.keys() - facts.tested)
    if not unjudged:
        return
    reason = (
        f"{', '.join(unjudged)} {'has' if len(unjudged) == 1 else 'have'} no judged test query, so the report says how"
    )
    then = "does not check them" if facts.tested else "will refuse: it compares judged answers"
    yield f"evaluate: {reason} close students are to the teacher instead; `make promote` {then}"


def _check_student(key: str, student: StudentParams, facts: IngestFacts, params: Params) -> None:
    """UserError when a student's losses lack labels or documents to compare."""
    repeats = params.distill.repeats
    labelled = facts.labelled and bool(repeats.get("train_queries"))
    for number, phase in enumerate(student.phases):
        where = key if number == 0 else f"{key}.then[{number - 1}]"
        if phase.teacher_top_k > params.embed.neighbours:
            raise UserError(
                f"params.yaml: {where}.teacher_top_k is {phase.teacher_top_k}, but embed.neighbours is"
                f" {params.embed.neighbours}: so many documents of each text are kept; raise it, or ask for fewer"
            )
        labels = [loss.name for loss in phase.losses if loss.wants_labels]
        compared = labels + [loss.name for loss in phase.needs(Need.SCORES)]
        if labels and phase.labels == "train" and not labelled:
            raise UserError(
                f"params.yaml: {where}: {', '.join(labels)} needs labels, but no training query that distill.repeats"
                " names has a judged, clicked or scored document; set labels: source and teacher_top_k, or leave the"
                " loss out"
            )
        if compared and not phase.teacher_top_k and not labelled:
            raise UserError(
                f"params.yaml: {where}: {', '.join(compared)} has no candidate documents, as no training query is"
                " labelled; set teacher_top_k to 1 or more"
            )
        if compared and facts.documents.total() < 2:
            raise UserError(
                f"params.yaml: {where}: {', '.join(compared)} compares documents, but there is"
                f" {facts.documents.total()} in all; give ingest a larger corpus, or leave the loss out"
            )


def _check_index(params: IndexParams, dataset: str, count: int) -> None:
    if params.factory:
        needed = max((_centroids(component) for component in re.split(r"[,()]", params.factory)), default=0)
        trained = min(count, TRAINING_VECTORS)
        if trained < needed:
            raise UserError(
                f"params.yaml: index.factory: {params.factory!r} needs {needed} vectors to train on, but {dataset!r}"
                f" has {trained}; choose another string, or an index.kind"
            )


def _centroids(component: str) -> int:
    """How many vectors a component of a factory string is trained on at least: one a centroid."""
    if match := re.match(r"IVF(\d+)", component):
        return int(match[1])
    if match := re.match(r"PQ\d+(?:x(\d+))?", component):
        return 1 << int(match[1] or 8)
    return 0


def _read_facts(ingest: Path, params: Params) -> IngestFacts:
    queries = _table(ingest, "queries", ["query_id", "dataset", "split"])
    training = queries.filter(pc.equal(queries["split"], "train"))
    train = training["query_id"]
    qrels = _table(ingest, "qrels", ["query_id", "dataset", "grade", "split"])
    qrels = qrels.filter(pc.greater(qrels["grade"], 0))
    judged = pc.any(pc.is_in(qrels["query_id"], value_set=train)).as_py()
    clicked, passed = _clicks(ingest, train)
    scored, ranked = _scores(ingest, train, SKIPPED)
    documents: Counter[str] = Counter()
    for batch in corpus_batches(ingest, ["dataset"]):
        documents.update(batch["dataset"].to_pylist())
    return IngestFacts(
        documents=documents,
        titles=_any_text(ingest, "title"),
        contents=_any_text(ingest, "content"),
        training_queries=Counter(training["dataset"].to_pylist()),
        unlabelled=row_count(ingest, "unlabelled_queries"),
        tested=frozenset(qrels.filter(pc.equal(qrels["split"], "test"))["dataset"].unique().to_pylist()),
        labelled=bool(judged) or clicked or scored,
        logged=row_count(ingest, "impressions") > 0 or row_count(ingest, "relevance") > 0,
        minable=(clicked and passed)
        or ranked
        or (bool(judged) and bool(params.candidates.searchers))
        or row_count(ingest, "given_triplets") > 0,
        term_scores=row_count(ingest, "term_scores") > 0,
    )


def _table(ingest: Path, name: str, columns: list[str]) -> pa.Table:
    return pq.read_table(table_path(ingest, name), columns=columns)


def _any_text(ingest: Path, column: str) -> bool:
    """Whether a document has one; reads on to the first."""
    return any(text.strip() for batch in corpus_batches(ingest, [column]) for text in batch[column].to_pylist())


def _clicks(ingest: Path, train: pa.ChunkedArray) -> tuple[bool, bool]:
    """Whether training queries were shown documents that were clicked, and such that were not; reads on to both."""
    clicked = passed = False
    with pq.ParquetFile(table_path(ingest, "impressions")) as table:
        for batch in table.iter_batches(columns=["query_id", "clicked"]):
            if clicked and passed:
                break
            clicks = batch.filter(pc.is_in(batch["query_id"], value_set=train))["clicked"]
            clicked = clicked or bool(pc.any(clicks).as_py())
            passed = passed or pc.all(clicks).as_py() is False
    return clicked, passed


def _scores(ingest: Path, train: pa.ChunkedArray, skip: int) -> tuple[bool, bool]:
    """Whether training queries have scores, and one of them more than `skip`."""
    table = _table(ingest, "relevance", ["query_id"])
    counts = table.filter(pc.is_in(table["query_id"], value_set=train))["query_id"].value_counts().to_pylist()
    return bool(counts), any(row["counts"] > skip for row in counts)


def check_layers(params: Params) -> None:
    """UserError for students that start from layers which the index's teacher, in a folder here, does not have.

    The network is built without weights. What cannot be read is left to `teach`, which says why.
    """
    starts = {name: params.distill.student[name].start for name in params.distill.students}
    layered = {name: start.layers for name, start in starts.items() if isinstance(start, Layers)}
    teacher = params.teach.described(params.teach.index)
    if not layered or not isinstance(teacher, DualEncoder) or not Path(teacher.base).is_dir():
        return
    depth = _depth(Path(teacher.base))
    if isinstance(depth, str):
        remaining = ", ".join(name for name in starts if name not in layered) or "none of them"
        raise UserError(
            f"params.yaml: distill.students: {', '.join(layered)} cannot start from the layers of {teacher.base}, as no"
            f" list of layers is found in {depth}; of your students can start: {remaining}; let the others start from"
            " static, base or fresh"
        )
    for name, layers in layered.items():
        if depth is not None and (outside := [layer for layer in layers if not -depth <= layer < depth]):
            raise UserError(
                f"params.yaml: distill.student.{name}: layers {outside} do not exist; those of {teacher.base} are 0 to"
                f" {depth - 1}"
            )


def _depth(base: Path) -> int | str | None:
    """How many layers a model's transformer lists; the network's kind if none, None where it cannot be built."""
    import torch
    from transformers import AutoConfig, AutoModel

    from steps.distill.initialisation import blocks_of

    folder = next((path.parent for path in sorted(base.glob("**/config.json")) if _names_network(path)), None)
    if folder is None:
        return None
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        with torch.device("meta"):
            network = AutoModel.from_config(config, trust_remote_code=False)
    except Exception:
        return None
    try:
        return len(blocks_of(network, base)[2])
    except UserError:
        return type(network).__name__


def _names_network(path: Path) -> bool:
    return '"model_type"' in path.read_text(encoding="utf-8", errors="replace")

"""A dual encoder: from triplets to the teacher, and the proof that training it was worth it."""

import copy
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from sentence_transformers import MultiVectorEncoder, SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from slimtower.common.errors import UserError
from slimtower.common.names import ROLES
from steps.core.measures import describe_gain
from steps.core.tables import read_table, table_path
from steps.encoders.bases import resolve_base
from steps.encoders.batch_check import check_tower_batches
from steps.encoders.towers import (
    DOCUMENT_PROMPTS,
    check_fast,
    check_positions,
    check_whole,
    load_tower,
    route,
    tower_of,
)
from steps.teach.contrastive_training import train_tower
from steps.teach.dev_comparison import compare, dev_tasks, ndcg_per_query
from steps.teach.hard_negatives import ENCODE_BATCH, SearchedCorpus, ranker_of
from steps.teach.kinds.base import EARLIER, Contrastive, Inputs, OnTriplets, Prompted, list_towers
from steps.teach.kinds.dual_encoder import DualEncoder
from steps.teach.rounds import Rounds, Train, train_in_rounds
from steps.teach.teacher_folder import teacher_folder
from steps.teach.training_triplets import TripletChoice, choose_triplets, known_positives, named_documents
from steps.tracking.runs import Run
from steps.training.distributed import rank
from steps.training.params import of_no_weight

_USED = {*ROLES, *DOCUMENT_PROMPTS}  # names of prompts that are read


def teach(inputs: Inputs, output: Path, params: DualEncoder, run: Run) -> None:
    """Write `output/tower` (a SentenceTransformer folder), `output/report.json`, and what the tower was before."""

    def base() -> SentenceTransformer:
        tower = load_tower(resolve_base(params.base))
        set_prompts(tower, params)
        limit_length(tower, params)
        set_pooling(tower, params)
        make_inner_product(tower, params.base)
        check_dims(tower, params)
        check_tower_batches(tower, f"teach.teacher: base {params.base}")
        return untie_towers(tower, params.base) if params.untied else tower

    teach_tower(base, train_tower, inputs, output, params, run)


def teach_tower(
    base: Callable[[], SentenceTransformer],
    train: Train,
    inputs: Inputs,
    output: Path,
    params: Contrastive,
    run: Run,
) -> None:
    """Train what `base` makes as its kind does, and write it to `output`, with the report and what it was before.

    If it trains, `output/earlier/base` reads texts as the trained tower does, and `round_0` and so on are the rounds
    but the last; `base` is called once more for it, to save memory. `epochs: 0` saves the base; so do, with a line,
    data without click log and relevance table. UserError if no triplet is usable. Rank 0 alone evaluates and writes.
    """
    ingest, mine, rankers = inputs
    ranker = ranker_of(rankers, params.rounds)
    tower = base()
    tell_prompts(tower, params)
    report: dict[str, Any] = params.model_dump(include={"base", "kind", "epochs"}) | {"comparison": None, "rounds": []}
    rounds: Rounds | None = None
    if params.epochs > 0 and nothing_to_mine(ingest, mine):
        report |= {"epochs": 0.0, "note": f"zero-shot: {keeps_base(params)}"}
    elif params.epochs > 0:
        triplets, queries = read_table(mine, "triplets"), read_table(ingest, "queries")
        choice = usable_triplets(triplets, queries, ingest, mine, params)
        report |= choice.facts(math.ceil(params.epochs) * (1 + params.rounds.more))
        tasks = dev_tasks(ingest, params)

        def measure(caption: str) -> dict[str, float]:
            return ndcg_per_query(tower, tasks, params.precision, ENCODE_BATCH, caption) if rank() == 0 else {}

        before = measure("base on dev")
        among = None if params.rounds.more else named_documents(choice.chosen)
        searched = SearchedCorpus(ingest, known_positives(triplets, queries, ingest, among), ranker)
        rounds = train_in_rounds(tower, train, choice.chosen, searched, params, before, measure, run)
        report["rounds"] = rounds.report
        if before:
            report["comparison"] = compare(before, rounds.ndcg)
            tell_comparison(report["comparison"], run)
    if rank() > 0:
        return
    with teacher_folder(output, tower, report, run) as staging:
        if rounds:
            base().save_pretrained(str(staging / EARLIER / "base"), create_model_card=False, safe_serialization=True)
            list_towers(staging, ["base", *rounds.save_earlier(tower, staging / EARLIER)])
    if rounds:  # last: where the tracking server is away, the next try goes on from their checkpoints
        rounds.remove()


def keeps_base(params: OnTriplets) -> str:
    """Why a teacher with nothing to train on stays its base; rank 0 says so."""
    why = "no click log, no relevance table and no judged training query with a hard negative, so nothing to train on"
    if rank() == 0:
        print(
            f"teach: {why}: keeps {params.base} as it is, a zero-shot teacher; it reads"
            f" {params.max_document_length} tokens (max_document_length)",
            file=sys.stderr,
        )
    return why


def usable_triplets(
    triplets: pa.Table, queries: pa.Table, ingest: Path, mine: Path, params: OnTriplets
) -> TripletChoice:
    """The triplets to train on; rank 0 says so where many do not train. UserError without any."""
    choice = choose_triplets(triplets, queries, ingest, params)
    if not choice.chosen:
        raise UserError(
            f"{mine / 'triplets.parquet'}: no usable triplet (left out: {choice.left_out}); give click logs to"
            " ingest and mine, a weight above 0 to their source (source_weights), or set the teacher's epochs: 0.0"
            " for a zero-shot one"
        )
    unused = choice.mostly_unused(params.max_triplets, math.ceil(params.epochs))
    for warning in (unused, of_no_weight(choice.left_out), choice.too_few_texts(params.batch_size)):
        if warning and rank() == 0:
            print(f"teach: {warning}", file=sys.stderr)
    return choice


def nothing_to_mine(ingest: Path, mine: Path) -> bool:
    """Whether the data have neither triplets nor impressions and relevance scores, of which they would be mined."""
    tables = ((mine, "triplets"), (ingest, "impressions"), (ingest, "relevance"))
    return not any(pq.read_metadata(table_path(folder, name)).num_rows for folder, name in tables)


def limit_length(tower: SentenceTransformer, params: Contrastive) -> None:
    """Let the tower read `max_document_length` tokens; UserError if it cannot, or has no fast tokenizer."""
    for role in ROLES:
        first = route(tower, role)[0]
        network = getattr(first, "auto_model", None)
        if network is None:
            raise UserError(f"teach.teacher: base {params.base} is no transformer; take an encoder that is one")
        check_positions(network, params.max_document_length, "teach.teacher: max_document_length", params.base)
        check_fast(getattr(first, "tokenizer", None), f"teach.teacher: base {params.base}")
    tower.max_seq_length = params.max_document_length


def set_pooling(tower: SentenceTransformer, params: DualEncoder) -> None:
    """Pool as `pooling` says, where it says so; UserError for a tower that pools otherwise than by one module."""
    if params.pooling == "auto":
        return
    for role in ROLES:
        modules = [module for module in route(tower, role) if isinstance(module, Pooling)]
        if len(modules) != 1 or not isinstance(modules[0].pooling_mode, str):
            raise UserError(f"teach.teacher: base {params.base} has no pooling of one kind to set; set pooling: auto")
        modules[0].pooling_mode = "lasttoken" if params.pooling == "last" else params.pooling


def untie_towers(tower: SentenceTransformer, base: str) -> SentenceTransformer:
    """A Router with two copies of the tower, one for queries and one for documents; UserError for one that is one."""
    if isinstance(tower[0], Router):
        raise UserError(f"teach.teacher: base {base} has two towers already; set untied: false")
    sides: list[list[Any]] = [copy.deepcopy(list(tower)) for _ in ROLES]
    return tower_of([Router.for_query_document(sides[0], sides[1])], tower, tower.truncate_dim)


def check_dims(tower: SentenceTransformer, params: Contrastive) -> None:
    """UserError when the loss is to train first dimensions of which the tower has no more."""
    dim = tower.get_embedding_dimension()
    if dim is not None and (wrong := [size for size in params.loss.dims if size >= dim]):
        raise UserError(
            f"teach.teacher: loss.dims has {wrong}, but {params.base} has {dim} dimensions, which are always trained;"
            " name smaller ones"
        )


def make_inner_product(tower: SentenceTransformer, base: str) -> None:
    """Let the inner product of embeddings, by which the index compares, be the tower's similarity.

    UserError for distances, for one that cuts its vectors, and for a dot product of which one route alone normalises.
    """
    if tower.similarity_fn_name not in {"cosine", "dot"}:
        raise UserError(
            f"teach.teacher: base {base} compares by {tower.similarity_fn_name}; use a tower that compares by cosine or"
            " dot product"
        )
    check_whole(tower, f"teach.teacher: base {base}")
    normalised = {any(isinstance(module, Normalize) for module in route(tower, role)) for role in ROLES}
    if tower.similarity_fn_name == "cosine" and False in normalised:
        tower.append(Normalize())
    elif len(normalised) > 1:
        raise UserError(
            f"teach.teacher: base {base} normalises one of its routes query and document alone; let both end in"
            " Normalize, or none"
        )


def tell_comparison(comparison: dict[str, Any], run: Run) -> None:
    """Log the comparison, and say in one line whether training was worth it."""
    before, after, p_value = (comparison[name] for name in ("ndcg_base", "ndcg_teacher", "p_value"))
    run.metrics({"ndcg_base": before, "ndcg_teacher": after, "p_value": p_value})
    beats, queries = comparison["teacher_beats_base"], comparison["n"]
    advice = "set its epochs: 0.0, or change learning rate or data"
    verdict = describe_gain("the trained teacher", "its base", after > before, beats, queries, advice)
    print(
        f"teach: nDCG@10 on {queries} dev queries: base {before:.4f}, teacher {after:.4f} (one-sided paired t-test"
        f" p = {p_value:.2g}); {verdict}",
        file=sys.stderr,
    )


def set_prompts(model: SentenceTransformer | MultiVectorEncoder, params: Prompted) -> None:
    """Let a model have the params' prompts, for passages and a corpus too; one of null stays as the model was saved."""
    if params.query_prompt is not None:
        model.prompts["query"] = params.query_prompt
    if params.document_prompt is not None:
        aliases = [name for name in DOCUMENT_PROMPTS if name in model.prompts]
        model.prompts |= dict.fromkeys(["document", *aliases], params.document_prompt)


def tell_prompts(model: SentenceTransformer | MultiVectorEncoder, params: object) -> None:
    """On rank 0 say what is in front of queries and documents, and which saved prompts are used for neither."""
    if rank() > 0:
        return
    prompts = {role: model.prompts.get(role) or "" for role in ROLES}
    bare = [knob for role in ROLES if not prompts[role] and getattr(params, knob := f"{role}_prompt", "") is None]
    unused = [f"{name} {text!r}" for name, text in model.prompts.items() if text and name not in _USED]
    if bare and unused:
        print(
            f"teach: these saved prompts are used for neither queries nor documents: {', '.join(unused)}; where they"
            f" belong to one, set {' and '.join(bare)}",
            file=sys.stderr,
        )
    if any(prompts.values()):
        print(f"teach: prompts: query {prompts['query']!r}, document {prompts['document']!r}", file=sys.stderr)

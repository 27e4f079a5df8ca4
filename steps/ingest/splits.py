"""Which split each query belongs to, and the guard of evaluation queries, which no other split may spell."""

from collections import Counter
from collections.abc import Container, Mapping, Sequence, Set

from steps.core.leakage import EVALUATION_SPLITS, evaluation_keys
from steps.core.texts import fold
from steps.ingest.qrels import Judgements
from steps.ingest.rejects import Rejects
from steps.ingest.rows import Defect, possible_grade
from steps.ingest.source_data import UNLABELLED, Judgement, Query, Satisfaction, SourceData, seeded_order

DEV_FRACTION = 0.2  # of the train queries becomes dev where no judgements are dev's


def add_judgement(
    judgements: Judgements, query_id: str, doc_id: str, grade: int, queries: Container[str], documents: Container[str]
) -> None:
    """Add one judgement by the source's own ids.

    Raises Defect `unknown_query`, `unknown_document`, `bad_grade` or `duplicate_judgement`.
    """
    if query_id not in queries:
        raise Defect("unknown_query")
    if doc_id not in documents:
        raise Defect("unknown_document")
    possible_grade(grade)
    if (query_id, doc_id) in judgements.grades:
        raise Defect("duplicate_judgement")
    judgements.grades[query_id, doc_id] = grade


def settle_splits(
    data: SourceData, texts: Mapping[str, Query], judgements: Judgements, held_out: Mapping[str, str], *, seed: int
) -> None:
    """Fill the source's queries and judgements from `texts` (queries by original id).

    A query belongs to the split whose judgements name it; without dev judgements a seeded share DEV_FRACTION of the
    train queries becomes dev. A query judged relevant for nothing is unlabelled when no judgement names it and it is
    not `held_out` (original id to the reason under which it is counted). Of the others all judgements are kept, those
    of documents that are not relevant too; a dev or test query without a relevant document stays for its pairs alone.
    """
    splits = judgements.splits()
    if "dev" not in splits.values():
        data.facts["dev_from_train"] = carve_dev(data.name, splits, texts, seed)
    pairs_alone = {
        query_id: judgements.named[query_id]
        for query_id, _ in judgements.grades
        if query_id not in splits and judgements.named.get(query_id) in EVALUATION_SPLITS
    }
    if pairs_alone:
        splits |= pairs_alone
        data.facts["queries_without_relevant_document"] = len(pairs_alone)
    left_out: Counter[str] = Counter()
    for query_id, query in texts.items():
        if query_id in splits:
            data.queries.append(query._replace(split=splits[query_id]))
        elif query_id in judgements.named:
            left_out["without_relevant_document"] += 1
            if judgements.named[query_id] in EVALUATION_SPLITS:
                data.held_out.add(fold(query.text))
        elif query_id in held_out:
            left_out[held_out[query_id]] += 1
            data.held_out.add(fold(query.text))
        else:
            data.queries.append(query._replace(split=UNLABELLED))
    if left_out:
        data.facts["queries_left_out"] = dict(left_out)
    if judgements.not_relevant:
        data.facts["judgements_not_relevant"] = judgements.not_relevant
    for (query_id, doc_id), grade in judgements.grades.items():
        if query_id in splits:
            row = Judgement(f"{data.name}/{query_id}", data.name, f"{data.name}/{doc_id}", grade, splits[query_id])
            data.judgements.append(row)
            if (label := judgements.satisfaction.get((query_id, doc_id))) is not None:
                data.satisfaction.append(Satisfaction(row.query_id, row.doc_id, label))


def lower_training_grades(data: SourceData, relevant_from: int) -> None:
    """Give judgements of training queries below the grade `relevant_from` the grade 0: all later stages read it."""
    below = 0
    for index, row in enumerate(data.judgements):
        if row.split == "train" and 0 < row.grade < relevant_from:
            data.judgements[index] = row._replace(grade=0)
            below += 1
    if below:
        data.facts["train_judgements_below_relevant_from"] = below


def carve_dev(name: str, splits: dict[str, str], texts: Mapping[str, Query], seed: int) -> int:
    """Turn a seeded share of the train queries into dev, in place; never one that spells a test query."""
    train = [query_id for query_id, split in splits.items() if split == "train"]
    test_texts = {fold(texts[query_id].text) for query_id, split in splits.items() if split == "test"}
    allowed = [query_id for query_id in train if fold(texts[query_id].text) not in test_texts]
    chosen = seeded_order(allowed, seed, f"dev of {name}")[: round(DEV_FRACTION * len(train))]
    splits.update(dict.fromkeys(chosen, "dev"))
    return len(chosen)


def without_evaluation_texts(queries: Sequence[Query], held_out: Set[str], rejects: Rejects) -> list[Query]:
    """Queries less training and unlabelled ones that spell a dev or test query, and dev ones that spell a test query.

    `held_out`: folded texts of evaluation queries that are not among them. What is left out becomes a reject.
    """
    evaluation = evaluation_keys(query._asdict() for query in queries).keys() | held_out
    test = evaluation_keys(query._asdict() for query in queries if query.split == "test")
    allowed = []
    for query in queries:
        if query.split not in EVALUATION_SPLITS and fold(query.text) in evaluation:
            rejects.add(query.source, query.line, "evaluation_query_text", query.text, defect=False)
        elif query.split == "dev" and fold(query.text) in test:
            rejects.add(query.source, query.line, "test_query_text", query.text, defect=False)
        else:
            allowed.append(query)
    return allowed

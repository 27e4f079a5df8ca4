"""No training or unlabelled query may spell an evaluation query, and no dev query a test query, in whichever source."""

from collections.abc import Sequence, Set

from steps.core.leakage import EVALUATION_SPLITS, evaluation_keys
from steps.core.texts import fold
from steps.ingest.rejects import Rejects
from steps.ingest.source_data import Query


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

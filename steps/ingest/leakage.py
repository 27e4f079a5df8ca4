"""No training or unlabelled query may spell an evaluation query, and no dev query a test query, in whichever source."""

from collections.abc import Iterable, Sequence

from steps.core.leakage import EVALUATION_SPLITS
from steps.core.texts import fold
from steps.ingest.rejects import Rejects
from steps.ingest.source_data import Query


def evaluation_texts(queries: Iterable[Query]) -> set[str]:
    """Folded texts of the dev and test queries."""
    return {fold(query.text) for query in queries if query.split in EVALUATION_SPLITS}


def without_evaluation_texts(queries: Sequence[Query], forbidden: set[str], rejects: Rejects) -> list[Query]:
    """The queries less training and unlabelled ones whose folded text is forbidden and dev ones of a test query's text.

    What is left out becomes a reject.
    """
    test = {fold(query.text) for query in queries if query.split == "test"}
    kept = []
    for query in queries:
        if query.split not in EVALUATION_SPLITS and fold(query.text) in forbidden:
            rejects.add(query.source, query.line, "evaluation_query_text", query.text, defect=False)
        elif query.split == "dev" and fold(query.text) in test:
            rejects.add(query.source, query.line, "test_query_text", query.text, defect=False)
        else:
            kept.append(query)
    return kept

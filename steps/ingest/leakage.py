"""No training or pool query may spell an evaluation query, in whichever source either was read."""

from collections.abc import Iterable, Sequence

from steps.core.leakage import EVALUATION_SPLITS
from steps.core.texts import fold
from steps.ingest.rejects import Rejects
from steps.ingest.source_data import Query


def evaluation_texts(queries: Iterable[Query]) -> set[str]:
    """Folded texts of the dev and test queries."""
    return {fold(query.text) for query in queries if query.split in EVALUATION_SPLITS}


def without_evaluation_texts(queries: Sequence[Query], forbidden: set[str], rejects: Rejects) -> list[Query]:
    """The queries less those of train and pool whose folded text is forbidden; these become rejects."""
    kept = []
    for query in queries:
        if query.split not in EVALUATION_SPLITS and fold(query.text) in forbidden:
            rejects.add(query.source, query.line, "evaluation_query_text", query.text, defect=False)
        else:
            kept.append(query)
    return kept

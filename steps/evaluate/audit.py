"""The leak audit: no evaluation query may be among the texts that anything was trained on."""

from dataclasses import dataclass
from pathlib import Path

from slimtower.common.errors import UserError
from steps.core.leakage import check_leaks, evaluation_keys
from steps.core.progress import progress
from steps.core.tables import read_table


@dataclass(frozen=True)
class Audit:
    """Counts of a clean audit."""

    checked_texts: int
    evaluation_queries: int


def audit_leaks(ingest: Path, mine: Path, embed: Path, generate: Path) -> Audit:
    """Compare every training text with the dev and test queries of all data sets after folding case and punctuation.

    Training texts: the alignment texts, the generated queries, and the queries that mined triplets name. UserError
    with the count and three examples when one of them equals an evaluation query.
    """
    queries = read_table(ingest, "queries").to_pylist()
    texts = {row["query_id"]: row["text"] for row in queries}
    held_out = evaluation_keys(queries)
    training = _training_texts(mine, embed, generate, texts)
    compared = check_leaks(
        progress(training, len(training), "leak audit"),
        held_out,
        "remove them from the training data and run the stages from `mine` on again",
    )
    return Audit(compared, len(held_out))


def _training_texts(mine: Path, embed: Path, generate: Path, texts: dict[str, str]) -> list[tuple[str, str]]:
    """(file, text) of everything that trained a model; `texts` are the ingested queries by id."""
    pairs = []
    for folder, name in ((embed, "alignment_texts"), (generate, "generated_queries")):
        source = str(folder / f"{name}.parquet")
        pairs += [(source, text) for text in read_table(folder, name).column("text").to_pylist()]
    source = str(mine / "triplets.parquet")
    triplets = read_table(mine, "triplets")
    named = {*triplets.column("query_id").to_pylist(), *triplets.column("via_query_id").to_pylist()}
    for query_id in sorted(named - {""}):  # one-hop triplets go via no query
        if query_id not in texts:
            raise UserError(f"{source}: query {query_id!r} is not among the ingested queries; run `mine` again")
        pairs.append((source, texts[query_id]))
    return pairs

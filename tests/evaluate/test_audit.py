"""The leak audit finds a planted evaluation query wherever it was planted."""

from pathlib import Path

import pytest
from evaluate_fakes import write_inputs

from slimtower.common.errors import UserError
from steps.core.tables import read_table, write_table
from steps.evaluate.judging import Audit, audit_leaks


def audit(root: Path) -> Audit:
    return audit_leaks(root / "ingest", root / "mine", root / "embed", root / "generate")


def test_clean_inputs_are_counted(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    # one alignment text, one generated query, one mined query; 20 dev and test queries in each of two data sets
    assert audit(tmp_path) == Audit(checked_texts=3, evaluation_queries=40)


@pytest.mark.parametrize(
    ("where", "file"), [("alignment", "alignment_texts"), ("generated", "generated_queries"), ("mined", "triplets")]
)
def test_a_planted_leak_fails_and_is_named(tmp_path: Path, where: str, file: str) -> None:
    write_inputs(tmp_path, leak=where)  # planted in capitals with a mark behind it: folding must see through
    with pytest.raises(UserError, match=rf"1 of 3 .*{file}\.parquet.*is api/q1"):
        audit(tmp_path)


def test_a_query_by_which_a_triplet_was_reached_counts_too(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    triplets = read_table(tmp_path / "mine", "triplets")
    position = triplets.column_names.index("via_query_id")
    via = triplets.set_column(position, triplets.schema.field(position), [["med/q0"]])
    write_table(tmp_path / "mine", "triplets", via)
    with pytest.raises(UserError, match="is med/q0"):
        audit(tmp_path)

"""The rows of a search log that docs/data.md shows are read as a search with a click."""

import json
import re
from pathlib import Path

from ingest_logs import from_recipe, ingest, params, reasons, rows_of, write

PAGE = Path(__file__).parents[2] / "docs/data.md"


def test_the_rows_of_the_page_are_a_search_and_its_click(tmp_path: Path) -> None:
    search, click = (json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE.read_text("utf-8"), re.S))
    log = tmp_path / "log"
    documents = [{"doc_id": hit, "title": hit, "content": hit} for hit in search["query_response_hit_ids"]]
    write(log / "corpus.jsonl", documents)
    write(log / "queries/q.jsonl", [search])
    write(log / "events/e.jsonl", [click])
    out = ingest(tmp_path, params(from_recipe(log)))
    assert rows_of(out, "queries", "text") == [search["user_query"]]
    clicked = [(doc.partition("/")[2], click) for doc, click in rows_of(out, "impressions", "doc_id", "clicked")]
    assert clicked == [("numpy.histogram", True), ("numpy.bincount", False)]
    assert not reasons(out)

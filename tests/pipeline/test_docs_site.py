"""The site of the docs: every page in it and in its search, every link leads somewhere, and a broken one stops it."""

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from pipeline.docs_site import build

pytestmark = pytest.mark.medium

ROOT = Path(__file__).parents[2]


def test_every_page_is_built_found_and_linked_to(tmp_path: Path) -> None:
    site = tmp_path / "site"
    build(ROOT, site)
    locations = {
        entry["location"].partition("#")[0] for entry in json.loads((site / "search.json").read_text())["items"]
    }
    pages = {f"docs/{page.stem}/": page for page in [*(ROOT / "docs").glob("*.md"), ROOT / "docs/params.md"]}
    assert {"", *pages} <= locations

    home = (site / "index.html").read_text(encoding="utf-8")
    for page_name in pages:
        assert f'href="./{page_name}"' in home  # in the navigation
    for page in (site / "index.html", *(site / page_name / "index.html" for page_name in pages)):
        text = page.read_text(encoding="utf-8")
        assert "```" not in text and "<p>|" not in text  # a block or a table that was not understood
        for target in re.findall(r'(?:href|src|srcset)="([^"#:]+)[^":]*"', text):
            linked = page.parent / unquote(target)
            assert linked.is_file() or (linked / "index.html").is_file(), f"{page}: {target}"

"""Links between README and docs lead somewhere, and the README stays short."""

import re
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
PAGES = [PROJECT / "README.md", PROJECT / "bench/results/README.md", *sorted((PROJECT / "docs").glob("*.md"))]
PAGES = [page for page in PAGES if page.name != "params.md"]  # `make docs` writes it
LINES = 130  # what a newcomer reads


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)
    for target in targets:
        if re.match(r"https?:", target):
            continue
        name, _, anchor = target.partition("#")
        target_page = page.parent / name if name else page
        assert target_page.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(target_page), f"{page.name}: {target}"


def test_the_readme_is_short() -> None:
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) <= LINES


def test_the_site_lists_each_page_once() -> None:
    nav = (PROJECT / "docs/zensical.toml").read_text(encoding="utf-8")
    tomllib.loads(nav)
    assert {*re.findall(r'= "(\S+\.md)"', nav)} - {"docs/params.md"} == {
        path.relative_to(PROJECT).as_posix() for path in PAGES
    }

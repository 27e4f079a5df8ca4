"""Tables of a page that a command writes, between `<!-- python -m bench.<name> -->` and `<!-- end -->`."""

import re
from pathlib import Path

from slimtower.common.errors import UserError


def with_table(page: str, module: str, written: str, path: Path) -> str:
    """The page's text with the module's table in its place; UserError, which names `path`, where it has none."""
    pattern = re.compile(rf"(<!-- python -m {re.escape(module)} -->\n).*?(<!-- end -->)", re.S)
    if not pattern.search(page):
        raise UserError(f"{path}: has no place for the table, <!-- python -m {module} --> to <!-- end -->")
    return pattern.sub(lambda match: match[1] + written + match[2], page)

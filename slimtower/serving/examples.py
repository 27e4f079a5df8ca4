"""Queries to try: what help, errors and the search page offer for the embedded data."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slimtower.serving.release import Release

ANSWERS: dict[str, frozenset[str]] = {
    "draw a histogram": frozenset({"matplotlib.axes.Axes.hist", "pandas.plotting.hist_frame"}),
    "read a csv file into a dataframe": frozenset({"pandas.io.parsers.readers.read_csv"}),
    "resize an image": frozenset(
        {"PIL.Image.Image.resize", *(f"PIL.ImageOps.{name}" for name in ("contain", "cover", "fit", "pad"))}
    ),
}
"""Query -> documents that answer it, without their data set's name."""
EXAMPLE = next(iter(ANSWERS))
_FIRST = 3  # hits among which the answer must be


def answered_examples(release: "Release", dataset: str) -> list[str]:
    """Those of the queries that a release answers: a right document is among its first three hits."""
    ids = set(release.documents(dataset).ids)
    return [
        query
        for query, answers in ANSWERS.items()
        if (right := {f"{dataset}/{name}" for name in answers} & ids)
        and any(hit.id in right for hit in release.query(query, _FIRST, dataset))
    ]

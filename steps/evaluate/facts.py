"""What the earlier stages reported about themselves, as rows and examples for the report."""

from collections.abc import Mapping, Sequence
from typing import Any

_DIGEST_LENGTH = 32  # a text this long without a space is a digest: of use in a manifest, not to a reader
_LONGEST = 120

Facts = list[tuple[str, str]]
_BORROWED = "borrowed from another query that shares important terms with this one"
_SOURCES = {  # of mined triplets, in the order in which they are told
    "click_one_hop": "the positive was clicked{simulated}; the negative was shown for the query and never clicked",
    "click_multi_hop": _BORROWED + "{simulated}",
    "judged": "the positive is judged relevant; the negative is judged irrelevant, or is a hit that nobody judged",
    "relevance_one_hop": "the positive scores best for the query, and the negative scores far lower",
    "relevance_multi_hop": _BORROWED,
    "given": "as a data set brought it",
}


def facts(values: Mapping[str, Any], prefix: str = "") -> Facts:
    """(name, value) for each number, truth value and short text, nested names joined; lists are left out."""
    rows: Facts = []
    for key, value in values.items():
        name = f"{prefix}{key.replace('_', ' ')}"
        if isinstance(value, Mapping):
            rows += facts(value, f"{name} · ")
        elif (text := _format_value(value)) is not None:
            rows.append((name, text))
    return rows


def _format_value(value: object) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, str) and 0 < len(value) <= _LONGEST:
        return None if len(value) >= _DIGEST_LENGTH and " " not in value else value
    return None


def generation_facts(report: Mapping[str, Any]) -> Facts:
    """Facts of `generate`, which reports once for each noise level."""
    rows = facts(report)
    for entry in report.get("sigmas", []):
        level = entry.get("sigma")
        rows += facts({key: value for key, value in entry.items() if key != "sigma"}, f"sigma {level} · ")
    return rows


def generated_examples(report: Mapping[str, Any], count: int) -> list[tuple[str, str]]:
    """(source query, generated query): the first `count` over the noise levels in turn."""
    levels = [entry.get("examples", []) for entry in report.get("sigmas", [])]
    turns = [examples[turn] for turn in range(count) for examples in levels if turn < len(examples)]
    return [(example["source"], example["generated"]) for example in turns[:count]]


def mined_examples(report: Mapping[str, Any]) -> list[dict[str, str]]:
    """Triplets as texts: source, query, via (empty for one hop), positive, negative, why; the first of each source."""
    first: dict[str, Mapping[str, Any]] = {}
    for sample in report.get("samples", []):
        first.setdefault(sample["source"], sample)
    return [
        {
            "source": source.replace("_", " "),
            "query": sample["query"]["text"],
            "via": (sample.get("via_query") or {}).get("text", ""),
            "positive": sample["positive"]["title"] or sample["positive"]["content"],
            "negative": sample["negative"]["title"] or sample["negative"]["content"],
            "why": sample["why"],
        }
        for source, sample in first.items()
    ]


def mined_sources(report: Mapping[str, Any], simulated: Sequence[str], *, all_simulated: bool) -> Facts:
    """Source and what its triplets are, of the sources that gave any; clicks of data sets in `simulated` are called so.

    `all_simulated`: no other data set has sessions.
    """
    clicks = " (simulated)" if all_simulated else f" (simulated in {', '.join(simulated)})"
    rows = report.get("rows", {})
    return [
        (source.replace("_", " "), sentence.format(simulated=clicks if simulated else ""))
        for source, sentence in _SOURCES.items()
        if rows.get(source)
    ]

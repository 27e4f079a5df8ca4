"""A source, read with small settings."""

from steps.ingest.rejects import Rejects
from steps.ingest.source import ReadContext, Source, SourceData
from steps.ingest.times import ALWAYS


def read_toy(source: Source, *, ratio: float = 0.5, seed: int = 3) -> tuple[SourceData, Rejects]:
    """What the source gives, and what it rejected; `ratio` of the rows may be defect."""
    rejects = Rejects(ratio)
    return source.read(ReadContext("ingest.sources[0]", ALWAYS, seed, rejects)), rejects

"""One source of params.yaml, read by its kind."""

from typing import Any, assert_never

from steps.ingest.api_docs import read_api_docs
from steps.ingest.beir import read_beir
from steps.ingest.click_log import read_click_log
from steps.ingest.ir_datasets_source import read_ir_dataset
from steps.ingest.locations import BEIR_PATTERNS, local_folder, one_file
from steps.ingest.msmarco import PATTERNS as MS_MARCO_PATTERNS
from steps.ingest.msmarco import read_given_triplets, read_msmarco
from steps.ingest.params import (
    ApiDocsSource,
    BeirSource,
    ClickLogSource,
    IngestParams,
    IrDatasetsSource,
    MsMarcoSource,
    Source,
    UbiSource,
)
from steps.ingest.rejects import Rejects
from steps.ingest.relevance import read_relevance
from steps.ingest.source_data import SourceData
from steps.ingest.times import Window
from steps.ingest.ubi import read_ubi


def read_source(source: Source, *, key: str, params: IngestParams, rejects: Rejects) -> SourceData:
    """Read one source; `key` is where params.yaml names it. Raises UserError when it is missing or unusable."""
    limits: dict[str, Any] = {"seed": params.seed, "rejects": rejects}
    window = Window.of(params.since, params.until)
    match source:
        case ApiDocsSource():
            return read_api_docs(source, key=key, **limits)
        case BeirSource():
            with local_folder(source.path, f"{key}.path", BEIR_PATTERNS) as folder:
                data = read_beir(source.name, folder, key=f"{key}.path", qrels_columns=source.qrels_columns, **limits)
            if source.relevance:
                own = slice(len(source.name) + 1, None)  # the source's own id in ours
                data.relevance = read_relevance(
                    source.name,
                    source.relevance,
                    source.relevance_columns,
                    key=key,
                    facts=data.facts,
                    by_id={query.query_id[own]: query.query_id for query in data.queries},
                    by_text={},
                    documents={document.doc_id[own]: document.doc_id for document in data.documents},
                    rejects=rejects,
                )
            return data
        case MsMarcoSource():
            with local_folder(source.path, f"{key}.path", MS_MARCO_PATTERNS) as folder:
                data = read_msmarco(source.name, folder, key=f"{key}.path", **limits)
            if source.triplets:
                file = one_file(source.triplets_location, key := f"{key}.triplets")
                data.given_triplets = read_given_triplets(file, data, key=key, limit=source.max_triplets, **limits)
            return data
        case IrDatasetsSource():
            return read_ir_dataset(source.name, source.id, key=f"{key}.id", **limits)
        case ClickLogSource():
            return read_click_log(source, key=key, window=window, **limits)
        case UbiSource():
            return read_ubi(source, key=key, window=window, **limits)
        case _:
            assert_never(source)

"""The teacher `endpoint`: a tower whose first module is a server, written as any other tower is."""

from pathlib import Path

from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from sentence_transformers.sentence_transformer.modules import Normalize
from transformers import AutoTokenizer

from slimtower.common.errors import UserError, line
from slimtower.common.files import staged_folder, write_json
from slimtower.common.fingerprints import fingerprint
from steps.encoders.bases import resolve_base
from steps.encoders.towers import check_fast
from steps.endpoint.module import Endpoint, Model
from steps.teach.kinds.base import Inputs
from steps.teach.kinds.endpoint import Endpoint as EndpointParams
from steps.tracking.runs import Run


def teach(inputs: Inputs, output: Path, params: EndpointParams, run: Run) -> None:
    """Write `tower/` and `report.json`, with probes of each role; UserError if the server refuses or has changed."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolve_base(params.tokenizer), trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UserError(
            f"teach.teacher: tokenizer {params.tokenizer}: cannot be loaded ({line(error)[:200]});"
            " name a folder or a model on the hub with a fast tokenizer"
        ) from None
    check_fast(tokenizer, f"teach.teacher: tokenizer {params.tokenizer}")
    endpoints: list[Endpoint] = []
    for reads in (params.query, params.document):
        model = Model(model=params.model, dimensions=params.dimensions, body=reads.body, max_length=reads.max_length)
        probes = next((endpoint.probes for endpoint in endpoints if endpoint.model.sent() == model.sent()), None)
        endpoints.append(Endpoint(model, params.connection, tokenizer, probes))
    routes = Router.for_query_document([endpoints[0]], [endpoints[1]])
    tower = SentenceTransformer(
        modules=[routes, Normalize()] if params.similarity == "cosine" else [routes],
        device="cpu",
        prompts={"query": params.query.prompt, "document": params.document.prompt},
        similarity_fn_name=params.similarity,
    )
    with staged_folder(output) as staging:
        tower.save_pretrained(str(staging / "tower"), create_model_card=False, safe_serialization=True)
        report = {
            "kind": params.kind,
            "model": params.model,
            "dim": tower.get_embedding_dimension(),
            "fingerprint": fingerprint(staging / "tower").id,
        }
        write_json(staging / "report.json", report)
    run.param("teacher_fingerprint", report["fingerprint"])
    run.model(output / "tower", "teacher")

"""The student behind a release as a sentence-transformers model in fp32."""

from sentence_transformers import SentenceTransformer

from steps.core.towers import encode, load_tower
from steps.serving.checks import check_probes
from steps.serving.dims import truncate
from steps.serving.release import Release


def student_tower(release: Release) -> SentenceTransformer:
    """Load a release's query_encoder/; UserError when it is not the one of the manifest's probes."""
    probes, folder = release.manifest.probes, release.folder / "query_encoder"
    tower = load_tower(folder)
    vectors = truncate(encode(tower, [probe.text for probe in probes], "query"), release.manifest.dim)
    check_probes(folder, release.manifest, vectors, [probe.student_vector for probe in probes])
    return tower

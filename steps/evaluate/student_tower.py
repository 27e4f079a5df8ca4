"""The student behind a release as a sentence-transformers model in fp32."""

from sentence_transformers import SentenceTransformer

from slimtower.serving.checks import check_probes
from slimtower.serving.dims import truncate
from slimtower.serving.release import Release
from steps.encoders.towers import encode, load_tower


def student_tower(release: Release) -> SentenceTransformer:
    """Load a release's query_encoder/; UserError when it is not the one of the manifest's probes."""
    probes, folder = release.manifest.probes, release.folder / "query_encoder"
    tower = load_tower(folder)
    vectors = truncate(encode(tower, [probe.text for probe in probes], "query"), release.manifest.dim)
    check_probes(folder, release.manifest, vectors, [probe.student_vector for probe in probes])
    return tower

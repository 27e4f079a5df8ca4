"""The identity of a corpus."""

import hashlib
import json
from collections.abc import Iterable


def corpus_digest(documents: Iterable[tuple[str, str, str, str]]) -> str:
    """Hex sha256 over the sorted (doc_id, title, topic, content)."""
    digest = hashlib.sha256()
    for fields in sorted(documents):
        digest.update(json.dumps(fields, ensure_ascii=False).encode("utf-8") + b"\n")
    return digest.hexdigest()

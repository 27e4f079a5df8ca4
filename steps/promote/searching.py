"""`python -P searching.py < request`: what a release finds, by the code that was registered with it.

A script that imports `slimtower` from PYTHONPATH, where the version's own code lies: a release of an older format,
which the project cannot load any more, is still measured. The request is JSON with `release`, a folder, `depth`, and
`queries`, a list of `dataset` and `texts`. Prints the data sets of the release, and for every text the ids and scores
of its eleven best hits, with all of equal score: over the exact index, or where the release fuses those of BM25 and of
the index that serves, fused.
"""

import json
import sys
from pathlib import Path

from slimtower.serving.release import load_release

_CHUNK = 256  # queries whose hits are in memory at once
_MEASURED = 11  # hits that the measure looks at, with all of equal score; one may be the query itself


def main() -> None:
    """Answer the queries on stdin."""
    request = json.load(sys.stdin)
    release = load_release(Path(request["release"]))
    answers = []
    for item in request["queries"]:
        if item["dataset"] not in release.datasets:
            continue
        hits = []
        for start in range(0, len(item["texts"]), _CHUNK):
            texts = item["texts"][start : start + _CHUNK]
            kind = "ann" if release.fusion(item["dataset"]) else "flat"
            scores, doc_ids = release.search_text(item["dataset"], texts, request["depth"], kind)
            for docs, row in zip(doc_ids, scores, strict=True):
                pairs = list(zip(docs, row.tolist(), strict=True))
                last = sorted((score for _, score in pairs), reverse=True)[:_MEASURED][-1:]
                hits.append([[doc, score] for doc, score in pairs if score >= last[0]])
        answers.append({"dataset": item["dataset"], "hits": hits})
    print(json.dumps({"datasets": release.datasets, "answers": answers}))


if __name__ == "__main__":
    main()

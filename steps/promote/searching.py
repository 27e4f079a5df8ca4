"""`python -P searching.py < request`: what a release finds, by the code that was registered with it.

A script that imports `serving.release` from PYTHONPATH, where the version's own code lies: a release of an
older format, which the project cannot load any more, is still measured. The request is JSON with `release`, a folder,
`depth`, and `queries`, a list of `dataset` and `texts`. Prints the data sets of the release, and for every text the
ids and scores of its eleven best hits, with all of equal score: over the exact index, or where the release fuses those
of BM25 and of the index that serves, fused.
"""

import importlib
import json
import os
import sys
from pathlib import Path

_CHUNK = 256  # queries whose hits are in memory at once
_MEASURED = 11  # hits that the measure looks at, with all of equal score; one may be the query itself


def main() -> None:
    """Answer the queries on stdin."""
    request = json.load(sys.stdin)
    # a version that was registered before slimtower/ was the library carries it in steps/
    library = "slimtower" if (Path(os.environ["PYTHONPATH"]) / "slimtower/serving").is_dir() else "steps"
    load_release = importlib.import_module(f"{library}.serving.release").load_release
    release = load_release(Path(request["release"]))
    answers = []
    for item in request["queries"]:
        if item["dataset"] not in release.datasets:
            continue
        hits = []
        for start in range(0, len(item["texts"]), _CHUNK):
            texts = item["texts"][start : start + _CHUNK]
            if hasattr(release, "search_text"):  # a release of before there were fusions has none
                kind = "ann" if release.fusion(item["dataset"]) else "flat"
                scores, doc_ids = release.search_text(item["dataset"], texts, request["depth"], kind)
            else:
                padded, doc_ids = release.search(item["dataset"], release.encode(texts), request["depth"], "flat")
                scores = list(padded)
            for docs, row in zip(doc_ids, (row.tolist() for row in scores), strict=True):
                pairs = list(zip(docs, row, strict=False))  # an index of fewer documents pads its scores
                last = sorted((score for _, score in pairs), reverse=True)[:_MEASURED][-1:]
                hits.append([[doc, score] for doc, score in pairs if score >= last[0]])
        answers.append({"dataset": item["dataset"], "hits": hits})
    print(json.dumps({"datasets": release.datasets, "answers": answers}))


if __name__ == "__main__":
    main()

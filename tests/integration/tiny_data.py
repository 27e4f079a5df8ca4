"""A BEIR folder of 60 documents, one query or two each: `write_tiny(folder)`."""

import json
from pathlib import Path

VERBS = {
    "peel": "The skin comes off in one piece when the blade is held flat and drawn towards you.",
    "store": "Keep it dry and away from the light, on a shelf where air can move around it.",
    "clean": "Warm water with a little soap is enough, strong acids leave marks that stay.",
    "sharpen": "Move the edge along the stone at a steady angle, first one side and then the other.",
    "paint": "Two thin coats hold longer than a thick one, let the first dry over night.",
    "measure": "Read the scale at the height of the eye and write the number down at once.",
}
NOUNS = ("apple", "knife", "window", "bicycle", "guitar", "kettle", "ladder", "carpet", "compass", "violin")


def write_tiny(folder: Path) -> Path:
    """Write corpus.jsonl, queries.jsonl and qrels/{train,dev,test}.tsv."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    corpus, queries = [], []
    judged: dict[str, list[str]] = {"train": [], "dev": [], "test": []}
    for number, (verb, noun) in enumerate((verb, noun) for verb in VERBS for noun in NOUNS):
        corpus.append({"_id": f"d{number}", "title": f"How to {verb} a {noun}", "text": f"A {noun}. {VERBS[verb]}"})
        queries.append({"_id": f"q{number}", "text": f"what is the best way to {verb} my old {noun}"})
        split = {3: "dev", 4: "test"}.get(number % 5, "train")
        judged[split].append(f"q{number}\td{number}\t1")
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for split, lines in judged.items():
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return folder


if __name__ == "__main__":
    import sys

    print(write_tiny(Path(sys.argv[1])))

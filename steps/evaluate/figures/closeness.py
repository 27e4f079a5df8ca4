"""Data sets that nobody judged: how close students come to the teacher, on texts that trained none of them."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from slimtower.serving.release import Release
from steps.core.cosines import cosines
from steps.evaluate.figures.base import NEIGHBOURS, Figure, Part, RenderContext, overlaps
from steps.evaluate.formatting import Block, Table, milliseconds, percent, size
from steps.evaluate.judging import describe_parts


class NotJudged(Figure):
    """`closeness.<set>.<student>.cosine, overlap` of metrics.json, of a data set without judged test queries.

    Mean cosine to the teacher's embeddings, and mean share of the teacher's ten nearest documents that are among the
    student's, over the exact index. `closeness_texts.<set>.<part>`: number of texts of each part that this was measured
    on; they trained no student, but for those of the part `corpus`, which may have.
    """

    title = "What is not judged"
    part: ClassVar[Part] = "unjudged"
    in_short = True

    def render(self, value: Mapping[str, Any], context: RenderContext) -> Iterator[Block]:
        latency, sizes = context.metrics["latency"], context.metrics["sizes"]
        yield (
            "These data sets have no judged test queries. *Same top 10*: the share of the teacher's ten nearest"
            " documents that the student finds too. *Cosine*: between both embeddings of a query."
        )
        yield Table(
            ["student", "data set", "same top 10", "cosine", "one query, ms", "size"],
            [
                [
                    student,
                    dataset,
                    percent(row[student]["overlap"]),
                    f"{row[student]['cosine']:.4f}",
                    milliseconds(latency[student]["p50_ms"]),
                    size(sizes[student]["bytes"]),
                ]
                for dataset, row in sorted(value.items())
                for student in sorted(row, key=lambda name: -row[name]["overlap"])
            ],
        )
        for dataset in sorted(value):
            parts = describe_parts(context.metrics["closeness_texts"][dataset])
            yield (
                f"No test query of {dataset} is judged: this says how close students are to the teacher, not how good"
                f" its hits are. Measured on {parts}."
            )


def measure_closeness(
    release: Release, dataset: str, teacher_vectors: np.ndarray, student_vectors: np.ndarray
) -> dict[str, np.ndarray]:
    """`cosine` and `overlap` by text, `(texts,)` each, from both embeddings of the same texts, `(texts, dim)` each."""
    nearest, hits = (
        release.search(dataset, vectors, NEIGHBOURS, "flat")[1] for vectors in (teacher_vectors, student_vectors)
    )
    return {"cosine": cosines(teacher_vectors, student_vectors), "overlap": overlaps(nearest, hits)}

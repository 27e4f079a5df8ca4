"""Token tables by several hands over one teacher: each encoder is scored by its own vectors, and timed in turns."""

import shutil
from pathlib import Path
from statistics import stdev

import numpy as np
import pytest

from bench import static_peers
from bench.static_peers import Student, Task, check_packages, measure
from slimtower.common.errors import UserError, line
from steps.encoders.towers import encode


@pytest.mark.medium
def test_each_contestant_is_scored_by_what_it_embeds(
    embedded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def teacher(task: Task, seed: int, folder: Path) -> Student:
        return Student(lambda texts: 3 * encode(task.pipeline.teacher, texts, "query"), 2.0)

    def noise(task: Task, seed: int, folder: Path) -> Student:
        draw = np.random.default_rng(seed)
        return Student(lambda texts: draw.standard_normal((len(texts), task.vectors.shape[1])), 1.0)

    monkeypatch.setattr(static_peers, "CONTESTANTS", {"teacher": teacher, "noise": noise})
    monkeypatch.setattr(static_peers, "UNSEEDED", {teacher})
    shutil.copy("params.yaml", embedded)
    figures = measure(embedded, [1, 2, 3], tmp_path)
    rows = figures["students"]
    assert rows["teacher"]["retention"]["test"] == {"mean": pytest.approx(1), "sd": None, "values": [pytest.approx(1)]}
    noisy = rows["noise"]["retention"]["test"]
    assert len(set(noisy["values"])) > 1 and noisy["mean"] < 0.9
    assert noisy["sd"] == pytest.approx(stdev(noisy["values"])) and rows["noise"]["megabytes"] == 1.0
    assert 0 < rows["noise"]["p50_ms"] < rows["teacher"]["p50_ms"]


def test_peers_of_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_peers, "version", lambda package: "0.0.1")
    with pytest.raises(UserError) as refused:
        check_packages()
    pins = " ".join(f"'{package}'=={pin}" for package, pin in static_peers.PACKAGES.items())
    assert f"pip install --no-deps {pins}" in line(refused.value), "as it is printed, with secrets masked"

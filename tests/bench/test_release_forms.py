"""The bench of released forms measures each form of a student against the student itself."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from stages import LOOSE, RELEASE, distill_params

from bench import release_forms as bench
from bench.release_forms import FORMS, measure
from pipeline.params import load_params


@pytest.mark.slow
@pytest.mark.nightly
def test_every_form_is_measured(released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "release", partial(bench.release, limits=LOOSE))
    params = load_params(Path("params.yaml")).model_copy(update={"distill": distill_params(), "release": RELEASE})
    found = measure(released, "2l", 3, params, tmp_path)
    assert (found["student"], found["seed"], found["serves"]) == ("2l", 3, "int8")
    assert tuple(found["forms"]) == FORMS
    assert found["forms"]["fp32"]["cosine_mean"] == pytest.approx(1, abs=1e-6)
    assert found["forms"]["int8"]["bytes"] < found["forms"]["mixed"]["bytes"] < found["forms"]["fp32"]["bytes"]
    for row in found["forms"].values():
        assert np.isfinite(row["loss"]) and 0 <= row["p_value"] <= 1 and row["p50_ms"] > 0

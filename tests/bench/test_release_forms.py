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
    result = measure(released, "2l", 3, params, tmp_path)
    assert (result["student"], result["seed"], result["serves"]) == ("2l", 3, "int8")
    assert tuple(result["forms"]) == FORMS
    assert result["forms"]["fp32"]["cosine_mean"] == pytest.approx(1, abs=1e-6)
    assert result["forms"]["int8"]["bytes"] < result["forms"]["mixed"]["bytes"] < result["forms"]["fp32"]["bytes"]
    for row in result["forms"].values():
        assert np.isfinite(row["loss"]) and 0 <= row["p_value"] <= 1 and row["p50_ms"] > 0

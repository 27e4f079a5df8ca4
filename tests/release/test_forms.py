"""The one line that says why an encoder serves as it does."""

from typing import get_args

import numpy as np

from steps.release.forms import FORMS, Limits, Trial, to_try
from steps.release.params import ReleaseParams
from steps.release.parity import Unjudged

LIMITS = Limits(parity=0.005, total=0.01, cosine=0.993)


def trial(precision: str, cosine: float) -> Trial:
    """A form of a data set that nobody judged."""
    unjudged = {"one": Unjudged("not judged", 9, cosine, cosine)}
    return Trial(precision, 55_000_000, np.zeros((1, 2)), cosine, cosine, None, {}, unjudged)  # type: ignore[arg-type]


def test_every_precision_that_params_allow_is_one_of_every_format() -> None:
    allowed = get_args(ReleaseParams.model_fields["precision"].annotation)
    assert set(allowed) == {"auto", "int8", "mixed", "fp32"}
    for form, precisions in FORMS.items():
        for precision in allowed:
            assert set(to_try(form, precision)) <= set(precisions) and to_try(form, precision)
    assert to_try("table", "mixed") == ("int8",)

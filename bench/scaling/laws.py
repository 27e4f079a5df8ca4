"""Power laws of loss by size and data (ScalingNote, Eq. 18-20; the joint form is Kaplan et al., 2020, Eq. 1.5)."""

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.optimize import least_squares, minimize_scalar, nnls

_EXPONENTS = np.geomspace(1e-2, 10, 400)  # of a smaller one the scale is past all numbers


@dataclass(frozen=True)
class PowerLaw:
    """`L(x) = (scale / x)^exponent + floor`: Eq. 18 of parameters, Eq. 19 of training pairs; `r2`: of its fit."""

    scale: float
    exponent: float
    floor: float
    r2: float

    def at(self, x: np.ndarray) -> np.ndarray:
        """The loss at each `x`, of the same shape."""
        return (self.scale / x) ** self.exponent + self.floor


@dataclass(frozen=True)
class JointLaw:
    """`L(N, D) = ((n_scale / N)^(n_exponent / d_exponent) + d_scale / D)^d_exponent + floor` (Eq. 20)."""

    n_scale: float
    n_exponent: float
    d_scale: float
    d_exponent: float
    floor: float
    r2: float

    def at(self, parameters: np.ndarray, pairs: np.ndarray) -> np.ndarray:
        """The loss of so many parameters trained on so many pairs, of their common shape."""
        theta = np.array([*np.log([self.n_scale, self.n_exponent, self.d_scale, self.d_exponent]), self.floor])
        return _joint(theta, np.log(parameters), np.log(pairs))


def fit_power_law(x: np.ndarray, losses: np.ndarray) -> PowerLaw:
    """The least squares fit to `(n,)` points, with a floor of 0 or more; ValueError for fewer than four.

    At a given exponent the law is linear in `scale^exponent` and the floor: only the exponent is searched for.
    """
    if len(x) < 4:
        raise ValueError(f"a power law has three unknowns; {len(x)} points are too few")
    unit = float(np.exp(np.log(x).mean()))  # a number near the points, so that powers of them are of one size

    def solved(log_exponent: float) -> tuple[np.ndarray, float]:
        columns = np.stack([(x / unit) ** -math.exp(log_exponent), np.ones_like(x, dtype=np.float64)], axis=1)
        solution: tuple[np.ndarray, float] = nnls(columns, losses)
        return solution

    best = int(np.argmin([solved(math.log(exponent))[1] for exponent in _EXPONENTS]))
    around = np.log(_EXPONENTS[[max(best - 1, 0), min(best + 1, len(_EXPONENTS) - 1)]])
    log_exponent = float(
        minimize_scalar(lambda at: solved(at)[1], bounds=tuple(around), method="bounded", options={"xatol": 1e-9}).x
    )
    (factor, floor), residual = solved(log_exponent)
    exponent = math.exp(log_exponent)
    scale = unit * float(factor) ** (1 / exponent)
    return PowerLaw(scale, exponent, float(floor), _r2(residual**2, losses))


def fit_joint_law(parameters: np.ndarray, pairs: np.ndarray, losses: np.ndarray) -> JointLaw:
    """The least squares fit to `(n,)` points, with a floor of 0 or more; ValueError for fewer than six.

    At given exponents and floor the law is linear once the loss is raised to 1 / d_exponent: such solutions are where
    the search starts from.
    """
    if len(losses) < 6:
        raise ValueError(f"the joint law has five unknowns; {len(losses)} points are too few")
    n, d = np.log(parameters), np.log(pairs)

    def residuals(theta: np.ndarray) -> np.ndarray:
        return _joint(theta, n, d) - losses

    lowest = float(losses.min())
    starts = [
        _started(n, d, losses, alpha, beta, share * lowest)
        for alpha, beta, share in product((0.1, 0.3, 1.0), (0.1, 0.3, 1.0, 3.0, 30.0, 300.0), (0.0, 0.5, 0.9))
    ]
    starts.sort(key=lambda start: float(np.square(residuals(start)).sum()))
    bounds = (
        [-200.0, math.log(1e-3), -200.0, math.log(1e-3), 0.0],
        [200.0, math.log(10), 200.0, math.log(1e3), lowest],
    )
    fits = [least_squares(residuals, start, bounds=bounds, x_scale="jac", max_nfev=2000) for start in starts[:6]]
    best = min(fits, key=lambda fit: float(fit.cost))
    n_scale, n_exponent, d_scale, d_exponent = np.exp(best.x[:4]).tolist()
    return JointLaw(n_scale, n_exponent, d_scale, d_exponent, float(best.x[4]), _r2(2 * best.cost, losses))


def _joint(theta: np.ndarray, n: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Eq. 20 of logarithms: of the four positive coefficients, of parameters and of pairs; the floor is as it is."""
    log_n_scale, log_a, log_d_scale, log_b, floor = theta
    a, b = math.exp(log_a), math.exp(log_b)
    logs = b * np.logaddexp(a / b * (log_n_scale - n), log_d_scale - d)
    losses: np.ndarray = np.exp(np.minimum(logs, 300)) + floor  # what a search tries may be past all numbers
    return losses


def _started(n: np.ndarray, d: np.ndarray, losses: np.ndarray, a: float, b: float, floor: float) -> np.ndarray:
    """Coefficients as `_joint` has them, of the linear fit at these exponents and this floor."""
    columns = np.stack([np.exp(-a / b * (n - n.mean())), np.exp(d.mean() - d)], axis=1)
    by_size, by_data = np.maximum(nnls(columns, (losses - floor) ** (1 / b))[0], 1e-6)  # 0 has no logarithm
    return np.array(
        [n.mean() + b / a * math.log(by_size), math.log(a), d.mean() + math.log(by_data), math.log(b), floor]
    )


def _r2(squares: float, losses: np.ndarray) -> float:
    """Share of the variance that is explained, of the sum of squared residuals; NaN where there is none."""
    total = float(np.square(losses - losses.mean()).sum())
    return 1 - float(squares) / total if total > 0 else math.nan

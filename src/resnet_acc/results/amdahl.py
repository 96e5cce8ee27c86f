"""Amdahl's law through the points of a series, with the fit's uncertainty, and what it cannot tell."""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from resnet_acc.results.scaling import PROCESSES, Point, Series
from resnet_acc.results.stats import CONFIDENCE, MIN_RUNS, Estimate

if TYPE_CHECKING:
    import numpy as np

FAR_OFF = 0.05
"""From this relative distance of a measured point on, the curve is said not to describe the points."""
_LEAST_ERROR = 1e-6
_LEAST_TIME = 1e-12
_ABOUT_ZERO = 1e-3


def amdahl_speedup(count: "float | np.ndarray", serial: float) -> Any:
    """1 / (s + (1 - s) / n): Amdahl 1967, "Validity of the single processor approach" (AFIPS 30, pages 483 to 485).

    Here s is the part of the seconds per image that does not shrink as processes are added, whatever its cause.
    """
    return 1.0 / (serial + (1.0 - serial) / count)


@dataclass(frozen=True)
class AmdahlFit:
    """Amdahl's law through measured points. `serial` is s as a fraction; `doubts` says what the fit cannot tell.

    `log_rate` is log(images/s) of one process or machine; `covariance` that of (log_rate, s), None where it is not
    known; `freedom` the degrees of freedom of Student's t.
    """

    counts: tuple[int, ...]
    serial: Estimate
    log_rate: float
    covariance: tuple[tuple[float, float], tuple[float, float]] | None
    freedom: float
    farthest: float
    meaningless: str
    doubts: tuple[str, ...]

    def predict(self, count: int) -> Estimate:
        """images/s on so many processes or machines, if the law holds there too (delta method)."""
        if self.serial.value is None:
            return self.serial
        serial = self.serial.value
        speedup = float(amdahl_speedup(count, serial))
        value = math.exp(self.log_rate) * speedup
        if self.covariance is None:
            return Estimate(value, reason=self.serial.reason)
        slope = -(1.0 - 1.0 / count) * speedup  # of log images/s over s
        (a, b), (_, c) = self.covariance
        half = min(_quantile(self.freedom) * math.sqrt(max(0.0, a + 2 * slope * b + slope * slope * c)), 300.0)
        return Estimate(value, value * math.exp(-half), value * math.exp(half))

    @property
    def limit(self) -> tuple[float, float, float] | None:
        """The largest speed-up over one, 1 / s, with its interval; math.inf where s may be 0."""
        if self.serial.value is None:
            return None
        bounds = (self.serial.value, self.serial.high, self.serial.low)
        value, low, high = (1.0 / s if s is not None and s > 0 else math.inf for s in bounds)
        return (
            value,
            low if self.serial.high is not None else math.nan,
            high if self.serial.low is not None else math.nan,
        )


def fit_amdahl(series: Series) -> AmdahlFit | None:
    """Fit log(images/s) of Amdahl's law by scipy.optimize.curve_fit; None with fewer than two counts.

    Each point weighs by the standard error of its log rate, where all have one (stats.rate_estimate); points that lie
    farther from the curve than those errors explain widen the interval by the square root of chi-squared over the
    degrees of freedom. Without standard errors the scatter about the curve stands for them, which needs three counts.
    A part below 0 whose interval contains 0 counts as 0.
    The interval is Student's t with the degrees of freedom of the point with the fewest units: rather too wide.
    """
    import numpy as np
    from scipy.optimize import OptimizeWarning, curve_fit

    points = [point for point in series.points if point.rate.value]
    if len(points) < 2:
        return None
    if (points[-1].rate.value or 0.0) <= (points[0].rate.value or 0.0):
        return _no_fit(series, points)
    counts = np.array([point.count for point in points], dtype=float)
    logs = np.array([math.log(point.rate.value or 1.0) for point in points])
    errors = [_log_error(point.rate) for point in points]
    weighted = all(error is not None for error in errors)
    sigma = np.array([max(error[0], _LEAST_ERROR) for error in errors if error]) if weighted else None

    extra = len(points) - 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OptimizeWarning)  # no covariance from two points without errors: said below
        (first, serial), covariance = curve_fit(
            _log_rate, counts, logs, _through_ends(counts, logs), sigma, absolute_sigma=weighted, jac=_slopes
        )
    residuals = logs - _log_rate(counts, first, serial)
    freedom = float(extra)
    if sigma is not None:
        freedom = float(min(error[1] for error in errors if error))
        covariance = covariance * max(1.0, float(((residuals / sigma) ** 2).sum()) / extra if extra else 1.0)
    known = bool(np.isfinite(covariance).all()) and freedom > 0
    estimate = Estimate(float(serial), reason="" if known else "no measure of how runs differ")
    if known:
        half = _quantile(freedom) * math.sqrt(covariance[1][1])
        estimate = Estimate(float(serial), float(serial) - half, float(serial) + half)
    if serial < 0 and _may_be_zero(estimate):
        estimate = replace(estimate, value=0.0)
        first = np.average(logs - np.log(counts), weights=None if sigma is None else sigma**-2)
    fit = AmdahlFit(
        counts=tuple(point.count for point in points),
        serial=estimate,
        log_rate=float(first),
        covariance=_pairs(covariance) if known else None,
        freedom=freedom,
        farthest=float(np.abs(np.expm1(residuals)).max()),
        meaningless=_why_meaningless(series, estimate.value or 0.0),
        doubts=(),
    )
    return replace(fit, doubts=tuple(_doubts(series, fit)))


def _log_rate(count: "np.ndarray", first: float, serial: float) -> "np.ndarray":
    import numpy as np

    return first - np.log(np.maximum(serial + (1.0 - serial) / count, _LEAST_TIME))


def _slopes(count: "np.ndarray", first: float, serial: float) -> "np.ndarray":
    """The derivatives of _log_rate; by finite differences they vanish near s = 0, where the step is a part of s."""
    import numpy as np

    time = np.maximum(serial + (1.0 - serial) / count, _LEAST_TIME)
    return np.stack([np.ones_like(count), -(1.0 - 1.0 / count) / time], axis=1)


def _may_be_zero(serial: Estimate) -> bool:
    """Whether a part below 0 is one that the uncertainty explains: runs that scale perfectly lie on both sides of 0."""
    return serial.high >= 0 if serial.high is not None else (serial.value or 0.0) > -_ABOUT_ZERO


def _no_fit(series: Series, points: Sequence[Point]) -> AmdahlFit:
    falls = "images/s in all do not grow with the count, so that adding more is a loss, which is not Amdahl's law"
    why = _why_meaningless(series, 0.0) or falls
    counts = tuple(point.count for point in points)
    return AmdahlFit(counts, Estimate(None, reason="images/s do not grow"), math.nan, None, 0.0, math.nan, why, ())


def _through_ends(counts: "np.ndarray", logs: "np.ndarray") -> tuple[float, float]:
    """log(images/s) of one and s of the curve through the first and the last point, where the search begins."""
    few, many, quotient = counts[0], counts[-1], math.exp(logs[-1] - logs[0])
    serial = (quotient / many - 1 / few) / ((1 - 1 / few) - quotient * (1 - 1 / many))
    return logs[0] + math.log(serial + (1 - serial) / few), serial


def _pairs(matrix: "np.ndarray") -> tuple[tuple[float, float], tuple[float, float]]:
    (a, b), (c, d) = matrix.tolist()
    return (a, b), (c, d)


def _quantile(freedom: float) -> float:
    from scipy.stats import t

    return float(t.ppf(0.5 + CONFIDENCE / 2, freedom))


def _log_error(rate: Estimate) -> tuple[float, float] | None:
    """Standard error of log(images/s) and its degrees of freedom, from the interval that rate_estimate made of them."""
    if rate.low is None or rate.high is None or not rate.num_units or rate.num_units[0] < 2:
        return None
    freedom = rate.num_units[0] - 1
    return math.log(rate.high / rate.low) / 2 / _quantile(freedom), float(freedom)


def _why_meaningless(series: Series, serial: float) -> str:
    if series.shared and series.axis == PROCESSES:
        return (
            "the processes share the CPU cores of one machine, and a single one can use all of them already: adding "
            "processes adds no hardware, so that this curve says nothing about more cards or machines"
        )
    if series.shared:
        return "the machines of these runs were one and the same, so that adding one added no hardware"
    if serial < 0:
        return (
            "the fitted part is below 0, that is, more than n times as fast on n: nothing scales like that, so the run "
            "on the smallest count was slowed down by something else, or others were helped; measure again"
        )
    return ""


def _doubts(series: Series, fit: AmdahlFit) -> Iterable[str]:
    if len(fit.counts) == 2:
        yield (
            "two counts always lie on Amdahl's curve, so that nothing here shows whether the law holds; measure a third"
        )
    elif fit.farthest > FAR_OFF:
        yield f"the law misses a measured point by {100 * fit.farthest:.0f} %: it does not describe this machine"
    if 1 in fit.counts:
        alone = "one process averages no gradients" if series.axis == PROCESSES else "one machine uses no network"
        yield f"{alone}; from two on that is added, and may grow with the count, which the law does not know"
    if series.device == "cpu" and not series.shared and series.axis == PROCESSES:
        yield "the processes have cores of their own, but share memory and caches: it says nothing about GPUs"
    low = fit.serial.low
    if low is not None and low <= 0:
        yield "the interval of the part contains 0, so that these runs show no limit"
    if min(point.num_runs for point in series.points) < MIN_RUNS:
        yield f"fewer than {MIN_RUNS} runs of a count: intervals that do not hold how much runs differ are too narrow"
    waiting = [point.waiting for point in series.points if point.waiting is not None]
    if waiting and max(waiting) > 0.1:
        share = f"up to {100 * max(waiting):.0f} % of a step is spent waiting for data"
        yield f"{share}: part of what does not scale is the loader"

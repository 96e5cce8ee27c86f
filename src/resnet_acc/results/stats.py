"""Rates, ratios and their confidence intervals, break-even, scaling, parity of losses.

All images are those of all ranks, all times seconds.
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resnet_acc.results.measured import Run

CONFIDENCE = 0.95
MIN_RUNS = 3
"""From so many repeats on, runs are what is drawn from; below, the intervals of the runs at hand."""

NUM_RESAMPLES = 5000
PARITY_TOLERANCE = {"float32": 1e-3, "float16": 1e-2, "bfloat16": 3e-2}
"""Relative difference of two losses that rounding explains: float32 over a few hundred steps of summation in another
order; the others some units of their last place (2**-11 and 2**-8), which training amplifies."""


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % confidence interval; `low` is None where there is none, and `reason` says why."""

    value: float | None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    num_units: tuple[int, ...] = ()
    reason: str = ""

    @property
    def has_interval(self) -> bool:
        """Whether there is a confidence interval."""
        return self.low is not None and self.high is not None

    @property
    def basis(self) -> str:
        """What was drawn from, such as "3 and 3 runs"."""
        if not self.unit:
            return self.reason
        return f"{' and '.join(str(n) for n in self.num_units)} {self.unit}s"


@dataclass(frozen=True)
class _Spread:
    """Squared standard error of log(images/s) over a sample of units, and how many there are."""

    variance: float
    num: int


def pooled_rate(runs: Sequence[Run]) -> float | None:
    """Total images over total seconds of all timed windows of repeats of one arm."""
    seconds = sum(run.steady.seconds for run in runs)
    return sum(run.steady.images for run in runs) / seconds if seconds > 0 else None


def rate_estimate(runs: Sequence[Run]) -> Estimate:
    """images/s of repeats of one arm, with its confidence interval (see ratio_estimate for the method)."""
    value = pooled_rate(runs)
    if value is None:
        return Estimate(None, reason="0 steps after warm-up")
    unit = "run" if _num_results(runs) >= MIN_RUNS else "interval"
    samples = _samples(runs, unit)
    if len(samples) < 2:
        return Estimate(value, reason="fewer than 2 intervals")
    spread = _spread(samples)
    low, high = _bounds(value, spread.variance, spread.num - 1)
    return Estimate(value, low, high, unit, (len(samples),))


def ratio_estimate(runs: Sequence[Run], baseline: Sequence[Run]) -> Estimate:
    """images/s of one arm over images/s of another, with its 95 % confidence interval.

    scipy.stats.bootstrap draws units with replacement (the runs where both arms have MIN_RUNS repeats, else the
    intervals) and gives the standard error of each arm's log rate, a ratio of sums. As the arms are independent the
    squares add up. n / (n - 1) corrects the bootstrap's known shortfall in small samples, and Student's t with
    Welch's degrees of freedom stands in for the normal quantile (Hesterberg 2015, "What Teachers Should Know About
    the Bootstrap", section 4.3): plain percentiles of three repeats would cover 75 %, not 95 %. Intervals of one run
    do not show how runs differ from each other.
    """
    rate, base = pooled_rate(runs), pooled_rate(baseline)
    if rate is None or base is None:
        return Estimate(None, reason="0 steps after warm-up")
    unit = "run" if min(_num_results(runs), _num_results(baseline)) >= MIN_RUNS else "interval"
    samples, base_samples = _samples(runs, unit), _samples(baseline, unit)
    if min(len(samples), len(base_samples)) < 2:
        return Estimate(rate / base, reason="fewer than 2 intervals")
    a, b = _spread(samples), _spread(base_samples)
    variance = a.variance + b.variance
    freedom = 1.0
    if variance > 0:
        freedom = variance**2 / (a.variance**2 / (a.num - 1) + b.variance**2 / (b.num - 1))
    low, high = _bounds(rate / base, variance, freedom)
    return Estimate(rate / base, low, high, unit, (len(samples), len(base_samples)))


def _num_results(runs: Sequence[Run]) -> int:
    return sum(1 for run in runs if run.steady.steps)


def _samples(runs: Sequence[Run], unit: str) -> list[tuple[float, float]]:
    """(images, seconds) of each unit."""
    if unit == "run":
        return [(run.steady.images, run.steady.seconds) for run in runs if run.steady.steps]
    return [(interval.images, interval.seconds) for run in runs for interval in run.timed]


def _spread(samples: Sequence[tuple[float, float]]) -> _Spread:
    import numpy as np
    from scipy.stats import bootstrap

    images, seconds = (np.asarray(column, dtype=float) for column in zip(*samples, strict=True))
    num = len(samples)

    def log_rate(indices: "np.ndarray", axis: int = -1) -> "np.ndarray":
        chosen = indices.astype(int)
        return np.log(images[chosen].sum(axis=axis) / seconds[chosen].sum(axis=axis))

    result = bootstrap(
        (np.arange(num),),
        log_rate,
        n_resamples=NUM_RESAMPLES,
        batch=max(1, 1_000_000 // num),
        vectorized=True,
        method="percentile",
        **{_seed_name(bootstrap): np.random.default_rng(0)},  # the same runs give the same report
    )
    variance = float(result.standard_error) ** 2 * num / (num - 1)
    return _Spread(variance, num)


def _seed_name(function: Any) -> str:
    """scipy 1.15 renamed the argument."""
    return "rng" if "rng" in inspect.signature(function).parameters else "random_state"


def _bounds(value: float, variance: float, freedom: float) -> tuple[float, float]:
    """The interval about a value whose logarithm has that squared standard error."""
    from scipy.stats import t

    half = min(float(t.ppf(0.5 + CONFIDENCE / 2, freedom)) * math.sqrt(variance), 300.0)
    return value * math.exp(-half), value * math.exp(half)


def break_even_steps(extra_startup_s: float, baseline_step_s: float, step_s: float) -> float:
    """Steps after which an arm has paid for its extra start-up; math.inf where its steps are not faster.

    After start-up, n steps cost n * step_s: n = extra_startup_s / (baseline_step_s - step_s), rounded up.
    """
    gain = baseline_step_s - step_s
    if gain <= 0:
        return math.inf
    # A quotient such as 60 / 0.1 must not become 601 for its last bit.
    return max(0, math.ceil(round(extra_startup_s / gain, 6)))


def arm_break_even(runs: Sequence[Run], baseline: Sequence[Run]) -> float | None:
    """break_even_steps from repeats of two arms; None where start-up or rate is not on record or batches differ."""
    startup, base_startup = median_startup_s(runs), median_startup_s(baseline)
    step, base_step = pooled_step_s(runs), pooled_step_s(baseline)
    same_batch = len({run.global_batch_size for run in [*runs, *baseline]}) == 1
    if step is None or base_step is None or not same_batch:
        return None
    if step >= base_step:
        return math.inf
    if startup is None or base_startup is None:
        return None
    return break_even_steps(startup - base_startup, base_step, step)


def median_startup_s(runs: Sequence[Run]) -> float | None:
    """Median start-up of the repeats in which it is on record."""
    return median([run.startup_s for run in runs])


def pooled_step_s(runs: Sequence[Run]) -> float | None:
    """Seconds of one step over all timed windows."""
    steps = sum(run.steady.steps for run in runs)
    return sum(run.steady.seconds for run in runs) / steps if steps else None


def median(values: Sequence[float | None]) -> float | None:
    """Median of the values that are known."""
    import statistics

    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.median(known) if known else None


def scaling_efficiency(rates: Mapping[int, float]) -> dict[int, float]:
    """images/s by process count as parts of what the smallest count's rate promises: (r(n) / n) / (r(m) / m)."""
    if not rates:
        return {}
    smallest = min(rates)
    promised = rates[smallest] / smallest
    return {num: rates[num] / num / promised for num in sorted(rates)}


@dataclass(frozen=True)
class Parity:
    """Two loss curves compared on the steps that both have.

    `largest` is the largest |a - b| / |b|, found at `largest_step`; `parts_at` the first step beyond the tolerance or
    where only one of the two is finite, None where they lie together. `reason` says why nothing was compared.
    """

    num_common: int = 0
    largest: float | None = None
    largest_step: int | None = None
    parts_at: int | None = None
    tolerance: float = math.nan
    reason: str = ""


_HELD_EQUAL = ("seed", "data", "lr", "weight_decay", "image_size", "num_classes", "amp_level")


def loss_parity(run: Run, baseline: Run) -> Parity:
    """Compare the losses of two runs on the same windows (same last step, same length)."""
    for name in _HELD_EQUAL:
        ours, theirs = run.params.get(name), baseline.params.get(name)
        if ours != theirs:
            return Parity(reason=f"{name} differs ({ours} and {theirs})")
    if run.global_batch_size != baseline.global_batch_size:
        return Parity(reason=f"batches differ ({run.global_batch_size} and {baseline.global_batch_size} images in all)")
    tolerance = max(PARITY_TOLERANCE.get(str(r.params.get("amp_dtype")), 1e-3) for r in (run, baseline))
    theirs_by_window = {(i.first, i.step): i.loss for i in baseline.intervals}
    common = [
        (i.step, i.loss, theirs_by_window[i.first, i.step])
        for i in run.intervals
        if (i.first, i.step) in theirs_by_window
    ]
    if not common:
        return Parity(reason="no common steps")
    largest, largest_step, parts_at = None, None, None
    for step, ours, theirs in common:
        difference = relative_difference(ours, theirs)
        if parts_at is None and difference > tolerance:
            parts_at = step
        if math.isfinite(difference) and (largest is None or difference > largest):
            largest, largest_step = difference, step
    return Parity(len(common), largest, largest_step, parts_at, tolerance)


def relative_difference(a: float, b: float) -> float:
    """|a - b| / |b|; inf where only one of them is finite, 0 where neither is."""
    if math.isfinite(a) != math.isfinite(b):
        return math.inf
    if not math.isfinite(a) or a == b:
        return 0.0
    return abs(a - b) / abs(b) if b else math.inf

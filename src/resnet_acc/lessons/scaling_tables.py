"""The tables of notebook 05."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from resnet_acc.results.amdahl import AmdahlFit, amdahl_speedup
from resnet_acc.results.communication import Communication
from resnet_acc.results.scaling import Series
from resnet_acc.results.stats import Estimate
from resnet_acc.results.summary import number, with_interval

if TYPE_CHECKING:
    import pandas as pd


def points_table(series: Sequence[Series]) -> "pd.DataFrame":
    """One row per count: images/s of all processes, efficiency in percent, what the interval was drawn from."""
    import pandas as pd

    rows = [
        {
            "arm": one.arm,
            one.axis: point.count,
            "processes in all": point.processes,
            "images/s [CI]": with_interval(point.rate),
            "efficiency % [CI]": with_interval(scaled(point.efficiency, 100.0)),
            "waiting for data": "n/a" if point.waiting is None else f"{100 * point.waiting:.0f} %",
            "runs": point.num_runs,
            "interval from": point.efficiency.basis or point.rate.basis,
        }
        for one in series
        for point in one.points
    ]
    return pd.DataFrame(rows)


def communication_table(found: Sequence[Communication]) -> "pd.DataFrame":
    """One row per number of processes: the all-reduce alone, and what it adds to a step; means in milliseconds."""
    import pandas as pd

    rows = [
        {
            "processes": one.world_size,
            "backend": one.backend,
            "MB": number(one.num_bytes / 1e6),
            "all-reduce alone ms [CI]": with_interval(scaled(one.alone, 1e3), 2),
            "bus GB/s": number(None if one.bus_bytes_per_s is None else one.bus_bytes_per_s / 1e9, 2),
            "step ms [CI]": with_interval(scaled(one.step, 1e3), 2),
            "step without ms [CI]": with_interval(scaled(one.step_without, 1e3), 2),
            "added ms [CI]": with_interval(scaled(one.added, 1e3), 2),
            "% of a step [CI]": with_interval(scaled(one.share, 100.0)),
        }
        for one in found
    ]
    return pd.DataFrame(rows)


def amdahl_table(fit: AmdahlFit | None, series: Sequence[Series]) -> "pd.DataFrame":
    """The measured counts and, after them, twice, four and eight times the largest: images/s, speed-up, efficiency.

    Empty where the law could not be fitted or says nothing.
    """
    import pandas as pd

    rows = []
    if fit is not None and fit.serial.value is not None and not fit.meaningless:
        measured = {point.count: point.rate for one in series[:1] for point in one.points}
        for count in [*fit.counts, *(fit.counts[-1] * factor for factor in (2, 4, 8))]:
            speedup = float(amdahl_speedup(count, fit.serial.value))
            rows.append(
                {
                    "count": count,
                    "measured images/s [CI]": with_interval(measured[count]) if count in measured else "",
                    "by the law [CI]": with_interval(fit.predict(count)),
                    "speed-up over one": number(speedup, 2),
                    "efficiency %": number(100 * speedup / count),
                }
            )
    return pd.DataFrame(rows)


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """The same estimate in another unit."""
    value, low, high = (None if v is None else v * factor for v in (estimate.value, estimate.low, estimate.high))
    return dataclasses.replace(estimate, value=value, low=low, high=high)

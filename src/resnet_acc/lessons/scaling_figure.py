"""The panels of notebook 05."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from resnet_acc.results.amdahl import AmdahlFit
from resnet_acc.results.communication import Communication
from resnet_acc.results.scaling import Point, Series
from resnet_acc.results.stats import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = "os^Dv"


def draw_rates(ax: "Axes", series: Sequence[Series], fit: AmdahlFit | None) -> None:
    """images/s over the count, what n times the smallest count's rate would be, and Amdahl's law beyond the last."""
    ax.set(title="Throughput", xlabel="processes or machines", ylabel="images/s, all processes")
    largest = 1
    for place, one in enumerate(series):
        points = [point for point in one.points if point.rate.value is not None]
        if not points:
            continue
        _bars(ax, points, [point.rate for point in points], one.name, place)
        largest = max(largest, points[-1].count)
        first = points[0].rate.value or 0.0
        ideal = [first * point.count / points[0].count for point in points]
        label = "n times the smallest count" if place == 0 else None
        ax.plot([point.count for point in points], ideal, color="0.5", linestyle=":", label=label)
    if fit is not None and fit.serial.value is not None and not fit.meaningless:
        counts = list(range(1, 4 * largest + 1))
        predicted = [fit.predict(count) for count in counts]
        ax.plot(counts, [one.value or 0.0 for one in predicted], color="C3", linestyle="--", label="Amdahl's law")
        if all(one.has_interval for one in predicted):
            low, high = [one.low or 0.0 for one in predicted], [one.high or 0.0 for one in predicted]
            ax.fill_between(counts, low, high, color="C3", alpha=0.15, label="its 95 % confidence interval")
        ax.axvline(largest, color="0.7", linewidth=1)
    ax.set_ylim(bottom=0)
    _finish(ax)


def draw_efficiency(ax: "Axes", series: Sequence[Series]) -> None:
    """Efficiency in percent with its confidence interval; 100 % is what the smallest count promises."""
    ax.set(title="Efficiency", xlabel="processes or machines", ylabel="% of the smallest count's rate per process")
    for place, one in enumerate(series):
        points = [point for point in one.points if point.efficiency.value is not None]
        _bars(ax, points, [point.efficiency for point in points], one.name, place, factor=100.0)
    ax.axhline(100.0, color="0.5", linestyle=":")
    ax.set_ylim(bottom=0)
    _finish(ax)


def draw_communication(ax: "Axes", found: Sequence[Communication]) -> None:
    """A step without averaging, what averaging adds, and the all-reduce alone beside it, in milliseconds."""
    ax.set(title="Averaging the gradients", ylabel="ms")
    if not found:
        ax.text(0.5, 0.5, "one process averages nothing", transform=ax.transAxes, ha="center", style="italic")
        return
    places = list(range(len(found)))
    without = [1e3 * (one.step_without.value or 0.0) for one in found]
    added = [max(0.0, 1e3 * (one.added.value or 0.0)) for one in found]
    alone = [1e3 * (one.alone.value or 0.0) for one in found]
    ax.bar([place - 0.2 for place in places], without, 0.36, label="a step without it", color="C0")
    ax.bar([place - 0.2 for place in places], added, 0.36, bottom=without, label="added by it", color="C3", hatch="///")
    ax.bar([place + 0.2 for place in places], alone, 0.36, label="all-reduce alone", color="C1", hatch="...")
    ax.set_xticks(places, [f"{one.world_size} processes" for one in found])
    _finish(ax)


def _bars(
    ax: "Axes", points: Sequence[Point], estimates: Sequence[Estimate], name: str, place: int, factor: float = 1.0
) -> None:
    values = [factor * (one.value or 0.0) for one in estimates]
    low = [factor * (one.value or 0.0 if one.low is None else one.low) for one in estimates]
    high = [factor * (one.value or 0.0 if one.high is None else one.high) for one in estimates]
    below = [max(0.0, value - edge) for value, edge in zip(values, low, strict=True)]
    above = [max(0.0, edge - value) for value, edge in zip(values, high, strict=True)]
    marker = _MARKERS[place % len(_MARKERS)]
    ax.errorbar([point.count for point in points], values, yerr=[below, above], marker=marker, capsize=4, label=name)


def _finish(ax: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    handles, labels = ax.get_legend_handles_labels()
    if handles:
        ax.legend(handles, labels, fontsize=8.5)
    if ax.get_xlabel():
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))

"""What notebook 05 says of its measurements; every sentence comes from a number that the runs hold."""

import math
from collections.abc import Iterable, Sequence

from resnet_acc.lessons.scaling_tables import scaled
from resnet_acc.results.amdahl import AmdahlFit, amdahl_speedup
from resnet_acc.results.communication import Communication
from resnet_acc.results.scaling import PROCESSES, Point, Series, above_hundred
from resnet_acc.results.stats import MIN_RUNS, Estimate
from resnet_acc.results.summary import with_interval


def scaling_words(series: Sequence[Series], found: Sequence[Communication], device: str) -> str:
    """Efficiency of each series in words, what averaging gradients explains of it, and what to be careful about."""
    lines: list[str] = []
    for one in series:
        if len(one.points) < 2:
            lines.append(f"- {one.name}: only one count has a rate, so that nothing is said of scaling.")
        lines += [f"- {_point_words(one, point)}" for point in one.points[1:]]
        if one.shared:
            what = "cores" if one.axis == PROCESSES else "hardware"
            lines.append(
                f"- {one.name}: all counts shared the same {what}, so that this shows what sharing and averaging cost, "
                "and **not** how training scales where each adds hardware of its own."
            )
    lines += [f"- {line}." for line in above_hundred(series)]
    if found:
        lines.append(f"- {_share_words(found[-1])}")
    if series and min(point.num_runs for one in series for point in one.points) < MIN_RUNS:
        lines.append(
            f"- With fewer than {MIN_RUNS} runs of a count the intervals come from windows within runs and miss how "
            f"much runs differ: give `repeats = {MIN_RUNS}` or more before relying on them."
        )
    if device == "cpu":
        lines.append("- Measured on a CPU: it says nothing about GPUs.")
    return "\n".join(lines) or "Nothing was measured."


def _point_words(one: Series, point: Point) -> str:
    base, efficiency = one.points[0], point.efficiency
    if efficiency.value is None or point.rate.value is None or not base.rate.value:
        return f"{one.name}: no rate on {point.count} ({efficiency.reason})."
    times = point.rate.value / base.rate.value
    text = (
        f"{one.name}: {point.count} give {times:.2f} times the images/s of {base.count}, an efficiency of "
        f"{_percent(efficiency)}"
    )
    if efficiency.low is None or efficiency.high is None:
        return f"{text}, without a confidence interval ({efficiency.reason})."
    if efficiency.high < 1.0:
        return f"{text}: {100 * (1 - efficiency.value):.0f} % is lost."
    return f"{text}." if efficiency.low > 1.0 else f"{text}: no loss that these runs can show."


def _percent(estimate: Estimate) -> str:
    return f"{with_interval(scaled(estimate, 100.0))} %"


def _share_words(one: Communication) -> str:
    low, high = one.share.low, one.share.high
    if low is None or high is None or one.share.value is None:
        return f"On {one.world_size} processes averaging gradients was timed once: give more `communication_repeats`."
    if low <= 0:
        return f"On {one.world_size} processes these measurements do not show that averaging gradients costs any time."
    return (
        f"On {one.world_size} processes {_percent(one.share)} of a step is there only because gradients are averaged; "
        "what else is lost, processes lose by sharing memory, cores or power."
    )


def communication_words(found: Sequence[Communication], device: str) -> str:
    """What averaging the gradients costs for each number of processes; Markdown."""
    if not found:
        return "One process averages no gradients; measure 2 or more."
    lines = []
    for one in found:
        alone = with_interval(scaled(one.alone, 1e3), 2)
        lines.append(
            f"- {one.world_size} processes: all gradients, {one.num_bytes / 1e6:,.1f} MB in float32, are averaged in "
            f"{alone} ms by {one.backend} when nothing else is done."
        )
        lines.append(f"- {_added_words(one)}")
    if device == "cpu":
        lines.append(
            "- On CPUs gloo moves gradients through memory with the cores that compute: little of it can run beside "
            "the backward pass for free. NCCL between GPUs uses NVLink or PCIe while the GPU computes."
        )
    return "\n".join(lines)


def _added_words(one: Communication) -> str:
    added, hidden = one.added, one.hidden
    if added.value is None or added.low is None or added.high is None:
        return f"{one.world_size} processes: a single measurement shows no difference between steps."
    numbers = f"{with_interval(scaled(added, 1e3), 2)} ms, {_percent(one.share)} of it"
    if added.low <= 0 <= added.high:
        return (
            f"{one.world_size} processes: these measurements do not show that it makes a step longer ({numbers}): it "
            "hides behind the backward pass, or is lost in the noise."
        )
    if added.high < 0:
        return f"{one.world_size} processes: steps with it were shorter ({numbers}), so something disturbed the others."
    beside = f"; {100 * hidden:.0f} % of the time that it takes alone is hidden" if hidden else "; none of it is hidden"
    return f"{one.world_size} processes: it makes a step longer by {numbers}{beside} behind the backward pass."


def amdahl_words(fit: AmdahlFit | None) -> str:
    """What the fit says about more cards, and what it cannot say; Markdown."""
    if fit is None:
        return "Amdahl's law has two unknowns: measure at least two counts."
    if fit.meaningless:
        lines = [f"**The fit says nothing about more cards**: {fit.meaningless}."]
        if fit.serial.value is not None:
            value = with_interval(scaled(fit.serial, 100.0))
            lines += ["", f"(For the record: the curve through these points has s = {value} %.)"]
        return "\n".join(lines)
    return "\n".join([*_fit_lines(fit), *(f"- With care: {doubt}." for doubt in fit.doubts)])


def _fit_lines(fit: AmdahlFit) -> Iterable[str]:
    assert fit.serial.value is not None
    most = fit.counts[-1]
    yield (
        f"- The part of the time per image that does not shrink with more is s = "
        f"{with_interval(scaled(fit.serial, 100.0), 2)} %."
    )
    if fit.limit is not None:
        value, low, high = fit.limit
        between = "" if math.isnan(low) or math.isnan(high) else f" ({_times(low)} to {_times(high)})"
        yield f"- If that stays so, the speed-up over one has a limit of {_times(value)}{between}, with any number."
    for count in (2 * most, 4 * most):
        speedup = float(amdahl_speedup(count, fit.serial.value))
        yield (
            f"- On {count} the law gives {with_interval(fit.predict(count), 0)} images/s, {speedup:.1f} times one and "
            f"an efficiency of {100 * speedup / count:.0f} %."
        )
    yield (
        f"- All of that lies beyond {most}, the largest count that was measured: a network between machines, another "
        "batch or another loader is not in it."
    )


def _times(value: float) -> str:
    return "infinitely many times" if math.isinf(value) else f"{value:,.1f} times"

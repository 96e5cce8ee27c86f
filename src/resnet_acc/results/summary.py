"""Repeats gathered into one row per arm and process count, against both baselines, for table, figures and verdict."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from resnet_acc.results.attempts import arm_order
from resnet_acc.results.measured import NOT_TIMED, Run, notes_of
from resnet_acc.results.mfu import model_flops_utilisation
from resnet_acc.results.stats import (
    Estimate,
    arm_break_even,
    median,
    median_startup_s,
    pooled_step_s,
    rate_estimate,
    ratio_estimate,
)

BASELINES = ("eager", "kernel")
"""The article's baseline, and the strong one: a gain over the weak one alone would mislead."""


@dataclass
class Group:
    """Repeats of one arm on one number of processes, all else held equal."""

    model: str
    tag: str
    arm: str
    world_size: int | None
    label: str
    results: list[Run] = field(default_factory=list)
    left_out: list[Run] = field(default_factory=list)

    @property
    def params(self) -> dict[str, Any]:
        """Start record of a run that is a result."""
        return self.results[0].params if self.results else {}


@dataclass
class Row:
    """One line of the results table. None is not known; the ratios are against BASELINES of the same process count."""

    group: Group
    rate: Estimate
    ratios: dict[str, Estimate]
    break_even: dict[str, float | None]
    step_time_s: float | None
    startup_s: float | None
    first_step_s: float | None
    compile_s: float | None
    peak_memory_gib: float | None
    acc1: float | None
    acc5: float | None
    mfu: float | None
    num_intervals: int
    num_steps: int
    notes: list[str]

    @property
    def batch_size(self) -> int | None:
        """Images per process and step."""
        return self.group.results[0].batch_size

    @property
    def global_batch_size(self) -> int | None:
        """Images per step over all processes."""
        return self.group.results[0].global_batch_size

    @property
    def dtype(self) -> str:
        """What takes effect, not what was asked for."""
        return str(self.group.params.get("amp_dtype") or "n/a")

    @property
    def rate_per_rank(self) -> float | None:
        """images/s of one process."""
        value, num = self.rate.value, self.group.world_size
        return value / num if value is not None and num else None

    @property
    def status(self) -> str:
        """Finished repeats, and those that did not finish."""
        text = f"{len(self.group.results)} finished"
        return f"{text}, {len(self.group.left_out)} not" if self.group.left_out else text


def group_runs(runs: Sequence[Run], labels: Sequence[str] | None = None) -> list[Group]:
    """Gather repeats: same model, tag, arm and process count, in the order baselines, compilers.

    Args:
        labels: one name per run, for runs that do not know their own.
    """
    groups: dict[tuple[Any, ...], Group] = {}
    for number, run in enumerate(runs):
        label = run.label
        if not run.in_tree and labels is not None:
            label = labels[number]
        key = (run.model, run.tag, run.arm, run.world_size, label)  # the label tells suffixes of a foreign tree apart
        group = groups.setdefault(key, Group(run.model, run.tag, run.arm, run.world_size, label))
        (group.results if run.is_result else group.left_out).append(run)
    return sorted(groups.values(), key=lambda g: (g.model, g.tag, g.world_size or 0, arm_order(g.arm), g.label))


def summarise(groups: Sequence[Group]) -> list[Row]:
    """One row per group that has a result."""
    return [_row(group, groups) for group in groups if group.results]


def baseline_of(group: Group, groups: Sequence[Group], baseline: str) -> Group | None:
    """The group of that baseline arm with everything else equal, if it has a result."""
    for other in groups:
        same = (other.model, other.tag, other.world_size) == (group.model, group.tag, group.world_size)
        if same and other.arm == baseline and other.results:
            return other
    return None


def _row(group: Group, groups: Sequence[Group]) -> Row:
    ratios: dict[str, Estimate] = {}
    break_even: dict[str, float | None] = {}
    for name in BASELINES:
        base = baseline_of(group, groups, name)
        if base is None:
            ratios[name], break_even[name] = Estimate(None, reason=f"no {name} run"), None
        elif base is group:
            ratios[name], break_even[name] = Estimate(1.0, reason="the baseline itself"), None
        else:
            ratios[name] = ratio_estimate(group.results, base.results)
            break_even[name] = arm_break_even(group.results, base.results)
    results = group.results
    rate = rate_estimate(results)
    peaks = [run.peak_memory_gib for run in results if run.peak_memory_gib is not None]
    params = group.params
    return Row(
        group=group,
        rate=rate,
        ratios=ratios,
        break_even=break_even,
        step_time_s=pooled_step_s(results),
        startup_s=median_startup_s(results),
        first_step_s=median([run.first_step_s for run in results]),
        compile_s=median([run.compile_s for run in results]),
        peak_memory_gib=max(peaks) if peaks else None,
        acc1=median([run.last_validation("acc1") for run in results]),
        acc5=median([run.last_validation("acc5") for run in results]),
        mfu=model_flops_utilisation(
            _positive(params.get("flops_per_image")),
            rate.value / group.world_size if rate.value is not None and group.world_size else None,
            str(params.get("device_name")),
            str(params.get("amp_dtype")),
        ),
        num_intervals=sum(run.steady.intervals for run in results),
        num_steps=sum(run.steady.steps for run in results),
        notes=group_notes(group),
    )


def _positive(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 < value < 1e18 else None


def group_notes(group: Group) -> list[str]:
    """What a reader must know of the group's results, each line once."""
    notes: list[str] = []
    for run in group.results:
        lines = notes_of(run)
        if not run.steady.steps:
            lines.insert(0, NOT_TIMED)
        for line in lines:
            if line not in notes:
                notes.append(line)
    return notes


def is_interleaved(runs: Sequence[Run]) -> bool | None:
    """Whether repeats of several arms took turns; None where there is nothing to interleave or no time on record."""
    timed = sorted((run.status.started_at, run.label) for run in runs if run.status.started_at is not None)
    labels = [label for _, label in timed]
    if len(labels) < len(runs) or len(set(labels)) < 2 or len(set(labels)) == len(labels):
        return None
    changes = sum(a != b for a, b in zip(labels, labels[1:], strict=False))
    return changes > len(set(labels)) - 1


def number(value: float | None, digits: int = 1) -> str:
    """A number for people, or "n/a"."""
    return "n/a" if value is None or not math.isfinite(value) else f"{value:,.{digits}f}"


def with_interval(estimate: Estimate, digits: int = 1, unit: str = "") -> str:
    """ "738.3 [735.0, 741.0]", or the value with the reason why it has no interval."""
    if estimate.value is None:
        return f"n/a ({estimate.reason})" if estimate.reason else "n/a"
    text = f"{estimate.value:,.{digits}f}{unit}"
    if estimate.low is None or estimate.high is None:
        return f"{text} ({estimate.reason})" if estimate.reason else text
    return f"{text} [{estimate.low:,.{digits}f}, {estimate.high:,.{digits}f}]"


def steps_text(steps: float | None) -> str:
    """A break-even count for people."""
    if steps is None:
        return "n/a"
    return "never" if math.isinf(steps) else f"{steps:,.0f}"

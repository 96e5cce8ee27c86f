"""What was measured on this machine, in words; every sentence comes from a number that the runs hold."""

import html
import math
import re
from collections.abc import Sequence
from typing import Any

from resnet_acc.results.break_even import base_row, break_even, duration_words
from resnet_acc.results.measured import Run
from resnet_acc.results.mfu import dense_peak_flops, why_no_peak
from resnet_acc.results.plain_words import in_short
from resnet_acc.results.scaling import above_hundred, scaling_series
from resnet_acc.results.stats import Estimate, loss_parity
from resnet_acc.results.status import read_json
from resnet_acc.results.summary import (
    BASELINES,
    Group,
    Row,
    baseline_of,
    group_runs,
    is_interleaved,
    number,
    summarise,
    with_interval,
)

NO_DIFFERENCE = "no difference that these runs can show"


def verdict(runs: Sequence[Run]) -> str:
    """Markdown: in short and in plain words, then each arm against both baselines with start-up and break-even, use of
    the card, losses, and what to be careful about."""
    parts = []
    for heading, lines in verdict_sections(runs):
        parts += [f"### {_escape(heading)}", "", *(f"- {_escape(line)}" for line in lines), ""]
    return "\n".join(parts)


def verdict_sections(runs: Sequence[Run]) -> list[tuple[str, list[str]]]:
    """(heading, sentences): in short for each model, setting and process count; the same with all numbers; cautions."""
    groups = group_runs(runs)
    rows = summarise(groups)
    sections: list[tuple[str, list[str]]] = []
    settings = [
        [row for row in rows if (row.group.model, row.group.tag, row.group.world_size) == key]
        for key in dict.fromkeys((row.group.model, row.group.tag, row.group.world_size) for row in rows)
    ]
    for members in settings:
        if words := in_short(members):
            sections.append((f"In short: {_heading(members[0])}", words))
    for members in settings:
        lines = [line for row in members for line in _row_lines(row, groups, members)]
        sections.append((_heading(members[0]), lines))
    if not rows:
        sections.append(("Nothing was measured", ["No run finished, so that there is nothing to compare."]))
    cautions = _cautions(runs, groups, rows)
    if cautions:
        sections.append(("With care", cautions))
    return sections


def _heading(row: Row) -> str:
    group = row.group
    num = group.world_size
    processes = f"{num} process{'es' if num and num > 1 else ''}" if num else "number of processes unknown"
    return ", ".join(part for part in (group.model, group.tag, processes) if part)


def _row_lines(row: Row, groups: Sequence[Group], members: Sequence[Row]) -> list[str]:
    group = row.group
    name = group.arm or group.label
    if row.rate.value is None:
        return [f"{name}: n/a ({row.rate.reason})."]
    runs = len(group.results)
    batch = f"{row.batch_size} images per process and {row.global_batch_size} in all; " if row.batch_size else ""
    measured = f"{batch}{runs} run{'s' if runs > 1 else ''}, {row.num_intervals} intervals, {row.num_steps} steps"
    lines = [f"{name}: {with_interval(row.rate)} images/s ({measured})."]
    if row.mfu is not None or row is members[0]:  # why there is none is the same for all
        lines.append(f"{name}: {_mfu_words(row)}.")
    for baseline in BASELINES:
        base = base_row(row, members, baseline)
        if base is None or (name == "eager" and baseline == "kernel"):
            continue
        lines.append(f"{name} against {baseline}: {ratio_words(row.ratios[baseline])}.")
        startup = _startup_words(row, base)
        if startup:
            lines.append(f"{name} against {baseline}: {startup}.")
    losses = _loss_words(group, groups)
    return [*lines, losses] if losses else lines


def ratio_words(ratio: Estimate) -> str:
    """Faster, slower, or neither; only a confidence interval can claim one of the first two."""
    if ratio.value is None:
        return f"n/a ({ratio.reason})"
    if ratio.low is None or ratio.high is None:
        reason = f"without a confidence interval ({ratio.reason}), so nothing is claimed"
        return f"{ratio.value:.3f} times its images/s, {reason}"
    numbers = f"{ratio.value:.3f} times its images/s, 95 % confidence interval {ratio.low:.3f} to {ratio.high:.3f}"
    drawn = f"from {ratio.basis}"
    if ratio.low > 1.0:
        return f"faster ({numbers}, {drawn})"
    if ratio.high < 1.0:
        return f"slower ({numbers}, {drawn})"
    return f"{NO_DIFFERENCE} ({numbers}, {drawn})"


def _startup_words(row: Row, base: Row) -> str:
    if row.startup_s is None or base.startup_s is None:
        return ""
    extra = row.startup_s - base.startup_s
    words = f"start-up takes {number(row.startup_s)} s instead of {number(base.startup_s)} s"
    ratio, point = row.ratios[base.group.arm], break_even(row, base)
    if extra <= 0:
        return f"{words}, so there is nothing to pay back"
    if ratio.high is not None and ratio.high < 1.0:
        return f"{words}, which is never paid back, for its steps are slower"
    if ratio.low is None or ratio.low <= 1.0:
        return f"{words}; no gain is shown that could pay it back"
    if point is None or math.isinf(point.steps):
        return words
    between = ""
    if point.low_steps is not None and point.high_steps is not None:
        between = f" (95 % confidence interval {point.low_steps:,.0f} to {point.high_steps:,.0f})"
    return (
        f"{words}, paid back after {point.steps:,.0f} steps{between}, that is {duration_words(point.seconds)} after "
        f"the start or {point.imagenet_epochs:.2g} epochs of ImageNet"
    )


def _mfu_words(row: Row) -> str:
    params = row.group.params
    device, name = str(params.get("device") or ""), str(params.get("device_name") or "")
    if row.mfu is None:
        why = why_no_peak(device, name, row.dtype) or "the records do not hold the arithmetic of an image"
        return f"model FLOPs utilisation (MFU) n/a: {why}"
    peak = dense_peak_flops(name, row.dtype) or math.nan
    return f"{100 * row.mfu:.1f} % of the card's dense peak of {peak / 1e12:,.0f} TFLOP/s for {row.dtype} (MFU)"


def _loss_words(group: Group, groups: Sequence[Group]) -> str:
    base = baseline_of(group, groups, "eager") or baseline_of(group, groups, "kernel")
    if base is None or base is group:
        return ""
    name = f"{group.arm or group.label} against {base.arm}"
    parity = loss_parity(group.results[0], base.results[0])
    if parity.reason:
        return f"{name}: losses not compared, {parity.reason}."
    largest = (
        ""
        if parity.largest is None
        else (f"; largest relative difference {parity.largest:.1e} at step {parity.largest_step}")
    )
    if parity.parts_at is not None:
        return (
            f"{name}: the losses part at step {parity.parts_at}, by more than {parity.tolerance:.0e} "
            f"({parity.num_common} common records{largest})."
        )
    return (
        f"{name}: the losses lie together within {parity.tolerance:.0e} ({parity.num_common} common records{largest})."
    )


def _cautions(runs: Sequence[Run], groups: Sequence[Group], rows: Sequence[Row]) -> list[str]:
    lines = [*_busy_words(runs), *above_hundred(scaling_series(runs))]
    single = [row.group.label for row in rows if len(row.group.results) == 1]
    if single:
        lines.append(
            f"A single run each of {'; '.join(single)}: how much runs differ from each other was not measured, and an "
            "interval drawn from one run does not contain it."
        )
    interleaved = is_interleaved([run for run in runs if run.is_result])
    if interleaved is False:
        lines.append("The arms did not take turns, so that a drift of the machine would look like a difference.")
    elif interleaved is None and len(rows) > 1:
        lines.append("Not known to be interleaved: a drift of the machine would look like a difference.")
    if any(row.group.params.get("device") == "cpu" for row in rows):
        lines.append("Measured on a CPU: it says nothing about a GPU or another accelerator.")
    for baseline in BASELINES:
        if rows and not any(row.group.arm == baseline for row in rows):
            lines.append(f"No {baseline} run, so that nothing is said against that baseline.")
    lines += [f"{row.group.label}: {note}." for row in rows for note in row.notes]
    lines += [f"Left out: {g.label}, run {run.run_id}: {run.why_not}." for g in groups for run in g.left_out]
    return lines


def _busy_words(runs: Sequence[Run]) -> list[str]:
    """Whether something else ran on the machine when a run started, as far as its env.json says."""
    lines = []
    for run in runs:
        values = (read_json(run.run_dir / "env.json") if run.run_dir is not None else None) or {}
        found = values.get("busy")
        if run.is_result and isinstance(found, dict) and (words := busy_words(found, values.get("num_cores"))):
            lines.append(f"The machine was busy when {run.label}, run {run.run_id}, started: {words}.")
    return lines


def busy_words(busy: dict[str, Any], num_cores: Any) -> str:
    """What launch.busy.sample found, where it will slow a run; "" where the machine is idle enough.

    Idle enough: three quarters of the cores that a run may use are idle, and no GPU is in use for a tenth of the time.
    """
    words = []
    cores, of_cores = busy.get("cores"), busy.get("of_cores")
    if isinstance(cores, int | float) and isinstance(of_cores, int):
        usable = min(num_cores, of_cores) if isinstance(num_cores, int) else of_cores
        if of_cores - cores < 0.75 * usable:
            words.append(f"{cores:.1f} of its {of_cores} cores were in use by something else")
    percent = busy.get("gpu_percent")
    if isinstance(percent, list) and percent and max(percent) >= 10:
        words.append(f"a GPU was in use {max(percent)} % of the time")
    return " and ".join(words)


def _escape(text: str) -> str:
    """Text as it is, in Markdown: a folder called <script> must not become one."""
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", html.escape(" ".join(text.split()), quote=False))

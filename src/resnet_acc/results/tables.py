"""What a compilation costs and when it has paid, and how much of a card is used: tables for a notebook."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from resnet_acc.results.break_even import BreakEven, base_row, break_even, duration_words
from resnet_acc.results.mfu import dense_peak_flops, why_no_peak
from resnet_acc.results.summary import BASELINES, Group, Row, number, steps_text, summarise

if TYPE_CHECKING:
    import pandas as pd


def break_even_table(groups: Sequence[Group]) -> "pd.DataFrame":
    """One row per arm, process count and baseline; a gain that the interval does not show is marked ~."""
    import pandas as pd

    rows = summarise(groups)
    lines = []
    for row in rows:
        for baseline in BASELINES:
            base = base_row(row, rows, baseline)
            if base is None or row.group.arm in BASELINES[: BASELINES.index(baseline) + 1]:
                continue
            lines.append(
                {"arm": row.group.arm, "processes": row.group.world_size, "against": baseline, **_cells(row, base)}
            )
    return pd.DataFrame(lines)


def _cells(row: Row, base: Row) -> dict[str, str]:
    point, ratio = break_even(row, base), row.ratios[base.group.arm]
    unknown = ("n/a",) * 4
    steps, between, seconds, epochs = unknown if point is None else _texts(point)
    sure = ratio.low is not None and ratio.high is not None and not ratio.low <= 1.0 <= ratio.high
    return {
        "start-up s": number(row.startup_s),
        "its start-up s": number(base.startup_s),
        "step ms": number(None if row.step_time_s is None else 1e3 * row.step_time_s, 2),
        "its step ms": number(None if base.step_time_s is None else 1e3 * base.step_time_s, 2),
        "break-even steps": steps if sure or point is None else f"~{steps}",
        "95 % interval": between,
        "after": seconds,
        "passes over ImageNet": epochs,
    }


def _texts(point: BreakEven) -> tuple[str, str, str, str]:
    between = "n/a"
    if point.low_steps is not None and point.high_steps is not None:
        between = f"{steps_text(point.low_steps)} to {steps_text(point.high_steps)}"
    if math.isinf(point.steps):
        return "never", between, "never", "never"
    return steps_text(point.steps), between, duration_words(point.seconds), f"{point.imagenet_epochs:.3g}"


def mfu_table(groups: Sequence[Group]) -> "pd.DataFrame":
    """One row per arm and process count: arithmetic of an image, what was reached, the card's peak, and their quotient.

    Where the peak is not known the last column says why.
    """
    import pandas as pd

    lines = []
    for row in summarise(groups):
        params = row.group.params
        device, name = str(params.get("device") or ""), str(params.get("device_name") or "")
        flops, rate = params.get("flops_per_image"), row.rate_per_rank
        known = isinstance(flops, int | float) and rate is not None
        peak = None if device == "cpu" else dense_peak_flops(name, row.dtype)
        why = why_no_peak(device, name, row.dtype) or ("" if known else "0 steps after warm-up")
        lines.append(
            {
                "arm": row.group.arm,
                "processes": row.group.world_size,
                "device": name,
                "dtype": row.dtype,
                "GFLOP per image": number(flops / 1e9 if isinstance(flops, int | float) else None, 2),
                "reached TFLOP/s": number(flops * rate / 1e12 if known else None, 2),  # type: ignore[operator]
                "peak TFLOP/s": number(None if peak is None else peak / 1e12, 0),
                "MFU": "n/a" if row.mfu is None else f"{100 * row.mfu:.1f} %",
                "why not": why,
            }
        )
    return pd.DataFrame(lines)

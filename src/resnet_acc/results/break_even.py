"""When a longer start-up has paid: in steps, in time, and in passes over ImageNet."""

from collections.abc import Sequence
from dataclasses import dataclass

from resnet_acc.results.stats import break_even_steps
from resnet_acc.results.summary import Group, Row, baseline_of

IMAGENET_IMAGES = 1_281_167
"""Training images of ImageNet (ILSVRC 2012): Russakovsky et al. 2015, "ImageNet Large Scale Visual Recognition
Challenge", IJCV 115, table 2."""


@dataclass(frozen=True)
class BreakEven:
    """The point from which on an arm is ahead of a baseline, both started at the same time.

    `steps` is math.inf where its steps are not faster, 0 where its start-up is not longer; `low_steps` and
    `high_steps` follow from the 95 % confidence interval of the ratio, None where there is none. `seconds` counts
    from the start of the arm's process, `imagenet_epochs` is steps times images per step over IMAGENET_IMAGES.
    """

    startup_s: float
    base_startup_s: float
    steps: float
    low_steps: float | None
    high_steps: float | None
    seconds: float
    imagenet_epochs: float

    @property
    def extra_s(self) -> float:
        """Seconds by which the arm's start-up is longer than the baseline's."""
        return self.startup_s - self.base_startup_s


def break_even(row: Row, base: Row) -> BreakEven | None:
    """Where the arm of one row has caught up with that of another; None where start-up or rate is not on record."""
    steps = row.break_even.get(base.group.arm)
    startup, base_startup = row.startup_s, base.startup_s
    if steps is None or startup is None or base_startup is None or row.step_time_s is None or base.step_time_s is None:
        return None
    ratio, base_step = row.ratios[base.group.arm], base.step_time_s
    bounds: list[float | None] = [None, None]
    if ratio.low is not None and ratio.high is not None:
        bounds = [
            break_even_steps(startup - base_startup, base_step, base_step / edge) for edge in (ratio.high, ratio.low)
        ]
    return BreakEven(
        startup_s=startup,
        base_startup_s=base_startup,
        steps=steps,
        low_steps=bounds[0],
        high_steps=bounds[1],
        seconds=startup + steps * row.step_time_s,
        imagenet_epochs=steps * (row.global_batch_size or 0) / IMAGENET_IMAGES,
    )


def base_row(row: Row, rows: Sequence[Row], baseline: str) -> Row | None:
    """The row of that baseline with everything else equal; None where there is none, or it is this row itself."""
    groups: list[Group] = [other.group for other in rows]
    found = baseline_of(row.group, groups, baseline)
    return next((other for other in rows if other.group is found and other is not row), None) if found else None


def duration_words(seconds: float) -> str:
    """ "2.5 s", "3.2 minutes", "1.4 hours", "12 days" """
    for unit, length, most in (("s", 1.0, 100.0), ("minutes", 60.0, 100.0), ("hours", 3600.0, 72.0)):
        if seconds < most * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds / 86400:,.3g} days"

"""One run as it was measured, whichever file it was read from: its intervals, attempts, steady rate and start-up."""

import math
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from resnet_acc.results.lines import MAX_COUNT, MAX_GIB, MAX_SECONDS, MIN_SECONDS, known_seconds
from resnet_acc.results.status import RunStatus

NOT_TIMED = "n/a (0 steps after warm-up)"


@dataclass(frozen=True, slots=True)
class Interval:
    """The steps `first` to `step`, both included. Images are those of all ranks; times are seconds of one step."""

    step: int
    steps: int
    epoch: int = 0
    attempt: int = 0
    warmup: bool = False
    images: float = math.nan
    loss: float = math.nan
    acc1: float = math.nan
    acc5: float = math.nan
    step_time_s: float = math.nan
    data_time_s: float = math.nan
    host_time_s: float = math.nan
    peak_memory_gib: float = math.nan
    lr: float = math.nan
    loss_scale: float = math.nan
    skipped_steps: int = 0
    nonfinite_steps: int = 0
    compilations: int = 0

    @property
    def first(self) -> int:
        """First step of the interval."""
        return self.step - self.steps + 1

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return self.step_time_s * self.steps

    @property
    def measured(self) -> bool:
        """Whether it has images and a time that a rate can be made of."""
        return 1 <= self.images <= MAX_COUNT and self.step_time_s >= MIN_SECONDS and self.seconds <= MAX_SECONDS


def part_of(interval: Interval, first: int, step: int) -> Interval:
    """The interval's steps from `first` to `step`: the time of a step and the loss stay, images go with the steps."""
    steps = step - first + 1
    return replace(interval, step=step, steps=steps, images=interval.images * steps / interval.steps)


def merge_attempts(intervals: Iterable[Interval]) -> tuple[list[Interval], int]:
    """Keep each step once, from the attempt that came last.

    Args:
        intervals: in the order in which they were written.

    Returns:
        Intervals without overlap in ascending order, and the number of steps that were done more than once.
    """
    kept: list[Interval] = []
    repeated = 0
    for new in intervals:
        begin = bisect_left(kept, new.first, key=lambda interval: interval.step)
        end = begin
        while end < len(kept) and kept[end].first <= new.step:
            repeated += min(kept[end].step, new.step) - max(kept[end].first, new.first) + 1
            end += 1
        middle = [new]
        if begin < end:
            left, right = kept[begin], kept[end - 1]
            if left.first < new.first:
                middle.insert(0, part_of(left, left.first, new.first - 1))
            if right.step > new.step:
                middle.append(part_of(right, new.step + 1, right.step))
        kept[begin:end] = middle
    return kept, repeated


@dataclass(frozen=True)
class Steady:
    """The timed windows of a run together: after warm-up, without the windows in which something was compiled."""

    images: float
    seconds: float
    steps: int
    intervals: int

    @property
    def images_per_s(self) -> float | None:
        """Images of all ranks over the seconds of the windows; None where no step is left."""
        return self.images / self.seconds if self.steps else None

    def __str__(self) -> str:
        return f"{self.images_per_s:,.1f} images/s ({self.steps} steps)" if self.steps else NOT_TIMED


@dataclass
class Run:
    """One run of one arm. Names that its files do not tell are "" and numbers None.

    `in_tree`: its folder lies in <output>/<model>/<tag>/<arm>_x<processes>/; else `suffix` is only its folder's name.
    """

    run_dir: Path | None = None
    model: str = ""
    tag: str = ""
    suffix: str = ""
    run_id: str = ""
    in_tree: bool = False
    arm: str = ""
    world_size: int | None = None
    batch_size: int | None = None
    params: dict[str, Any] = field(default_factory=dict)
    startup: dict[str, Any] = field(default_factory=dict)
    intervals: list[Interval] = field(default_factory=list)
    validations: list[dict[str, Any]] = field(default_factory=list)
    attempts: int = 0
    repeated_steps: int = 0
    unreadable_lines: int = 0
    ranks: list[int] = field(default_factory=list)
    other_peaks_gib: list[float] = field(default_factory=list)
    status: RunStatus = field(default_factory=RunStatus)
    warnings: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The arm and process count in words, such as "eager, 2 processes"."""
        if self.arm and self.world_size and (self.in_tree or not self.suffix):
            return f"{self.arm}, {self.world_size} process{'es' if self.world_size > 1 else ''}"
        return self.suffix or self.arm or self.run_id or "run"

    @property
    def output(self) -> Path | None:
        """The folder under which <model>/<tag>/<suffix>/<run_id> lies, where the run lies in such a tree."""
        return self.run_dir.parents[3] if self.run_dir is not None and self.in_tree else None

    @property
    def is_result(self) -> bool:
        """Whether it may be shown beside others as a normal result."""
        return self.status.is_result

    @property
    def why_not(self) -> str:
        """Why it is no result, in one line."""
        status = self.status
        rank = f"rank {status.failed_rank}: " if status.failed_rank is not None else ""
        return f"{status.status}{': ' if rank or status.reason else ''}{rank}{status.reason or ''}"

    @property
    def num_steps(self) -> int:
        """Steps on record, each counted once."""
        return sum(interval.steps for interval in self.intervals)

    @cached_property
    def timed(self) -> list[Interval]:
        """Windows that the steady rate is made of."""
        return [i for i in self.intervals if not i.warmup and not i.compilations and i.measured]

    @cached_property
    def compiled(self) -> list[Interval]:
        """Windows after warm-up in which something was compiled; they are not in the steady rate."""
        return [i for i in self.intervals if not i.warmup and i.compilations]

    @cached_property
    def steady(self) -> Steady:
        """Images and seconds of the timed windows."""
        return Steady(
            images=sum(i.images for i in self.timed),
            seconds=sum(i.seconds for i in self.timed),
            steps=sum(i.steps for i in self.timed),
            intervals=len(self.timed),
        )

    @property
    def images_per_s(self) -> float | None:
        """Steady rate over all ranks; None where no step is left after warm-up."""
        return self.steady.images_per_s

    @property
    def images_per_s_per_rank(self) -> float | None:
        """Steady rate of one process."""
        rate = self.images_per_s
        return rate / self.world_size if rate is not None and self.world_size else None

    @property
    def step_time_s(self) -> float | None:
        """Seconds of one step in the timed windows."""
        return self.steady.seconds / self.steady.steps if self.steady.steps else None

    @property
    def global_batch_size(self) -> int | None:
        """Images of one step over all ranks."""
        return self.batch_size * self.world_size if self.batch_size and self.world_size else None

    @property
    def first_step_s(self) -> float | None:
        """Seconds of the first step, as the start-up record or a first interval of a single step tells."""
        told = known_seconds(self.startup.get("first_step_s"))
        if told is not None:
            return told
        first = self.intervals[0] if self.intervals else None
        if first is None or first.steps != 1 or first.step > 1:
            return None
        return known_seconds(first.step_time_s)

    @property
    def compile_s(self) -> float | None:
        """Seconds of compilation by the compiler's own account."""
        return known_seconds(self.startup.get("compile_s"))

    @property
    def startup_s(self) -> float | None:
        """Seconds from the start of the process that steady training would not have taken.

        Set-up, the first step, and what the other warm-up steps (a second graph is often compiled in step 2) and later
        windows that compiled took longer than steady steps. None where the start-up is not on record.
        """
        setup, first = known_seconds(self.startup.get("setup_s")), self.first_step_s
        if setup is None or first is None:
            return None
        return setup + first + self._later_excess_s(first)

    def _later_excess_s(self, first_step_s: float) -> float:
        steady = self.step_time_s
        if steady is None:
            return 0.0
        excess = 0.0
        for number, interval in enumerate(i for i in self.intervals if (i.warmup or i.compilations) and i.measured):
            if interval.attempt > self.intervals[0].attempt:
                continue  # a resumed run's second start-up is not the first one's cost
            if number == 0 and interval.first <= 1:
                rest = interval.seconds - first_step_s - (interval.steps - 1) * steady
                excess += max(0.0, rest)
            else:
                excess += interval.seconds - interval.steps * steady
        return max(0.0, excess)

    @property
    def peak_memory_gib(self) -> float | None:
        """Largest peak of one process on record, over the processes whose records were read."""
        peaks = [i.peak_memory_gib for i in self.intervals if 0 <= i.peak_memory_gib <= MAX_GIB] + self.other_peaks_gib
        return max(peaks) if peaks else None

    @property
    def finite_losses(self) -> list[float]:
        """Losses of the intervals, without those that are nan or inf."""
        return [i.loss for i in self.intervals if math.isfinite(i.loss)]

    @property
    def num_nonfinite_losses(self) -> int:
        """Intervals whose loss is nan or inf."""
        return len(self.intervals) - len(self.finite_losses)

    @property
    def mean_finite_loss(self) -> float | None:
        """Mean of finite_losses alone; look at num_nonfinite_losses beside it."""
        finite = self.finite_losses
        return sum(finite) / len(finite) if finite else None

    def last_validation(self, name: str) -> float | None:
        """A finite value of the last validation, such as acc1."""
        value = self.validations[-1].get(name) if self.validations else None
        return float(value) if isinstance(value, int | float) and abs(value) <= MAX_COUNT else None


def notes_of(run: Run) -> list[str]:
    """What a reader must know of a run beside its numbers, one line each."""
    notes = list(run.warnings)
    if run.compiled:
        num = len(run.compiled)
        words = (
            "1 interval after warm-up compiled and is"
            if num == 1
            else f"{num} intervals after warm-up compiled and are"
        )
        notes.append(f"{words} not in the steady rate")
    if run.attempts > 1:
        notes.append(f"{run.attempts} attempts, {run.repeated_steps} repeated steps (the later attempt counts)")
    elif run.repeated_steps:
        notes.append(f"{run.repeated_steps} repeated steps (the later record counts)")
    if run.unreadable_lines:
        notes.append(f"{run.unreadable_lines} lines could not be read")
    if run.num_nonfinite_losses:
        finite, total = len(run.finite_losses), len(run.intervals)
        mean = f"; mean of the {finite} finite ones {run.mean_finite_loss:.4g}" if finite else ""
        notes.append(f"loss not finite in {run.num_nonfinite_losses} of {total} records{mean}")
    return notes

"""What the readers of both kinds of file share: which attempt a step belongs to, and which steps are warm-up."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from resnet_acc.results.lines import as_count
from resnet_acc.results.measured import Interval, Run

_KNOWN_ARMS = ("eager", "kernel", "inductor", "torchacc")


class Attempts:
    """Tells attempts apart while a file is read from its beginning."""

    def __init__(self) -> None:
        self.count = 0
        self.number = -1
        self._last: int | None = None

    def begin(self, number: Any = None) -> None:
        """A process started: what it says it is counts, unless an earlier one said the same."""
        given = number if isinstance(number, int) and number > self.number else self.number + 1
        self.number, self.count, self._last = given, self.count + 1, None

    def see(self, step: int) -> int:
        """The attempt that did this step; a step below the one before means that a new attempt began."""
        if self.count == 0 or (self._last is not None and step < self._last):
            self.begin()
        self._last = step
        return self.number


def mark_warmup(
    intervals: Sequence[Interval], flags: Sequence[bool | None], warmup_steps: int | None
) -> list[Interval]:
    """Say of each interval, in the order written, whether it lies in warm-up.

    Args:
        flags: what the record itself says, or None where it says nothing. Then an interval is warm-up if any of its
            steps is among the first `warmup_steps` of the run, or, where that number is not known either, if it is
            the first of its attempt. A resumed attempt starts up anew, so its first interval always is.
    """
    zero_based = any(interval.first == 0 for interval in intervals)
    marked: list[Interval] = []
    for interval, flag in zip(intervals, flags, strict=True):
        begins = not marked or marked[-1].attempt != interval.attempt
        done_before = interval.first - (0 if zero_based else 1)
        if flag is None:
            flag = begins if warmup_steps is None else done_before < warmup_steps
        marked.append(replace(interval, warmup=flag or (begins and interval.attempt > 0)))
    return marked


def optional_count(values: dict[str, Any], name: str, minimum: int = 0) -> int | None:
    """values[name] where it is a count, else None."""
    try:
        return as_count(values.get(name), minimum)
    except ValueError:
        return None


def describe_place(run: Run, run_dir: Path) -> None:
    """Fill in what the place <output>/<model>/<tag>/<suffix>/<run_id> says of a run."""
    run.run_dir = run_dir
    run.run_id = run.run_id or run_dir.name
    run.run_dir = run_dir.absolute()
    parts = run.run_dir.parts
    run.suffix = run.run_dir.parent.name
    arm, _, processes = run.suffix.rpartition("_x")
    if len(parts) < 6 or not arm or not (processes.isascii() and processes.isdigit()):
        return  # not a suffix of ours; the folders above may mean anything
    run.in_tree = True
    model, run.tag = parts[-4], parts[-3]
    run.model = run.model or model
    run.arm = run.arm or arm
    if run.world_size is None and 0 < int(processes[:9]) < 10**6:
        run.world_size = int(processes[:9])


def describe_params(run: Run, params: dict[str, Any]) -> None:
    """Fill in what the start record, or the text log's params line, says of a run."""
    run.params = params
    for name in ("model", "arm", "run_id"):
        value = params.get(name)
        if isinstance(value, str) and value:
            setattr(run, name, value)
    run.world_size = optional_count(params, "world_size", 1) or run.world_size
    run.batch_size = optional_count(params, "batch_size", 1) or run.batch_size


def rank_folders(run_dir: Path) -> list[int]:
    """Numbers of the rank folders that hold a log or records, ascending."""
    try:
        names = [entry.name for entry in run_dir.iterdir()]
    except OSError:
        return []
    ranks = [name for name in names if name.isascii() and name.isdigit() and len(name) < 7 and str(int(name)) == name]
    return sorted(
        int(name)
        for name in ranks
        if (run_dir / name / "log").is_file() or (run_dir / name / "metrics.jsonl").is_file()
    )


def rank_warning(found: Iterable[int], world_size: int | None) -> str | None:
    """One line where the ranks present are not those expected; the missing ones' numbers are never guessed."""
    present = set(found)
    if not world_size or present == set(range(world_size)):
        return None
    missing = [str(rank) for rank in range(world_size) if rank not in present][:8]
    detail = f" (missing: rank {', '.join(missing)})" if missing else ""
    return f"{len(present)} of {world_size} ranks left files{detail}"


def arm_order(arm: str) -> tuple[int, str]:
    """Sorting key: the baselines, then the compilers, then what is unknown."""
    return (_KNOWN_ARMS.index(arm) if arm in _KNOWN_ARMS else len(_KNOWN_ARMS), arm)

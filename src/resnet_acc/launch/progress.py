"""What a run says of itself while it lasts, read from the records of one rank."""

import contextlib
import json
from pathlib import Path
from typing import Any

from resnet_acc.config import COMPILERS

_TAIL_BYTES = 16_384  # the end record is the last, or nearly
_LOOK_BYTES = 4 * 2**20
_LARGEST = 1e15
"""Larger numbers come from a damaged record: nothing that is shown here gets near."""


class LineReader:
    """Reads the lines that were added to a file since the last look; a line still being written waits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.behind = False
        self._offset = 0

    def new_lines(self) -> list[bytes]:
        """Whole lines since the last call, from at most _LOOK_BYTES; `behind` says whether there is more already."""
        try:
            with open(self.path, "rb") as stream:
                if stream.seek(0, 2) < self._offset:
                    self._offset = 0  # another file under the same name
                stream.seek(self._offset)
                data = stream.read(_LOOK_BYTES)
        except OSError:
            return []
        self.behind = len(data) == _LOOK_BYTES
        whole = data[: data.rfind(b"\n") + 1]
        if self.behind and not whole:
            self._offset += len(data)  # no line of ours is so long
        self._offset += len(whole)
        return whole.splitlines()

    def skip(self) -> None:
        """Pass over what is there already."""
        with contextlib.suppress(OSError):
            self._offset = self.path.stat().st_size


class RecordReader(LineReader):
    """Reads the records that were added to a metrics.jsonl since the last look."""

    def new_records(self) -> list[dict[str, Any]]:
        """Records since the last call; a line that is no JSON object is passed over."""
        return [record for line in self.new_lines() if (record := _record(line)) is not None]


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


class Progress:
    """The state of a run for one status line, and its totals for the last one."""

    def __init__(self, run_dir: Path, rank: int, arm: str) -> None:
        self._reader = RecordReader(run_dir / str(rank) / "metrics.jsonl")
        self._arm = arm
        self._start: dict[str, Any] = {}
        self._startup: dict[str, Any] = {}
        self._interval: dict[str, Any] = {}
        self._images = 0.0
        self._seconds = 0.0
        self._timed_steps = 0

    def update(self) -> None:
        """Take in what was written since the last call."""
        for record in self._reader.new_records():
            self.take(record)

    def take(self, record: dict[str, Any]) -> None:
        """Take in one record."""
        event = record.get("event")
        if event == "start":
            self._start = record
        elif event == "startup":
            self._startup = record
        elif event == "interval":
            self._interval = record
            self._count(record)

    def _count(self, record: dict[str, Any]) -> None:
        images, steps, step_time_s = (finite_number(record.get(name)) for name in ("images", "steps", "step_time_s"))
        if record.get("warmup") is False and images is not None and steps and step_time_s:
            self._images += images
            self._seconds += steps * step_time_s
            self._timed_steps += int(steps)

    @property
    def images_per_s(self) -> float | None:
        """Images of all ranks in the timed windows over the seconds of those windows."""
        return self._images / self._seconds if self._seconds else None

    @property
    def startup_s(self) -> float | None:
        """Seconds from the rank's start to the end of its first step."""
        parts = [finite_number(self._startup.get(name)) for name in ("setup_s", "first_step_s")]
        return sum(part for part in parts if part is not None) if self._startup else None

    @property
    def step(self) -> int:
        """Steps done, as the last interval says."""
        return max(0, int(finite_number(self._interval.get("step")) or 0))

    @property
    def total_steps(self) -> int | None:
        """Steps that the run will have done at its end."""
        return max(0, int(finite_number(self._start.get("total_steps")) or 0)) or None

    @property
    def last_images_per_s(self) -> float | None:
        """images/s of all ranks in the last interval."""
        return finite_number(self._interval.get("images_per_s"))

    @property
    def loss(self) -> float | None:
        """Loss of the last interval, nan and inf too; None before the first one."""
        nonfinite = self._interval.get("nonfinite")
        shown = nonfinite.get("loss") if isinstance(nonfinite, dict) else None
        return float(shown) if shown in ("nan", "inf", "-inf") else finite_number(self._interval.get("loss"))

    @property
    def seconds_left(self) -> float | None:
        """For the steps that are left, at the pace of the last interval."""
        step_time_s = finite_number(self._interval.get("step_time_s"))
        if self.total_steps is None or step_time_s is None:
            return None
        return max(0.0, (self.total_steps - self.step) * step_time_s)

    def line(self) -> str:
        """The status: a phase before the first interval, then step, rate, loss and time left."""
        if not self._interval:
            return self._phase()
        rate, loss, left = self.last_images_per_s, self.loss, self.seconds_left
        parts = [f"step {self.step}{f'/{self.total_steps}' if self.total_steps else ''}"]
        parts.append(f"{rate:,.1f} images/s" if rate is not None else "n/a images/s")
        parts.append(f"loss {loss:.4f}" if loss is not None else "loss n/a")
        if left is not None:
            parts.append(f"{duration(left)} left")
        return ", ".join(parts)

    def _phase(self) -> str:
        if not self._start:
            return "starting processes"
        if not self._startup:
            return "compiling, before the first step" if self._arm in COMPILERS else "first step"
        return "warming up"

    def summary(self, peak_memory_gib: float | None) -> str:
        """Rate after warm-up, start-up and peak memory."""
        rate = self.images_per_s
        shown = f"{rate:,.1f} images/s over {self._timed_steps} steps" if rate else "n/a (0 steps after warm-up)"
        startup = "n/a" if self.startup_s is None else f"{self.startup_s:.1f} s"
        memory = "n/a" if peak_memory_gib is None else f"{peak_memory_gib:.2f} GiB"
        return f"{shown}, start-up {startup}, peak memory {memory} per process"


def read_end(run_dir: Path, rank: int) -> dict[str, Any] | None:
    """A rank's end record, or None where it did not get there."""
    try:
        with open(run_dir / str(rank) / "metrics.jsonl", "rb") as stream:
            stream.seek(max(0, stream.seek(0, 2) - _TAIL_BYTES))
            lines = stream.read().splitlines()
    except OSError:
        return None
    records = (_record(line) for line in reversed(lines))
    return next((record for record in records if record and record.get("event") == "end"), None)


def peak_memory_gib(run_dir: Path, ranks: list[int]) -> float | None:
    """Most that any rank held."""
    ends = [read_end(run_dir, rank) or {} for rank in ranks]
    peaks = [peak for end in ends if (peak := finite_number(end.get("peak_memory_gib"))) is not None]
    return max(peaks, default=None)


def duration(seconds: float) -> str:
    """Minutes and seconds, or hours too, as in 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def finite_number(value: Any) -> float | None:
    """A number from a record as a float, or None where it is none that can be."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_LARGEST <= value <= _LARGEST:
        return None
    return float(value)

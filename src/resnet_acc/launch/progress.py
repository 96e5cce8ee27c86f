"""What a run says of itself while it lasts, read from the records of one rank."""

import json
from pathlib import Path
from typing import Any

from resnet_acc.config import COMPILERS

_TAIL_BYTES = 16_384  # the end record is the last, or nearly


class RecordReader:
    """Reads the records that were added to a metrics.jsonl since the last look; a line still being written waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_records(self) -> list[dict[str, Any]]:
        """Records since the last call; a line that is no JSON object is passed over."""
        try:
            with open(self._path, "rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [record for line in whole.splitlines() if (record := _record(line)) is not None]


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
            event = record.get("event")
            if event == "start":
                self._start = record
            elif event == "startup":
                self._startup = record
            elif event == "interval":
                self._interval = record
                self._count(record)

    def _count(self, record: dict[str, Any]) -> None:
        images, steps, step_time_s = (_number(record.get(name)) for name in ("images", "steps", "step_time_s"))
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
        parts = [_number(self._startup.get(name)) for name in ("setup_s", "first_step_s")]
        return sum(part for part in parts if part is not None) if self._startup else None

    def line(self) -> str:
        """The status: a phase before the first interval, then step, rate, loss and time left."""
        if not self._interval:
            return self._phase()
        step, total = _number(self._interval.get("step")) or 0, _number(self._start.get("total_steps"))
        rate, loss = _number(self._interval.get("images_per_s")), _number(self._interval.get("loss"))
        of = f"/{total:.0f}" if total else ""
        parts = [f"step {step:.0f}{of}"]
        parts.append(f"{rate:,.1f} images/s" if rate is not None else "n/a images/s")
        nonfinite = self._interval.get("nonfinite")
        shown = nonfinite.get("loss") if isinstance(nonfinite, dict) else None
        parts.append(f"loss {loss:.4f}" if loss is not None else f"loss {shown or 'n/a'}")
        step_time_s = _number(self._interval.get("step_time_s"))
        if total and step_time_s is not None:
            parts.append(f"{duration(max(0.0, total - step) * step_time_s)} left")
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
    peaks = [peak for end in ends if (peak := _number(end.get("peak_memory_gib"))) is not None]
    return max(peaks, default=None)


def duration(seconds: float) -> str:
    """Minutes and seconds, or hours too, as in 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

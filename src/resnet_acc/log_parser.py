"""parse_file: a rank's text log read back, whatever state it is in.

The text alone is enough; `metrics.jsonl` beside it (see results.runs) holds more and is not looked at here.
"""

import json
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resnet_acc.results.attempts import (
    Attempts,
    describe_params,
    describe_place,
    mark_warmup,
    optional_count,
    rank_folders,
    rank_warning,
)
from resnet_acc.results.lines import MAX_COUNT, split_lines
from resnet_acc.results.measured import Interval, Run, merge_attempts
from resnet_acc.results.status import UNKNOWN, RunStatus, read_status

_STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR|CRITICAL) ", re.ASCII)
_FIELD = re.compile(r'([A-Za-z_]\w*)=("(?:[^"\\]|\\.)*"|\S+)(?=\s|$)', re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d{1,400}(\.\d{0,400})?([eE][+-]?\d{1,4})?|nan|inf)", re.ASCII)
_KINDS = ("params", "startup", "metrics", "validation", "compilation")
_METRICS = ("epoch", "step", "batch_size", "loss", "batch_time_s", "samples_per_s", "peak_mem_gib")
# The others of a params line are text, though they may look like a number (a data folder called 007).
_NUMERIC_PARAMS = frozenset(
    {
        "attempt",
        "rank",
        "world_size",
        "batch_size",
        "global_batch_size",
        "image_size",
        "num_classes",
        "num_train_images",
        "num_val_images",
        "steps_per_epoch",
        "total_steps",
        "warmup_steps",
        "log_interval",
        "lr",
        "weight_decay",
        "seed",
        "workers",
        "dropped_images",
        "flops_per_image",
    }
)
_SNAP = 0.01


@dataclass
class ParsedLog(Run):
    """What a text log tells of a run; knows its own path, suffix and arm."""

    path: Path = field(default_factory=Path)


@dataclass
class _Found:
    """What the lines read so far say."""

    attempts: Attempts = field(default_factory=Attempts)
    metrics: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    log_intervals: dict[int, int | None] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    startup: dict[str, Any] = field(default_factory=dict)
    validations: list[dict[str, Any]] = field(default_factory=list)
    compilations: dict[int, int] = field(default_factory=dict)
    unreadable: int = 0
    error: str | None = None
    in_message: bool = False


def parse_file(path: str | Path) -> ParsedLog:
    """Read `<run>/<rank>/log`, and `<run>/status.json` where it stands beside.

    No content of the log raises an error: lines that cannot be read are counted in `unreadable_lines`, the last line
    among them if it has no newline, for its last number may be cut. Steps of one line are those since the line before.

    Raises:
        OSError: the log is missing or cannot be opened; the message names it.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no log at {path}; give the path of a rank's log, <run>/0/log")
    found = _Found()
    with open(path, "rb") as stream:
        for line, whole in split_lines(stream):
            if not whole:
                found.unreadable += 1
            else:
                _read_line(found, line.decode("utf-8", errors="replace").rstrip("\r"))
    log = ParsedLog(path=path)
    _fill(log, found)
    return log


def _read_line(found: _Found, text: str) -> None:
    """One line; half a line that a killed attempt left stands before a later attempt's whole one."""
    if not text.strip():
        return
    stamps = [m for m in _STAMP.finditer(text) if m.start() == 0 or text.count('"', 0, m.start()) % 2 == 0]
    if len(stamps) > 1 or (stamps and stamps[0].start() > 0):
        found.unreadable += 1
    if stamps:
        level, message = stamps[-1][1], text[stamps[-1].end() :]
    elif text.startswith("metrics "):
        level, message = "INFO", text
    else:
        # A traceback goes on over many lines; anything else without a time is no line of ours.
        found.unreadable += not found.in_message
        return
    found.in_message = level in ("WARNING", "ERROR", "CRITICAL")
    if level in ("ERROR", "CRITICAL"):
        found.error = found.error or message.strip()
    kind, _, rest = message.partition(" ")
    if level == "INFO" and kind in _KINDS and not _read_message(found, kind, rest):
        found.unreadable += 1


def _read_message(found: _Found, kind: str, rest: str) -> bool:
    """Take in a line of one of _KINDS; False where it is not as the logger writes it."""
    fields = {match[1]: match[2] for match in _FIELD.finditer(rest)}
    if kind == "params":
        found.params = {name: _param(name, text) for name, text in fields.items()}
        found.attempts.begin(found.params.get("attempt"))
        found.log_intervals[found.attempts.number] = optional_count(found.params, "log_interval", 1)
        found.error = None  # of an attempt before
        return True
    numbers = {name: number for name, text in fields.items() if (number := _number(text)) is not None}
    if kind == "startup":
        found.startup = found.startup or {name: value for name, value in numbers.items() if math.isfinite(value)}
        return bool(numbers)
    step = optional_count(numbers, "step")
    if step is None:
        return False
    if kind == "validation":
        found.validations.append(numbers)
    elif kind == "compilation":
        found.compilations[step] = optional_count(numbers, "compilations") or 0
    elif all(name in numbers for name in _METRICS):
        found.metrics.append((found.attempts.see(step), numbers))
        found.error = None  # it went on
    else:
        return False
    return True


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None


def _param(name: str, text: str) -> Any:
    if text == "None":
        return None
    if text.startswith('"'):
        try:
            return json.loads(text)
        except ValueError:
            return text
    number = _number(text) if name in _NUMERIC_PARAMS else None
    if number is None:
        return text
    return int(number) if number.is_integer() and abs(number) <= MAX_COUNT else number


def _fill(log: ParsedLog, found: _Found) -> None:
    if log.path.parent.name.isdigit():
        describe_place(log, log.path.parent.parent)
    describe_params(log, found.params)
    if log.batch_size is None and found.metrics:
        log.batch_size = optional_count(found.metrics[-1][1], "batch_size", 1)
    steps = _steps_of(found)
    global_batch = optional_count(found.params, "global_batch_size", 1)
    intervals = [_interval(found, n, steps[n], log.batch_size, global_batch) for n in range(len(steps))]
    if log.world_size is None:
        log.world_size = _world_size(intervals, log.batch_size)
    warmup_steps = optional_count(found.params, "warmup_steps")
    intervals = mark_warmup(intervals, [None] * len(intervals), warmup_steps)
    log.intervals, log.repeated_steps = merge_attempts(intervals)
    log.validations, log.startup = found.validations, found.startup
    log.attempts, log.unreadable_lines = found.attempts.count, found.unreadable
    if log.path.parent.name.isdigit():
        _look_beside(log, log.path.parent.parent)
    if log.status.status == UNKNOWN and log.status.reason is None and found.error is not None:
        log.status = RunStatus(status="failed", reason=found.error)


def _look_beside(log: ParsedLog, run_dir: Path) -> None:
    log.status = read_status(run_dir)
    log.warnings += log.status.warnings
    log.ranks = rank_folders(run_dir)
    warning = rank_warning(log.ranks, log.world_size)
    if warning:
        log.warnings.append(warning)


def _steps_of(found: _Found) -> list[int]:
    """Steps that each metrics line covers: those since the line before, at most log_interval where lines are missing.

    A log without a params line does not tell its log_interval; then the most frequent distance stands for it.
    """
    steps = [(attempt, int(numbers["step"])) for attempt, numbers in found.metrics]
    pairs = list(zip(steps, steps[1:], strict=False))
    gaps = [b - a for (attempt_a, a), (attempt_b, b) in pairs if attempt_a == attempt_b and b > a]
    usual = statistics.mode(gaps) if gaps else None
    covered: list[int] = []
    for number, (attempt, step) in enumerate(steps):
        limit = found.log_intervals.get(attempt) or usual or (max(step, 1) if number == 0 else 1)
        follows = number > 0 and steps[number - 1][0] == attempt and step > steps[number - 1][1]
        distance = step - steps[number - 1][1] if follows else max(step, 1)
        if number > 0 and step == steps[number - 1][1]:
            distance = covered[-1]  # the same line twice
        covered.append(min(distance, limit))
    return covered


def _interval(found: _Found, number: int, steps: int, batch_size: int | None, global_batch: int | None) -> Interval:
    attempt, values = found.metrics[number]
    step = int(values["step"])
    # The line tells rate and time; their product is the images of a step, up to the digits that were written.
    images = values["samples_per_s"] * values["batch_time_s"]
    unit = global_batch or batch_size
    if unit and math.isfinite(images):
        whole = unit if global_batch else unit * max(1, round(min(images / unit, MAX_COUNT)))
        images = float(whole) if abs(images - whole) <= _SNAP * whole else images
    return Interval(
        step=step,
        steps=steps,
        epoch=optional_count(values, "epoch") or 0,
        attempt=attempt,
        images=images * steps,
        loss=values["loss"],
        step_time_s=values["batch_time_s"],
        peak_memory_gib=values["peak_mem_gib"],
        compilations=found.compilations.get(step, 0),
    )


def _world_size(intervals: Sequence[Interval], batch_size: int | None) -> int | None:
    """Processes, where the log does not say: images of a step over images of a step and process."""
    last = next((i for i in reversed(intervals) if i.measured), None)
    if last is None or not batch_size:
        return None
    ratio = last.images / last.steps / batch_size
    return round(ratio) if 1 <= ratio < 10**6 and abs(ratio - round(ratio)) < _SNAP else None

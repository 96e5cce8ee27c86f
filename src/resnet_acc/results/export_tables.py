"""Runs as tidy tables: one row per run, one per step record of a rank, one per validation; units in the names.

A value that is not on record is None. A number that was not finite when it was written is nan or inf.
"""

import dataclasses
import math
import types
import typing
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resnet_acc.config import RunConfig
from resnet_acc.results.attempts import Attempts, mark_warmup, optional_count, rank_folders
from resnet_acc.results.lines import as_count, as_float
from resnet_acc.results.measured import Interval, Run, notes_of
from resnet_acc.results.records import read_records
from resnet_acc.results.runs import FLOATS, read_interval
from resnet_acc.results.status import read_json

Columns = dict[str, type]
"""Names in their order, and the type of each column's values: str, int, float or bool."""

IDENTITY: Columns = {"model": str, "tag": str, "suffix": str, "run_id": str, "arm": str, "world_size": int}
MARKS: Columns = {"status": str, "is_result": bool}
_RUN_NUMBERS: Columns = {
    **{"batch_size_per_process": int, "global_batch_size": int, "amp_dtype": str},
    **{"images_per_s": float, "images_per_s_per_process": float, "steady": str, "timed_steps": int, "num_steps": int},
    **{"step_time_s": float, "first_step_s": float, "compile_s": float, "startup_s": float},
    **{"compiled_intervals": int, "peak_memory_gib": float, "mean_finite_loss": float, "num_nonfinite_losses": int},
    **{"validation_acc1_percent": float, "validation_acc5_percent": float, "flops_per_image": float},
    **{"attempts": int, "repeated_steps": int, "unreadable_lines": int, "ranks_present": int, "notes": str},
}
_ENVIRONMENT: Columns = {
    **{"python": str, "platform": str, "host": str, "cpu_model": str, "num_cores": int, "memory_gib": float},
    **{"torch_version": str, "torchvision_version": str, "torch_xla_version": str, "torchacc_version": str},
    **{"triton_version": str, "cudnn_version": str, "cuda_runtime": str, "driver": str, "device": str},
    **{"device_name": str, "resnet_acc": str, "git_commit": str},
}
_RENAMED = {"acc1": "acc1_percent", "acc5": "acc5_percent"}
_STEP_NUMBERS: Columns = {
    **{"images": float, **{_RENAMED.get(name, name): float for name in FLOATS}},
    **{"images_per_s": float, "images_per_s_per_process": float},
    **{"skipped_steps": int, "nonfinite_steps": int, "compilations": int},
}
_PLACE: Columns = {"rank": int, "attempt": int, "epoch": int, "step": int}
_VALIDATION_NUMBERS: Columns = {"images": float, "loss": float, "acc1_percent": float, "acc5_percent": float}


def _config_columns() -> Columns:
    """RunConfig's own fields, as they were asked for."""
    columns: Columns = {}
    hints = typing.get_type_hints(RunConfig)
    for spec in dataclasses.fields(RunConfig):
        hint = hints[spec.name]
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        columns[f"config_{spec.name}"] = next(kind for kind in kinds if kind is not type(None))
    return columns


RUNS: Columns = {
    **IDENTITY,
    **MARKS,
    **{"reason": str, "failed_rank": int, "started_at_unix_s": float, "ended_at_unix_s": float, "run_dir": str},
    **_RUN_NUMBERS,
    **{f"env_{name}": kind for name, kind in _ENVIRONMENT.items()},
    **_config_columns(),
}
STEPS: Columns = {
    **IDENTITY,
    **MARKS,
    **_PLACE,
    **{"steps": int, "time_unix_s": float, "warmup": bool, "timed": bool, "superseded_steps": int},
    **_STEP_NUMBERS,
}
VALIDATIONS: Columns = {**IDENTITY, **MARKS, **_PLACE, "time_unix_s": float, **_VALIDATION_NUMBERS}

Row = dict[str, Any]


@dataclass
class Tables:
    """The rows of each table, as RUNS, STEPS and VALIDATIONS name their columns."""

    runs: list[Row] = field(default_factory=list)
    steps: list[Row] = field(default_factory=list)
    validations: list[Row] = field(default_factory=list)

    def items(self) -> Iterator[tuple[str, Columns, list[Row]]]:
        """(name, columns, rows) of each table."""
        yield "runs", RUNS, self.runs
        yield "steps", STEPS, self.steps
        yield "validations", VALIDATIONS, self.validations


def make_tables(runs: Iterable[Run]) -> Tables:
    """The tables of these runs; of each all ranks' records are read."""
    tables = Tables()
    for run in runs:
        steps, validations = rank_rows(run)
        tables.runs.append(run_row(run))
        tables.steps += steps
        tables.validations += validations
    return tables


def run_row(run: Run) -> Row:
    """What is known of one run."""
    status = run.status
    values: Row = {
        **_identity(run),
        **{"reason": status.reason, "failed_rank": status.failed_rank},
        **{"started_at_unix_s": status.started_at, "ended_at_unix_s": status.ended_at},
        **{"run_dir": None if run.run_dir is None else str(run.run_dir)},
        **{"batch_size_per_process": run.batch_size, "global_batch_size": run.global_batch_size},
        **{"amp_dtype": run.params.get("amp_dtype"), "flops_per_image": run.params.get("flops_per_image")},
        **{"images_per_s": run.images_per_s, "images_per_s_per_process": run.images_per_s_per_rank},
        **{"steady": str(run.steady), "timed_steps": run.steady.steps, "num_steps": run.num_steps},
        **{name: getattr(run, name) for name in ("step_time_s", "first_step_s", "compile_s", "startup_s")},
        **{"compiled_intervals": len(run.compiled), "peak_memory_gib": run.peak_memory_gib},
        **{name: getattr(run, name) for name in ("mean_finite_loss", "num_nonfinite_losses", "attempts")},
        **{"validation_acc1_percent": run.last_validation("acc1")},
        **{"validation_acc5_percent": run.last_validation("acc5")},
        **{"repeated_steps": run.repeated_steps, "unreadable_lines": run.unreadable_lines},
        **{"ranks_present": len(run.ranks), "notes": "; ".join(notes_of(run)) or None},
    }
    for prefix, told in (("env_", _environment(run)), ("config_", _json_of(run, "config.json"))):
        values |= {f"{prefix}{name}": value for name, value in told.items()}
    return {name: _as(kind, values.get(name)) for name, kind in RUNS.items()}


def _identity(run: Run) -> Row:
    values = {name: getattr(run, name) or None for name in IDENTITY}
    return {**values, "status": run.status.status, "is_result": run.is_result}


def _json_of(run: Run, name: str) -> Row:
    return (read_json(run.run_dir / name) if run.run_dir is not None else None) or {}


def _environment(run: Run) -> Row:
    """env.json, and what the ranks themselves said where they did."""
    told = {name: run.params[name] for name in _ENVIRONMENT if run.params.get(name) is not None}
    return {**_json_of(run, "env.json"), **told}


def _as(kind: type, value: Any) -> Any:
    """A value in its column's type, or None where a damaged file holds another."""
    if value is None:
        return None
    if kind is str:
        return value if isinstance(value, str) else str(value)
    if kind is bool:
        return value if isinstance(value, bool) else None
    try:
        return as_count(value, -(2**53)) if kind is int else as_float(value)
    except ValueError:
        return None


def rank_rows(run: Run) -> tuple[list[Row], list[Row]]:
    """Rows of the step records and of the validations of every rank of one run, in the order they were written."""
    steps: list[Row] = []
    validations: list[Row] = []
    for rank in rank_folders(run.run_dir) if run.run_dir is not None else []:
        path = typing.cast(Path, run.run_dir) / str(rank) / "metrics.jsonl"
        if path.is_file():
            found = _read_rank(run, rank, path)
            steps += found[0]
            validations += found[1]
    if not steps and not validations:  # an old run, of which the text log alone is left
        rank = run.ranks[0] if run.ranks else 0
        steps = _step_rows(run, rank, run.intervals, [{} for _ in run.intervals])
        validations = [_validation_row(run, rank, None, record) for record in run.validations]
    return steps, validations


def _read_rank(run: Run, rank: int, path: Path) -> tuple[list[Row], list[Row]]:
    attempts = Attempts()
    intervals: list[Interval] = []
    records: list[Row] = []
    validations: list[Row] = []
    for record in read_records(path).records:
        if record["event"] == "start":
            attempts.begin(record.get("attempt"))
        elif record["event"] == "validation":
            validations.append(_validation_row(run, rank, max(attempts.number, 0), record))
        elif record["event"] == "interval":
            interval = read_interval(record, run.global_batch_size)
            if interval is not None:
                intervals.append(dataclasses.replace(interval, attempt=attempts.see(interval.step)))
                records.append(record)
    flags = [flag if isinstance(flag := record.get("warmup"), bool) else None for record in records]
    marked = mark_warmup(intervals, flags, optional_count(run.params, "warmup_steps"))
    return _step_rows(run, rank, marked, records), validations


def _step_rows(run: Run, rank: int, intervals: Sequence[Interval], records: Sequence[Row]) -> list[Row]:
    rows = []
    superseded = _superseded(intervals)
    for interval, record, again in zip(intervals, records, superseded, strict=True):
        rate = interval.images / interval.seconds if interval.measured else None
        values: Row = {
            **_identity(run),
            **{name: getattr(interval, name) for name in ("attempt", "epoch", "step", "steps", "warmup")},
            **{"rank": rank, "time_unix_s": record.get("time"), "superseded_steps": again, "images": interval.images},
            "timed": not (interval.warmup or interval.compilations or again) and interval.measured,
            **{_RENAMED.get(name, name): getattr(interval, name) for name in FLOATS},
            **{name: getattr(interval, name) for name in ("skipped_steps", "nonfinite_steps", "compilations")},
            "images_per_s": rate,
            "images_per_s_per_process": rate / run.world_size if rate is not None and run.world_size else None,
        }
        said = {_RENAMED.get(name, name): value for name, value in record.items()}
        for name, kind in _STEP_NUMBERS.items():  # what the reader took for nan may not be on record at all
            if kind is float and values[name] is not None and math.isnan(values[name]) and said.get(name) is None:
                values[name] = None
        rows.append({name: _as(kind, values.get(name)) for name, kind in STEPS.items()})
    return rows


def _validation_row(run: Run, rank: int, attempt: int | None, record: Row) -> Row:
    said = {_RENAMED.get(name, name): value for name, value in record.items()}
    values = {**said, **_identity(run), "rank": rank, "attempt": attempt, "time_unix_s": record.get("time")}
    return {name: _as(kind, values.get(name)) for name, kind in VALIDATIONS.items()}


def _superseded(intervals: Sequence[Interval]) -> list[int]:
    """Of each interval's steps, how many a later one did again: those count, as in measured.merge_attempts."""
    firsts: list[int] = []  # of disjoint ranges of steps that later intervals cover, ascending
    lasts: list[int] = []
    counts = []
    for interval in reversed(intervals):
        first, last = interval.first, interval.step
        begin, end = bisect_left(lasts, first), bisect_right(firsts, last)
        counts.append(sum(min(lasts[place], last) - max(firsts[place], first) + 1 for place in range(begin, end)))
        if begin < end:
            first, last = min(first, firsts[begin]), max(last, lasts[end - 1])
        firsts[begin:end], lasts[begin:end] = [first], [last]
    return counts[::-1]

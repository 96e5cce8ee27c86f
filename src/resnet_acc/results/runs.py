"""Runs read from their records, and tidy tables of them."""

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resnet_acc.config import RunConfig
from resnet_acc.files import project_root
from resnet_acc.log_parser import parse_file
from resnet_acc.results.attempts import (
    Attempts,
    arm_order,
    describe_params,
    describe_place,
    mark_warmup,
    optional_count,
    rank_folders,
    rank_warning,
)
from resnet_acc.results.lines import MAX_GIB, as_count, as_float
from resnet_acc.results.measured import Interval, Run, merge_attempts
from resnet_acc.results.records import Records, read_records
from resnet_acc.results.status import read_json, read_status

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Run", "find_runs", "intervals_table", "load_run", "runs_table", "walk_runs"]

_NOT_MODELS = ("comparisons", "figures")
FLOATS = ("loss", "acc1", "acc5", "step_time_s", "data_time_s", "host_time_s", "peak_memory_gib", "lr", "loss_scale")
_COUNTS = ("epoch", "skipped_steps", "nonfinite_steps", "compilations")


def walk_runs(output: str | Path) -> Iterator[tuple[str, str, str, str, Path]]:
    """Yield (model, tag, suffix, run_id, folder) of each folder four levels down, baselines first.

    Dot folders and what is no model (comparisons, figures) are passed over, a run reached a second time through a
    link too. A relative path is looked for in the current folder, then in the repository's root.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    given = Path(output)
    root = given if given.is_dir() else project_root() / given
    if not root.is_dir():
        raise FileNotFoundError(f"no folder {given}; give the folder that runs were written to (--output)")
    seen: set[str] = set()
    for model in _folders(root):
        if model.name in _NOT_MODELS:
            continue
        for tag in _folders(model):
            for suffix in sorted(_folders(tag), key=_suffix_order):
                for run in _folders(suffix):
                    place = os.path.realpath(run)
                    if place not in seen:
                        seen.add(place)
                        yield model.name, tag.name, suffix.name, run.name, run


def _folders(folder: Path) -> list[Path]:
    """Sub-folders by name, links last, so that a link never stands for the folder that it points to."""
    try:
        entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".") and entry.is_dir()]
    except OSError:
        return []
    return sorted(entries, key=lambda entry: (entry.is_symlink(), entry.name))


def _suffix_order(folder: Path) -> tuple[Any, ...]:
    arm, _, processes = folder.name.rpartition("_x")
    count = int(processes) if processes.isascii() and processes.isdigit() and len(processes) < 7 else 0
    return (folder.is_symlink(), count, arm_order(arm), folder.name)


def find_runs(output: str | Path) -> list[Path]:
    """Folders of all runs below an output folder, failed ones too.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    return [run for *_, run in walk_runs(output) if (run / "config.json").is_file() or rank_folders(run)]


def load_run(run_dir: str | Path) -> Run:
    """Read a run from the records of its lowest rank present, or from the text log where there are no records.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    run_dir = Path(run_dir)
    if not run_dir.is_dir():
        raise FileNotFoundError(f"no run at {run_dir}; give a folder that holds config.json")
    ranks = rank_folders(run_dir)
    with_records = [rank for rank in ranks if (run_dir / str(rank) / "metrics.jsonl").is_file()]
    if ranks and not with_records:
        run: Run = parse_file(run_dir / str(ranks[0]) / "log")
        run.warnings.append("no metrics.jsonl; read from the text log")
        _describe_config(run, run_dir)
        return run
    run = Run(ranks=ranks)
    describe_place(run, run_dir)
    _describe_config(run, run_dir)
    if with_records:
        _fill(run, read_records(run_dir / str(with_records[0]) / "metrics.jsonl"))
        for rank in with_records[1:]:
            run.other_peaks_gib += _peaks(run_dir / str(rank) / "metrics.jsonl")
        if with_records[0] != 0:
            run.warnings.append(f"rank 0 left no records; read from rank {with_records[0]}")
    run.status = read_status(run_dir)
    run.warnings += run.status.warnings
    warning = rank_warning(ranks, run.world_size)
    if warning:
        run.warnings.append(warning)
    return run


def _describe_config(run: Run, run_dir: Path) -> None:
    """What config.json says, where nothing else did: a run that failed early left nothing else."""
    values = read_json(run_dir / "config.json")
    if values is None:
        return
    try:
        config = RunConfig.from_json(values)
    except (ValueError, TypeError):
        run.warnings.append("config.json cannot be read")
        return
    run.model = run.model or config.model
    run.arm = run.arm or config.arm
    if not run.in_tree:
        run.suffix = config.suffix
    run.world_size = run.world_size or config.world_size
    run.batch_size = run.batch_size or config.batch_size
    known = {"image_size": config.image_size, "amp_level": config.amp_level, "data": config.data, "seed": config.seed}
    run.params = {**known, **run.params}


def _fill(run: Run, records: Records) -> None:
    attempts = Attempts()
    intervals: list[Interval] = []
    flags: list[bool | None] = []
    run.unreadable_lines = records.unreadable_lines
    for record in records.records:
        event = record["event"]
        if event == "start":
            attempts.begin(record.get("attempt"))
            describe_params(run, {**run.params, **record})
        elif event == "startup":
            run.startup = run.startup or record
        elif event == "validation":
            run.validations.append(record)
        elif event == "interval":
            interval = read_interval(record, run.global_batch_size)
            if interval is None:
                run.unreadable_lines += 1
                continue
            flag = record.get("warmup")
            flags.append(flag if isinstance(flag, bool) else None)
            intervals.append(_with_attempt(interval, attempts))
    run.attempts = attempts.count
    marked = mark_warmup(intervals, flags, optional_count(run.params, "warmup_steps"))
    run.intervals, run.repeated_steps = merge_attempts(marked)


def _peaks(path: Path) -> list[float]:
    """Peak memory of another rank, as its intervals say."""
    records = (read_interval(r, None) for r in read_records(path).records if r["event"] == "interval")
    peaks = [i.peak_memory_gib for i in records if i is not None and 0 <= i.peak_memory_gib <= MAX_GIB]
    return [max(peaks)] if peaks else []


def _with_attempt(interval: Interval, attempts: Attempts) -> Interval:
    return replace(interval, attempt=attempts.see(interval.step))


def read_interval(record: dict[str, Any], global_batch_size: int | None) -> Interval | None:
    """An interval from its record, or None where a number in it is none."""
    try:
        step = as_count(record.get("step"))
        steps = as_count(record.get("steps", 1), 1)
        floats = {name: as_float(record.get(name)) for name in FLOATS}
        counts = {name: as_count(record.get(name) or 0) for name in _COUNTS}
        images, rate = as_float(record.get("images")), as_float(record.get("images_per_s"))
    except ValueError:
        return None
    if math.isnan(images):
        images = rate * floats["step_time_s"] * steps
    if math.isnan(images) and global_batch_size:
        images = float(global_batch_size * steps)
    return Interval(step=step, steps=min(steps, step + 1), images=images, **floats, **counts)  # type: ignore[arg-type]


def intervals_table(runs: Iterable[Run]) -> "pd.DataFrame":
    """One row per interval: the run's identity, the interval's values, `timed`, rates in images/s. nan and inf stay."""
    import pandas as pd

    rows = []
    for run in runs:
        timed = {id(interval) for interval in run.timed}
        for interval in run.intervals:
            rate = interval.images / interval.seconds if interval.measured else math.nan
            rows.append(
                {
                    **_identity(run),
                    "attempt": interval.attempt,
                    "epoch": interval.epoch,
                    "step": interval.step,
                    "steps": interval.steps,
                    "warmup": interval.warmup,
                    "timed": id(interval) in timed,
                    "images": interval.images,
                    **{name: getattr(interval, name) for name in FLOATS},
                    "images_per_s": rate,
                    "images_per_s_per_rank": rate / run.world_size if run.world_size else math.nan,
                    **{name: getattr(interval, name) for name in _COUNTS[1:]},
                }
            )
    return pd.DataFrame(rows, columns=None if rows else [*_identity(Run()), "step", "loss", "images_per_s"])


def runs_table(runs: Iterable[Run]) -> "pd.DataFrame":
    """One row per run. A value that is not known is NaN or None; `steady` says why a rate is not."""
    import pandas as pd

    return pd.DataFrame([_run_row(run) for run in runs], columns=list(_run_row(Run())))


def _identity(run: Run) -> dict[str, Any]:
    return {
        "model": run.model,
        "tag": run.tag,
        "suffix": run.suffix,
        "run_id": run.run_id,
        "arm": run.arm,
        "world_size": run.world_size,
    }


def _run_row(run: Run) -> dict[str, Any]:
    return {
        **_identity(run),
        "status": run.status.status,
        "is_result": run.is_result,
        "batch_size": run.batch_size,
        "global_batch_size": run.global_batch_size,
        "amp_dtype": run.params.get("amp_dtype"),
        "images_per_s": run.images_per_s,
        "images_per_s_per_rank": run.images_per_s_per_rank,
        "steady": str(run.steady),
        "timed_steps": run.steady.steps,
        "num_steps": run.num_steps,
        "step_time_s": run.step_time_s,
        "first_step_s": run.first_step_s,
        "compile_s": run.compile_s,
        "startup_s": run.startup_s,
        "compiled_intervals": len(run.compiled),
        "peak_memory_gib": run.peak_memory_gib,
        "num_finite_losses": len(run.finite_losses),
        "num_nonfinite_losses": run.num_nonfinite_losses,
        "mean_finite_loss": run.mean_finite_loss,
        "acc1": run.last_validation("acc1"),
        "acc5": run.last_validation("acc5"),
        "attempts": run.attempts,
        "repeated_steps": run.repeated_steps,
        "unreadable_lines": run.unreadable_lines,
        "ranks_present": len(run.ranks),
        "warnings": "; ".join(run.warnings),
    }

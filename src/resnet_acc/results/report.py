"""One self-contained HTML file of a set of runs, with its figures and table beside it."""

import base64
import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resnet_acc.files import write_atomically
from resnet_acc.plot import draw_panels, save
from resnet_acc.results.measured import Run
from resnet_acc.results.report_page import page_of
from resnet_acc.results.runs import load_run
from resnet_acc.results.selection import LeftOut, Selection, read_comparison
from resnet_acc.results.summary import (
    BASELINES,
    Row,
    group_runs,
    is_interleaved,
    summarise,
)


@dataclass(frozen=True)
class Report:
    """Paths of what was written; `table` is summary.csv, `left_out` what stands in no row and why."""

    html: Path
    figures: list[Path]
    table: Path
    left_out: list[dict[str, str]] = field(default_factory=list)


@dataclass
class _Extra:
    """What a comparison adds to its runs."""

    command: str = ""
    left_out: list[LeftOut] = field(default_factory=list)


def write_report(run_dirs: Sequence[Path], folder: Path, title: str) -> Report:
    """Write report.html, summary.csv, summary.json and figures/ for these runs.

    Raises:
        FileNotFoundError: a run's folder is missing.
        OSError: the folder cannot be written.
    """
    return _write([load_run(run_dir) for run_dir in run_dirs], Path(folder), title, _Extra())


def write_comparison(comparison_dir: Path) -> Report:
    """Write the report of a comparison into its folder, as its comparison.json says.

    Raises:
        FileNotFoundError: there is no comparison.json.
        ValueError: comparison.json is none.
    """
    comparison = read_comparison(Path(comparison_dir))
    extra = _Extra(comparison.command, list(comparison.skipped))
    return _write(comparison.runs, comparison.folder, comparison.title, extra)


def write_selection(selection: Selection, folder: Path, title: str) -> Report:
    """Write one report of everything that a command line chose, comparisons' runs among it.

    Raises:
        OSError: the folder cannot be written.
    """
    commands = "\n".join(comparison.command for comparison in selection.comparisons if comparison.command)
    return _write(selection.all_runs(), Path(folder), title, _Extra(commands, selection.all_left_out()))


def _write(runs: Sequence[Run], folder: Path, title: str, extra: _Extra) -> Report:
    folder.mkdir(parents=True, exist_ok=True)
    groups = group_runs(runs)
    rows = summarise(groups)
    figures: list[Path] = []
    pictures: list[tuple[str, str]] = []
    for name, figure in draw_panels(groups).items():
        png, svg = save(figure, folder / "figures", name)
        figures += [png, svg]
        pictures.append((name, base64.b64encode(png.read_bytes()).decode("ascii")))
    left_out = [_left_out_entry(run) for group in groups for run in group.left_out]
    for one in extra.left_out:
        entry = {"label": one.label, "run": "", "status": one.status, "reason": one.reason, "last_lines": ""}
        left_out.append(entry)
    report = Report(folder / "report.html", figures, folder / "summary.csv", left_out)
    entries = [summary_entry(row) for row in rows]
    write_atomically(report.table, _encode(_csv(entries)))
    whole = {"schema": 1, "title": title, "rows": entries, "left_out": left_out, "interleaved": is_interleaved(runs)}
    write_atomically(folder / "summary.json", _encode(json.dumps(whole, indent=2, allow_nan=False) + "\n"))
    page = page_of(runs, groups, rows, title, extra.command, left_out, pictures)
    write_atomically(report.html, _encode(page))
    return report


def _encode(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")  # a folder's name may hold bytes that are no text


def summary_entry(row: Row) -> dict[str, Any]:
    """A row of plain values for summary.csv and summary.json; what is not known is None, "never" is text."""
    entry: dict[str, Any] = {
        "model": row.group.model,
        "tag": row.group.tag,
        "arm": row.group.arm,
        "processes": row.group.world_size,
        "batch_size_per_process": row.batch_size,
        "global_batch_size": row.global_batch_size,
        "amp_dtype": row.dtype,
        "images_per_s": row.rate.value,
        "images_per_s_low": row.rate.low,
        "images_per_s_high": row.rate.high,
        "interval_drawn_from": row.rate.basis,
        "images_per_s_per_process": row.rate_per_rank,
    }
    for name in BASELINES:
        ratio, steps = row.ratios[name], row.break_even[name]
        entry |= {
            f"ratio_to_{name}": ratio.value,
            f"ratio_to_{name}_low": ratio.low,
            f"ratio_to_{name}_high": ratio.high,
            f"ratio_to_{name}_drawn_from": ratio.basis,
            f"break_even_steps_{name}": "never" if steps is not None and math.isinf(steps) else steps,
        }
    entry |= {
        "step_time_s": row.step_time_s,
        "startup_s": row.startup_s,
        "first_step_s": row.first_step_s,
        "compile_s": row.compile_s,
        "peak_memory_gib": row.peak_memory_gib,
        "acc1": row.acc1,
        "acc5": row.acc5,
        "mfu": row.mfu,
        "runs": len(row.group.results),
        "runs_left_out": len(row.group.left_out),
        "intervals": row.num_intervals,
        "steps": row.num_steps,
        "notes": "; ".join(row.notes),
    }
    return {name: None if isinstance(v, float) and not math.isfinite(v) else v for name, v in entry.items()}


def _csv(entries: Sequence[dict[str, Any]]) -> str:
    stream = io.StringIO()
    names = list(entries[0]) if entries else ["arm"]
    writer = csv.DictWriter(stream, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(entries)
    return stream.getvalue()


def _left_out_entry(run: Run) -> dict[str, str]:
    status = run.status
    rank = f"rank {status.failed_rank}: " if status.failed_rank is not None else ""
    return {
        "label": run.label,
        "run": run.run_id,
        "status": status.status,
        "reason": rank + (status.reason or "no reason on record"),
        "last_lines": "\n".join(status.last_lines[-10:]),
    }

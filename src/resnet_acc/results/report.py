"""One self-contained HTML file of a set of runs, with its figures and table beside it."""

import base64
import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from resnet_acc.files import write_atomically
from resnet_acc.plot import caption, draw_panels, save
from resnet_acc.results.measured import Run
from resnet_acc.results.runs import load_run
from resnet_acc.results.status import RunStatus, read_json
from resnet_acc.results.summary import (
    BASELINES,
    Group,
    Row,
    group_runs,
    is_interleaved,
    number,
    steps_text,
    summarise,
    with_interval,
)
from resnet_acc.results.template import MEANINGS, PAGE
from resnet_acc.results.verdict import verdict_sections

COLUMNS = (
    "arm",
    "processes",
    "batch per process",
    "batch in all",
    "dtype",
    "images/s [CI]",
    "CI drawn from",
    "images/s per process",
    "ratio to eager [CI]",
    "ratio to kernel [CI]",
    "step ms",
    "start-up s",
    "compile s",
    "break-even steps (eager / kernel)",
    "peak GiB",
    "top-1 %",
    "top-5 %",
    "MFU",
    "status",
)


@dataclass(frozen=True)
class Report:
    """Paths of what was written; `table` is summary.csv."""

    html: Path
    figures: list[Path]
    table: Path


@dataclass
class _Extra:
    """What a comparison adds to its runs."""

    command: str = ""
    skipped: list[dict[str, str]] = field(default_factory=list)


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
    folder = Path(comparison_dir)
    path = folder / "comparison.json"
    if not path.is_file():
        raise FileNotFoundError(f"no comparison at {folder}; give a folder that holds comparison.json")
    values = read_json(path)
    if values is None or not isinstance(values.get("runs"), list):
        raise ValueError(f"{path} holds no comparison; make it again with resnet-acc compare")
    output = folder.absolute().parent.parent
    extra = _Extra(command=str(values.get("command") or ""))
    runs: list[Run] = []
    for entry in values["runs"]:
        run_dir = output / str(entry.get("run_dir")) if isinstance(entry, dict) else None
        if run_dir is not None and run_dir.is_dir():
            runs.append(load_run(run_dir))
        elif isinstance(entry, dict):
            runs.append(_lost(entry))
    for entry in values.get("skipped") or []:
        if isinstance(entry, dict):
            label = f"{entry.get('arm')}, {entry.get('nproc')} process{'es' if entry.get('nproc') != 1 else ''}"
            extra.skipped.append(
                {"label": label, "run": "", "status": "skipped", "reason": str(entry.get("reason")), "last_lines": ""}
            )
    return _write(runs, folder, f"Comparison {values.get('id') or folder.name}", extra)


def _lost(entry: dict[str, Any]) -> Run:
    """A run that the comparison names and that has no folder (any more)."""
    nproc = entry.get("nproc")
    status = str(entry.get("status") or "failed")
    reason = "its folder is missing" if entry.get("run_dir") else "it left no folder"
    return Run(
        run_id=Path(str(entry.get("run_dir") or "")).name,
        arm=str(entry.get("arm") or ""),
        world_size=nproc if isinstance(nproc, int) else None,
        status=RunStatus(
            status="failed" if status == "finished" else status, reason=str(entry.get("reason") or reason)
        ),
    )


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
    left_out = [_left_out_entry(run) for group in groups for run in group.left_out] + extra.skipped
    report = Report(folder / "report.html", figures, folder / "summary.csv")
    entries = [summary_entry(row) for row in rows]
    write_atomically(report.table, _encode(_csv(entries)))
    whole = {"schema": 1, "title": title, "rows": entries, "left_out": left_out, "interleaved": is_interleaved(runs)}
    write_atomically(folder / "summary.json", _encode(json.dumps(whole, indent=2, allow_nan=False) + "\n"))
    page = _page(runs, groups, rows, title, extra, left_out, pictures)
    write_atomically(report.html, _encode(page))
    return report


def _encode(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")  # a folder's name may hold bytes that are no text


def _page(
    runs: Sequence[Run],
    groups: Sequence[Group],
    rows: Sequence[Row],
    title: str,
    extra: _Extra,
    left_out: Sequence[dict[str, str]],
    pictures: Sequence[tuple[str, str]],
) -> str:
    from jinja2 import Environment

    template = Environment(autoescape=True, trim_blocks=True).from_string(PAGE)
    return template.render(
        title=title,
        summary=_summary_line(runs, rows, left_out),
        sections=verdict_sections(runs),
        columns=COLUMNS,
        rows=[_cells(row, _needs_tag(groups)) for row in rows],
        left_out=left_out,
        pictures=pictures,
        caption=caption(rows, groups),
        meanings=MEANINGS,
        command=extra.command,
        commands=[entry for run in runs if (entry := _command_entry(run))["command"]],
        environments=_environments(runs),
    )


def _summary_line(runs: Sequence[Run], rows: Sequence[Row], left_out: Sequence[dict[str, str]]) -> str:
    finished = sum(len(row.group.results) for row in rows)
    turns = {True: "the arms took turns (interleaved)", False: "not interleaved", None: "interleaving not on record"}
    return (
        f"{finished} finished runs of {len(rows)} arms and process counts, {len(left_out)} left out or skipped; "
        f"{sum(row.num_intervals for row in rows)} timed intervals; {turns[is_interleaved(runs)]}. "
        f"Written {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC."
    )


def _needs_tag(groups: Sequence[Group]) -> bool:
    return len({(group.model, group.tag) for group in groups}) > 1


def _cells(row: Row, with_tag: bool) -> list[str]:
    group = row.group
    name = group.arm or group.label
    break_even = []
    for baseline in BASELINES:
        ratio = row.ratios[baseline]
        shown = ratio.has_interval and not (ratio.low or 0.0) <= 1.0 <= (ratio.high or 0.0)
        steps = row.break_even[baseline]
        break_even.append(("" if shown or steps is None else "~") + steps_text(steps))
    return [
        f"{name} ({group.model}, {group.tag})" if with_tag else name,
        "n/a" if group.world_size is None else str(group.world_size),
        "n/a" if row.batch_size is None else str(row.batch_size),
        "n/a" if row.global_batch_size is None else str(row.global_batch_size),
        row.dtype,
        with_interval(row.rate),
        row.rate.basis,
        number(row.rate_per_rank),
        *(with_interval(row.ratios[baseline], 3) for baseline in BASELINES),
        number(None if row.step_time_s is None else row.step_time_s * 1e3, 2),
        number(row.startup_s),
        number(row.compile_s),
        " / ".join(break_even),
        number(row.peak_memory_gib, 2),
        number(row.acc1, 2),
        number(row.acc5, 2),
        "n/a" if row.mfu is None else f"{100 * row.mfu:.1f} %",
        row.status,
    ]


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


def _command_entry(run: Run) -> dict[str, str]:
    command = ""
    if run.run_dir is not None:
        try:
            command = (run.run_dir / "command.txt").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            command = ""
    return {"label": run.label, "run": run.run_id, "command": command}


def _environments(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Versions of each different environment, with the arms that ran in it."""
    found: dict[str, list[str]] = {}
    for run in runs:
        values = read_json(run.run_dir / "env.json") if run.run_dir is not None else None
        names = ("device_name", "torch_version", "torchvision_version", "torch_xla_version")
        told = {name: run.params[name] for name in names if run.params.get(name) is not None}
        text = json.dumps({**(values or {}), **told}, indent=1, ensure_ascii=False)
        if values or told:
            labels = found.setdefault(text, [])
            if run.label not in labels:
                labels.append(run.label)
    return [("; ".join(labels), text) for text, labels in found.items()]

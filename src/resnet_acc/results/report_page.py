"""The report's page: what stands in it, and what is left out where it would become too large to be mailed."""

import json
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from resnet_acc.plot import caption
from resnet_acc.results.measured import Run
from resnet_acc.results.status import read_json
from resnet_acc.results.summary import (
    BASELINES,
    Group,
    Row,
    is_interleaved,
    number,
    steps_text,
    with_interval,
)
from resnet_acc.results.template import MEANINGS, PAGE
from resnet_acc.results.verdict import verdict_sections

MAX_BYTES = 2_900_000
_LIMITS = ((10**9, 10**9, True), (300, 4_000, True), (60, 1_000, True), (60, 1_000, False), (10, 200, False))
"""Entries of one list, characters of one text, and whether figures are in the page: smaller ones are tried in turn."""

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


def page_of(
    runs: Sequence[Run],
    groups: Sequence[Group],
    rows: Sequence[Row],
    title: str,
    command: str,
    left_out: Sequence[dict[str, str]],
    pictures: Sequence[tuple[str, str]],
) -> str:
    """The page, below MAX_BYTES; what is left out of it for that is named in it, and stands in summary.json.

    Args:
        pictures: (name, PNG in base64) of each figure.
    """
    whole: dict[str, Any] = {
        "sections": verdict_sections(runs),
        "rows": [_cells(row, _needs_tag(groups)) for row in rows],
        "left_out": list(left_out),
        "caption": caption(rows, groups),
        "command": command,
        "commands": [entry for run in runs if (entry := _command_entry(run))["command"]],
        "environments": _environments(runs),
    }
    fixed = {"title": title, "summary": _summary_line(runs, rows, left_out), "columns": COLUMNS, "meanings": MEANINGS}
    page = ""
    for most, longest, with_pictures in _LIMITS:
        cuts: list[str] = []
        values = {name: _cut(name.replace("_", " "), value, most, longest, cuts) for name, value in whole.items()}
        if pictures and not with_pictures:
            cuts.append(f"{len(pictures)} figures, which lie in figures/ beside this page")
        shown = pictures if with_pictures else ()
        page = _render({**fixed, **values, "pictures": shown, "cuts": list(dict.fromkeys(cuts))})
        if len(page.encode("utf-8", errors="replace")) <= MAX_BYTES:
            break
    return page


def _render(values: dict[str, Any]) -> str:
    from jinja2 import Environment

    return Environment(autoescape=True, trim_blocks=True).from_string(PAGE).render(values)


def _cut(name: str, value: Any, most: int, longest: int, cuts: list[str]) -> Any:
    """The value with long lists and texts shortened; what was cut is added to `cuts`."""
    if isinstance(value, str):
        if len(value) <= longest:
            return value
        cuts.append(f"{name}: the middle of long texts")
        half = longest // 2
        return f"{value[:half]} [... {len(value) - 2 * half:,} characters ...] {value[-half:]}"
    if isinstance(value, dict):
        return {key: _cut(name, item, most, longest, cuts) for key, item in value.items()}
    if isinstance(value, list | tuple):
        # A row's own cells and a pair are no lists of entries.
        is_entries = isinstance(value, list) and not (value and name == "rows" and isinstance(value[0], str))
        if is_entries and len(value) > most:
            cuts.append(f"{name}: {len(value) - most:,} of {len(value):,} entries")
            value = value[:most]
        return type(value)(_cut(name, item, most, longest, cuts) for item in value)
    return value


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

"""Runs and comparisons as text, HTML and pictures, without widgets."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from resnet_acc.config import RunConfig
from resnet_acc.launch.live import Snapshot
from resnet_acc.launch.live_find import ListedRun
from resnet_acc.launch.live_ranks import read_config
from resnet_acc.panel.curves import DRAWING
from resnet_acc.plot import draw, image
from resnet_acc.results.measured import NOT_TIMED, Run, notes_of
from resnet_acc.results.runs import load_run
from resnet_acc.results.stats import loss_parity, rate_estimate, ratio_estimate
from resnet_acc.results.summary import Group, group_runs, number, with_interval
from resnet_acc.results.verdict import ratio_words

MOST_RUNS = 20
"""Rows of a table; older runs are named by their number."""
_STYLE = "border-collapse:collapse;font-size:0.9em"
_CELL = "border:1px solid #bbb;padding:0.2em 0.5em;text-align:left"
RUN_COLUMNS = ("run", "arm", "processes", "settings", "status", "steps", "images/s", "loss", "note")
RANK_COLUMNS = ("rank", "step", "images/s", "loss", "state")


@dataclass(frozen=True)
class Table:
    """Column names and rows of text."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""

    def to_html(self) -> str:
        """Whatever a cell holds stays text."""
        head = "".join(f'<th scope="col" style="{_CELL}">{html.escape(name)}</th>' for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f'<td style="{_CELL}">{html.escape(cell)}</td>' for cell in row) + "</tr>"
            for row in self.rows
        )
        caption = f"<caption>{html.escape(self.caption)}</caption>" if self.caption else ""
        return f'<table style="{_STYLE}">{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'

    def to_text(self) -> str:
        """Columns side by side."""
        lines = [self.columns, *self.rows]
        widths = [max(len(line[place]) for line in lines) for place in range(len(self.columns))]
        said = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
        ]
        return "\n".join([*([self.caption] if self.caption else []), *said])


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side: a table, sentences, and a picture as PNG."""

    table: Table
    lines: tuple[str, ...]
    picture: bytes

    def to_html(self) -> str:
        """Table and sentences."""
        items = "".join(f"<li>{html.escape(line)}</li>" for line in self.lines)
        return f"{self.table.to_html()}<ul>{items}</ul>"

    def to_text(self) -> str:
        """Table and sentences."""
        return "\n".join([self.table.to_text(), *(f"- {line}" for line in self.lines)])


def ranks_table(snapshot: Snapshot) -> Table:
    """Where every rank of a run stands."""
    rows = [
        (str(rank.rank), _of(rank.step, rank.total_steps), number(rank.images_per_s), _loss(rank.loss), rank.line)
        for rank in snapshot.ranks
    ]
    return Table(RANK_COLUMNS, tuple(rows))


def runs_table(listed: Sequence[ListedRun], folder: Path) -> tuple[Table, list[Run]]:
    """The newest runs as a table, and the same runs as they were read."""
    runs = [load_run(each.run_dir) for each in listed[:MOST_RUNS]]
    rows = [_run_row(each, run) for each, run in zip(listed, runs, strict=False)]
    older = f", and {len(listed) - MOST_RUNS} older ones" if len(listed) > MOST_RUNS else ""
    caption = f"{len(rows)} runs below {folder}{older}" if rows else f"no run below {folder} yet"
    return Table(RUN_COLUMNS, tuple(rows), caption), runs


def _run_row(listed: ListedRun, run: Run) -> tuple[str, ...]:
    total = run.params.get("total_steps")
    losses = run.finite_losses
    why = listed.status.reason or "; ".join(notes_of(run))
    return (
        listed.run_id,
        run.arm or listed.suffix,
        "n/a" if run.world_size is None else str(run.world_size),
        f"{listed.model} {listed.tag}",
        listed.state,
        _of(run.num_steps, total if isinstance(total, int) else None),
        f"{run.images_per_s:,.1f}" if run.images_per_s is not None else NOT_TIMED,
        _loss(losses[-1] if losses else None),
        why if len(why) <= 160 else f"{why[:157]}...",
    )


def runs_picture(runs: Sequence[Run], title: str) -> bytes | None:
    """All finished runs in one figure as PNG; None where there is none."""
    if not any(run.is_result for run in runs):
        return None
    with DRAWING:
        return image(draw(title, group_runs(runs)))


def compare_runs(first: Path, second: Path) -> Comparison:
    """Any two runs: their rates with confidence intervals, the ratio, their losses, and what else differs.

    Raises:
        ValueError: they are one and the same run.
        FileNotFoundError: a folder is gone.
    """
    if first.resolve() == second.resolve():
        raise ValueError(f"run {first.name} was chosen twice; choose two different ones")
    runs = [load_run(first), load_run(second)]
    names = [f"{run.label} ({run.run_id})" for run in runs]
    rows = [_compared_row(run) for run in runs]
    columns = ("run", "arm", "processes", "batch in all", "images/s [95 % CI]", "start-up s", "peak GiB", "status")
    lines = [f"{names[0]} against {names[1]}: {ratio_words(ratio_estimate([runs[0]], [runs[1]]))}."]
    lines.append(f"Losses: {_loss_words(runs[0], runs[1])}.")
    lines += [f"They differ in {line}." for line in differences(read_config(first), read_config(second))]
    lines.append(
        "One run each: how much runs differ from one to the next was not measured, and is in no interval here."
    )
    lines += [f"{name}: {run.why_not}." for name, run in zip(names, runs, strict=True) if not run.is_result]
    lines += [f"{name}: {note}." for name, run in zip(names, runs, strict=True) for note in notes_of(run)]
    groups = [Group(run.model, run.tag, "", run.world_size, name, [run]) for name, run in zip(names, runs, strict=True)]
    with DRAWING:
        picture = image(draw(f"{runs[0].run_id} and {runs[1].run_id}", groups))
    return Comparison(Table(columns, tuple(rows)), tuple(lines), picture)


def _compared_row(run: Run) -> tuple[str, ...]:
    return (
        run.run_id,
        run.arm or run.suffix,
        "n/a" if run.world_size is None else str(run.world_size),
        "n/a" if run.global_batch_size is None else str(run.global_batch_size),
        with_interval(rate_estimate([run])),
        number(run.startup_s),
        number(run.peak_memory_gib, 2),
        run.status.status,
    )


def _loss_words(run: Run, other: Run) -> str:
    parity = loss_parity(run, other)
    if parity.reason:
        return f"not compared, {parity.reason}"
    largest = "" if parity.largest is None else f", at most {parity.largest:.1e} apart (step {parity.largest_step})"
    if parity.parts_at is not None:
        return f"they part at step {parity.parts_at}, by more than {parity.tolerance:.0e}{largest}"
    return f"together within {parity.tolerance:.0e} in {parity.num_common} common records{largest}"


def differences(first: RunConfig, second: RunConfig) -> list[str]:
    """Fields of the configuration in which two runs differ, as "batch_size: 16 and 32"; where they lie is none."""
    ours, theirs = first.to_json(), second.to_json()
    return [
        f"{name}: {ours[name]} and {theirs[name]}"
        for name in ours
        if ours[name] != theirs[name] and name not in ("output", "master_port")
    ]


def _of(step: int, total: int | None) -> str:
    return f"{step:,}/{total:,}" if total else f"{step:,}"


def _loss(loss: float | None) -> str:
    return "n/a" if loss is None else f"{loss:.4f}"

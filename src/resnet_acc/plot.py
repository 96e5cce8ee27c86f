"""traverse finds the logs of all runs, plot draws them: the two functions of the article's last cell."""

import io
import re
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resnet_acc.files import write_atomically
from resnet_acc.log_parser import ParsedLog
from resnet_acc.results.attempts import rank_folders
from resnet_acc.results.measured import Run
from resnet_acc.results.runs import walk_runs
from resnet_acc.results.stats import loss_parity
from resnet_acc.results.summary import Group, Row, baseline_of, group_runs, summarise

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.labelsize": 10,
    "hatch.linewidth": 0.7,
    "svg.fonttype": "none",
    "svg.hashsalt": "resnet_acc",
    "figure.dpi": 100,
}


def traverse(path: str | Path, file_names: dict[str, Any]) -> None:
    """Fill file_names with {model: {tag: {suffix: {run_id: {rank: {"log": path}}}}}}, all keys and paths strings.

    Runs without a log of rank 0 and everything that is no run are passed over.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    for model, tag, suffix, run_id, run_dir in walk_runs(path):
        logs = {str(rank): run_dir / str(rank) / "log" for rank in rank_folders(run_dir)}
        ranks = {rank: {"log": str(log)} for rank, log in logs.items() if log.is_file()}
        if "0" in ranks:
            file_names.setdefault(model, {}).setdefault(tag, {}).setdefault(suffix, {})[run_id] = ranks


def plot(title: str, label: Sequence[str], api_data: Sequence[Run]) -> "Figure":
    """Draw throughput, step time, loss and memory (and scaling, where there are several process counts).

    Writes `<output>/figures/<title>.png` and `.svg`, where <output> is the folder the runs lie in, and shows the
    figure once in a notebook. Runs that did not finish are named in the note below and are not drawn.

    Args:
        title: heading, and name of the files.
        label: names of the suffixes, as the article's cell collects them. Runs know their own; a run that does not
            takes its place's label where there is one per run.
        api_data: what parse_file or results.runs.load_run gave, one per run.

    Raises:
        OSError: the figures folder cannot be written.
    """
    labels = list(label) if len(label) == len(api_data) else None
    groups = group_runs(api_data, labels)
    figure = draw(title, groups)
    folder = _figures_folder(title, api_data)
    if folder is not None:
        save(figure, folder, title)
    _show(figure)
    return figure


def draw(title: str, groups: Sequence[Group]) -> "Figure":
    """One figure of all panels."""
    from resnet_acc.results import figures

    rows = summarise(groups)
    scaling = bool(figures.scaling_series(rows))
    with _style():
        height = max(2.6, 0.62 * len(rows) + 1.3)
        figure = _new_figure(15.0 if scaling else 13.0, height + 4.6)
        grid = figure.add_gridspec(2, 6, height_ratios=[height, 4.0])
        figures.draw_throughput(figure.add_subplot(grid[0, :4]), rows)
        beside = figure.add_subplot(grid[0, 4:])
        figures.draw_memory(beside, rows)
        beside.tick_params(axis="y", labelleft=False)  # the same bars as to the left
        width = 2 if scaling else 3
        figures.draw_step_time(figure.add_subplot(grid[1, :width]), groups)
        figures.draw_loss(figure.add_subplot(grid[1, width : 2 * width]), groups)
        if scaling:
            figures.draw_scaling(figure.add_subplot(grid[1, 4:]), rows)
        figure.suptitle(figures.plain(title, 100), fontsize=15, fontweight="bold")
        _add_note(figure, caption(rows, groups))
    return figure


def draw_panels(groups: Sequence[Group]) -> dict[str, "Figure"]:
    """Each panel as a figure of its own, by the name of its file."""
    from resnet_acc.results import figures

    rows = summarise(groups)
    height = max(2.4, 0.62 * len(rows) + 1.2)
    panels: dict[str, tuple[float, Any]] = {
        "throughput": (height, lambda ax: figures.draw_throughput(ax, rows)),
        "step_time": (4.2, lambda ax: figures.draw_step_time(ax, groups)),
        "loss": (4.2, lambda ax: figures.draw_loss(ax, groups)),
        "memory": (height, lambda ax: figures.draw_memory(ax, rows)),
    }
    if figures.scaling_series(rows):
        panels["scaling"] = (4.2, lambda ax: figures.draw_scaling(ax, rows))
    drawn = {}
    with _style():
        for name, (panel_height, panel) in panels.items():
            figure = _new_figure(8.0, panel_height)
            panel(figure.add_subplot())
            if name == "throughput":
                _add_note(figure, "\n".join(_setting_lines(rows)))
            elif name == "loss":
                _add_note(figure, parity_note(groups))
            drawn[name] = figure
    return drawn


def caption(rows: Sequence[Row], groups: Sequence[Group]) -> str:
    """Batch per process and in all, precision, how much was measured, where losses part, and what is not shown."""
    lines = _setting_lines(rows)
    parity = parity_note(groups)
    if parity:
        lines.append("Losses: " + "; ".join(parity.split("\n")) + ".")
    for row in rows:
        lines += [f"{row.group.label}: {note}" for note in row.notes]
    for group in groups:
        lines += [f"Not shown: {group.label}, run {run.run_id}: {run.why_not}" for run in group.left_out]
    return "\n".join(lines) if lines else "No runs."


def _setting_lines(rows: Sequence[Row]) -> list[str]:
    batches = sorted({(r.group.world_size or 0, r.batch_size or 0, r.global_batch_size or 0) for r in rows})
    texts = [
        f"{batch} images per process, {whole} in all on {num} process{'es' if num > 1 else ''}"
        for num, batch, whole in batches
        if num and batch
    ]
    lines = ["Batch: " + "; ".join(texts) + "."] if texts else []
    dtypes = sorted({row.dtype for row in rows} - {"n/a"})
    devices = sorted({str(row.group.params["device_name"]) for row in rows if row.group.params.get("device_name")})
    if dtypes or devices:
        lines.append(f"Device: {', '.join(devices) or 'n/a'}; precision: {', '.join(dtypes) or 'n/a'}.")
    measured: dict[str, list[str]] = {}
    for row in rows:
        runs = len(row.group.results)
        text = f"{runs} run{'s' if runs > 1 else ''}, {row.num_intervals} intervals, {row.num_steps} steps"
        measured.setdefault(text, []).append(row.group.label)
    lines += [f"Timed: {text} of {'; '.join(names)}." for text, names in measured.items()]
    if rows:
        lines.append("~: the confidence interval of the ratio contains 1; ?: the ratio has no confidence interval.")
    return lines


def parity_note(groups: Sequence[Group]) -> str:
    """Where the loss curves part from eager's (else from kernel's), in a line per arm."""
    lines = []
    for group in groups:
        base = baseline_of(group, groups, "eager") or baseline_of(group, groups, "kernel")
        if base is None or base is group or not group.results:
            continue
        parity = loss_parity(group.results[0], base.results[0])
        if parity.reason:
            continue
        if parity.parts_at is not None:
            lines.append(f"{group.label}: parts from {base.arm} at step {parity.parts_at} (> {parity.tolerance:.0e})")
        elif parity.largest is not None:
            lines.append(f"{group.label}: within {parity.largest:.1e} of {base.arm}")
    return "\n".join(lines)


def save(figure: "Figure", folder: Path, title: str) -> list[Path]:
    """Write <folder>/<title>.png and .svg whole, and return both paths."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^\w.=+-]+", "_", title, flags=re.ASCII).strip("._")[:100] or "figure"
    paths = []
    with _style():
        for kind in ("png", "svg"):
            path = folder / f"{name}.{kind}"
            write_atomically(path, image(figure, kind))
            paths.append(path)
    return paths


def image(figure: "Figure", kind: str = "png") -> bytes:
    """The figure as a file's content."""
    stream = io.BytesIO()
    figure.savefig(stream, format=kind, dpi=150, bbox_inches="tight", pad_inches=0.15)
    return stream.getvalue()


def _style() -> Any:
    import contextlib

    import matplotlib
    import seaborn as sns

    stack = contextlib.ExitStack()
    stack.enter_context(sns.axes_style("whitegrid"))
    stack.enter_context(matplotlib.rc_context(STYLE))
    return stack


def _new_figure(width: float, height: float) -> "Figure":
    """A figure that pyplot does not know: nothing shows it a second time, and no window system is needed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from resnet_acc.results.notebook_figure import NotebookFigure

    figure = NotebookFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _add_note(figure: "Figure", text: str) -> None:
    from resnet_acc.results.figures import plain

    width = int(figure.get_figwidth() * 13)
    lines = [part for line in text.split("\n") for part in textwrap.wrap(line, width, subsequent_indent="    ")]
    if len(lines) > 24:
        lines = [*lines[:23], f"... and {len(lines) - 23} lines more in the report"]
    drawable = "\n".join(plain(line, 400) for line in lines)
    note = figure.text(0.01, -0.01, drawable, ha="left", va="top", fontsize=9, color="0.2", linespacing=1.35)
    note.set_in_layout(True)


def _figures_folder(title: str, data: Sequence[Run]) -> Path | None:
    """<output>/figures of the tree the runs lie in, else beside the first run."""
    for run in data:
        if run.output is not None:
            return run.output / "figures"
    for run in data:
        folder = run.run_dir or (run.path.absolute().parent if isinstance(run, ParsedLog) else None)
        if folder is None:
            continue
        above = folder.parents
        # Suffixes of another making: the title tells that the folders above are <model>/<tag>.
        if len(above) > 3 and title == f"{above[2].name}_{above[1].name}":
            return above[3] / "figures"
        return folder / "figures"
    return None


def _show(figure: Any) -> None:
    """Show the figure in the notebook cell that runs, if one does."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_ipython() if get_ipython is not None else None
    if shell is not None and getattr(shell, "kernel", None) is not None:
        figure.show_once(shell, image(figure))

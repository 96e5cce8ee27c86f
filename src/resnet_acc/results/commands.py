"""What `resnet-acc report` and `resnet-acc export` do, from the words of a command line to the lines they say."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from resnet_acc.files import project_root
from resnet_acc.results.export import FORMATS, export
from resnet_acc.results.report import Report, write_comparison, write_selection
from resnet_acc.results.selection import Selection, select


def write_reports(given: Sequence[str], output: str, to: Path | None, title: str) -> Iterator[str]:
    """Write the reports and say where they lie, and what stands in none of their rows.

    Args:
        given: see selection.select.
        to: folder for one report of everything; None: a comparison's in its own folder, the others' in reports/ of
            their output folder.

    Raises:
        ValueError: nothing was found, or something of it cannot be read.
    """
    chosen = select(given, output)
    if to is not None:
        yield from _told(write_selection(chosen, to, title))
        return
    for comparison in chosen.comparisons:
        yield from _told(write_comparison(comparison.folder))
    rest = Selection(chosen.folders, [], chosen.left_out)
    if rest.folders:
        yield from _told(write_selection(rest, _beside(rest.folders[0]) / "reports", title))
    else:
        for one in rest.left_out:
            yield _line(one.label, one.status, one.reason)


def write_export(given: Sequence[str], output: str, to: Path | None, kind: str, *, overwrite: bool) -> Iterator[str]:
    """Export the runs that are chosen and say what is where, and which of them are no results.

    Raises:
        ValueError: something about the options, nothing was found, or the folder holds an export already.
        OSError: the folder cannot be written.
    """
    if kind not in FORMATS:
        raise ValueError(f"format is {kind!r}; choose one of {', '.join(FORMATS)}")
    if to is None:
        raise ValueError("no folder to write to; give one with --to")
    chosen = select(given, output)
    runs = chosen.all_runs()
    done = export(runs, kind, Path(to).expanduser(), overwrite=overwrite)
    for path in done.paths:
        yield f"written: {path}"
    yield f"{done.words} {to}" if kind == "tensorboard" else done.words
    for run in runs:
        if not run.is_result:
            told = f"marked as no result: {run.label}, run {run.run_id}: {run.why_not}"
            yield " ".join(told.split())
    for one in chosen.all_left_out():
        yield _line(one.label, one.status, one.reason)


def _beside(run_dir: Path) -> Path:
    """The output folder of <output>/<model>/<tag>/<suffix>/<run>."""
    return run_dir.parents[3] if len(run_dir.parents) > 4 else project_root() / "output"


def _told(report: Report) -> Iterator[str]:
    yield f"report: {report.html}"
    for figure in report.figures:
        yield f"figure: {figure}"
    for entry in report.left_out:
        name = f"{entry['label']}, run {entry['run']}" if entry["run"] else entry["label"]
        yield _line(name, entry["status"], entry["reason"])


def _line(label: str, status: str, reason: str) -> str:
    return " ".join(f"not in the results: {label} ({status}): {reason}".split())

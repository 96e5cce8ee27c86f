"""resnet-acc launch | compare | plot | report | export | notebooks | data | doctor"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from resnet_acc import launch_single_task
from resnet_acc.config import ARMS
from resnet_acc.datasets.cli import data_app
from resnet_acc.files import project_root
from resnet_acc.launch import compare as comparing
from resnet_acc.launch import doctor as examination
from resnet_acc.launch.options import OptionError, build_parser, parse
from resnet_acc.notebooks.cli import notebooks_app

app = typer.Typer(
    help="How much a compiler speeds up ResNet-50 training, measured on this machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(data_app, name="data")
app.add_typer(notebooks_app, name="notebooks")

# All arguments go to the parser of launch_single_task, --help included: one place knows the options of a run.
_FORWARD: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
Paths = Annotated[list[Path] | None, typer.Argument(help="output folder, or runs' folders (none: the default output)")]

Chosen = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN]...",
        help="a run's folder or id, a comparison's, an output folder or one within it, or a pattern (none: --output)",
        show_default=False,
    ),
]
Output = Annotated[str, typer.Option(help="folder below which ids are looked for")]


def main() -> None:
    """Entry point of resnet-acc and of python -m resnet_acc."""
    app(prog_name="resnet-acc")


@app.command(context_settings=_FORWARD, add_help_option=False)
def launch(context: typer.Context) -> None:
    """Train by one arm (options: resnet-acc launch --help)."""
    launch_single_task.exit_quietly(launch_single_task.main(context.args, "resnet-acc launch"))


@app.command(context_settings=_FORWARD, add_help_option=False)
def compare(context: typer.Context) -> None:
    """Train by several arms by turns, and write one comparison (options: resnet-acc compare --help)."""
    launch_single_task.exit_quietly(launch_single_task.run_command(lambda: _compare(context.args)))


def compare_parser() -> argparse.ArgumentParser:
    """The options of a run and those of a comparison."""
    parser = build_parser("resnet-acc compare", "Train by several arms by turns (A B C, C B A, ...) and compare them.")
    group = parser.add_argument_group("comparison")
    group.add_argument("--arms", metavar="ARM,...", help=f"arms to compare (default: {','.join(ARMS)})")
    group.add_argument("--nproc", metavar="INT,...", help="numbers of processes to compare (default: --nproc_per_node)")
    group.add_argument("--repeats", metavar="INT", help="runs of each arm on each number of processes (default: 3)")
    return parser


def _compare(arguments: Sequence[str]) -> int:
    options = parse(compare_parser(), arguments)
    for name in ("compiler_opt", "kernel_opt", "compiler"):
        if name in options.given:
            raise OptionError(f"--{name} chooses one arm, and a comparison has several; use --arms")
    arms = _parts(options.extra.get("arms", ",".join(ARMS)))
    nprocs = [_whole("nproc", text) for text in _parts(options.extra.get("nproc", str(options.config.nproc_per_node)))]
    repeats = _whole("repeats", options.extra.get("repeats", "3"))
    if options.extra.get("print_config"):
        shown = {"arms": arms, "nproc": nprocs, "repeats": repeats, "config": options.config.to_json()}
        print(json.dumps(shown, indent=2))
        return 0
    folder = comparing.compare(options.config, arms, nprocs, repeats, echo=launch_single_task.say)
    written = _write_comparison(folder)
    status = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))["status"]
    if status != "finished":
        print(f"error: not every run finished; see {folder / 'comparison.json'}", file=sys.stderr)
    return 0 if written and status == "finished" else 1


def _write_comparison(folder: Path) -> bool:
    """Write the report; the measurements stand whatever becomes of it."""
    try:
        from resnet_acc.results.report import write_comparison

        _print_report(write_comparison(folder))
        return True
    except Exception as error:
        print(f"error: the report of {folder} could not be written: {type(error).__name__}: {error}", file=sys.stderr)
        return False


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _whole(name: str, text: str) -> int:
    if not (text.isascii() and text.lstrip("+-").isdigit() and len(text) < 10):
        raise OptionError(f"{name} is {text!r}; give a whole number")
    return int(text)


@app.command()
def report(
    given: Chosen = None,
    to: Annotated[Path | None, typer.Option(help="folder for one report (none: reports/ beside the runs)")] = None,
    title: Annotated[str, typer.Option(help="title of the report")] = "ResNet training",
    output: Output = "output",
) -> None:
    """Write an HTML report, a table and figures of any set of runs.

    A comparison that is given without --to gets its report in its own folder.
    """

    def write() -> int:
        from resnet_acc.results.commands import write_reports

        for line in write_reports(given or [], output, to, title):
            print(line)
        return 0

    launch_single_task.exit_quietly(launch_single_task.run_command(write))


@app.command()
def export(
    given: Chosen = None,
    to: Annotated[Path | None, typer.Option(metavar="FOLDER", help="where to write it (must be given)")] = None,
    kind: Annotated[str, typer.Option("--format", metavar="FORMAT", help="csv, parquet or tensorboard")] = "csv",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="replace what an earlier export left there")] = False,
    output: Output = "output",
) -> None:
    """Write runs as tables (csv, parquet) or as TensorBoard's event files.

    Tables: runs (one row each), steps (a row for each step record of each rank) and validations. What did not finish is
    in it too: see the columns status and is_result. TensorBoard: a folder for each rank of each run.
    """

    def write() -> int:
        from resnet_acc.results.commands import write_export

        for line in write_export(given or [], output, to, kind, overwrite=overwrite):
            print(line)
        return 0

    launch_single_task.exit_quietly(launch_single_task.run_command(write))


@app.command()
def plot(paths: Paths = None) -> None:
    """Draw the throughput of all runs below an output folder, one figure for each model and tag."""

    def draw() -> int:
        from resnet_acc.log_parser import parse_file
        from resnet_acc.plot import plot as draw_figure
        from resnet_acc.plot import traverse

        for path in _paths(paths):
            file_names: dict[str, Any] = {}
            traverse(str(path), file_names)
            if not file_names:
                raise ValueError(f"{path} holds no runs; give the output folder of resnet-acc launch")
            for model, tags in file_names.items():
                for tag, suffixes in tags.items():
                    runs = [(suffix, ranks["0"]["log"]) for suffix, ids in suffixes.items() for ranks in ids.values()]
                    draw_figure(f"{model}_{tag}", [label for label, _ in runs], [parse_file(log) for _, log in runs])
                    print(path / "figures" / f"{model}_{tag}.png")
        return 0

    launch_single_task.exit_quietly(launch_single_task.run_command(draw))


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False) -> None:
    """Say what this machine has, and for each arm whether it can run here and if not why."""

    def examine() -> int:
        found = examination.examine()
        print(json.dumps(found, indent=2) if as_json else "\n".join(examination.page(found)))
        return examination.exit_status(found)

    launch_single_task.exit_quietly(launch_single_task.run_command(examine))


def _paths(paths: list[Path] | None) -> list[Path]:
    given = paths or [project_root() / "output"]
    for path in given:
        if not path.is_dir():
            raise ValueError(f"{path} is no folder; give an output folder or a run's folder")
    return [path.resolve() for path in given]


def _print_report(written: Any) -> None:
    print(f"report: {written.html}")
    for figure in written.figures:
        print(f"figure: {figure}")


if __name__ == "__main__":
    main()

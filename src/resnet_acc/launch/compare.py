"""Several arms, run by turns on one machine, as one comparison."""

import dataclasses
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resnet_acc.config import ARMS, RunConfig
from resnet_acc.files import write_json
from resnet_acc.launch import preflight
from resnet_acc.launch.folder import make_folder
from resnet_acc.launch.preflight import Preflight
from resnet_acc.launch.supervisor import Echo, RunFailed, RunInterrupted, launch, signals_collected

COMPARISON_LINE = "comparison: "
"""How the first line of a comparison on the screen begins."""


@dataclass(frozen=True)
class Cell:
    """One arm on a number of processes, checked."""

    config: RunConfig
    checked: Preflight


def interleaved(cells: Sequence[Any], repeats: int) -> list[tuple[int, Any]]:
    """(repeat, cell) in the order A B C, C B A, A B C: a drift of the machine then falls on all cells alike."""
    return [(repeat, cell) for repeat in range(repeats) for cell in (cells if repeat % 2 == 0 else cells[::-1])]


def compare(
    config: RunConfig,
    arms: Sequence[str],
    nprocs: Sequence[int],
    repeats: int,
    *,
    echo: Echo = print,
    trainer: str | None = None,
    environment: dict[str, Any] | None = None,
) -> Path:
    """Run every arm on every number of processes, repeatedly, and return the comparison's folder.

    A failed run does not stop the others; an arm that cannot run stands in comparison.json under "skipped" with the
    reason. The file is written whole after every run.

    Raises:
        ValueError: an unknown arm, a number below 1, or nothing that could run.
        RunInterrupted: stopped from outside; comparison.json says so.
    """
    config = preflight.resolve(config)
    _check_arguments(arms, nprocs, repeats)
    if config.resume != "no":
        raise ValueError(f"resume is {config.resume!r}, but a comparison's runs all begin anew; leave it out")
    if environment is None:
        environment = preflight.probe(quick="torchacc" not in arms)
    cells, skipped = _check_cells(config, arms, nprocs, environment, echo)
    folder = _make_comparison_folder(config)
    comparison: dict[str, Any] = {
        "schema": 1,
        "id": folder.name,
        "created_at": time.time(),
        "command": shlex.join(comparison_command(config, arms, nprocs, repeats)),
        "arms": list(arms),
        "nproc": list(nprocs),
        "repeats": repeats,
        "status": "running",
        "runs": [],
        "skipped": skipped,
    }
    echo(f"{COMPARISON_LINE}{folder}")

    def start(cell: Cell) -> Path:
        return launch(cell.config, echo=echo, environment=environment, checked=cell.checked, trainer=trainer)

    try:
        _write(folder, comparison)
        order = interleaved(cells, repeats)
        for number, (repeat, cell) in enumerate(order, start=1):
            echo(f"run {number} of {len(order)}: {cell.config.suffix}, repeat {repeat + 1} of {repeats}")
            _run(cell, repeat, comparison["runs"], start, echo)
            _write(folder, comparison)
    except BaseException as error:
        comparison["status"] = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        with signals_collected():  # a second interrupt must not leave it "running"
            _write(folder, comparison)
        raise
    comparison["status"] = "finished" if all(run["status"] == "finished" for run in comparison["runs"]) else "failed"
    _write(folder, comparison)
    return folder


def comparison_command(config: RunConfig, arms: Sequence[str], nprocs: Sequence[int], repeats: int) -> list[str]:
    """A command that does the same comparison again from any folder."""
    plain = dataclasses.replace(config, compiler_opt=False, kernel_opt=False, compiler="torchacc", nproc_per_node=1)
    return [
        *(sys.executable, "-m", "resnet_acc", "compare"),
        *(f"--arms={','.join(arms)}", f"--nproc={','.join(map(str, nprocs))}", f"--repeats={repeats}"),
        *plain.to_arguments(),
    ]


def _check_arguments(arms: Sequence[str], nprocs: Sequence[int], repeats: int) -> None:
    for arm in arms:
        if arm not in ARMS:
            raise ValueError(f"arm is {arm!r}; choose among {', '.join(ARMS)}")
    if not arms or len(set(arms)) < len(arms):
        raise ValueError(f"arms is {','.join(arms)!r}; give each arm once")
    if not nprocs or any(nproc < 1 for nproc in nprocs) or len(set(nprocs)) < len(nprocs):
        raise ValueError(f"nproc is {','.join(map(str, nprocs))!r}; give each number of processes once, from 1 on")
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}; give at least 1")


def _check_cells(
    config: RunConfig, arms: Sequence[str], nprocs: Sequence[int], environment: dict[str, Any], echo: Echo
) -> tuple[list[Cell], list[dict[str, Any]]]:
    cells, skipped = [], []
    for nproc in nprocs:
        for arm in arms:
            cell = config.with_arm(arm, nproc)
            try:
                cells.append(Cell(cell, preflight.check(cell, environment)))
            except ValueError as error:
                skipped.append({"arm": arm, "nproc": nproc, "reason": str(error)})
    if not cells:
        raise ValueError(skipped[0]["reason"])
    for entry in skipped:
        echo(f"skipped: {entry['arm']} on {entry['nproc']} processes: {entry['reason']}")
    return cells, skipped


def _make_comparison_folder(config: RunConfig) -> Path:
    try:
        return make_folder(Path(config.output) / "comparisons")
    except OSError as error:
        raise ValueError(f"output {config.output} cannot be written ({error}); give another --output") from None


def _run(cell: Cell, repeat: int, runs: list[dict[str, Any]], start: Callable[[Cell], Path], echo: Echo) -> None:
    """Run once and note what became of it, also where that is an interrupt, which goes on up."""
    output = Path(cell.config.output)
    entry = {"arm": cell.config.arm, "nproc": cell.config.nproc_per_node, "repeat": repeat}
    try:
        run_dir = start(cell)
    except RunFailed as error:
        if error.run_dir is None:
            raise
        echo(f"error: {error}; see {error.run_dir}")
        runs.append(entry | {"run_dir": str(error.run_dir.relative_to(output)), "status": "failed"})
    except RunInterrupted as interrupt:
        if interrupt.run_dir is not None:
            runs.append(entry | {"run_dir": str(interrupt.run_dir.relative_to(output)), "status": "interrupted"})
        raise
    else:
        runs.append(entry | {"run_dir": str(run_dir.relative_to(output)), "status": "finished"})


def _write(folder: Path, comparison: dict[str, Any]) -> None:
    write_json(folder / "comparison.json", comparison)

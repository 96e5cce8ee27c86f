"""Every set's parameters checked before the first one runs: by what the notebook declares, then by its own cell."""

import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from resnet_acc.launch import processes
from resnet_acc.launch.parameters import refuse_undeclared
from resnet_acc.notebooks.found import Notebook
from resnet_acc.notebooks.kernel import kernel_environment
from resnet_acc.notebooks.sweep import ParameterSet, Sweep

CHECK_SECONDS = 300.0
"""For all sets together: the cell imports the package once, and builds a configuration for each."""

Echo = Callable[[str], None]


def check_types(sweep: Sweep, echo: Echo) -> Sweep:
    """The sweep with every value as the notebook takes it (64.0 as 64).

    Args:
        echo: takes a line for each value that is refused, where there are several.

    Raises:
        ValueError: a set has a name that nothing reads, or a value of another type than the notebook declares.
    """
    sets, refusals = [], []
    for one in sweep.sets:
        values, said = _checked_set(sweep.notebook, one)
        sets.append(dataclasses.replace(one, parameters=values))
        refusals += [(one.name, line) for line in said]
    _refuse(refusals, len(sets), echo)
    return dataclasses.replace(sweep, sets=sets)


def check_values(sweep: Sweep, environment: dict[str, Any], echo: Echo) -> None:
    """Ask the notebook's own cell, the one behind the parameters, about every set.

    Args:
        environment: what preflight.probe said.

    Raises:
        ValueError: it refuses a value, such as an arm that there is not.
    """
    answers = _ask_notebook(sweep.notebook, sweep.sets, environment)
    refusals = [(one.name, said) for one, said in zip(sweep.sets, answers, strict=True) if said]
    _refuse(refusals, len(sweep.sets), echo)


def _checked_set(notebook: Notebook, one: ParameterSet) -> tuple[dict[str, Any], list[str]]:
    """The values, and a line for each that is refused."""
    if one.parameters and notebook.parameters_cell is None:
        names = ", ".join(one.parameters)
        return {}, [f"{notebook.path} has no cell tagged parameters, so nothing would read {names}"]
    declared = {parameter.name: parameter for parameter in notebook.parameters}
    values, said = {}, []
    for name, value in one.parameters.items():
        try:
            refuse_undeclared(name, list(declared))
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"parameter {name} is {value}; give a finite number")
            values[name] = declared[name].check(value)
        except ValueError as error:
            # Where a text is declared papermill's own mend is -r; in a YAML file and behind -p it is quotes, or none.
            said.append(str(error).partition(" (papermill: -r")[0].partition(" (papermill: -p")[0])
            if name in declared and str in (declared[name].kinds or ()) and not isinstance(value, str | list | dict):
                said[-1] += f" (in a YAML file, quoted: {name}: '{value}')"
    return values, said


def _refuse(refusals: Sequence[tuple[str, str]], num_sets: int, echo: Echo) -> None:
    if not refusals:
        return
    by_line: dict[str, list[str]] = {}
    for name, line in refusals:
        by_line.setdefault(line, []).append(name)
    lines = []
    for line, names in by_line.items():
        of = "" if num_sets == 1 else "all sets: " if len(names) == num_sets else f"set {', '.join(names)}: "
        lines.append(f"{of}{line}")
    if len(lines) > 1:
        for line in lines:
            echo(f"refused: {line}")
    more = f" (and {len(lines) - 1} more, see above)" if len(lines) > 1 else ""
    raise ValueError(f"nothing was run: {lines[0]}{more}")


def _ask_notebook(notebook: Notebook, sets: Sequence[ParameterSet], environment: dict[str, Any]) -> list[str | None]:
    """What the notebook's own cell says against each set: it is run for all of them in one process.

    Where the cell cannot be run outside a notebook, nothing is said: the notebook itself will say it.
    """
    if notebook.check_cell is None:
        return [None] * len(sets)
    with tempfile.TemporaryDirectory(prefix="resnet-acc-check-") as scratch:
        answer = Path(scratch) / "answer.json"
        request = {
            "parameters_cell": notebook.parameters_cell,
            "check_cell": notebook.check_cell,
            "sets": [one.parameters for one in sets],
            "environment": environment,
            "answer": str(answer),
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "resnet_acc.notebooks.check_cell"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=notebook.path.parent,
            env=kernel_environment(Path(scratch)),
            start_new_session=True,
            preexec_fn=processes.die_with_parent(signal.SIGKILL),
        )
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(json.dumps(request), timeout=CHECK_SECONDS)
        finally:
            _end_group(process)
        try:
            answers = json.loads(answer.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return [None] * len(sets)
    return [None if answer is None else str(answer) for answer in answers]


def _end_group(process: "subprocess.Popen[str]") -> None:
    """End the process and what it started, however the wait for it ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()

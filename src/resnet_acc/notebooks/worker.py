"""Runs one notebook with one parameter set: python -m resnet_acc.notebooks.worker TASK.json

A process of its own, so that whatever a notebook does to it stays with it. SIGTERM, which it also gets when the batch
is killed, stops the notebook: the running cell is interrupted, the kernel ends, and what was done is kept.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from resnet_acc.files import write_atomically, write_json
from resnet_acc.notebooks import leftovers
from resnet_acc.notebooks.kernel import BATCH_VARIABLE, KERNEL

START_SECONDS = 180
"""A kernel starts in seconds, but in minutes where many are started at once on few cores."""
START_ATTEMPTS = 3
"""Kernels that start at the same moment may choose the same free port; the one that loses never answers."""

_SCHEME = "resnet-acc-batch:"


@dataclass(frozen=True)
class Task:
    """What a worker is told. `notebook`, `executed` and `result` are paths of files."""

    notebook: str
    executed: str
    result: str
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Failure:
    """Where and why a notebook failed; `cell` counts its code cells as they were run, as in "In [3]"."""

    kind: str
    message: str
    cell: int | None = None
    traceback: str = ""


class Stopped(BaseException):
    """SIGTERM came."""


class _WholeFiles:
    """papermill's way to write a notebook, replaced: after every cell the file is whole, old or new."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, path: str) -> str:
        """The file's text."""
        return self._path.read_text(encoding="utf-8")

    def write(self, text: str, path: str) -> None:
        """Replace the file."""
        write_atomically(self._path, text)

    def pretty_path(self, path: str) -> str:
        """How papermill names the file."""
        return str(self._path)


def main() -> None:
    """Run the task that the file says, and leave its result: {"failure": ..., "stopped": ...}."""
    signal.signal(signal.SIGTERM, _stop)
    batch = os.getppid()
    values = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    task = Task(**values)
    result: dict[str, Any] = {"failure": None, "stopped": False}
    try:
        failure = execute(task)
        result["failure"] = asdict(failure) if failure else None
    except Stopped:
        result["stopped"] = True
        if os.getppid() != batch and BATCH_VARIABLE in os.environ:  # the batch is gone, which would have done this
            leftovers.end([os.environ[BATCH_VARIABLE]])
            return  # the folder for the result may be gone as well
    write_json(Path(task.result), result)


def _stop(number: int, frame: FrameType | None) -> None:
    """Interrupt the running cell, as the button in Jupyter does, and let nbclient end the kernel."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for child in psutil.Process().children():
        child.send_signal(signal.SIGINT)
    raise Stopped


def execute(task: Task) -> Failure | None:
    """Run the notebook and write it, outputs and all, after every cell. None where it came to its end."""
    import nbformat
    import papermill
    from papermill.iorw import papermill_io

    # Under a name of its own, for papermill takes braces in a path for places of parameters.
    papermill_io.register(_SCHEME, _WholeFiles(Path(task.executed)))
    with open(task.notebook, encoding="utf-8") as stream:
        content = nbformat.read(stream, as_version=4)

    def run() -> None:
        papermill.execute_notebook(
            content,
            f"{_SCHEME}executed.ipynb",
            task.parameters,
            kernel_name=KERNEL,
            language="python",
            progress_bar=False,
            start_timeout=START_SECONDS,
            cwd=str(Path(task.notebook).parent),
        )

    try:
        _with_new_attempts(run)
    except papermill.PapermillExecutionError as error:
        return Failure(error.ename, error.evalue, error.exec_count, "\n".join(error.traceback))
    except Exception as error:  # the kernel died, or could not be started
        return Failure(type(error).__name__, str(error).strip() or "no message", _mark_pending(Path(task.executed)))
    except Stopped:
        _mark_pending(Path(task.executed))
        raise
    return None


def _mark_pending(executed: Path) -> int | None:
    """Cells that were never begun, which papermill calls completed where it is broken off, become pending again.

    Returns:
        Number, from 1, of the code cell that was begun last.
    """
    try:
        content = json.loads(executed.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    last, number = None, 0
    for cell in content["cells"]:
        told = cell["metadata"].get("papermill", {})
        number += cell["cell_type"] == "code"
        if told.get("start_time") is None:
            told["status"] = "pending"
        elif cell["cell_type"] == "code":
            last = number
    write_atomically(executed, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return last


def _with_new_attempts(run: Callable[[], None]) -> None:
    """Run again where the kernel died before it ran anything."""
    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            return run()
        except RuntimeError as error:
            if attempt == START_ATTEMPTS or "Kernel died before replying" not in str(error):
                raise
            time.sleep(attempt)


if __name__ == "__main__":
    main()

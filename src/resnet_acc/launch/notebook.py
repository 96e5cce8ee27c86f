"""A run from a notebook's cell: the shell command is shown, and exactly it is run, never in the kernel itself."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from resnet_acc.config import RunConfig
from resnet_acc.launch import preflight, processes
from resnet_acc.launch.supervisor import RUN_FOLDER_LINE, RunFailed

STOP_SECONDS = 20.0
"""How long a launcher that was told to stop gets before it is killed; its ranks then die with it."""


def launch_cell(config: RunConfig) -> Path:
    """Run a configuration from a cell and return the run's folder.

    Raises:
        RunFailed: the run failed, or was refused before it started (then without a folder).
        KeyboardInterrupt: the cell was interrupted; the run has ended.
    """
    folder, last_line, status = relay(run_arguments(config))
    if status == 0 and folder is not None:
        return folder
    raise RunFailed(_read_status(folder) or {"status": "failed", "reason": last_line.removeprefix("error: ")}, folder)


def run_arguments(config: RunConfig) -> list[str]:
    """What follows python in the command of a run, which means the same from any folder."""
    return ["-m", "resnet_acc.launch_single_task", *anywhere(config).to_arguments()]


def anywhere(config: RunConfig) -> RunConfig:
    """The same run with absolute folders; the default output folder stays unsaid, which is the same from any folder."""
    resolved = preflight.resolve(config)
    kept = config.output == RunConfig.output
    return RunConfig.from_json(resolved.to_json() | {"output": config.output}) if kept else resolved


def python_command() -> str:
    """How this interpreter is called in a shell: python, where that is this one."""
    found = shutil.which("python")
    return "python" if found and os.path.abspath(found) == os.path.abspath(sys.executable) else sys.executable


def relay(arguments: Sequence[str]) -> tuple[Path | None, str, int]:
    """Print a command of this interpreter, run it, and print its lines as they come.

    Returns:
        The run's folder where the command named one, its last line, and its exit status.
    """
    print(f"$ {shlex.join([python_command(), *arguments])}", flush=True)
    process = start(arguments, os.environ)
    assert process.stdout is not None
    seen = _Lines()
    try:
        seen.relay(process.stdout)
        process.wait()
    except BaseException:
        _stop(process, seen)
        raise
    return seen.folder, seen.last, process.returncode


def start(arguments: Sequence[str], environment: Mapping[str, str]) -> "subprocess.Popen[str]":
    """Start a command of this interpreter in a session of its own; its stdout carries stderr too, line by line."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
        # A kernel that is restarted or killed takes its run along; the launcher tidies up on SIGTERM.
        preexec_fn=processes.die_with_parent(signal.SIGTERM),
        env={**environment, "PYTHONUNBUFFERED": "1"},
    )


class _Lines:
    """What a launcher printed so far."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.last = ""

    def relay(self, stream: IO[str]) -> None:
        for line in stream:
            text = line.rstrip("\n")
            if self.folder is None and text.startswith(RUN_FOLDER_LINE):
                self.folder = Path(text.removeprefix(RUN_FOLDER_LINE))
            self.last = text or self.last
            print(text, flush=True)


def _stop(process: "subprocess.Popen[str]", seen: _Lines) -> None:
    """Pass the interrupt on and wait for the clean end; a second one does not cut that short."""
    process.send_signal(signal.SIGINT)
    for _ in range(3):
        try:
            process.wait(STOP_SECONDS)
            break
        except subprocess.TimeoutExpired:
            process.kill()
        except KeyboardInterrupt:
            continue
    if process.stdout is not None:
        with contextlib.suppress(KeyboardInterrupt, OSError):
            seen.relay(process.stdout)


def _read_status(folder: Path | None) -> dict[str, object] | None:
    if folder is None:
        return None
    try:
        status = json.loads((folder / "status.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return status if isinstance(status, dict) and status.get("status") != "running" else None

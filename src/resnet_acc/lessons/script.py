"""A script of the training side from a notebook's cell: its command is shown, its lines relayed, its result returned.

Such a script prints lines for people, and as its last line RESULT and one JSON object. Of several ranks rank 0 alone
prints that line.
"""

import collections
import contextlib
import json
import re
import shlex
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from resnet_acc.launch import guard, machine, notebook, processes
from resnet_acc.launch.failure import clean_lines, parse_report, signal_name
from resnet_acc.launch.torchrun import clean_environment

RESULT_MARK = "RESULT "
"""How the line with the result begins."""
STOP_SECONDS = 4.0
"""How long an interrupted script gets to end by itself; then its processes are told to, and killed in the end."""
MAX_LINES = 20
"""Lines that a failure keeps."""

_NOISE = re.compile(r"\[Gloo\] |Expected number of connected peer ranks")  # of several ranks, mixed
# What torchrun says after a rank has failed, and that rank's own words before it.
_TORCHRUN_REPORT = re.compile(r"failed \(exitcode: -?\d+\)|Sending process \d+ closing signal")
_ERROR_LINE = re.compile(
    r"(?:\[rank\d+\]: )?[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Timeout|Failed)\b|[\w.-]+: error: "
)


class ScriptFailed(RuntimeError):
    """A script failed, gave no result, or took too long; `reason` is one line, `last_lines` what it printed last."""

    def __init__(self, module: str, reason: str, last_lines: list[str]) -> None:
        super().__init__("\n    ".join([f"{module}: {reason}", *last_lines]))
        self.reason, self.last_lines = reason, last_lines


def run_script(
    module: str,
    arguments: Sequence[str] = (),
    *,
    nproc: int = 1,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = 600.0,
) -> dict[str, Any]:
    """Run `python -m module arguments` as a process of its own, on nproc ranks by torchrun, and return its result.

    The command printed is the command run. Nothing of the script is left when this returns or raises, and it ends
    with the kernel.

    Args:
        environment: variables to set besides this process's own; they are part of the command that is shown.
        timeout_s: seconds after which the script is ended.

    Raises:
        ValueError: nproc is below 1, or timeout_s not above 0.
        ScriptFailed: exit status other than 0, no RESULT line, or longer than timeout_s.
        KeyboardInterrupt: the cell was interrupted; the script has ended.
    """
    if nproc < 1:
        raise ValueError(f"nproc is {nproc}; give 1 or more")
    if not timeout_s > 0:
        raise ValueError(f"timeout_s is {timeout_s}; give more than 0 seconds")
    command = _command(module, arguments, nproc)
    given = dict(environment or {})
    settings = [f"{name}={shlex.quote(value)}" for name, value in given.items()]
    print("$", *settings, shlex.join([notebook.python_command(), *command]), flush=True)
    lines = _Lines()
    # torchrun, for one, leaves a folder behind in each run.
    with tempfile.TemporaryDirectory(prefix="resnet_acc_", ignore_cleanup_errors=True) as folder:
        run_id = f"script-{uuid.uuid4().hex}"
        try:
            with guard.guarded(Path(folder) / run_id):  # for a kernel that is killed
                process = notebook.start(command, _environment(nproc, folder, run_id) | given)
                timed_out = _follow(process, run_id, timeout_s, lines)
        except BaseException:
            processes.end_processes(run_id, None)
            raise
    if timed_out:
        raise ScriptFailed(module, f"did not end within {timeout_s:g} s and was stopped", lines.last())
    return _result(module, process.returncode, lines)


def _follow(process: "subprocess.Popen[str]", run_id: str, timeout_s: float, lines: "_Lines") -> bool:
    """Relay a script's lines to its end; whether it had to be stopped for the time it took."""
    assert process.stdout is not None
    watch = _Watch(process, run_id, timeout_s)
    try:
        lines.relay(process.stdout)
    except BaseException:
        watch.stop.set()
        raise
    finally:
        watch.wait()
        process.stdout.close()
    return watch.timed_out


def _command(module: str, arguments: Sequence[str], nproc: int) -> list[str]:
    own = ["-m", module, *arguments]
    if nproc == 1:
        return own
    # The local address: a machine's own name may not resolve.
    meeting = ["--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(nproc)]
    return ["-m", "torch.distributed.run", *meeting, *own]


def _environment(nproc: int, folder: str, run_id: str) -> dict[str, str]:
    environment = clean_environment() | {"TMPDIR": folder, processes.RUN_ID_VARIABLE: run_id}
    if not environment.get("OMP_NUM_THREADS"):
        environment["OMP_NUM_THREADS"] = str(max(1, machine.num_cores() // nproc))
    return environment


def _result(module: str, status: int, lines: "_Lines") -> dict[str, Any]:
    if status != 0:
        raise ScriptFailed(module, lines.reason(status), lines.last())
    if lines.result is None:
        raise ScriptFailed(module, "gave no RESULT line", lines.last())
    try:
        result = json.loads(lines.result)
    except ValueError as error:
        raise ScriptFailed(module, f"gave a RESULT that is no JSON ({error})", lines.last()) from None
    if not isinstance(result, dict):
        raise ScriptFailed(module, f"gave a RESULT that is no JSON object but {lines.result[:80]}", lines.last())
    return result


class _Lines:
    """What a script printed: shown as it comes, but for the result, which is kept."""

    def __init__(self) -> None:
        self.result: str | None = None
        self._last: collections.deque[str] = collections.deque(maxlen=400)
        self._reported = False

    def relay(self, stream: Iterable[str]) -> None:
        for line in stream:
            text = line.rstrip("\n")
            if text.startswith(RESULT_MARK):
                self.result = text.removeprefix(RESULT_MARK)
            elif not _NOISE.search(text):
                self._last.append(text)
                self._reported = self._reported or bool(_TORCHRUN_REPORT.search(text))
                if not self._reported:  # 40 lines of torchrun's own would push the error out of sight
                    print(text, flush=True)

    def _own(self) -> list[str]:
        """What the script itself said; torchrun's report on it is left out."""
        lines = clean_lines("\n".join(self._last))
        report = next((number for number, line in enumerate(lines) if _TORCHRUN_REPORT.search(line)), None)
        return lines[:report] or lines

    def last(self) -> list[str]:
        return self._own()[-MAX_LINES:]

    def reason(self, status: int) -> str:
        """Why the script failed, in one line: the signal that killed it, or the error it named, or its last line."""
        failures = parse_report("\n".join(self._last))
        if status < 0 or (failures and failures[0].exit_code < 0):
            rank = f"rank {failures[0].rank} " if failures and status > 0 else ""
            return f"{rank}was killed by {signal_name(-failures[0].exit_code if rank else -status)}"
        own = self._own()
        said = next((line for line in reversed(own) if _ERROR_LINE.match(line)), own[-1] if own else "")
        return f"ended with exit status {status}{f': {said}' if said else ''}"


class _Watch:
    """Waits for a script's end beside the thread that reads its lines, and leaves nothing of it."""

    def __init__(self, process: "subprocess.Popen[str]", run_id: str, timeout_s: float) -> None:
        self.stop = threading.Event()
        self.timed_out = False
        self._process, self._run_id, self._until = process, run_id, time.monotonic() + timeout_s
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._process.poll() is None and not self.stop.wait(0.05):
            if time.monotonic() > self._until:
                self.timed_out = True
                break
        if self.stop.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.send_signal(signal.SIGINT)
                self._process.wait(STOP_SECONDS)
        # By the run's id alone: the kernel may be starting other processes meanwhile. What still held the pipe ends
        # here too, and with it the reading of the lines.
        processes.end_processes(self._run_id, None)
        self._process.wait()

    def wait(self) -> None:
        """Return when everything has ended; an interrupt of the cell meanwhile is raised after that."""
        interrupted = False
        while self._thread.is_alive():
            try:
                self._thread.join()
            except KeyboardInterrupt:
                self.stop.set()
                interrupted = True
        if interrupted:
            raise KeyboardInterrupt

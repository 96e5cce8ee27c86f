"""Runs a batch: its sets one after another or at once where devices allow, and nothing of it is left behind."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resnet_acc.files import project_root
from resnet_acc.launch import processes
from resnet_acc.launch.failure import signal_name
from resnet_acc.launch.folder import make_folder
from resnet_acc.launch.progress import duration
from resnet_acc.launch.supervisor import RunInterrupted, signals_collected
from resnet_acc.notebooks import leftovers
from resnet_acc.notebooks.devices import VISIBLE, Devices, num_asked
from resnet_acc.notebooks.kernel import BATCH_VARIABLE, kernel_environment
from resnet_acc.notebooks.outcome import finish_set, write_index
from resnet_acc.notebooks.state import FAILED, NOT_RUN, OK, RUNNING, STOPPED, WAITING, SetState, summary
from resnet_acc.notebooks.sweep import Sweep

POLL_SECONDS = 0.1
STATUS_SECONDS = 30.0
STOP_SECONDS = 15.0
"""How long a worker that was told to stop gets: its kernel has 5 s of them, by nbclient's rule."""

Echo = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """The batch's folder and what became of each set; `index` is its page."""

    folder: Path
    states: list[SetState]

    @property
    def index(self) -> Path:
        """The page that lists all sets."""
        return self.folder / "index.html"

    @property
    def exit_status(self) -> int:
        """0 where every set came to its end."""
        return 0 if all(state.status == OK for state in self.states) else 1


@dataclass
class _Job:
    """A set that runs."""

    state: SetState
    process: "subprocess.Popen[bytes]"
    started: float
    gpus: list[str]
    scratch: Path


def default_folder() -> Path:
    """Where batches go that are given no folder."""
    return project_root() / "output" / "notebooks"


def run_batch(
    sweep: Sweep,
    to: Path,
    *,
    gpus: Sequence[str] = (),
    jobs: int | None = None,
    timeout_s: float | None = None,
    echo: Echo = print,
    command: str = "",
) -> Outcome:
    """Run every set of a checked sweep. A set that fails does not stop the others.

    Args:
        sweep: what checks.checked gave.
        to: folder in which the batch makes one of its own, so that two batches never meet.
        gpus: the GPUs' names for CUDA_VISIBLE_DEVICES; none on a CPU.
        jobs: sets at once at most; None: one on a CPU, on GPUs as many as fit.
        timeout_s: seconds that a set may take; None: no limit.
        echo: takes each line for the screen.
        command: what to note as the command that began it.

    Raises:
        ValueError: the folder cannot be written.
        RunInterrupted: SIGINT, SIGTERM or SIGHUP; everything has ended, what was done is kept and listed.
    """
    try:
        folder = make_folder(to)
    except OSError as error:
        raise ValueError(f"{to} cannot be written ({error.strerror or error}); give another folder with --to") from None
    states = [
        SetState(number, one.name, stem, one.parameters)
        for number, (one, stem) in enumerate(zip(sweep.sets, sweep.stems, strict=True), start=1)
    ]
    with _scratch() as scratch, signals_collected() as received:
        batch = _Batch(sweep, folder, states, Devices(list(gpus), jobs), scratch, timeout_s, echo, command)
        echo(f"batch folder: {folder}")
        batch.run(received)
        outcome = Outcome(folder, states)
        echo(f"index: {outcome.index}")
        echo(summary(states))
        if received:
            raise RunInterrupted(received[0], folder)
    return outcome


@contextlib.contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="resnet-acc-batch-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Batch:
    """The loop over a batch's sets."""

    def __init__(
        self,
        sweep: Sweep,
        folder: Path,
        states: list[SetState],
        devices: Devices,
        scratch: Path,
        timeout_s: float | None,
        echo: Echo,
        command: str,
    ) -> None:
        self._sweep, self._folder, self._states, self._devices = sweep, folder, states, devices
        self._scratch, self._timeout_s, self._command = scratch, timeout_s, command
        self._echo = _unbreakable(echo)
        self._jobs: list[_Job] = []
        self._started = time.monotonic()
        self._next_line = self._started + STATUS_SECONDS

    def run(self, received: list[int]) -> None:
        """Start what fits and look after what runs, until all is done or a signal came."""
        self._index()
        try:
            while not received and (self._jobs or any(state.status == WAITING for state in self._states)):
                self._start_what_fits()
                for job in list(self._jobs):
                    self._look_after(job)
                self._say_status()
                time.sleep(POLL_SECONDS)
        finally:
            if received:
                self._echo(f"{signal_name(received[0])}: ending the batch")
            self._stop_all()
            for state in self._states:
                state.status = NOT_RUN if state.status == WAITING else state.status
            self._index()

    def _start_what_fits(self) -> None:
        """In order: a set that asks for many GPUs is not overtaken for ever by those behind it."""
        for state in self._states:
            if state.status == WAITING:
                asked = num_asked(self._sweep.notebook.values(state.parameters), len(self._devices.gpus))
                gpus = self._devices.take(asked)
                if gpus is None:
                    return
                self._start(state, gpus)

    def _start(self, state: SetState, gpus: list[str]) -> None:
        scratch = self._scratch / state.stem
        state.status, state.gpus, state.executed = RUNNING, gpus, f"{state.stem}.ipynb"
        on = f" on GPU {','.join(gpus)}" if gpus else ""
        self._echo(f"[{state.number}/{len(self._states)}] {state.name}: started{on}")
        try:
            scratch.mkdir()
            job = _Job(state, self._worker(state, gpus, scratch), time.monotonic(), gpus, scratch)
        except OSError as error:
            self._devices.give_back(gpus)
            state.fail(type(error).__name__, f"it could not be started: {error}")
            self._end(state)
            return
        self._jobs.append(job)
        self._index()

    def _worker(self, state: SetState, gpus: list[str], scratch: Path) -> "subprocess.Popen[bytes]":
        task = {
            "notebook": str(self._sweep.notebook.path),
            "executed": str(self._folder / f"{state.stem}.ipynb"),
            "result": str(scratch / "result.json"),
            "parameters": state.parameters,
        }
        (scratch / "task.json").write_text(json.dumps(task), encoding="utf-8")
        pinned = {VISIBLE: ",".join(gpus)} if gpus else {}
        variables = {BATCH_VARIABLE: f"{self._folder.name}/{state.number}", **pinned}
        with open(scratch / "log", "wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "resnet_acc.notebooks.worker", str(scratch / "task.json")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=scratch,
                env=kernel_environment(scratch, **variables),
                start_new_session=True,  # a terminal's Ctrl-C goes to the batch alone, which ends its sets
                preexec_fn=processes.die_with_parent(signal.SIGTERM),
            )

    def _look_after(self, job: _Job) -> None:
        status = job.process.poll()
        seconds = time.monotonic() - job.started
        if status is not None:
            self._close(job, self._result(job, status))
        elif self._timeout_s is not None and seconds > self._timeout_s:
            _end_workers([job])
            message = f"it took longer than {self._timeout_s:g} s and was stopped"
            self._close(job, {"failure": {"kind": "Timeout", "message": message, "cell": None, "traceback": ""}})

    def _result(self, job: _Job, status: int) -> dict[str, Any]:
        """What the worker left, or where it left nothing why it ended."""
        try:
            result: dict[str, Any] = json.loads((job.scratch / "result.json").read_text(encoding="utf-8"))
            return result
        except (OSError, ValueError):
            ended = signal_name(-status) if status < 0 else f"exit status {status}"
            lines = (job.scratch / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
            message = f"the process that ran it ended with {ended}: {lines[-1] if lines else 'it said nothing'}"
            return {"failure": {"kind": "WorkerFailed", "message": message, "cell": None, "traceback": ""}}

    def _close(self, job: _Job, result: dict[str, Any]) -> None:
        """A set has ended: end what it left, note what became of it, and write its pages."""
        self._jobs.remove(job)
        left = leftovers.end([self._mark(job)])
        if left:
            job.state.notes.append(f"{left} processes that it left running were ended")
        self._devices.give_back(job.gpus)
        job.state.seconds = time.monotonic() - job.started
        if result.get("failure"):
            job.state.fail(**result["failure"])
        else:
            job.state.status = STOPPED if result.get("stopped") else OK
        self._end(job.state)
        shutil.rmtree(job.scratch, ignore_errors=True)

    def _end(self, state: SetState) -> None:
        finish_set(self._sweep.notebook, self._folder, state)
        took = "" if state.seconds is None else f" after {duration(state.seconds)}"
        told = f": {state.error}{state.where}" if state.status == FAILED else ""
        self._echo(f"[{state.number}/{len(self._states)}] {state.name}: {state.status}{took}{told}")
        self._index()

    def _stop_all(self) -> None:
        """Tell every set to end, and see that it does."""
        _end_workers(self._jobs)
        leftovers.end([self._mark(job) for job in self._jobs])  # all at once: each may take seconds
        for job in list(self._jobs):
            told = (job.scratch / "result.json").is_file()
            self._close(job, self._result(job, job.process.returncode) if told else {"stopped": True})

    def _mark(self, job: _Job) -> str:
        return f"{self._folder.name}/{job.state.number}"

    def _index(self) -> None:
        try:
            write_index(self._sweep.notebook, self._folder, self._states, self._devices.most_at_once, self._command)
        except OSError as error:
            self._echo(f"warning: the index could not be written ({error})")

    def _say_status(self) -> None:
        if time.monotonic() < self._next_line:
            return
        self._next_line = time.monotonic() + STATUS_SECONDS
        counts = {status: sum(state.status == status for state in self._states) for status in (OK, FAILED, WAITING)}
        running = ", ".join(job.state.name for job in self._jobs)
        told = ", ".join(f"{number} {status}" for status, number in counts.items())
        self._echo(f"[{duration(time.monotonic() - self._started)}] {told}; running: {running}")


def _end_workers(jobs: Sequence[_Job]) -> None:
    """Each interrupts its notebook's cell, ends the kernel and keeps what was done; one that cannot is killed."""
    for job in jobs:
        job.process.terminate()
    until = time.monotonic() + STOP_SECONDS
    for job in jobs:
        try:
            job.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            job.process.kill()
            job.process.wait()


def _unbreakable(echo: Echo) -> Echo:
    """A screen that has gone away (a closed terminal, `| head`) must not end a batch."""

    def write(line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            echo(line)

    return write

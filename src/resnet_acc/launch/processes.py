"""The process tree of a run: making sure that it ends with its launcher, and ending all of it."""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator

import psutil

RUN_ID_VARIABLE = "RESNET_ACC_RUN_ID"
"""Environment variable that every process of a run inherits: it is found by this when its parents are gone."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_libc = ctypes.CDLL(None, use_errno=True)

TERMINATE_SECONDS = 4.0
"""How long the processes of a run get to end by themselves once told to."""
KILL_SECONDS = 8.0
"""How long they are then killed, again and again, for a process may start another while it is killed."""
_CREATE_TIME_TOLERANCE_S = 2.0


def die_with_parent(signal_number: int) -> Callable[[], None]:
    """A preexec_fn: the child gets this signal when the launcher ends, however that ends."""
    parent = os.getpid()

    def prepare() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
        if os.getppid() != parent:  # it ended between the fork and the call
            os._exit(1)

    return prepare


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """While this lasts, processes whose parents end become children of this one instead of init's."""
    before = ctypes.c_int(0)
    _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def own_children() -> set[tuple[int, float]]:
    """Children of this process as (pid, time of creation): what was there before a run is not the run's."""
    return {(child.pid, child.create_time()) for child in psutil.Process().children() if is_alive(child)}


def processes_of(run_id: str, before: set[tuple[int, float]] | None) -> list[psutil.Process]:
    """Every live process of a run.

    A process may leave its session, lose its parents, or clear its environment, hence two ways to find it: whatever
    descends from this process but not through a child in `before`, and whatever carries the run's id. None for
    `before` leaves the first way out: this process (a kernel, say) may start others of its own meanwhile.
    """
    found: dict[int, psutil.Process] = {}
    for child in psutil.Process().children() if before is not None else []:
        with contextlib.suppress(psutil.Error):
            if (child.pid, child.create_time()) not in (before or ()) and _run_id(child) in (run_id, None):
                for process in (child, *child.children(recursive=True)):
                    found[process.pid] = process
    for process in psutil.process_iter():
        if process.pid not in found and process.pid != os.getpid() and _run_id(process) == run_id:
            found[process.pid] = process
    return [process for process in found.values() if is_alive(process)]


def end_processes(run_id: str, before: set[tuple[int, float]] | None, agent_pid: int | None = None) -> list[int]:
    """End every process of a run (see processes_of): told first, then killed. Returns the pids that are still there."""
    started = time.monotonic()
    told: set[int] = set()
    while alive := processes_of(run_id, before):
        seconds = time.monotonic() - started
        if seconds > TERMINATE_SECONDS + KILL_SECONDS:
            return [process.pid for process in alive]
        for process in alive:
            if seconds > TERMINATE_SECONDS:
                _send(process, signal.SIGKILL)
            elif process.pid not in told:
                told.add(process.pid)
                _send(process, signal.SIGTERM)
        if before is not None:
            reap(before, agent_pid)
        time.sleep(0.1)
    if before is not None:
        reap(before, agent_pid)
    return []


def reap(before: set[tuple[int, float]], agent_pid: int | None = None) -> None:
    """Collect adopted processes that have ended; the agent's exit status is left to whoever started it."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error, OSError):
            if child.pid != agent_pid and child.status() == psutil.STATUS_ZOMBIE:
                known = (child.pid, child.create_time()) in before
                if not known:
                    os.waitpid(child.pid, os.WNOHANG)


def find_process(pid: int, create_time: float) -> psutil.Process | None:
    """The live process that has this number and was created then: numbers are used again."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - create_time) < _CREATE_TIME_TOLERANCE_S
    except (psutil.Error, ValueError, OverflowError):
        return None
    return process if same and is_alive(process) else None


def _run_id(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(RUN_ID_VARIABLE)
    except (psutil.Error, OSError):
        return None


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _send(process: psutil.Process, signal_number: int) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(signal_number)

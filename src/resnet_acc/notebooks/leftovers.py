"""Ending every process of a set: kernel, launchers, ranks, and whatever else its notebook started."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence

import psutil

from resnet_acc.notebooks.kernel import BATCH_VARIABLE

TERMINATE_SECONDS = 15.0
"""How long SIGTERM gets before SIGKILL: a launcher ends its ranks first, and writes what became of its run."""
GUARD_SECONDS = 5.0
"""How much longer a guard gets, which ends a killed launcher's run and then goes by itself."""
GIVE_UP_SECONDS = 30.0
GUARD = "resnet_acc.launch.guard"


def processes_of(marks: Sequence[str]) -> list[psutil.Process]:
    """Live processes that inherited one of these values of BATCH_VARIABLE; they may have lost their parents."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            inherited = process.environ().get(BATCH_VARIABLE)
            if inherited in marks and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def end(marks: Sequence[str]) -> int:
    """End all of them, and return how many there were (guards, which leave by themselves, not counted)."""
    started = time.monotonic()
    told: set[int] = set()
    while marks and (alive := processes_of(marks)):
        seconds = time.monotonic() - started
        if seconds > GIVE_UP_SECONDS:
            break
        for process in alive:
            guard = _is_guard(process)
            if seconds > TERMINATE_SECONDS + (GUARD_SECONDS if guard else 0):
                _send(process, signal.SIGKILL)
            elif not guard and process.pid not in told:
                told.add(process.pid)
                _send(process, signal.SIGTERM)
        time.sleep(0.1)
    return len(told)


def _is_guard(process: psutil.Process) -> bool:
    try:
        return GUARD in process.cmdline()
    except psutil.Error:
        return False


def _send(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)

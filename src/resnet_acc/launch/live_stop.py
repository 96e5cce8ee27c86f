"""Ends a run that this process did not start: its launcher is asked, and made to where it does not answer."""

import contextlib
import signal
import socket
import time
from pathlib import Path

import psutil

from resnet_acc.files import write_json
from resnet_acc.launch import processes
from resnet_acc.results.status import read_json

STOP_SECONDS = 15.0
"""Within this long nothing of the run lives."""
ASK_SECONDS = 8.0
"""How long the launcher gets: it gives its ranks processes.TERMINATE_SECONDS, and then kills them."""
ALONE_SECONDS = 9.5
"""Until then a launcher whose ranks were killed may still say how the run ended."""
_MARK_SECONDS = 2.0
"""How long the launcher's guard gets to mark the run, once all else is gone."""
_GUARD = "resnet_acc.launch.guard"


def end_run(launcher: psutil.Process | None, run_dir: Path | None) -> None:
    """Interrupt a launcher, then kill what is left of it and of its run, and return when nothing of them lives.

    Args:
        launcher: its process, or None where it is gone, and its ranks perhaps are not.
        run_dir: the run's folder, or None where there is none yet.

    Raises:
        PermissionError: the launcher is another user's.
        RuntimeError: something is still alive after STOP_SECONDS.
    """
    _Ending(launcher, run_dir.name if run_dir is not None else None).run()
    if run_dir is not None:
        _mark(run_dir)


def launcher_of(run_dir: Path | None) -> psutil.Process | None:
    """The launcher that status.json names, while the run is its.

    Raises:
        ValueError: it runs on another machine.
    """
    values = read_json(run_dir / "status.json") if run_dir is not None else None
    if values is None or values.get("status") != "running":
        return None
    host, here = values.get("host"), socket.gethostname()
    if host not in (None, here):
        raise ValueError(f"run {values.get('run_id')} runs on {host}, and this is {here}; stop it there")
    pid, created = values.get("pid"), values.get("pid_create_time")
    if not isinstance(pid, int) or not isinstance(created, int | float):
        return None
    return processes.find_process(pid, created)


class _Ending:
    """One run on its way out. What was once seen to belong to it still does when its parents are gone."""

    def __init__(self, launcher: psutil.Process | None, run_id: str | None) -> None:
        self._launcher, self._run_id = launcher, run_id
        self._seen: dict[int, psutil.Process] = {}
        self._started = time.monotonic()

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def run(self) -> None:
        launcher = self._launcher
        if launcher is not None:
            self._left()
            _ask(launcher)
            while self._seconds < ASK_SECONDS and processes.is_alive(launcher):
                self._left()
                time.sleep(0.1)
        while left := self._left():
            if self._seconds > STOP_SECONDS:
                raise RuntimeError(f"processes {sorted(process.pid for process in left)} could not be ended")
            self._kill(left)
            time.sleep(0.1)

    def _left(self) -> list[psutil.Process]:
        """What lives of the launcher, its descendants, and the processes that carry the run's id."""
        if self._launcher is not None:
            with contextlib.suppress(psutil.Error):
                for process in (self._launcher, *self._launcher.children(recursive=True)):
                    self._seen.setdefault(process.pid, process)
        alive = [process for process in self._seen.values() if processes.is_alive(process)]
        if not alive and self._run_id is not None:
            alive = processes.processes_of(self._run_id, None)
        return alive

    def _kill(self, left: list[psutil.Process]) -> None:
        """The launcher after its ranks: while it lives, whatever loses its parents becomes its child.

        Its guard is spared until it alone is left, for it marks the run when the launcher is gone.
        """
        guards = [process for process in left if _is_guard(process)]
        victims = [process for process in left if process != self._launcher and process not in guards]
        if not victims and self._launcher in left:
            victims = [process for process in left if process == self._launcher and self._seconds > ALONE_SECONDS]
        elif not victims:
            victims = psutil.wait_procs(guards, timeout=_MARK_SECONDS)[1]
        for process in victims:
            with contextlib.suppress(psutil.Error):
                process.kill()


def _ask(launcher: psutil.Process) -> None:
    try:
        launcher.send_signal(signal.SIGINT)
    except psutil.NoSuchProcess:
        pass
    except psutil.AccessDenied:
        raise PermissionError(f"process {launcher.pid} is another user's; its owner can end the run") from None


def _is_guard(process: psutil.Process) -> bool:
    try:
        return _GUARD in process.cmdline()
    except psutil.Error:
        return False


def _mark(run_dir: Path) -> None:
    """Where nobody was left to say how the run ended, say it."""
    path = run_dir / "status.json"
    status = read_json(path)
    if status is not None and status.get("status") == "running":
        reason = "stopped from outside; its launcher did not answer and was killed"
        end = {"status": "interrupted", "ended_at": time.time(), "reason": reason, "exit_code": 137}
        write_json(path, status | end)

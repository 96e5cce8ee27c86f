"""The launcher of a live run: a process that no kernel owns, and the lock that makes two starts of one run one."""

import contextlib
import fcntl
import hashlib
import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from resnet_acc.launch.processes import find_process
from resnet_acc.launch.supervisor import SCREEN_VARIABLE

PATIENCE_SECONDS = 15.0
"""How long a start waits for a launcher whose run has just ended, or for another start to say what it began."""
_DETACH_SECONDS = 60.0
_MOST_BYTES = 1 << 20

_starting = threading.Lock()


@dataclass(frozen=True)
class Job:
    """A launcher: its process, the file that holds what it says, and what followed python in its command."""

    pid: int
    create_time: float
    screen: Path
    arguments: tuple[str, ...]

    @property
    def process(self) -> psutil.Process | None:
        """The launcher while it lives."""
        return find_process(self.pid, self.create_time)


def start_job(arguments: Sequence[str], identity: str, has_ended: Callable[[Job], bool]) -> tuple[Job, bool]:
    """Start a launcher, or find the one that was started under the same identity and still runs.

    The launcher itself holds the lock, from before it starts until it ends, however it ends. So the lock needs no
    tidying up, and two starts at once, from one kernel or from two, give one launcher.

    Args:
        arguments: what follows python in the command.
        identity: what makes two starts the same.
        has_ended: whether the run of a launcher is over, so that only its last moments are waited for.

    Returns:
        The launcher, and whether this call started it.

    Raises:
        ValueError: there is no folder for the lock.
        OSError: the process cannot be started.
    """
    name = hashlib.sha256(identity.encode(errors="surrogateescape")).hexdigest()[:24]
    until = time.monotonic() + PATIENCE_SECONDS
    with _starting:
        folder = _folder()
        while True:
            with _opened(folder / f"{name}.lock") as lock:
                if _take(lock):
                    for old in folder.glob(f"{name}-*.screen"):
                        old.unlink(missing_ok=True)
                    return _detach(lock, folder / f"{name}-{os.getpid()}-{time.time_ns()}.screen", arguments), True
                job = _read(lock)
            late = time.monotonic() > until
            if job is not None and job.process is not None and (late or not has_ended(job)):
                return job, False
            if late:
                raise OSError(
                    f"another start holds {folder / name}.lock and has begun nothing; end it, and start again"
                )
            time.sleep(0.05)


def running_jobs() -> list[Job]:
    """All launchers that start_job started and that live, the newest first."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        for path in _folder().glob("*.lock"):
            with _opened(path) as lock:
                job = _read(lock)
            if job is not None and job.process is not None:
                found.append(job)
    return sorted(found, key=lambda job: job.create_time, reverse=True)


def _folder() -> Path:
    """A folder of this user's on this machine: the same run on another machine is another one."""
    folder = Path(tempfile.gettempdir()) / f"resnet_acc-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ValueError(f"{folder} cannot be made ({error}); set TMPDIR to a folder of yours") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ValueError(f"{folder} is not a folder of yours; set TMPDIR to one")
    return folder


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _detach(lock: int, screen: Path, arguments: Sequence[str]) -> Job:
    """Start the launcher through a process that ends at once: nobody's child, it is in no kernel's tree to be ended."""
    done = subprocess.run(
        [sys.executable, "-m", "resnet_acc.launch.live_detach", str(lock), str(screen), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        pass_fds=(lock,),
        start_new_session=True,  # an interrupt of the kernel goes to its whole group
        env={**os.environ, "PYTHONUNBUFFERED": "1", SCREEN_VARIABLE: "1"},
        timeout=_DETACH_SECONDS,
        check=False,
    )
    job = _read(lock)
    if job is None or job.screen != screen:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise OSError(f"the launcher cannot be started: {lines[-1]}")
    return job


def _read(lock: int) -> Job | None:
    """What stands in the lock's file: its last holder, or None where that is not all there yet."""
    try:
        values = json.loads(os.pread(lock, _MOST_BYTES, 0))
        return Job(values["pid"], values["create_time"], Path(values["screen"]), tuple(values["arguments"]))
    except (ValueError, KeyError, TypeError):
        return None

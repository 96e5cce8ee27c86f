"""Waits beside a launcher and ends its run where the launcher was killed before it could.

A rank asks Linux to be killed with its parent, but only once torch is imported, and what a rank started has asked for
nothing. python -m resnet_acc.launch.guard RUN_DIR: the launcher holds the other end of stdin, and says DONE at its end.
A notebook's script has such a guard too; its folder holds no status.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from resnet_acc.files import write_json
from resnet_acc.launch import processes

DONE = b"done"


@contextlib.contextmanager
def guarded(run_dir: Path) -> Iterator[None]:
    """While this lasts, a guard stands beside this process."""
    environment = {name: value for name, value in os.environ.items() if name != processes.RUN_ID_VARIABLE}
    try:
        guard = _start(run_dir, environment)
    except OSError:  # no more processes: the run itself will say so
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            guard.communicate(DONE, timeout=10)


def _start(run_dir: Path, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "resnet_acc.launch.guard", str(run_dir)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main() -> None:
    """Wait for the launcher's end; where that came without a word, end its run's processes and mark the run."""
    run_dir = Path(sys.argv[1])
    if sys.stdin.buffer.read() == DONE:
        return
    processes.end_processes(run_dir.name, set())
    path = run_dir / "status.json"
    if not path.is_file():
        return
    status = json.loads(path.read_text(encoding="utf-8"))
    if status.get("status") == "running":
        reason = "its launcher was killed, and the run was ended with it"
        end = {"status": "interrupted", "ended_at": time.time(), "reason": reason, "exit_code": 137}
        write_json(path, status | end)


if __name__ == "__main__":
    main()

"""What became of a run, as its status.json and the process that wrote it say."""

import json
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STATUSES = ("running", "finished", "failed", "interrupted")
UNKNOWN = "unknown"

_CREATE_TIME_TOLERANCE_S = 2.0


@dataclass(frozen=True)
class RunStatus:
    """`status` is one of STATUSES, or "unknown" where no status.json stands beside the run."""

    status: str = UNKNOWN
    reason: str | None = None
    failed_rank: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    host: str | None = None
    last_lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def is_result(self) -> bool:
        """Whether the run may stand beside others: it finished, or nothing says that it did not."""
        return self.status == "finished" or (self.status == UNKNOWN and self.reason is None)

    @property
    def is_running_here(self) -> bool:
        """Whether it runs, and on this machine: of another one's, nobody here knows whether it still lives."""
        return self.status == "running" and self.host in (None, socket.gethostname())


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object from a file, or None where there is none that can be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_status(run_dir: Path) -> RunStatus:
    """Read <run_dir>/status.json; a run "running" whose process is gone comes back as "interrupted"."""
    path = run_dir / "status.json"
    if not path.is_file():
        never = (run_dir / "config.json").is_file() and not (run_dir / "0").is_dir()
        return RunStatus(reason="it never started: its folder holds no status and no rank" if never else None)
    values = read_json(path)
    gone = values is not None and values.get("status") == "running" and not _is_alive(values)
    if gone:
        values = read_json(path)  # once more: it may have written its end between the first look and the second
    if values is None or values.get("status") not in STATUSES:
        return RunStatus(reason="status.json cannot be read")
    status, reason = values["status"], _text(values.get("reason"))
    if status == "running" and gone:
        status = "interrupted"
        reason = f"its launcher (process {values.get('pid')}) is gone without having written an end"
    failed_rank = values.get("failed_rank")
    return RunStatus(
        status=status,
        reason=reason,
        failed_rank=failed_rank if isinstance(failed_rank, int) else None,
        started_at=_number(values.get("started_at")),
        ended_at=_number(values.get("ended_at")),
        host=_text(values.get("host")),
        last_lines=_texts(values.get("last_lines")),
        warnings=_texts(values.get("warnings")),
    )


def _is_alive(values: dict[str, Any]) -> bool:
    """Whether the launcher still runs. A process number is used again, hence the look at its time of creation."""
    pid, host = values.get("pid"), values.get("host")
    if host not in (None, socket.gethostname()):
        return True  # another machine's process cannot be seen from here
    if isinstance(pid, bool) or not isinstance(pid, int) or not 0 < pid < 2**31:
        return False
    try:
        import psutil
    except ImportError:
        return os.path.exists(f"/proc/{pid}")
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        created = _number(values.get("pid_create_time"))
        return created is None or abs(process.create_time() - created) < _CREATE_TIME_TOLERANCE_S
    except psutil.NoSuchProcess:
        return False
    except psutil.Error:
        return True


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []

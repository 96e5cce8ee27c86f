"""What is known of each set of a batch while it lasts and afterwards."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resnet_acc.notebooks.cut import picture_of, plain

WAITING, RUNNING, OK, FAILED, STOPPED, NOT_RUN = "waiting", "running", "ok", "failed", "stopped", "not run"
REPORT_LINE = "report: "
"""How the line begins with which a notebook, like the command line, says where it wrote a report."""


@dataclass
class SetState:
    """One set: what it was given, what became of it, and the files that it left, by name within the batch's folder."""

    number: int
    name: str
    stem: str
    parameters: dict[str, Any]
    status: str = WAITING
    gpus: list[str] = field(default_factory=list)
    seconds: float | None = None
    error: str = ""
    cell: int | None = None
    traceback: str = ""
    executed: str | None = None
    page: str | None = None
    figure: str | None = None
    reports: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def where(self) -> str:
        """The cell that failed, in words."""
        return "" if self.cell is None else f" (cell {self.cell})"

    def fail(self, kind: str, message: str, cell: int | None = None, traceback: str = "") -> None:
        """Note why it failed."""
        lines = [line.strip() for line in plain(message).splitlines() if line.strip()] or ["no message"]
        self.status, self.cell, self.traceback = FAILED, cell, plain(traceback)
        self.error = f"{kind}: {lines[0]}"[:2000]


def summary(states: list[SetState]) -> str:
    """ "3 ok, 1 failed", and what is yet to come or, where the batch was stopped, what did not run, by name."""
    counts = {status: [state.name for state in states if state.status == status] for status in (OK, FAILED)}
    text = f"{len(counts[OK])} ok, {len(counts[FAILED])} failed"
    for status in (RUNNING, WAITING, STOPPED, NOT_RUN):
        names = [state.name for state in states if state.status == status]
        if names:
            shown = "; ".join(names[:10]) + (f"; and {len(names) - 10} more" if len(names) > 10 else "")
            text += f", {len(names)} {status} ({shown})"
    return text


def last_figure(executed: Any) -> bytes | None:
    """The last picture among a notebook's outputs, where it is a PNG: what the notebook comes to."""
    for cell in reversed(executed.cells):
        for output in reversed(cell.get("outputs", [])):
            found = picture_of(output["data"]) if isinstance(output.get("data"), dict) else None
            if found is not None and found[0] == "image/png":
                return base64.b64decode(found[1])
    return None


def reports_of(executed: Any) -> list[str]:
    """Paths of the reports that a notebook printed, of those that are there."""
    found = []
    for cell in executed.cells:
        for output in cell.get("outputs", []):
            if output.get("output_type") == "stream":
                lines = plain(output.get("text")).splitlines()
                found += [line.removeprefix(REPORT_LINE).strip() for line in lines if line.startswith(REPORT_LINE)]
    return [path for path in dict.fromkeys(found) if path.endswith(".html") and Path(path).is_file()]


def results_of(report: str) -> list[str]:
    """A line for each row of a report's table: arm, processes, images/s."""
    try:
        rows = json.loads((Path(report).parent / "summary.json").read_text(encoding="utf-8"))["rows"]
        return [_result(row) for row in rows]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _result(row: Mapping[str, Any]) -> str:
    rate = row["images_per_s"]
    value = "n/a" if rate is None else f"{rate:,.1f} images/s"
    return f"{row['arm']} x {row['processes']}: {value}"

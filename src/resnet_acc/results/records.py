"""`metrics.jsonl` read back: one JSON object a line, whatever state the file is in."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resnet_acc.results.lines import split_lines

_RECORD_START = '{"schema":'


@dataclass
class Records:
    """The records of one file in its order, and how many lines were no record."""

    records: list[dict[str, Any]] = field(default_factory=list)
    unreadable_lines: int = 0


def read_records(path: str | Path) -> Records:
    """Read a file of records; no content raises an error.

    A number that logger.log_record wrote as null comes back as the nan or inf that it was. A foreign file's bare NaN
    and Infinity, which strict JSON does not have, are read too. Where a killed process left half a line and a later
    attempt wrote on behind it, the half is counted and the record behind it is kept.

    Raises:
        OSError: the file is missing or cannot be opened; the message names it.
    """
    found = Records()
    with open(path, "rb") as stream:
        for line, whole in split_lines(stream):
            # A JSON object ends in its own brace, so that one without a newline behind it is still complete.
            text = line.decode("utf-8-sig", errors="replace").strip()
            if not text and (whole or line):
                continue
            record = parse_record(text)
            if record is None:
                found.unreadable_lines += 1
                behind = text.rfind(_RECORD_START)
                record = parse_record(text[behind:]) if behind > 0 else None
            if record is not None:
                found.records.append(record)
    return found


def parse_record(text: str) -> dict[str, Any] | None:
    """One line's object with nan and inf put back, or None where the text is no object with an event."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("event"), str):
        return None
    nonfinite = record.pop("nonfinite", None)
    if isinstance(nonfinite, dict):
        for name, value in nonfinite.items():
            if record.get(name) is None and value in ("nan", "inf", "-inf"):
                record[name] = float(value)
    return record


def last_event(records: Iterable[dict[str, Any]], event: str) -> dict[str, Any]:
    """The last record of that event, or an empty one."""
    return next((record for record in reversed(list(records)) if record["event"] == event), {})

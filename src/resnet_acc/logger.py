"""What a rank writes down: one text line and one JSON record an interval, and the two settings the launcher passes on.

The function names are those of the article's sample. `log` is for people and still parses (see log_parser);
`metrics.jsonl` is one strict JSON object a line.
"""

import json
import logging
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SCHEMA = 1
COMPILER_VARIABLE = "RESNET_ACC_COMPILER"
"""Environment variable that holds the compiler's name, or nothing without --compiler-opt."""
KERNEL_VARIABLE = "RESNET_ACC_KERNEL"
"""Environment variable that is "1" with --kernel-opt."""

_logger = logging.getLogger("resnet_acc")
_records: Path | None = None


def enable_torchacc_compiler() -> bool:
    """Whether this run trains through torch-xla (the article's torchacc), as the launcher said."""
    return os.environ.get(COMPILER_VARIABLE, "") == "torchacc"


def enable_torchacc_kernel() -> bool:
    """Whether this run uses kernel-level optimisation without a compiler, as the launcher said."""
    return os.environ.get(KERNEL_VARIABLE, "") == "1"


def create_logger(run_dir: str | Path, rank: int) -> logging.Logger:
    """Open `<run_dir>/<rank>/log` and `metrics.jsonl` for appending; a resumed run goes on in the same files.

    Raises:
        OSError: the folder cannot be written.
    """
    global _records
    folder = Path(run_dir) / str(rank)
    folder.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(folder / "log", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for old in list(_logger.handlers):
        _logger.removeHandler(old)
        old.close()
    _logger.addHandler(handler)
    _logger.setLevel(logging.INFO)
    _logger.propagate = False
    _records = folder / "metrics.jsonl"
    return _logger


def log_params(params: Mapping[str, Any]) -> None:
    """Write what the run was told and what takes effect, as one `params` line; a second one begins a new attempt."""
    log_text("params", params)


def log_text(kind: str, values: Mapping[str, Any]) -> None:
    """Write one line, `kind name=value ...`; a value with white space, a quote or "=" is quoted as JSON."""
    _logger.info("%s %s", kind, " ".join(f"{name}={_text(value)}" for name, value in values.items()))


def log_metrics(
    epoch: int,
    step: int,
    batch_size: int,
    loss: float,
    batch_time: float,
    samples_per_step: float,
    peak_mem: float,
) -> None:
    """Write one interval as one text line.

    Args:
        epoch: number of the epoch, from 0.
        step: steps done since the run began, over all epochs.
        batch_size: images per process and step.
        loss: mean cross-entropy of the interval's images, over all processes.
        batch_time: seconds of one step: those of the interval over its steps.
        samples_per_step: images per second over all processes (the article's name for it).
        peak_mem: peak device memory of this process in GiB.
    """
    _logger.info(
        "metrics epoch=%d step=%d batch_size=%d loss=%.6f batch_time_s=%.6f samples_per_s=%.3f peak_mem_gib=%.3f",
        epoch,
        step,
        batch_size,
        loss,
        batch_time,
        samples_per_step,
        peak_mem,
    )


def log_record(event: str, **values: Any) -> None:
    """Append one record to `metrics.jsonl` and flush it, so that a killed run keeps what it had finished.

    JSON has no form for nan and inf: such a number is written as null, and `nonfinite` says which it was.

    Raises:
        OSError: the file cannot be written.
        ValueError: a value has no form in JSON.
    """
    if _records is None:
        raise RuntimeError("create_logger must come before log_record")
    record = {"schema": SCHEMA, "event": event, "time": time.time(), **values}
    nonfinite = {name: repr(v) for name, v in record.items() if isinstance(v, float) and not math.isfinite(v)}
    if nonfinite:
        record |= dict.fromkeys(nonfinite)
        record["nonfinite"] = nonfinite
    # One write of a whole line in append mode: a reader never sees two records mixed.
    with open(_records, "a", encoding="utf-8") as stream:
        stream.write(json.dumps(record, allow_nan=False) + "\n")


def _text(value: Any) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(c.isspace() or c in '"=' for c in text) else text

"""Runs as TensorBoard's event files: a folder for each rank of each run, scalars over step, texts for the rest."""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from resnet_acc.results.export_tables import RUNS, Row, rank_rows, run_row
from resnet_acc.results.measured import Run
from resnet_acc.results.status import read_json

_STEP_TAGS = {
    "loss": "train/loss",
    "acc1_percent": "train/acc1_percent",
    "acc5_percent": "train/acc5_percent",
    "lr": "train/lr",
    "loss_scale": "train/loss_scale",
    "skipped_steps": "train/skipped_steps",
    "images_per_s": "speed/images_per_s",
    "images_per_s_per_process": "speed/images_per_s_per_process",
    "step_time_s": "speed/step_time_s",
    "data_time_s": "speed/data_time_s",
    "host_time_s": "speed/host_time_s",
    "compilations": "speed/compilations",
    "peak_memory_gib": "memory/peak_memory_gib",
}
_VALIDATION_TAGS = {
    "loss": "validation/loss",
    "acc1_percent": "validation/acc1_percent",
    "acc5_percent": "validation/acc5_percent",
}
_NOT_IN_A_NAME = re.compile(r"[^\w.+=-]+")


def write_events(runs: Iterable[Run], folder: Path) -> int:
    """Write <folder>/<model>/<tag>/<suffix>/<run_id>/rank<n>/events.out.tfevents.* and return how many ranks there are.

    TensorBoard shows the folder's name, so that of a run which is no result ends in what became of it:
    20261201-115300-000001_failed. A step that a later attempt did again stands once, as that attempt's.
    """
    written = 0
    names: set[str] = set()
    for run in runs:
        steps, validations = rank_rows(run)
        place = _place(run, names)
        ranks = sorted({row["rank"] for row in [*steps, *validations]} | set(run.ranks)) or [0]
        for rank in ranks:
            ours = [row for row in steps if row["rank"] == rank]
            theirs = [row for row in validations if row["rank"] == rank]
            _write_rank(run, rank, ours, theirs, folder / place / f"rank{rank}")
        written += len(ranks)
    return written


def _place(run: Run, taken: set[str]) -> str:
    name = run.run_id or "run"
    if not run.is_result:
        name += f"_{run.status.status}"
    parts = [run.model or "unknown", run.tag or "unknown", run.suffix or run.arm or "unknown", name]
    place = "/".join(_NOT_IN_A_NAME.sub("_", part).lstrip(".") or "_" for part in parts)
    free, number = place, 1
    while free in taken:
        number += 1
        free = f"{place}_{number}"
    taken.add(free)
    return free


def _write_rank(run: Run, rank: int, steps: Sequence[Row], validations: Sequence[Row], folder: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    begun = run.status.started_at or next((row["time_unix_s"] for row in steps if row["time_unix_s"]), 0.0)
    writer = EventFileWriter(str(folder))
    try:
        for name, text in _texts(run, rank).items():
            writer.add_event(Event(wall_time=begun, step=0, summary=Summary(value=[_text(name, text)])))
        for wall_time, step, scalars in _points(steps, validations, begun):
            values = [_scalar(tag, number) for tag, number in scalars.items()]
            writer.add_event(Event(wall_time=wall_time, step=step, summary=Summary(value=values)))
    finally:
        writer.close()


def _points(
    steps: Sequence[Row], validations: Sequence[Row], begun: float
) -> list[tuple[float, int, dict[str, float]]]:
    """(wall time in seconds, step, scalars) in the order of steps; a time that is not on record is the one before."""
    points: list[tuple[float, int, dict[str, float]]] = []
    kept = [row for place, row in enumerate(steps) if not (row["superseded_steps"] and _again(row, steps[place + 1 :]))]
    before = begun
    for row in sorted(kept, key=lambda row: int(row["step"])):
        before = row["time_unix_s"] or before
        points.append((before, row["step"], _present(row, _STEP_TAGS)))
    last = {row["step"]: row for row in validations if row["step"] is not None}
    for step, row in sorted(last.items()):
        points.append((row["time_unix_s"] or before, step, _present(row, _VALIDATION_TAGS)))
    return sorted(points, key=lambda point: point[1])


def _again(row: Row, later: Sequence[Row]) -> bool:
    """Whether a later record stands for the step that this one ends in."""
    return any(other["step"] - other["steps"] < row["step"] <= other["step"] for other in later)


def _present(row: Row, tags: dict[str, str]) -> dict[str, float]:
    return {tag: float(row[name]) for name, tag in tags.items() if row[name] is not None}


def _texts(run: Run, rank: int) -> dict[str, str]:
    """The run in words, its configuration, environment and command, in Markdown."""
    values: dict[str, Any] = {name: value for name, value in run_row(run).items() if name in RUNS and value is not None}
    told = {name: value for name, value in values.items() if not name.startswith(("config_", "env_"))}
    status = run.status.status if run.is_result else f"NOT A RESULT: {run.why_not}"
    texts = {"status": _inert(status), "run": _table({"rank": rank, **told})}
    for name in ("config", "env"):
        found = read_json(run.run_dir / f"{name}.json") if run.run_dir is not None else None
        texts[name] = _table({key: json.dumps(value, ensure_ascii=False) for key, value in (found or {}).items()})
    return texts


def _table(values: dict[str, Any]) -> str:
    lines = [f"| {_inert(name)} | {_inert(value)} |" for name, value in values.items()]
    return "\n".join(["| name | value |", "| --- | --- |", *lines])


def _inert(value: Any) -> str:
    """Text that Markdown and HTML take for text."""
    text = " ".join(str(value).encode("utf-8", errors="replace").decode("utf-8").split())
    return re.sub(r"([\\`*_{}\[\]<>|#&])", lambda found: f"&#{ord(found[1])};", text)


def _scalar(tag: str, number: float) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary.Value(tag=tag, simple_value=number)


def _text(tag: str, text: str) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.text.metadata import create_summary_metadata

    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode("utf-8")], tensor_shape=shape)
    return Summary.Value(tag=f"{tag}/text_summary", metadata=create_summary_metadata(None, None), tensor=tensor)

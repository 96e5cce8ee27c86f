"""`resnet-acc export`: runs as CSV, Parquet or TensorBoard's event files, written whole or not at all."""

import csv
import io
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resnet_acc.files import write_atomically
from resnet_acc.results.export_tables import Columns, Row, make_tables
from resnet_acc.results.measured import Run

FORMATS = ("csv", "parquet", "tensorboard")


@dataclass(frozen=True)
class Exported:
    """What was written: each path that was made, and a line about what is in it."""

    paths: list[Path]
    words: str


def export(runs: Sequence[Run], kind: str, folder: Path, *, overwrite: bool = False) -> Exported:
    """Write runs into a folder, which is made where there is none.

    csv and parquet: runs, steps and validations, one file each (see export_tables). tensorboard: a folder for each rank
    (see export_events). Runs that did not finish are in it and say so.

    Args:
        runs: what results.selection found.
        kind: one of FORMATS.
        folder: may hold other files.
        overwrite: whether what has the same name there is replaced.

    Raises:
        ValueError: no such format, or there is something of the same name and `overwrite` is not given.
        OSError: the folder cannot be written; it is as it was before.
    """
    if kind not in FORMATS:
        raise ValueError(f"format is {kind!r}; choose one of {', '.join(FORMATS)}")
    if not runs:
        raise ValueError("there are no runs to export; start one with: resnet-acc launch")
    with _staged(folder, overwrite) as stage:
        if kind == "tensorboard":
            from resnet_acc.results.export_events import write_events

            words = f"{write_events(runs, stage)} ranks of {len(runs)} runs; look at them with: tensorboard --logdir"
        else:
            words = _write_tables(runs, stage, kind)
        names = sorted(entry.name for entry in stage.iterdir())
    return Exported([folder / name for name in names], words)


def _write_tables(runs: Iterable[Run], folder: Path, kind: str) -> str:
    told = []
    for name, columns, rows in make_tables(runs).items():
        path = folder / f"{name}.{kind}"
        if kind == "csv":
            write_atomically(path, csv_text(columns, rows).encode("utf-8", errors="replace"))
        else:
            _write_parquet(path, columns, rows)
        told.append(f"{len(rows)} {name}")
    return ", ".join(told)


def csv_text(columns: Columns, rows: Iterable[Row]) -> str:
    """A table as text: nothing for what is not on record, nan and inf as such, true and false."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_csv_value(row[name]) for name in columns])
    return stream.getvalue()


def _csv_value(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value


def _write_parquet(path: Path, columns: Columns, rows: Sequence[Row]) -> None:
    """The schema is the columns', whatever the rows hold: an empty column has its type all the same."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    schema = pa.schema([pa.field(name, kinds[kind]) for name, kind in columns.items()])
    arrays = [pa.array([_parquet_value(row[name]) for row in rows], kinds[kind]) for name, kind in columns.items()]
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), str(path))


def _parquet_value(value: Any) -> Any:
    # A folder's name may hold bytes that are no text.
    return value.encode("utf-8", errors="replace").decode("utf-8") if isinstance(value, str) else value


@contextmanager
def _staged(folder: Path, overwrite: bool) -> Iterator[Path]:
    """A folder beside the target; what it holds at the end is moved there, all of it or nothing."""
    folder = folder.absolute()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give a folder with --to")
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=".export-", dir=folder))
    except OSError:
        _remove_empty(made)
        raise
    try:
        (stage / "new").mkdir()
        (stage / "old").mkdir()
        yield stage / "new"
        _move(stage, folder, overwrite)
    finally:
        if not os.listdir(stage / "old"):  # else what was there before could not be put back, and is kept here
            shutil.rmtree(stage, ignore_errors=True)
        _remove_empty(made)


def _move(stage: Path, folder: Path, overwrite: bool) -> None:
    names = sorted(entry.name for entry in (stage / "new").iterdir())
    there = [name for name in names if os.path.lexists(folder / name)]
    if there and not overwrite:
        raise ValueError(f"{folder} holds {', '.join(there)} already; give another folder, or --overwrite")
    moved: list[tuple[Path, Path]] = []
    try:
        for source, target in [
            *((folder / name, stage / "old" / name) for name in there),
            *((stage / "new" / name, folder / name) for name in names),
        ]:
            os.rename(source, target)
            moved.append((source, target))
    except BaseException:
        for source, target in reversed(moved):
            os.rename(target, source)
        raise
    shutil.rmtree(stage / "old")
    (stage / "old").mkdir()


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return

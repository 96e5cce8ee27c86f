"""Whether an image folder is fit for training: its layout, its classes, and every image decoded. Imports no torch."""

import collections
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from resnet_acc.datasets.folder import IMAGE_EXTENSIONS
from resnet_acc.datasets.image import Look, look_at
from resnet_acc.datasets.mock_options import check_number
from resnet_acc.datasets.report import FolderReport, PartReport, Problem, shown
from resnet_acc.datasets.worker import make_pool

PARTS = ("train", "val")
MAX_LISTED = 1000
"""Problems of one kind that a report lists; the rest are counted, so that a folder of a million bad files fits."""
_CHUNK = 64  # Images of one task: about half a second at ImageNet's size.
_FEW = 256  # Up to so many images starting other processes takes longer than looking at them.

_Above = tuple[tuple[int, int] | None, ...]  # Folders that one lies in, by device and inode.


@dataclass
class _Findings:
    """What was found so far."""

    parts: dict[str, PartReport] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    num_problems: collections.Counter[str] = field(default_factory=collections.Counter)
    notes: list[str] = field(default_factory=list)

    def add(self, kind: str, path: str, reason: str) -> None:
        self.num_problems[kind] += 1
        if self.num_problems[kind] <= MAX_LISTED:
            self.problems.append(Problem(kind, path, reason))


def check_folder(root: str | Path, *, workers: int | None = None, progress: bool = True) -> FolderReport:
    """Look at everything that training would read of `root`/train/<class>/ and `root`/val/<class>/.

    The rules are training's: hidden files and folders and files of other kinds are passed over (and counted), images
    may lie below their class's folder, links are followed but never back into a folder that they lie in. Memory does
    not grow with the number of images.

    Args:
        workers: processes that decode images (None: one per core); what is found does not depend on it.
        progress: show a bar on standard error.

    Raises:
        ValueError: there is no such folder, or no train/ in it.
        RuntimeError: a process that decoded images was killed.
    """
    workers = len(os.sched_getaffinity(0)) if workers is None else workers
    check_number("workers", workers, 1, 1024)
    start = time.monotonic()
    root = Path(os.path.abspath(Path(root).expanduser()))
    _refuse_no_folder(root)
    found = _Findings()
    _check_layout(root, found)
    total = sum(part.num_images for part in found.parts.values())
    with tqdm(total=total, desc="images", unit="image", disable=not progress, mininterval=0.5) as bar:
        for part, chunk, looks in _look_at_all(_chunks(root), workers if total > _FEW else 1):
            for path, look in zip(chunk, looks, strict=True):
                found.parts[part].add(look)
                if look.kind:
                    found.add(look.kind, path, look.reason)
            bar.update(len(chunk))
    for name, counted in found.parts.items():
        found.notes += counted.notes(name)
    return FolderReport(
        root=root,
        parts=found.parts,
        # Processes finish in any order; what is listed does not depend on it where the list is whole.
        problems=sorted(found.problems, key=lambda problem: (problem.kind, problem.path)),
        num_problems=dict(sorted(found.num_problems.items())),
        notes=found.notes,
        seconds=time.monotonic() - start,
    )


def _refuse_no_folder(root: Path) -> None:
    if not root.is_dir():
        raise ValueError(f"{shown(str(root))} is no folder; give the folder that holds train/<class>/ and val/<class>/")
    if not (root / "train").is_dir():
        inside = ": give the folder above it" if root.name in PARTS else ""
        raise ValueError(
            f"{shown(str(root))} has no train/{inside}; images belong into {shown(str(root))}/train/<class>/<image>"
        )


def _check_layout(root: Path, found: _Findings) -> None:
    """Count classes and images of both parts, without opening a file, and note what does not fit together."""
    for name in PARTS:
        if (root / name).is_dir():
            found.parts[name] = _count_part(root / name, found)
    train, val = found.parts["train"].classes, found.parts["val"].classes if "val" in found.parts else None
    if val is None:
        found.notes.append("no val/: training measures no accuracy")
        return
    if not val:
        return  # said already
    for name in sorted(set(val) - set(train)):
        found.add("class only in val", str(root / "val" / name), "train/ does not have this class, so training stops")
    for name in sorted(set(train) - set(val)):
        found.add(
            "class only in train", str(root / "train" / name), "val/ has no image of it, so its accuracy is unknown"
        )


def _count_part(folder: Path, found: _Findings) -> PartReport:
    part, above = PartReport(), (_identity(str(folder)),)
    classes, loose = [], 0
    for entry in _entries(str(folder), found):
        if entry.name.startswith("."):
            part.see_hidden(entry.path)
        elif entry.is_dir():
            classes.append(entry.name)
        elif entry.name.lower().endswith(IMAGE_EXTENSIONS):
            loose += 1
    if loose:
        found.notes.append(f"{folder.name}/: {loose} images lie beside the class folders and belong to no class")
    if not classes:
        found.add("no classes", str(folder), f"it has no class folders; sort its images into {folder.name}/<class>/")
    for name in sorted(classes):
        part.classes[name] = sum(1 for _ in _images_below(str(folder / name), above, found, part))
        if not part.classes[name]:
            found.add("empty class", str(folder / name), "it has no image; add images or remove the folder")
    return part


def _entries(folder: str, found: _Findings | None) -> Iterator["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError as error:
        if found is not None:
            found.add("unreadable", folder, error.strerror or str(error))


def _images_below(
    folder: str, above: _Above, found: _Findings | None = None, part: PartReport | None = None
) -> Iterator[str]:
    """Paths of the images in a class's folder and below, in the order of the disk."""
    identity = _identity(folder)
    if identity in above:
        return  # a link back to a folder that it lies in
    for entry in _entries(folder, found):
        if entry.name.startswith("."):
            if part is not None:
                part.see_hidden(entry.path)
        elif entry.is_dir():
            yield from _images_below(entry.path, (*above, identity), found, part)
        elif entry.name.lower().endswith(IMAGE_EXTENSIONS):
            yield entry.path
        elif part is not None:
            part.see_other(entry.path)


def _identity(folder: str) -> tuple[int, int] | None:
    try:
        status = os.stat(folder)
    except OSError:
        return None  # gone, or not to be read: listing it says so
    return status.st_dev, status.st_ino


def _chunks(root: Path) -> Iterator[tuple[str, list[str]]]:
    """(part, paths), a few images each; folders are walked as the images are needed."""
    for name in PARTS:
        chunk: list[str] = []
        above = (_identity(str(root / name)),)
        for entry in _entries(str(root / name), None) if (root / name).is_dir() else ():
            if entry.name.startswith(".") or not entry.is_dir():
                continue
            for path in _images_below(entry.path, above):
                chunk.append(path)
                if len(chunk) == _CHUNK:
                    yield name, chunk
                    chunk = []
        if chunk:
            yield name, chunk


def _look_at_all(chunks: Iterable[tuple[str, list[str]]], workers: int) -> Iterator[tuple[str, list[str], list[Look]]]:
    """Each chunk with what its files are, as it is done; only a few chunks are under way at a time."""
    if workers == 1:
        for part, chunk in chunks:
            yield part, chunk, _look_at_chunk(chunk)
        return
    with make_pool(workers) as pool:
        under_way: dict[Future[list[Look]], tuple[str, list[str]]] = {}
        try:
            for part, chunk in chunks:
                under_way[pool.submit(_look_at_chunk, chunk)] = (part, chunk)
                while len(under_way) >= 3 * workers:
                    yield from _done(under_way)
            while under_way:
                yield from _done(under_way)
        except BrokenProcessPool:
            suspects = sorted(path for _, paths in under_way.values() for path in paths)
            raise RuntimeError(
                f"a process that decoded images was killed (out of memory?), at one of {len(suspects)} files from "
                f"{shown(suspects[0])} on; try again with 1 worker"
            ) from None
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _done(under_way: "dict[Future[list[Look]], tuple[str, list[str]]]") -> Iterator[tuple[str, list[str], list[Look]]]:
    for future in wait(under_way, return_when=FIRST_COMPLETED).done:
        looks = future.result()
        part, chunk = under_way.pop(future)
        yield part, chunk, looks


def _look_at_chunk(chunk: list[str]) -> list[Look]:
    return [look_at(path) for path in chunk]

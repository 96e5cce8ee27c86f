"""What an image folder holds, counted without opening a file and without torch."""

import os
from dataclasses import dataclass
from pathlib import Path

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Those of torchvision.datasets.folder.IMG_EXTENSIONS; compared in lower case."""


@dataclass(frozen=True, kw_only=True)
class FolderCounts:
    """Class names in the order of their numbers, and how many images there are to train and to validate with."""

    classes: list[str]
    train_images: int
    val_images: int


def count_images(folder: Path) -> FolderCounts:
    """Count the images of `folder`/train/<class>/ and `folder`/val/<class>/, by the rules that training reads them by.

    A class is a folder (or a link to one, under the link's own name) directly below train/; images may lie deeper.
    Whatever begins with a dot is passed over: editors leave such folders behind, and nobody means them as data.
    Links to folders are followed, but never back into a folder that they lie in. Without val/ there are 0 images in it.

    Raises:
        ValueError: there is no train/, it has no class, a class has no image, or val/ has a class that train/ lacks.
        OSError: a folder cannot be read.
    """
    train = folder / "train"
    if not train.is_dir():
        raise ValueError(f"{train} is no folder; images belong into {train / '<class>' / '<image>.JPEG'}")
    counts = _count_classes(train)
    val = folder / "val"
    val_counts = _count_classes(val) if val.is_dir() else {}
    extra = sorted(set(val_counts) - set(counts))
    if extra:
        raise ValueError(f"{val} has class {extra[0]!r}, which train/ does not have; remove or add it there")
    return FolderCounts(classes=list(counts), train_images=sum(counts.values()), val_images=sum(val_counts.values()))


def _count_classes(split: Path) -> dict[str, int]:
    with os.scandir(split) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise ValueError(f"{split} has no class folders; it needs {split / '<class>' / '<image>.JPEG'}")
    above = (_identity(split),)
    counts = {name: _count_below(os.path.join(split, name), above) for name in names}
    empty = [name for name, count in counts.items() if not count]
    if empty:
        more = f" (and {len(empty) - 1} more classes)" if len(empty) > 1 else ""
        raise ValueError(f"{split / empty[0]} has no image{more}; add images or remove the folder")
    return counts


def _count_below(folder: str, above: tuple[tuple[int, int], ...]) -> int:
    identity = _identity(folder)
    if identity in above:
        return 0  # a link back to a folder that it lies in
    count = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                count += _count_below(entry.path, (*above, identity))
            elif entry.name.lower().endswith(IMAGE_EXTENSIONS):
                count += 1
    return count


def _identity(folder: str | Path) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino

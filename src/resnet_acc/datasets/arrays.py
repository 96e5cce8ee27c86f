"""Images that come as arrays, as in many Python packages, written out as an image folder."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from resnet_acc.datasets.folder import FolderCounts, count_images

VAL_EVERY = 5


def write_image_folder(images: Any, labels: Any, folder: Path, *, val_every: int = VAL_EVERY) -> FolderCounts:
    """Write `folder`/train/<label>/ and `folder`/val/<label>/ as PNG files, whole or not at all.

    Of each class every `val_every`-th image is one to validate with. A folder that holds as many images already is
    left as it is.

    Args:
        images: shape [N, H, W] (grey) or [N, H, W, 3], values 0 to 255, rounded where they are no whole numbers.
        labels: shape [N]; each becomes the name of a class's folder.

    Raises:
        ValueError: shapes, values or labels do not fit, or the folder holds something else.
        OSError: the folder cannot be written.
    """
    import numpy as np

    images, names = np.asarray(images), [str(label) for label in np.asarray(labels).tolist()]
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] != 3) or len(images) != len(names):
        raise ValueError(f"images have shape {images.shape} for {len(names)} labels; give [N, H, W] or [N, H, W, 3]")
    if not len(images) or images.min() < 0 or images.max() > 255:
        raise ValueError("images are none, or have values outside 0 to 255; scale them")
    for name in names:
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            raise ValueError(f"label {name!r} is no name for a class's folder; rename it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.parent):
        if not folder.exists():
            _write_whole(np.rint(images).astype(np.uint8), names, folder, val_every)
    counts = count_images(folder)
    if counts.train_images + counts.val_images != len(images) or counts.classes != sorted(set(names)):
        raise ValueError(f"{folder} holds other images; remove it or choose another folder")
    return counts


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One at a time: notebooks of a batch may want the same images at once. Ends with the process, however it ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: the rename is whole all the same
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write_whole(images: Any, names: list[str], folder: Path, val_every: int) -> None:
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # what a killed call left
    try:
        _write_all(images, names, partial, val_every)
        os.rename(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_all(images: Any, names: list[str], folder: Path, val_every: int) -> None:
    from PIL import Image

    seen: dict[str, int] = {}
    for number, (image, name) in enumerate(zip(images, names, strict=True)):
        seen[name] = seen.get(name, 0) + 1
        place = folder / ("val" if seen[name] % val_every == 0 else "train") / name
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number}.png")

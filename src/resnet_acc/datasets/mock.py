"""Mock ImageNet: real JPEG files in ImageNet's layout, made on this machine instead of downloaded.

    resnet-acc data mock                              # 10 classes, a few seconds
    resnet-acc data mock --preset=imagenet-like       # 1000 classes, images as large as ImageNet's

What an image looks like is told in textures.py; here stands which images there are, and that each lies there whole.
"""

import contextlib
import fcntl
import itertools
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from resnet_acc.datasets import textures
from resnet_acc.datasets.mock_options import MANIFEST, MockOptions, check_number, manifest, mock_options, read_options
from resnet_acc.files import project_root, write_json

_PARTIAL = (
    ".partial"  # Images grow here and are then renamed into place, so that train/ and val/ hold whole files only.
)
_CHUNK = (
    16  # Images of one task: about a quarter of a second at ImageNet's size, so that the bar moves and Ctrl-C is quick.
)
_SAMPLE = 8  # Images made in memory to learn how large one is.
_PARTS = ("train", "val")
_BLOCK = 4096  # A file system gives out space in blocks of this many bytes.


@dataclass(frozen=True, kw_only=True)
class MockSummary:
    """What lies in the folder now, and what this call added to it."""

    folder: Path
    options: MockOptions
    train_images: int
    val_images: int
    written_images: int
    written_bytes: int
    seconds: float


class _Item(NamedTuple):
    """One image; what it is called and made from follows from these three numbers. Small, as there may be millions."""

    part: int  # 0: train, 1: val
    number: int  # of the class
    image: int  # within class and part

    @property
    def folder(self) -> str:
        return f"{_PARTS[self.part]}/{wnid(self.number)}"

    @property
    def name(self) -> str:
        return f"{wnid(self.number)}_{'val_' if self.part else ''}{self.image}.JPEG"

    def jpeg(self, options: MockOptions) -> bytes:
        return textures.jpeg(self.number, (options.seed, *self), options.size)


def default_folder() -> Path:
    """Where `--data mock` reads: data/mock_imagenet of the repository."""
    return project_root() / "data" / "mock_imagenet"


def wnid(number: int) -> str:
    """The made-up WordNet number of a class, in the form of ImageNet's: sorted names keep the classes' order."""
    return f"n{1_000_000 + 4_099 * number:08d}"


def make_mock_imagenet(
    folder: Path,
    preset: str = "quick",
    *,
    classes: int | None = None,
    images_per_class: int | None = None,
    val_images_per_class: int | None = None,
    size: int | None = None,
    seed: int = 0,
    workers: int | None = None,
    progress: bool = True,
) -> MockSummary:
    """Make `folder`/{train,val}/<wnid>/*.JPEG, or complete it: what lies there already is not touched.

    Args:
        workers: processes that make images (None: one per core); the bytes do not depend on it.
        progress: show a bar on standard error.

    Raises:
        ValueError: an option is out of range, the folder holds other images, or the disk has too little space.
        OSError: the folder cannot be written.
    """
    options = mock_options(
        preset,
        classes=classes,
        images_per_class=images_per_class,
        val_images_per_class=val_images_per_class,
        size=size,
        seed=seed,
    )
    return make_with_options(folder, options, workers=workers, progress=progress)


def make_with_options(
    folder: Path, options: MockOptions, *, workers: int | None = None, progress: bool = True
) -> MockSummary:
    """As make_mock_imagenet, from options that are already resolved."""
    workers = len(os.sched_getaffinity(0)) if workers is None else workers
    check_number("workers", workers, 1, 1024)
    start = time.monotonic()
    folder = Path(folder).expanduser()
    _make_folder(folder)
    with _locked(folder):
        _refuse_other_content(folder, options)
        missing = _missing(folder, options)
        written = 0
        if missing:
            _check_space(folder, missing, options)
            if not (folder / MANIFEST).exists():
                write_json(folder / MANIFEST, manifest(options))
            written = _write_all(folder, missing, options, workers, progress)
    return MockSummary(
        folder=folder,
        options=options,
        train_images=options.classes * options.images_per_class,
        val_images=options.classes * options.val_images_per_class,
        written_images=len(missing),
        written_bytes=written,
        seconds=time.monotonic() - start,
    )


def _make_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; give a folder for the images")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; choose a folder that can be written", str(folder)) from None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time work in the folder; the lock lies on the folder itself, so it leaves no file."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another process makes images in {folder}; waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            pass  # some network file systems have no locks; renaming keeps files whole there too
        yield
    finally:
        os.close(handle)


def _refuse_other_content(folder: Path, options: MockOptions) -> None:
    found = read_options(folder)
    if found is None:
        if any((folder / split).exists() and any((folder / split).iterdir()) for split in _PARTS):
            raise ValueError(
                f"{folder} holds images that are no mock data (it has no {MANIFEST}); choose another folder"
            )
    elif found != options:
        raise ValueError(
            f"{folder} was made with {found}, and now asked for is {options}; "
            "give the same options, choose another folder, or remove this one"
        )


def _missing(folder: Path, options: MockOptions) -> list[_Item]:
    """Images that are not there, or empty (a machine that lost power right after the rename leaves such a file)."""
    missing: list[_Item] = []
    counts = (options.images_per_class, options.val_images_per_class)
    for (part, count), number in itertools.product(enumerate(counts), range(options.classes)):
        present: set[str] = set()
        with contextlib.suppress(FileNotFoundError), os.scandir(folder / _PARTS[part] / wnid(number)) as entries:
            present = {entry.name for entry in entries if entry.is_file() and entry.stat().st_size}
        items = (_Item(part, number, image) for image in range(count))
        missing += [item for item in items if item.name not in present]
    return missing


def _check_space(folder: Path, missing: Sequence[_Item], options: MockOptions) -> None:
    """Raise ValueError where the missing images will not fit, judged by a few of them made in memory."""
    sample = missing[:: max(1, len(missing) // _SAMPLE)][:_SAMPLE]
    largest_mean = sum(_BLOCK + len(item.jpeg(options)) for item in sample) / len(sample)
    need = int(largest_mean * len(missing) * 1.1)
    free = shutil.disk_usage(folder).free
    if need > free:
        raise ValueError(
            f"{len(missing)} images need about {need / 1e6:,.0f} MB and {folder} has {free / 1e6:,.0f} MB free; "
            "free some, choose another folder, or ask for fewer classes, images_per_class or a smaller size"
        )


def _write_all(folder: Path, missing: Sequence[_Item], options: MockOptions, workers: int, progress: bool) -> int:
    """Write the images and return their bytes."""
    partial = folder / _PARTIAL
    shutil.rmtree(partial, ignore_errors=True)  # what a killed call left
    try:
        for parent in sorted({item.folder for item in missing}):
            (folder / parent).mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        interval = 0.1 if sys.stderr.isatty() else 5.0
        with tqdm(
            total=len(missing), desc="mock images", unit="image", disable=not progress, mininterval=interval
        ) as bar:
            written = 0
            for count, size_written in _write_chunks(folder, missing, options, workers):
                written += size_written
                bar.update(count)
        return written
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, f"{error.strerror}; choose a folder that can be written", str(folder)) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_chunks(
    folder: Path, missing: Sequence[_Item], options: MockOptions, workers: int
) -> Iterator[tuple[int, int]]:
    """Images and bytes of each chunk as it is done."""
    chunks = [missing[start : start + _CHUNK] for start in range(0, len(missing), _CHUNK)]
    if workers == 1 or len(chunks) == 1:
        for chunk in chunks:
            yield len(chunk), _write_chunk(folder, chunk, options)
        return
    # Spawned, not forked: the caller may be a notebook's kernel with threads and a device in use.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(chunks)), context, _start_worker, (os.getpid(),)) as pool:
        try:
            lengths = {pool.submit(_write_chunk, folder, chunk, options): len(chunk) for chunk in chunks}
            for future in as_completed(lengths):
                yield lengths[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _write_chunk(folder: Path, chunk: Sequence[_Item], options: MockOptions) -> int:
    written = 0
    for item in chunk:
        content = item.jpeg(options)
        temporary = folder / _PARTIAL / item.name
        temporary.write_bytes(content)
        os.replace(temporary, folder / item.folder / item.name)
        written += len(content)
    return written


def _start_worker(parent: int) -> None:
    """End with the parent, however that ends, and leave Ctrl-C to it."""
    import ctypes
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before the line above

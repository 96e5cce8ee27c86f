"""One image file looked at as training will read it: whole or not, its mode, size and format. Imports no torch."""

import os
import stat
import warnings
from typing import NamedTuple

from PIL import Image, UnidentifiedImageError

EMPTY, TRUNCATED, NO_IMAGE, UNREADABLE, DEPTH = "empty file", "truncated", "no image", "unreadable", "too deep"
"""Kinds of faults that an image file can have."""

_READ_RIGHT = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "LAB", "HSV"})
# Pillow turns these into RGB by cutting off at 255, so that a 16-bit photo comes out white.
_DEEP = {
    "I": "32-bit integers",
    "F": "floating-point numbers",
    "I;16": "16 bits",
    "I;16B": "16 bits",
    "I;16L": "16 bits",
}
_MAGIC = (
    (b"<", "it is text such as HTML or XML"),
    (b"version https://git-lfs", "it is a Git LFS pointer; fetch the file itself with git lfs pull"),
    (b"PK\x03\x04", "it is a ZIP archive"),
    (b"\x1f\x8b", "it is gzip data"),
)
_BEGINNINGS = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF8", b"RIFF", b"BM", b"II*\0", b"MM\0*")  # of image formats
_CUT = "it was cut off or damaged: copy it again"


class Look(NamedTuple):
    """What one file turned out to be. `kind` is "" for a good image; what is not known is "" or 0."""

    mode: str = ""
    format: str = ""
    width: int = 0
    height: int = 0
    num_bytes: int = 0
    turned: bool = False
    kind: str = ""
    reason: str = ""


def look_at(path: str) -> Look:
    """Decode a file to its end, as training does, and say what it is. No content of a file raises an error."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            return Look(kind=UNREADABLE, reason="it is no regular file")
        if status.st_size == 0:
            return Look(kind=EMPTY, reason="it has 0 bytes")
        with open(path, "rb") as stream:
            beginning = stream.read(64)
            stream.seek(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of large images and odd EXIF data; training reads them all the same
                return _decode(stream, beginning, status.st_size)
    except OSError as error:
        return Look(kind=UNREADABLE, reason=(error.strerror or str(error)))


def _decode(stream: object, beginning: bytes, num_bytes: int) -> Look:
    try:
        image = Image.open(stream)  # type: ignore[arg-type]
    except Exception as error:  # decoders raise all sorts on damaged headers
        if beginning.startswith(_BEGINNINGS):
            return Look(num_bytes=num_bytes, kind=TRUNCATED, reason=f"it ends within its header; {_CUT}")
        told = "of no known format" if isinstance(error, UnidentifiedImageError) else _words(error)
        told = next((words for magic, words in _MAGIC if beginning.lstrip().startswith(magic)), told)
        return Look(num_bytes=num_bytes, kind=NO_IMAGE, reason=told)
    with image:
        seen = Look(image.mode, image.format or "", *image.size, num_bytes)
        try:
            turned = image.getexif().get(0x0112, 1) not in (0, 1)
            # A JPEG is decoded at an eighth of its size: every byte is read all the same, in a third of the time.
            image.draft(None, (max(1, image.width // 8), max(1, image.height // 8)))
            image.load()
        except MemoryError:
            return seen._replace(kind=UNREADABLE, reason=f"{seen.width} x {seen.height} pixels do not fit into memory")
        except Exception as error:
            return seen._replace(kind=TRUNCATED, reason=f"{_words(error)}; {_CUT}")
    if seen.mode not in _READ_RIGHT:
        what = _DEEP.get(seen.mode, "an unusual form")
        reason = f"mode {seen.mode}, {what} a pixel, which training would read wrongly; convert it to 8 bits"
        return seen._replace(kind=DEPTH, reason=reason)
    return seen._replace(turned=turned)


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__

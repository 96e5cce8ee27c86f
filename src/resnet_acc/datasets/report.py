"""What a check of an image folder found: plain values, tables and text."""

import collections
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from resnet_acc.datasets.image import Look

if TYPE_CHECKING:
    import pandas as pd

_UNUSUAL = {
    "CMYK": "colours for printing",
    "P": "a palette",
    "PA": "a palette with transparency",
    "RGBA": "transparency, which is dropped",
    "LA": "transparency, which is dropped",
    "L": "grey",
    "1": "black and white",
}
_TEXT_PROBLEMS = 20


class Problem(NamedTuple):
    """One thing that is wrong: its kind, the full path, and the reason with the mend."""

    kind: str
    path: str
    reason: str


@dataclass
class PartReport:
    """train/ or val/. `classes` counts the images of each class, in the order of their numbers."""

    classes: dict[str, int] = field(default_factory=dict)
    num_bytes: int = 0
    modes: collections.Counter[str] = field(default_factory=collections.Counter)
    formats: collections.Counter[str] = field(default_factory=collections.Counter)
    num_turned: int = 0
    num_hidden: int = 0
    num_other: int = 0
    first_hidden: str = ""
    first_other: str = ""
    _widths: collections.Counter[int] = field(default_factory=collections.Counter)
    _heights: collections.Counter[int] = field(default_factory=collections.Counter)

    @property
    def num_images(self) -> int:
        """Images of all classes, good or bad."""
        return sum(self.classes.values())

    @property
    def num_good(self) -> int:
        """Images that were decoded to their end and that training reads right."""
        return sum(self.modes.values())

    def add(self, look: Look) -> None:
        """Count one image that was looked at."""
        self.num_bytes += look.num_bytes
        if look.kind:
            return
        self.modes[look.mode] += 1
        self.formats[look.format] += 1
        self._widths[look.width] += 1
        self._heights[look.height] += 1
        self.num_turned += look.turned

    def see_hidden(self, path: str) -> None:
        """Count a file or folder whose name begins with a dot."""
        self.num_hidden += 1
        self.first_hidden = self.first_hidden or path

    def see_other(self, path: str) -> None:
        """Count a file that has no image's extension."""
        self.num_other += 1
        self.first_other = self.first_other or path

    def size(self, quantile: float) -> tuple[int, int] | None:
        """Width and height below which that part of the good images lies (each on its own); None without images."""
        if not self._widths:
            return None
        return _quantile(self._widths, quantile), _quantile(self._heights, quantile)

    def notes(self, name: str) -> list[str]:
        """What is not wrong but worth knowing, a line each."""
        lines = []
        if self.num_hidden:
            lines.append(f"{name}/: {self.num_hidden} hidden passed over, such as {shown(self.first_hidden)}")
        if self.num_other:
            lines.append(f"{name}/: {self.num_other} files are no images by name, such as {shown(self.first_other)}")
        for mode, words in _UNUSUAL.items():
            if self.modes[mode]:
                lines.append(f"{name}/: {self.modes[mode]} images of mode {mode} ({words}) are read as RGB")
        if self.num_turned:
            lines.append(f"{name}/: {self.num_turned} images lie turned (EXIF orientation), and training reads them so")
        if self.classes and min(self.classes.values()) * 10 < max(self.classes.values()):
            few, many = min(self.classes, key=self.classes.get), max(self.classes, key=self.classes.get)  # type: ignore[arg-type]
            lines.append(
                f"{name}/: classes differ much in size, from {self.classes[few]} images ({shown(few)}) to "
                f"{self.classes[many]} ({shown(many)})"
            )
        return lines

    def values(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "num_classes": len(self.classes),
            "num_images": self.num_images,
            "num_good": self.num_good,
            "num_bytes": self.num_bytes,
            "classes": dict(self.classes),
            "modes": dict(self.modes),
            "formats": dict(self.formats),
            "num_turned": self.num_turned,
            "num_hidden": self.num_hidden,
            "num_other": self.num_other,
            **{
                f"{name}_size": self.size(part) for name, part in (("smallest", 0.0), ("median", 0.5), ("largest", 1.0))
            },
        }


def _quantile(counts: collections.Counter[int], quantile: float) -> int:
    """The value at that place of the sorted values; those of images are few, however many images there are."""
    place, seen = quantile * (sum(counts.values()) - 1), 0
    for value in sorted(counts):
        seen += counts[value]
        if seen > place:
            return value
    return max(counts)


@dataclass(frozen=True, kw_only=True)
class FolderReport:
    """What lies in a folder and what is wrong with it.

    `problems` lists the first of each kind (check.MAX_LISTED), `num_problems` counts all; `notes` are no faults.
    """

    root: Path
    parts: dict[str, PartReport]
    problems: Sequence[Problem]
    num_problems: dict[str, int]
    notes: Sequence[str]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.num_problems

    @property
    def num_images(self) -> int:
        """Images of both parts, good or bad."""
        return sum(part.num_images for part in self.parts.values())

    def values(self) -> dict[str, Any]:
        """Plain values, fit for JSON."""
        return {
            "schema": 1,
            "root": str(self.root),
            "ok": self.ok,
            "num_images": self.num_images,
            "num_problems": dict(self.num_problems),
            "problems": [problem._asdict() for problem in self.problems],
            "notes": list(self.notes),
            "parts": {name: part.values() for name, part in self.parts.items()},
            "seconds": self.seconds,
        }

    def table(self) -> "pd.DataFrame":
        """One row for train and one for val: counts, sizes in pixels, modes."""
        import pandas as pd

        return pd.DataFrame([_row(part) for part in self.parts.values()], index=list(self.parts))

    def problems_table(self) -> "pd.DataFrame":
        """One row per listed problem, with the full path as it can be printed."""
        import pandas as pd

        rows = [(problem.kind, shown(problem.path), problem.reason) for problem in self.problems]
        return pd.DataFrame(rows, columns=["kind", "path", "reason"])

    def text(self) -> str:
        """The report for a terminal; the problems come last, where they are seen."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{shown(str(self.root))}: {self.num_images:,} images looked at in {self.seconds:.1f} s"
        for name, part in self.parts.items():
            row = _row(part)
            yield (
                f"{name}: {part.num_images:,} images ({part.num_good:,} good) in {len(part.classes):,} classes "
                f"({row['images per class']} each), {row['MB']} MB; {row['smallest px']} to {row['largest px']} "
                f"pixels, median {row['median px']}; modes {row['modes']}; formats {row['formats']}"
            )
        yield from (f"note: {note}" for note in self.notes)
        for kind, num in self.num_problems.items():
            listed = [problem for problem in self.problems if problem.kind == kind][:_TEXT_PROBLEMS]
            yield from (f"{kind}: {shown(problem.path)}: {problem.reason}" for problem in listed)
            if num > len(listed):
                yield f"{kind}: {num - len(listed):,} more"
        yield self.verdict

    @property
    def verdict(self) -> str:
        """One line: nothing wrong, or how many problems of which kinds."""
        if self.ok:
            return "nothing wrong was found"
        kinds = ", ".join(f"{num:,} x {kind}" for kind, num in self.num_problems.items())
        return f"{sum(self.num_problems.values()):,} problems: {kinds}"


def _row(part: PartReport) -> dict[str, Any]:
    counts = list(part.classes.values()) or [0]
    return {
        "images": part.num_images,
        "good": part.num_good,
        "classes": len(part.classes),
        "images per class": _span(min(counts), max(counts)),
        "MB": round(part.num_bytes / 1e6, 1),
        "smallest px": _pixels(part.size(0.0)),
        "median px": _pixels(part.size(0.5)),
        "largest px": _pixels(part.size(1.0)),
        "modes": _counts(part.modes),
        "formats": _counts(part.formats),
    }


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _pixels(size: tuple[int, int] | None) -> str:
    return "n/a" if size is None else f"{size[0]} x {size[1]}"


def _counts(counts: collections.Counter[str]) -> str:
    return ", ".join(f"{name} {num}" for name, num in counts.most_common()) or "n/a"


def shown(path: str) -> str:
    """A path that any terminal and page can print: bytes that are no text, and control characters, are escaped."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)

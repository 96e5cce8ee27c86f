"""Lines of a file that a process may have been killed over, and numbers out of them."""

import math
from collections.abc import Iterator
from typing import IO, Any

MAX_LINE = 1 << 20
"""Bytes of the longest line that is looked at; ours have some hundred. Bounds the memory a damaged file can take."""

MAX_COUNT = 2**53
"""Largest step or count believed in: above it a float no longer tells two neighbours apart."""


MAX_SECONDS = 1e8
"""Longest time believed in (three years); a damaged record can hold any number."""

MIN_SECONDS = 1e-7
"""Shortest time of a step believed in."""

MAX_GIB = 1e6
"""Most memory of one process believed in."""


def known_seconds(value: Any) -> float | None:
    """A time from a record, or None where it is none that can be."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SECONDS:
        return None
    return float(value)


def split_lines(stream: IO[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield (line without its end, whether it is whole); a line longer than MAX_LINE comes as (b"", False).

    The last line of a file that does not end in a newline is not whole: its last number may be the beginning of one.
    """
    while line := stream.readline(MAX_LINE):
        if line.endswith(b"\n"):
            yield line[:-1], True
        elif len(line) < MAX_LINE:
            yield line, False
        else:
            while (rest := stream.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                pass
            yield b"", False


def as_count(value: Any, minimum: int = 0) -> int:
    """An integer from a record.

    Raises:
        ValueError: no number, not whole, below the minimum, or beyond MAX_COUNT.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= MAX_COUNT:
        raise ValueError(f"{value!r} is no count of at least {minimum}")
    if value != int(value):
        raise ValueError(f"{value!r} is no whole number")
    return int(value)


def as_float(value: Any) -> float:
    """A float from a record; nothing (None) is nan.

    Raises:
        ValueError: no number.
    """
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf

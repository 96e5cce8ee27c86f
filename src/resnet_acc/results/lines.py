"""Lines of a file that a process may have been killed over, and numbers out of them."""

import math
from collections.abc import Iterator
from typing import IO, Any

MAX_LINE = 1 << 20
"""Bytes of the longest line that is looked at; ours have some hundred. Bounds the memory a damaged file can take."""

MAX_COUNT = 2**53
"""Largest step or count believed in: above it a float no longer tells two neighbours apart."""


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

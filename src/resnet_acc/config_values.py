"""What any setting's value and name are checked by."""

import difflib
import re
import types
import typing
from collections.abc import Iterable
from typing import Any


def slug(text: str) -> str:
    """A folder name of lower-case letters, digits, dots and hyphens, at most 40 characters."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:40] or "unnamed"


def refuse_unknown(given: Iterable[str], known: list[str]) -> None:
    """Raise ValueError where a name is not known, with the nearest known name as the mend."""
    for name in given:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {nearest[0]}?" if nearest else f"; known: {', '.join(known)}"
            raise ValueError(f"unknown name {name!r}{hint}")


def checked_type(name: str, value: Any, hint: Any) -> Any:
    """The value as the hinted type has it: 64.0 is taken as 64, and 1 as 1.0.

    Raises:
        ValueError: another type (True and "64" are no int), or a number that is not finite.
    """
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, float) and int in allowed and float not in allowed and value.is_integer():
        return int(value)  # a parameter file may hold 64.0
    if isinstance(value, int) and not isinstance(value, bool) and float in allowed:
        value = float(value)
    if float in allowed and isinstance(value, float) and not abs(value) < float("inf"):
        raise ValueError(f"{name} is {value}; give a finite number")
    if type(value) not in allowed:
        wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in allowed)
        raise ValueError(f"{name} is {value!r} ({type(value).__name__}); give {wanted}")
    return value


def at_least(name: str, value: float | None, minimum: int) -> None:
    """Raise ValueError where a number is below the least that it may be."""
    if value is not None and value < minimum:
        raise ValueError(f"{name} is {value}; give at least {minimum}")

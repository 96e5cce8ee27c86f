"""The values of a notebook's parameters cell, checked: papermill guesses types and injects names that nothing reads."""

import ast
import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from resnet_acc.config import RunConfig

MARK = "# Parameters"
"""How the first line of the parameters cell begins; the cell that papermill injects has this line alone."""


def notebook_parameters(namespace: Mapping[str, Any], types: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Names and values of the notebook's parameters: those declared in its parameters cell, as papermill overrode them.

    Args:
        namespace: the notebook's globals(); its `In` list holds the cells that were run.
        types: for names declared as None, the type that a value may have, as in {"limit": int | None}. Names that are
            RunConfig's need none.

    Raises:
        ValueError: a name that the parameters cell does not declare, or a value of another type than the declared
            one's. 64.0 is taken as 64, and "a,b" as ["a", "b"] where a list is declared; the text "false" is no bool.
    """
    cells = [str(cell) for cell in namespace.get("In", ()) if str(cell).lstrip().startswith(MARK)]
    if not cells:
        raise ValueError(f"no parameters cell was run; its first line must begin with {MARK!r}")
    declared: dict[str, Any] = {}
    injected: set[str] = set()
    hints = typing.get_type_hints(RunConfig)
    for number, cell in enumerate(cells):
        names, annotations = _assignments(cell)
        if number and cell.strip().splitlines()[0].strip() == MARK:
            injected |= set(names)
        else:  # the first, or the reader's own cell, edited and run again
            declared = names
            hints |= annotations
    hints |= types or {}
    _refuse_undeclared(injected, list(declared))
    return {
        name: _checked(name, namespace.get(name, default), default, hints.get(name))
        for name, default in declared.items()
    }


def config_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the parameters that are RunConfig's."""
    fields = {spec.name for spec in dataclasses.fields(RunConfig)}
    return {name: value for name, value in parameters.items() if name in fields}


def _assignments(cell: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Names that a cell assigns with their literal values, and the types of annotated ones."""
    try:
        body = ast.parse(cell).body
    except SyntaxError as error:
        raise ValueError(f"the parameters cell is no Python: {error}") from None
    values: dict[str, Any] = {}
    annotations: dict[str, Any] = {}
    for statement in body:
        targets: Sequence[ast.expr] = ()
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = (statement.target,)
        value = getattr(statement, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and value is not None:
                values[target.id] = _literal(target.id, value)
                if isinstance(statement, ast.AnnAssign) and (kind := _annotation(statement.annotation)) is not None:
                    annotations[target.id] = kind
    return values, annotations


def _literal(name: str, value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except ValueError:
        raise ValueError(f"{name} is {ast.unparse(value)!r} in the parameters cell; give a plain literal") from None


def _annotation(node: ast.expr) -> Any:
    """The type of a plain annotation (int, str | None, list[str]); None where it is another."""
    known = {"int": int, "float": float, "str": str, "bool": bool, "list": list, "None": type(None), "dict": dict}
    names = [part.strip().partition("[")[0] for part in ast.unparse(node).split("|")]
    if not all(name in known for name in names):
        return None
    kind: Any = known[names[0]]
    for name in names[1:]:
        kind = kind | known[name]
    return kind


def _refuse_undeclared(names: set[str], declared: list[str]) -> None:
    for name in sorted(names - set(declared)):
        nearest = difflib.get_close_matches(name, declared, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(declared)}"
        raise ValueError(f"parameter {name!r} is none of this notebook's, so nothing would read it; {hint}")


def _checked(name: str, value: Any, default: Any, hint: Any) -> Any:
    if isinstance(default, list | tuple):
        return _checked_list(name, value, list(default))
    allowed: tuple[Any, ...] = (type(default),)
    if default is None:
        if hint is None:
            return value
        union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
        allowed = (*(typing.get_args(hint) if union else (hint,)), type(None))
    return _as_type(name, value, allowed, default)


def _checked_list(name: str, value: Any, default: list[Any]) -> list[Any]:
    """A list, or one text with commas, whose elements have the type of the declared ones."""
    parts: list[Any]
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",") if part.strip()]
    else:
        parts = list(value) if isinstance(value, list | tuple) else [value]
    if not parts:
        raise ValueError(f"{name} is {value!r}; give at least one value, as in {default!r}")
    if not default:
        return parts
    kinds = tuple({type(element) for element in default})
    if isinstance(value, str) and str not in kinds:
        parts = [_number(part) for part in parts]
    return [_as_type(name, part, kinds, default) for part in parts]


def _number(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _as_type(name: str, value: Any, allowed: tuple[Any, ...], default: Any) -> Any:
    if isinstance(value, float) and int in allowed and float not in allowed and value.is_integer():
        return int(value)
    if type(value) is int and float in allowed and int not in allowed:
        return float(value)
    if type(value) in allowed:
        return value
    wanted = " or ".join(sorted("None" if kind is type(None) else kind.__name__ for kind in allowed))
    mend = _mend(name, value, allowed, default)
    raise ValueError(f"parameter {name} is {value!r} ({type(value).__name__}); give {wanted}{mend}")


def _mend(name: str, value: Any, allowed: tuple[Any, ...], default: Any) -> str:
    if bool in allowed:
        return f", written True or False (papermill: -p {name} True)"
    if str in allowed:
        shown = default[0] if isinstance(default, list) and default else default
        return f" such as {shown!r} (papermill: -r {name} {shown} keeps it a text)"
    if isinstance(value, str):
        return f" (papermill: -p {name} 64 gives a number, -r keeps a text)"
    return ""

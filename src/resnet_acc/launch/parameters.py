"""The values of a notebook's parameters cell, checked: papermill guesses types and injects names that nothing reads."""

import ast
import dataclasses
import difflib
import io
import math
import re
import tokenize
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resnet_acc.config import RunConfig

MARK = "# Parameters"
"""How the first line of the parameters cell begins; the cell that papermill injects has this line alone."""

_INT = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)
_MAX_EXACT = 2**53
"""Up to here a float that is whole is the number that was written."""
_FLOAT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Parameter:
    """One name of a parameters cell.

    `kinds`: the types that a value may have (of a list: its elements); None where the cell does not tell.
    """

    name: str
    default: Any
    kinds: tuple[type, ...] | None
    comment: str = ""

    def check(self, value: Any) -> Any:
        """The value as the notebook takes it: 64.0 as 64, and "a,b" as ["a", "b"] where a list is declared.

        Raises:
            ValueError: it has another type than the declared one's; the text "false" is no bool.
        """
        if isinstance(self.default, list | tuple):
            return self._check_list(value)
        return value if self.kinds is None else self._as_kind(value)

    def _check_list(self, value: Any) -> list[Any]:
        parts: list[Any]
        if isinstance(value, str):
            parts = [part.strip() for part in value.split(",") if part.strip()]
        else:
            parts = list(value) if isinstance(value, list | tuple) else [value]
        if not parts:
            raise ValueError(f"{self.name} is {value!r}; give at least one value, as in {self.default!r}")
        if self.kinds is None:
            return parts
        if isinstance(value, str) and str not in self.kinds:
            parts = [_number(part) for part in parts]
        return [self._as_kind(part) for part in parts]

    def _as_kind(self, value: Any) -> Any:
        kinds = self.kinds or ()
        whole = isinstance(value, float) and value.is_integer() and abs(value) <= _MAX_EXACT
        if whole and int in kinds and float not in kinds:
            return int(value)
        if type(value) is int and float in kinds and int not in kinds:
            return float(value)
        if type(value) in kinds:
            return value
        wanted = " or ".join(sorted("None" if kind is type(None) else kind.__name__ for kind in kinds))
        raise ValueError(
            f"parameter {self.name} is {value!r} ({type(value).__name__}); give {wanted}{self._mend(value)}"
        )

    def _mend(self, value: Any) -> str:
        kinds = self.kinds or ()
        if bool in kinds:
            return f", written True or False (papermill: -p {self.name} True)"
        if str in kinds:
            shown = self.default[0] if isinstance(self.default, list) and self.default else self.default
            return f" such as {shown!r} (papermill: -r {self.name} {shown} keeps it a text)"
        if isinstance(value, str):
            return f" (papermill: -p {self.name} 64 gives a number, -r keeps a text)"
        return ""

    def read_text(self, text: str) -> Any:
        """A command line's text as a value of the declared type, where it is one; else the text as it stands."""
        kinds = (str,) if isinstance(self.default, list | tuple) else self.kinds
        word = text.strip()
        if (kinds is None or type(None) in kinds) and word.lower() in ("none", "null"):
            return None
        if (kinds is None or bool in kinds) and word.lower() in ("true", "false"):
            return word.lower() == "true"
        if (kinds is None or int in kinds) and _INT.fullmatch(word):
            return int(word)
        # Text like 64.0 is left to check(), which takes it as 64 where a whole number is declared.
        if (kinds is None or float in kinds or int in kinds) and _FLOAT.fullmatch(word):
            return float(word)
        if isinstance(self.default, dict):
            return _literal_or_text(text)
        return text


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
    declaring = cells[0]
    injected: set[str] = set()
    for cell in cells[1:]:
        if cell.strip().splitlines()[0].strip() == MARK:
            injected |= set(_assignments(cell)[0])
        else:  # the reader's own cell, edited and run again
            declaring = cell
    declared = {parameter.name: parameter for parameter in declared_parameters(declaring, types)}
    for name in sorted(injected):
        refuse_undeclared(name, list(declared))
    return {name: parameter.check(namespace.get(name, parameter.default)) for name, parameter in declared.items()}


def declared_parameters(cell: str, types: Mapping[str, Any] | None = None) -> list[Parameter]:
    """What a parameters cell declares, in its order; for `types` see notebook_parameters.

    Raises:
        ValueError: the cell is no Python, or gives a name something else than a plain literal.
    """
    values, annotations = _assignments(cell)
    hints: dict[str, Any] = {**typing.get_type_hints(RunConfig), **annotations, **(types or {})}
    comments = _comments(cell)
    return [
        Parameter(name, default, _kinds(default, hints.get(name)), comments.get(name, ""))
        for name, default in values.items()
    ]


def refuse_undeclared(name: str, declared: Sequence[str]) -> None:
    """Raise ValueError where a parameter is none of the declared ones, with the nearest as the mend."""
    if name in declared:
        return
    nearest = difflib.get_close_matches(name, declared, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(declared) or 'none'}"
    raise ValueError(f"parameter {name!r} is none of this notebook's, so nothing would read it; {hint}")


def config_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the parameters that are RunConfig's."""
    fields = {spec.name for spec in dataclasses.fields(RunConfig)}
    return {name: value for name, value in parameters.items() if name in fields}


def given_types(cell: str) -> dict[str, Any]:
    """The plain types in a cell's `notebook_parameters(globals(), types={"limit": int | None})`; {} without one."""
    try:
        calls = [node for node in ast.walk(ast.parse(cell)) if isinstance(node, ast.Call)]
    except SyntaxError:  # a magic such as %matplotlib
        return {}
    found: dict[str, Any] = {}
    for call in calls:
        if not ast.unparse(call.func).endswith("notebook_parameters"):
            continue
        nodes = [word.value for word in call.keywords if word.arg == "types"] + call.args[1:2]
        for node in nodes:
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and (kind := _annotation(value)) is not None:
                        found[str(key.value)] = kind
    return found


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


def _comments(cell: str) -> dict[str, str]:
    """The comment behind each assignment, by the name that its line begins with."""
    found: dict[str, str] = {}
    lines = cell.splitlines()
    try:
        for token in tokenize.generate_tokens(io.StringIO(cell).readline):
            if token.type == tokenize.COMMENT:
                name = re.match(r"\s*([^\W\d]\w*)\s*[:=]", lines[token.start[0] - 1])
                if name is not None:
                    found[name[1]] = token.string.lstrip("# ").rstrip()
    except (tokenize.TokenError, SyntaxError):
        pass  # the names and values were readable; only the help is lost
    return found


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


def _kinds(default: Any, hint: Any) -> tuple[type, ...] | None:
    if isinstance(default, list | tuple):
        return tuple(dict.fromkeys(type(element) for element in default)) or None
    if default is not None:
        return (type(default),)
    if hint is None:
        return None
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return (*(typing.get_args(hint) if union else (hint,)), type(None))


def _number(text: str) -> Any:
    value = _literal_or_text(text)
    return text if isinstance(value, float) and not math.isfinite(value) else value


def _literal_or_text(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text

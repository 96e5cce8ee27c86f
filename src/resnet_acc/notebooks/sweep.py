"""A batch as it was asked for: one notebook and its parameter sets, from a YAML file, from -p options, or from both."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resnet_acc.config_values import refuse_unknown, slug
from resnet_acc.notebooks.found import Notebook, find_notebook
from resnet_acc.notebooks.yaml_file import read_yaml

FORMAT = """\
notebook: 01_resnet50   # a name, or a path relative to this file's folder
parameters:             # of every set
  preset: quick
  max_steps: 20
grid:                   # every combination of these values, for every set
  batch_size: [8, 16]
sets:                   # if left out: one set; each key in it can be, too
  - name: baseline
    parameters: {arms: eager}
  - name: compilers
    parameters: {arms: "eager,inductor"}
    grid: {amp_level: [O0, O1]}
"""
"""The YAML file, by example: six sets. It is YAML 1.2: null, true and false, and 007 is a number unless quoted."""

DEFAULT_NOTEBOOK = "01"
MAX_SETS = 1000
"""A grid with more is a slip: it would run for weeks."""

_KEYS = ("notebook", "parameters", "grid", "sets")
_SET_KEYS = ("name", "parameters", "grid")
_MAX_SHOWN = 24


@dataclass(frozen=True)
class ParameterSet:
    """One execution of the notebook: `name` is for people, `parameters` are the values that it is given."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sweep:
    """A notebook and the sets to run it with, at least one."""

    notebook: Notebook
    sets: list[ParameterSet]

    @property
    def stems(self) -> list[str]:
        """For each set the name of its files: its number and what of its name a file name may hold."""
        width = max(2, len(str(len(self.sets))))
        return [f"{number:0{width}d}_{slug(one.name)}" for number, one in enumerate(self.sets, start=1)]


def read_sweep(given: str | None, options: Sequence[str]) -> Sweep:
    """The batch of a command line.

    Args:
        given: a YAML file (see FORMAT), or a notebook's name or path; None is DEFAULT_NOTEBOOK.
        options: texts such as "batch_size=8". A name that is given several times has several values, and every
            combination is a set; what is given here goes before what the file says.

    Raises:
        ValueError: it cannot be taken as it stands; one line with the value and the mend.
        OSError: a file cannot be opened.
    """
    if given is not None and _is_file_of_sets(given):
        notebook, sets = _read_file(Path(given).expanduser())
    else:
        notebook = Notebook.read(find_notebook(DEFAULT_NOTEBOOK if given is None else given))
        sets = [("", {}, {})]
    grid = _read_options(options, notebook)
    asked: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
    for name, parameters, varied in sets:
        for values in _combinations({name: choices for name, choices in varied.items() if name not in grid}):
            asked += [(name, parameters | values | more, values | more) for more in _combinations(grid)]
            if len(asked) > MAX_SETS:
                raise ValueError(f"there are more than {MAX_SETS} parameter sets; give fewer values in the grid")
    return Sweep(notebook, _named(notebook.name, asked, {name for name, choices in grid.items() if len(choices) == 1}))


def _is_file_of_sets(given: str) -> bool:
    path = Path(given).expanduser()
    return path.suffix.lower() in (".yaml", ".yml", ".json") or (path.is_file() and path.suffix.lower() != ".ipynb")


def _read_file(path: Path) -> tuple[Notebook, list[tuple[str, dict[str, Any], dict[str, list[Any]]]]]:
    """The notebook of a YAML file and (name, parameters, grid) of each set."""
    if not path.is_file():
        raise ValueError(f"no file {path}; give a YAML file with notebook, parameters and sets, or a notebook")
    whole = read_yaml(path)
    if not isinstance(whole, dict) or not whole:
        raise ValueError(f"{path} holds no mapping; it needs notebook, and parameters, grid or sets")
    _refuse_keys(whole, _KEYS, str(path))
    given = whole.get("notebook", DEFAULT_NOTEBOOK)
    if not isinstance(given, str):
        raise ValueError(f"{path}: notebook is {given!r}; give its name in quotes, such as '01', or its path")
    notebook = Notebook.read(find_notebook(given, path.absolute().parent))
    common, grid = _parameters(whole, str(path)), _grid(whole, str(path))
    entries = whole.get("sets")
    if entries is None:
        return notebook, [("", common, grid)]
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{path}: sets is {_short(entries)}; give a list with one entry for each set")
    sets = []
    for number, entry in enumerate(entries, start=1):
        where = f"{path}: set {number}"
        if not isinstance(entry, dict):
            raise ValueError(f"{where} is {_short(entry)}; give a mapping with name, parameters or grid")
        _refuse_keys(entry, _SET_KEYS, where)
        name = entry.get("name")
        if name is not None and (isinstance(name, bool | dict | list) or not str(name).strip()):
            raise ValueError(f"{where}: name is {_short(name)}; give a text")
        own = _parameters(entry, where)
        inner = {key: choices for key, choices in grid.items() if key not in own} | _grid(entry, where)
        sets.append(("" if name is None else " ".join(str(name).split()), common | own, inner))
    return notebook, sets


def _refuse_keys(mapping: Mapping[Any, Any], known: Sequence[str], where: str) -> None:
    try:
        refuse_unknown([str(key) for key in mapping], list(known))
    except ValueError as error:
        raise ValueError(f"{where}: {error}; a notebook's parameters stand below 'parameters' or 'grid'") from None


def _parameters(mapping: Mapping[str, Any], where: str) -> dict[str, Any]:
    values = mapping.get("parameters")
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValueError(f"{where}: parameters is {_short(values)}; give a mapping such as {{batch_size: 8}}")
    return {str(name): value for name, value in values.items()}


def _grid(mapping: Mapping[str, Any], where: str) -> dict[str, list[Any]]:
    values = mapping.get("grid")
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ValueError(f"{where}: grid is {_short(values)}; give a mapping such as {{batch_size: [8, 16]}}")
    for name, choices in values.items():
        if not isinstance(choices, list) or not choices:
            raise ValueError(f"{where}: grid has {_short(choices)} for {name}; give a list of values, such as [8, 16]")
    return {str(name): choices for name, choices in values.items()}


def _read_options(options: Sequence[str], notebook: Notebook) -> dict[str, list[Any]]:
    """-p options as a grid; each text becomes a value of the type that the notebook declares."""
    declared = {parameter.name: parameter for parameter in notebook.parameters}
    grid: dict[str, list[Any]] = {}
    for option in options:
        name, equals, text = option.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ValueError(f"-p {option!r} has no value; write it as -p batch_size=8, and again for a second value")
        # A name that is not declared is refused where all sets are checked, together with what else is wrong.
        grid.setdefault(name, []).append(declared[name].read_text(text) if name in declared else text)
    return grid


def _combinations(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination of one value for each name, the last name's values changing fastest; one {} without names."""
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _named(
    notebook: str, asked: Sequence[tuple[str, dict[str, Any], dict[str, Any]]], constant: set[str]
) -> list[ParameterSet]:
    """Give each set a name of its own: the given one, and what varies.

    Args:
        asked: (name, parameters, those of them that a grid chose) of each set.
        constant: names that one -p option set for all.
    """
    given = [name for name, _, _ in asked]
    names = []
    for name, parameters, varied in asked:
        if not name and len(asked) > 1:
            varied = {
                key: value
                for key, value in parameters.items()
                if key in varied or any(other.get(key, ...) != value for _, other, _ in asked)
            }
        shown = {key: value for key, value in varied.items() if key not in constant}
        several = given.count(name) > 1 or not name
        parts = [name] if name else []
        names.append(" ".join([*parts, *(_shown(key, value) for key, value in shown.items() if several)]) or notebook)
    sets = []
    for number, (name, (_, parameters, _)) in enumerate(zip(names, asked, strict=True), start=1):
        sets.append(ParameterSet(name if names.count(name) == 1 else f"{name} (set {number})", parameters))
    return sets


def _shown(name: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return f"{name}={text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + '...'}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

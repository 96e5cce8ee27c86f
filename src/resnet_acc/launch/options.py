"""The command line of launch_single_task, made from RunConfig's fields, where each option's help and default stand."""

import argparse
import dataclasses
import difflib
import os
import re
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from resnet_acc.config import PRESETS, RunConfig, preset_config

_WHOLE = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", re.ASCII | re.IGNORECASE)
_KEYWORDS_OF_DATA = ("mock", "synthetic")


class OptionError(ValueError):
    """The command line cannot be taken as it stands; the message is one line with the value and the mend."""


@dataclass(frozen=True)
class Options:
    """What a command line says: the run, options that are not the run's, and names given by the user."""

    config: RunConfig
    extra: dict[str, Any]
    given: frozenset[str]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise OptionError(message)


def build_parser(prog: str, description: str) -> argparse.ArgumentParser:
    """A parser with one option for each field of RunConfig, and --preset and --print-config."""
    parser = _Parser(
        prog=prog,
        description=description,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
        epilog="Dashes and underscores in option names are the same. An option given twice counts as given last.",
    )
    parser.add_argument(
        "--preset",
        metavar="{" + ",".join(PRESETS) + "}",
        help="values to start from, which the other options override (default: none of them)",
    )
    parser.add_argument("--print-config", action="store_true", help="print the resolved configuration and do not train")
    hints = typing.get_type_hints(RunConfig)
    for spec in dataclasses.fields(RunConfig):
        text = f"{spec.metadata['help']} (default: {_shown(spec.default)})".replace("%", "%%")
        name = f"--{spec.name}"
        if hints[spec.name] is bool:
            dashed = f"--{spec.name.replace('_', '-')}"
            negative = f"--no-{spec.name.replace('_', '-')}"
            parser.add_argument(dashed, dest=spec.name, action="store_const", const=True, help=text)
            parser.add_argument(negative, dest=spec.name, action="store_const", const=False, help=f"not {dashed}")
        else:
            choices = spec.metadata["choices"]
            metavar = "{" + ",".join(choices) + "}" if choices else _metavar(hints[spec.name])
            parser.add_argument(name, dest=spec.name, metavar=metavar, help=text)
    return parser


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> Options:
    """Read a command line.

    A relative --output or --data hangs on the current folder, as everywhere in a shell; what is not given hangs on the
    repository's root.

    Raises:
        OptionError: an unknown option, or a value that RunConfig refuses.
        SystemExit: after --help.
    """
    known, rest = parser.parse_known_args(_canonical(parser, arguments))
    if rest:
        raise OptionError(_unknown(parser, rest[0]))
    given = vars(known)
    fields = {spec.name for spec in dataclasses.fields(RunConfig)}
    hints = typing.get_type_hints(RunConfig)
    values = {name: _convert(name, value, hints[name]) for name, value in given.items() if name in fields}
    if isinstance(values.get("output"), str) and values["output"].strip():
        values["output"] = os.path.abspath(os.path.expanduser(values["output"]))
    if values.get("data", "mock") not in _KEYWORDS_OF_DATA and values["data"].strip():
        values["data"] = os.path.abspath(os.path.expanduser(values["data"]))
    try:
        config = preset_config(given["preset"], **values) if "preset" in given else RunConfig(**values)
    except ValueError as error:
        raise OptionError(str(error)) from None
    extra = {name: value for name, value in given.items() if name not in fields}
    return Options(config, extra, frozenset(given))


def _canonical(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> list[str]:
    """One spelling for each option, and values that begin with a dash tied to their option (--lr -1e-3)."""
    spellings = {_plain(name): (name, action) for name, action in parser._option_string_actions.items()}
    result: list[str] = []
    index = 0
    while index < len(arguments):
        argument = str(arguments[index])
        index += 1
        name, equals, value = argument.partition("=")
        if not name.startswith("--") or _plain(name) not in spellings:
            result.append(argument)
            continue
        spelling, action = spellings[_plain(name)]
        takes_value = action.nargs is None
        if takes_value and not equals:
            if index == len(arguments) or str(arguments[index]).startswith("--"):
                raise OptionError(f"{spelling} needs a value, as in {spelling}=VALUE")
            equals, value = "=", str(arguments[index])
            index += 1
        if equals and not takes_value:
            raise OptionError(f"{argument!r} has a value, but {spelling} takes none; write {spelling}")
        result.append(f"{spelling}{equals}{value}")
    return result


def _plain(name: str) -> str:
    return name.replace("_", "-")


def _unknown(parser: argparse.ArgumentParser, argument: str) -> str:
    name = argument.partition("=")[0]
    if not name.startswith("-"):
        return f"unexpected argument {argument!r}; options begin with --, and --help lists them"
    names = {_plain(known): known for known in parser._option_string_actions if known.startswith("--")}
    plain = _plain(name).lower()
    nearest = [known for known in names if known.startswith(plain) and len(plain) > 2]
    nearest = nearest or difflib.get_close_matches(plain, names, n=1, cutoff=0.5)
    hint = f"did you mean {names[nearest[0]]}? " if nearest else ""
    return f"unknown option {name!r}; {hint}--help lists them all"


def _convert(name: str, value: Any, hint: Any) -> Any:
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if not isinstance(value, str) or str in allowed:
        return value
    text = value.strip()
    if type(None) in allowed and text.lower() == "none":
        return None
    if int in allowed:
        if not _WHOLE.fullmatch(text):
            raise OptionError(f"{name} is {value!r}; give a whole number")
        return int(text)
    if not _NUMBER.fullmatch(text):
        raise OptionError(f"{name} is {value!r}; give a number")
    return float(text)


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    return "none" if default is None else str(default)


def _metavar(hint: Any) -> str:
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return "INT" if int in allowed else "FLOAT" if float in allowed else "TEXT"

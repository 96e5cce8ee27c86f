"""YAML by the rules of YAML 1.2's core schema: PyYAML's own are 1.1's, by which 010 is 8, 1e-3 a text, and no is False.

Source of the patterns: YAML 1.2.2, section 10.3.2, without its octal and hexadecimal forms.
"""

import re
from pathlib import Path
from typing import Any

import yaml

_SCALARS: tuple[tuple[str, str, str], ...] = (
    ("null", r"^(~|null|Null|NULL|)$", "~nN"),
    ("bool", r"^(true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^[-+]?[0-9]+$", "-+0123456789"),
    ("float", r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$", "-+.0123456789"),
    ("float", r"^([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$", "-+."),
)


class _Loader(yaml.SafeLoader):
    """Plain values only; a key that stands twice in one mapping is an error, not the last one's value."""

    yaml_implicit_resolvers: dict[Any, Any] = {}


def _whole(loader: _Loader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node))


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"{key!r} stands twice", key_node.start_mark)
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


for _kind, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern), [*_first, ""])
_Loader.add_constructor("tag:yaml.org,2002:int", _whole)
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def read_yaml(path: Path) -> Any:
    """The plain values of a file.

    Raises:
        ValueError: it is no YAML; one line with the place.
        OSError: it cannot be opened.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        return yaml.load(text, Loader=_Loader)  # a SafeLoader: plain values, no Python objects
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
        raise ValueError(f"{path}{where}: {problem}; mend the YAML there") from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is no text in UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from None
    except (
        ValueError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:  # a tag on a value that is none of its kind
        raise ValueError(f"{path} cannot be read ({error})") from None

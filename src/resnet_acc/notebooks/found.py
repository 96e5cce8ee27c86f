"""Notebooks by name or path, and what they say of themselves: title, parameters, and the cell that checks them."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resnet_acc.files import project_root
from resnet_acc.launch.parameters import Parameter, declared_parameters, given_types

CHECK = "notebook_parameters("
"""What the cell behind the parameters cell calls, by this project's convention; see launch.parameters."""


def notebooks_folder() -> Path:
    """Where the tutorial's notebooks lie."""
    return project_root() / "notebooks"


def list_notebooks() -> list[Path]:
    """The tutorial's notebooks by name."""
    return sorted(path for path in notebooks_folder().glob("*.ipynb") if path.is_file())


def find_notebook(given: str, beside: Path | None = None) -> Path:
    """The notebook of a name ("01", "01_resnet50") or a path.

    Args:
        given: a path, relative to `beside`, else the beginning of one notebook's name.
        beside: folder that a relative path hangs on; None: the current one.

    Raises:
        ValueError: there is none, or the name fits several.
    """
    path = (beside or Path.cwd()) / Path(given).expanduser()
    if given.endswith(".ipynb") or "/" in given:
        if not path.is_file():
            raise ValueError(f"no notebook at {path}; give a path, or a name that resnet-acc notebooks list shows")
        return path.resolve()
    there = {found.stem: found for found in list_notebooks()}
    fitting = [given] if given in there else [stem for stem in there if given and stem.startswith(given)]
    if len(fitting) == 1:
        return there[fitting[0]].resolve()
    names = ", ".join(fitting or there) or f"none in {notebooks_folder()}"
    what = "fits several notebooks" if fitting else "is no notebook's name"
    raise ValueError(f"{given!r} {what}: {names}; give one of these names, or a path that ends in .ipynb")


@dataclass(frozen=True)
class Notebook:
    """A notebook file as it was read."""

    path: Path
    content: Any

    @classmethod
    def read(cls, path: Path) -> "Notebook":
        """Read a file.

        Raises:
            ValueError: it is no notebook, or one of another language than Python.
            OSError: it cannot be opened.
        """
        import nbformat

        try:
            with open(path, encoding="utf-8") as stream:
                content = nbformat.read(stream, as_version=4)
            nbformat.validate(content)
        except OSError:
            raise
        except Exception as error:  # nbformat raises its own kinds, and whatever a damaged file provokes
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"{path} is no notebook that can be read ({reason}); open and save it in Jupyter"
            ) from None
        metadata = content.metadata
        language = metadata.get("kernelspec", {}).get("language") or metadata.get("language_info", {}).get("name")
        if language not in (None, "python"):
            raise ValueError(f"{path} is written in {language!r}; only notebooks in Python are run here")
        return cls(path, content)

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.path.stem

    @property
    def title(self) -> str:
        """The first heading, or the name."""
        for cell in self.content.cells:
            if cell.cell_type == "markdown":
                for line in cell.source.splitlines():
                    if line.startswith("#"):
                        return str(line.lstrip("# ").strip() or self.name)
        return self.name

    @functools.cached_property
    def parameters(self) -> list[Parameter]:
        """What the parameters cell declares.

        Raises:
            ValueError: it does not hold plain literals.
        """
        cell, check = self.parameters_cell, self.check_cell
        if cell is None:
            return []
        try:
            return declared_parameters(cell, given_types(check) if check else None)
        except ValueError as error:
            raise ValueError(f"{self.path}: {error}") from None

    @property
    def parameters_cell(self) -> str | None:
        """Source of the cell tagged "parameters", behind which papermill puts the values it is given."""
        place = self._parameters_place()
        return None if place is None else str(self.content.cells[place].source)

    @property
    def check_cell(self) -> str | None:
        """Source of the next code cell, where it is the one that checks the parameters."""
        place = self._parameters_place()
        if place is None:
            return None
        behind = (cell.source for cell in self.content.cells[place + 1 :] if cell.cell_type == "code")
        following = next(behind, "")
        return str(following) if CHECK in following else None

    def _parameters_place(self) -> int | None:
        for place, cell in enumerate(self.content.cells):
            if cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", []):
                return place
        return None

    def values(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Every parameter's value: the given one, else the declared."""
        return {parameter.name: given.get(parameter.name, parameter.default) for parameter in self.parameters}

"""Whether somebody is there to draw widgets, and what is shown where nobody is."""

import importlib.util
from typing import Any


def cell_id() -> str | None:
    """The notebook's cell that is being run, as the front end calls it; None where no front end asked for it.

    JupyterLab, Notebook and VS Code name the cell in what they ask of the kernel; papermill and nbclient do not.
    """
    from IPython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return None
    metadata = (kernel.get_parent() or {}).get("metadata") or {}
    found = metadata.get("cellId") or metadata.get("cell_id")
    return str(found) if found else None


def widgets_work(headless: bool | None) -> bool:
    """Whether to show widgets: as asked, or where a front end is there and ipywidgets is installed."""
    installed = importlib.util.find_spec("ipywidgets") is not None
    if headless is False and not installed:
        raise ValueError("headless is False, and ipywidgets is not installed; pip install ipywidgets")
    return installed and (cell_id() is not None if headless is None else not headless)


def show(text: str, page: str, picture: bytes | None = None) -> None:
    """Text with its HTML, and a picture, as outputs of the cell."""
    from IPython.display import Image, display

    display({"text/plain": text, "text/html": page}, raw=True)
    if picture is not None:
        display(Image(data=picture, format="png"))


def set_classes(widget: Any, *names: str) -> Any:
    """The widget itself, with CSS classes by which tests and style sheets find it."""
    for name in names:
        widget.add_class(name)
    return widget

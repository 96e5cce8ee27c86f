"""Figures of the lessons, in the look of the others."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from resnet_acc.plot import STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@contextlib.contextmanager
def panels(columns: int, height: float = 4.2) -> Iterator[tuple["Figure", list["Axes"]]]:
    """A figure with so many panels side by side; as the value of a cell it is shown once."""
    import matplotlib
    import seaborn as sns
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from resnet_acc.results.notebook_figure import NotebookFigure

    with sns.axes_style("whitegrid"), matplotlib.rc_context(STYLE):
        figure = NotebookFigure(figsize=(6.5 * columns, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, [figure.add_subplot(1, columns, number + 1) for number in range(columns)]

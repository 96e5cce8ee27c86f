"""A figure that a notebook shows once: where plot() is called, not again as the value of the same cell."""

from typing import Any

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """Remembers in which cell it was shown."""

    _shown_in: int | None = None

    def show_once(self, shell: Any, png: bytes) -> None:
        """Show the picture in the running cell."""
        from IPython.display import Image, display

        self._shown_in = shell.execution_count
        display(Image(data=png, format="png"))

    def _ipython_display_(self) -> None:
        """IPython asks this for the value of a cell; a later cell that ends in the figure does show it."""
        import io

        from IPython import get_ipython

        shell = get_ipython()
        if shell is not None and shell.execution_count == self._shown_in:
            return
        stream = io.BytesIO()
        self.savefig(stream, format="png", dpi=100, bbox_inches="tight")
        self.show_once(shell, stream.getvalue())

"""Curves of a run that goes on: one figure, drawn again and again."""

import io
import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from resnet_acc.launch.live_ranks import Point, RankState

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DRAWING = threading.Lock()
"""matplotlib's settings belong to the whole process: one thread draws at a time."""
_MARKERS = "osD^vPX*"
_MOST_RANKS = 16


class LiveFigure:
    """images/s and loss over the steps, one line for each rank. pyplot does not know it, so nothing is left of it."""

    def __init__(self) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self._figure = Figure(figsize=(9.0, 2.8), dpi=90, layout="constrained")
        FigureCanvasAgg(self._figure)
        self._axes = self._figure.subplots(1, 2)

    def draw(self, ranks: Sequence[RankState]) -> bytes:
        """The picture as PNG."""
        with DRAWING:
            _draw(self._axes[0], ranks, "images/s of each rank", lambda point: point.images_per_s)
            self._axes[0].set_ylim(bottom=0)
            _draw(self._axes[1], ranks, "loss, mean over all ranks", lambda point: point.loss)
            stream = io.BytesIO()
            self._figure.savefig(stream, format="png")
            return stream.getvalue()


def _draw(ax: "Axes", ranks: Sequence[RankState], title: str, value: Callable[[Point], float | None]) -> None:
    """Ranks that do alike lie on top of each other: the lower ones are drawn wider, so that they stay visible."""
    ax.clear()
    shown = ranks[:_MOST_RANKS]
    for place, rank in enumerate(shown):
        points = _points(rank, value)
        look: dict[str, Any] = {"linewidth": 1.2 + 0.9 * (len(shown) - 1 - place), "color": f"C{place % 10}"}
        if len(points) < 40:
            look |= {"marker": _MARKERS[place % len(_MARKERS)], "markersize": 3.5}
        ax.plot([step for step, _ in points], [number for _, number in points], label=f"rank {rank.rank}", **look)
    ax.set_title(title if len(ranks) <= _MOST_RANKS else f"{title} (first {_MOST_RANKS} of {len(ranks)})", fontsize=10)
    ax.set_xlabel("step", fontsize=9)
    ax.tick_params(labelsize=8)
    ax.grid(alpha=0.3)
    if len(shown) > 1:
        ax.legend(fontsize=8, ncols=2)


def _points(rank: RankState, value: Callable[[Point], float | None]) -> list[tuple[int, float]]:
    """Steps and what was measured there; a loss of nan leaves a gap."""
    found = [(point.step, value(point)) for point in rank.curve]
    return [(step, number) for step, number in found if number is not None and math.isfinite(number)]

"""Runs on disk as widgets: one box to mark for each, and what can be done with the marked ones."""

import html
import threading
from collections.abc import Callable
from pathlib import Path

import ipywidgets as widgets

from resnet_acc.launch.live_find import ListedRun, list_runs
from resnet_acc.panel.front_end import set_classes
from resnet_acc.panel.tables import compare_runs

ROWS = 10
"""Runs shown at first, and more at each press of More."""
_MOST_REASON = 100


class RunsBox:
    """The list, and the comparison of any two.

    Args:
        output: the folder below which the runs lie.
        watch: shows a run.
        refreshed: called when the reader asks for the list anew.
    """

    def __init__(self, output: Path, watch: Callable[[Path], None], refreshed: Callable[[], None]) -> None:
        self._output, self._watch, self._refreshed = output, watch, refreshed
        self._num_shown = ROWS
        self._lock = threading.Lock()
        self._boxes: dict[Path, widgets.Checkbox] = {}
        self.rows = set_classes(widgets.VBox(), "ra-runs")
        self.message = set_classes(widgets.HTML(), "ra-runs-message")
        self.comparison = set_classes(widgets.HTML(), "ra-comparison")
        self.picture = set_classes(widgets.Image(format="png", layout={"display": "none"}), "ra-picture")
        self.watch = self._button("Watch", "ra-watch", "Show the marked run above", self._on_watch)
        self.compare = self._button("Compare", "ra-compare", "Compare the two marked runs", self._on_compare)
        self.more = self._button("More", "ra-more", "Show older runs", self._on_more)
        self.again = self._button(
            "Refresh", "ra-refresh", "Look anew for runs, and for what can be chosen", self._on_again
        )
        self.box = widgets.VBox(
            [
                widgets.HTML(f"<b>Runs</b> below {html.escape(str(output))} (mark one to watch, or two to compare)"),
                self.rows,
                widgets.HBox([self.watch, self.compare, self.more, self.again]),
                self.message,
                self.comparison,
                self.picture,
            ]
        )
        self.refresh()

    def _button(self, name: str, css_class: str, tooltip: str, pressed: Callable[[], None]) -> widgets.Button:
        button = set_classes(widgets.Button(description=name, tooltip=tooltip), css_class)
        button.on_click(lambda _: pressed())
        return button

    @property
    def marked(self) -> list[Path]:
        """Folders of the marked runs, the older first."""
        return [run_dir for run_dir, box in reversed(self._boxes.items()) if box.value]

    def refresh(self) -> list[ListedRun]:
        """Look for runs again and return all of them, the newest first. Marks stay where they are."""
        with self._lock:
            listed = list_runs(self._output)
            shown = listed[: self._num_shown]
            boxes = {run.run_dir: self._boxes.get(run.run_dir) or self._new_box(run) for run in shown}
            for run in shown:
                boxes[run.run_dir].description = _label(run)
            if list(boxes) != list(self._boxes) or not boxes:
                self._boxes = boxes
                self.rows.children = list(boxes.values()) or [widgets.HTML("no run yet")]
            self.more.disabled = len(listed) <= self._num_shown
            return listed

    def _new_box(self, run: ListedRun) -> widgets.Checkbox:
        box = widgets.Checkbox(value=False, indent=False, layout={"width": "98%"})
        return set_classes(box, "ra-run")

    def _on_watch(self) -> None:
        if len(self.marked) != 1:
            self._say(f"{len(self.marked)} runs are marked; mark one to watch it")
            return
        self._say("")
        self._watch(self.marked[0])

    def _on_compare(self) -> None:
        if len(self.marked) != 2:
            self._say(f"{len(self.marked)} runs are marked; mark two to compare them")
            return
        self._say("comparing")
        older, newer = self.marked
        try:
            found = compare_runs(newer, older)
        except (ValueError, OSError) as error:
            self._say(f"they cannot be compared: {error}")
            return
        self._say("")
        self.comparison.value = found.to_html()
        self.picture.value = found.picture
        self.picture.layout.display = None

    def _on_more(self) -> None:
        self._num_shown += ROWS
        self.refresh()

    def _on_again(self) -> None:
        self.refresh()
        self._refreshed()

    def _say(self, text: str) -> None:
        self.message.value = f'<div role="status">{html.escape(text)}</div>' if text else ""


def _label(run: ListedRun) -> str:
    reason = run.status.reason or ""
    reason = (
        f": {reason}" if reason and len(reason) <= _MOST_REASON else f": {reason[:_MOST_REASON]}..." if reason else ""
    )
    return f"{run.run_id}  {run.suffix}  {run.model} {run.tag}  {run.state}{reason}"

"""The panel as widgets: the form, Start and Stop, the run that goes on, and the runs on disk."""

import html
import threading
from pathlib import Path

import ipywidgets as widgets

from resnet_acc.launch import live
from resnet_acc.launch.live import LiveRun
from resnet_acc.panel.choices import Choices
from resnet_acc.panel.form import Form
from resnet_acc.panel.front_end import cell_id, set_classes
from resnet_acc.panel.runs import RunsBox
from resnet_acc.panel.view import RunView

_shown: dict[str, "Controls | RunView"] = {}
"""What each cell shows: a cell that is run again ends what it showed before."""


class Controls:
    """All widgets of one panel.

    Args:
        choices: what there is to choose.
    """

    def __init__(self, choices: Choices) -> None:
        self._choices = choices
        self._clicked = threading.Lock()
        self.start = widgets.Button(description="Start", icon="play", button_style="primary")
        set_classes(self.start, "ra-start")
        self.start.on_click(lambda _: self.on_start())
        self.said = set_classes(widgets.HTML(), "ra-said")
        self.view = RunView(self._on_run_changed)
        self.form = Form(choices, self._allow_start)
        self.runs = RunsBox(choices.output, self._watch_folder, self.form.check_again)
        head = widgets.HTML(f"<b>{html.escape(choices.base.model)}</b> on {html.escape(choices.machine)}")
        buttons = widgets.HBox([self.start, self.view.stop])
        parts = [head, self.form.box, buttons, self.said, self.view.box, self.runs.box]
        self.box = set_classes(widgets.VBox(parts), "ra-panel")
        self._find_running()
        self._allow_start()

    def show(self) -> None:
        """Display in the cell that is run."""
        _show_in_cell(self, self.box)

    def close(self) -> None:
        """Look no more at the run, which goes on."""
        self.view.close()

    def watch(self, run: LiveRun) -> None:
        """Show a run in place of the one before."""
        self.view.watch(run)

    def on_start(self) -> None:
        """Start what is chosen. A second click finds the first one's run and says so."""
        if not self._clicked.acquire(blocking=False):
            return
        try:
            if self.view.is_busy and self.view.live is not None:
                self._say(f"not started: {self.view.live.snapshot().line}. Stop it first")
                return
            run = live.start(self.form.config(), self.form.chosen_arms)
            if run.already_running:
                self._say("This run goes on already, and was not started again; here it is.")
            else:
                self._say("")
            self.watch(run)
        except (ValueError, OSError) as error:
            self._say(f"not started: {error}")
        finally:
            self._clicked.release()

    def _watch_folder(self, run_dir: Path) -> None:
        try:
            self.watch(live.attach(run_dir))
        except ValueError as error:
            self._say(str(error))

    def _find_running(self) -> None:
        """Show at once a run that goes on: from before a reload or a restart, or from a terminal."""
        running = live.find_running(self._choices.output)
        if not running:
            return
        self.watch(running[0])
        others = ", ".join(run.name for run in running[1:])
        more = f"; so do {others}: mark one below and press Watch" if others else ""
        self._say(f"Run {running[0].name} goes on, and is shown{more}.")

    def _on_run_changed(self) -> None:
        self.runs.refresh()
        self._allow_start()

    def _allow_start(self) -> None:
        """Two runs at once would slow each other down, so that neither measures anything."""
        self.start.disabled = self.form_problem is not None or self.view.is_busy

    @property
    def form_problem(self) -> str | None:
        """What is in the way of a start; the form itself is not there while it is being made."""
        form = getattr(self, "form", None)
        return form.problem if form is not None else "not ready"

    def _say(self, text: str) -> None:
        self.said.value = f'<div role="status">{html.escape(text)}</div>' if text else ""


def show_view(run: LiveRun) -> None:
    """Display a run with its Stop button in the cell that is run."""
    view = RunView()
    view.watch(run)
    _show_in_cell(view, set_classes(widgets.VBox([view.stop, view.box]), "ra-attached"))


def _show_in_cell(shown: "Controls | RunView", box: widgets.Widget) -> None:
    from IPython.display import display

    cell = cell_id()
    if cell is not None:
        before = _shown.pop(cell, None)
        if before is not None:
            before.close()
        _shown[cell] = shown
    display(box)

"""A run that goes on, as widgets: state, progress, every rank, curves, and Stop."""

import html
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from resnet_acc.launch.live import LiveRun, Snapshot
from resnet_acc.panel.curves import LiveFigure
from resnet_acc.panel.front_end import set_classes
from resnet_acc.panel.tables import ranks_table

POLL_SECONDS = 1.0
"""How often the run is looked at, and drawn at most."""
DRAWING_PART = 20
"""Drawing takes this part of the time at most: the machine is busy training."""

_BAR = {"failed": "danger", "refused": "danger", "interrupted": "warning", "finished": "success"}


class RunView:
    """Shows one run after another. A thread of its own looks at the run, and ends with it or with close().

    Args:
        changed: called, from that thread, whenever the run has come to another state or to another folder.
    """

    def __init__(self, changed: Callable[[], None] | None = None) -> None:
        self.live: LiveRun | None = None
        self.snapshot: Snapshot | None = None
        self._changed = changed or (lambda: None)
        self._leave = threading.Event()
        self._stopping = False
        self._figure: LiveFigure | None = None
        self._drawn: Any = None
        self._next_draw = 0.0
        self.status = set_classes(widgets.HTML(), "ra-status")
        self.progress = set_classes(widgets.FloatProgress(max=1.0, description="Progress"), "ra-progress")
        self.ranks = set_classes(widgets.HTML(), "ra-ranks")
        self.lines = set_classes(widgets.HTML(), "ra-lines")
        self.draw = widgets.Checkbox(value=True, description="Draw curves", indent=False)
        set_classes(self.draw, "ra-draw")
        self.curves = set_classes(widgets.Image(format="png"), "ra-curves")
        self.stop = widgets.Button(description="Stop", icon="stop", disabled=True, button_style="danger")
        set_classes(self.stop, "ra-stop")
        self.stop.on_click(lambda _: self.stop_run())
        self.progress.layout.width = "60%"
        self.curves.layout.display = "none"
        self.draw.observe(lambda _: self._show_curves(), names="value")
        parts = [self.status, self.progress, self.ranks, self.lines, self.draw, self.curves]
        self.box = set_classes(widgets.VBox(parts), "ra-view")
        self.say("no run is shown")

    @property
    def is_live(self) -> bool:
        """Whether the run that is shown goes on."""
        return self.live is not None and (self.snapshot is None or not self.snapshot.ended)

    @property
    def is_busy(self) -> bool:
        """Whether the run that is shown keeps this machine busy; one on another machine does not."""
        return self.is_live and (self.snapshot is None or self.snapshot.host is None)

    def watch(self, live: LiveRun) -> None:
        """Show a run from now on, in place of the one before."""
        self.close()
        self._leave = threading.Event()
        self.live, self.snapshot, self._stopping = live, None, False
        self._drawn, self._next_draw = None, 0.0
        self._show(live.snapshot())
        if self.is_live:
            threading.Thread(target=self._poll, args=(live, self._leave), daemon=True).start()
        else:
            self._show_curves()

    def close(self) -> None:
        """Look no more. The run goes on."""
        self._leave.set()

    def say(self, text: str) -> None:
        """A line in place of the run's state."""
        self.status.value = f'<div role="status" aria-live="polite">{html.escape(text)}</div>'

    def stop_run(self) -> None:
        """End the run, beside the kernel's own thread: it takes seconds, and the panel is to show them pass."""
        live = self.live
        if live is None or self._stopping or not self.is_live:
            return
        self._stopping = True
        self.stop.disabled = True
        self.stop.description = "Stopping"
        threading.Thread(target=self._stop, args=(live, self._leave), daemon=True).start()

    def _stop(self, live: LiveRun, leave: threading.Event) -> None:
        try:
            live.stop()
        except (ValueError, OSError, RuntimeError) as error:
            if not leave.is_set():
                self._stopping, self.stop.disabled, self.stop.description = False, False, "Stop"
                self.lines.value = f"<pre>not stopped: {html.escape(str(error))}</pre>"

    def _poll(self, live: LiveRun, leave: threading.Event) -> None:
        while not leave.wait(POLL_SECONDS):
            try:
                snapshot = live.snapshot()
            except Exception as error:  # whatever it is, the next look may be better; a dead thread would show nothing
                self.say(f"the run cannot be read: {error}")
                self.snapshot = None
                continue
            if leave.is_set():
                return
            self._show(snapshot)
            if snapshot.ended:
                return
            self._show_curves()

    def _show(self, snapshot: Snapshot) -> None:
        before, self.snapshot = self.snapshot, snapshot
        if before == snapshot:
            return  # nothing new, nothing is sent
        self.say(snapshot.line)
        total = snapshot.total_steps
        self.progress.value = min(1.0, snapshot.step / total) if total else 0.0
        self.progress.description = f"{snapshot.step}/{total}" if total else "Progress"
        self.progress.bar_style = _BAR.get(snapshot.status, "info")
        self.ranks.value = ranks_table(snapshot).to_html() if snapshot.ranks else ""
        bad = snapshot.status in ("failed", "refused")
        said = "\n".join(snapshot.last_lines) if bad else "\n".join(f"warning: {text}" for text in snapshot.warnings)
        self.lines.value = f"<pre>{html.escape(said)}</pre>" if said else ""
        self.stop.disabled = self._stopping or not self.is_live
        if snapshot.ended:
            self.stop.description = "Stop"
        if before is None or _place(before) != _place(snapshot):
            self._changed()
        if snapshot.ended:  # drawn at once, but after Start has been given free: drawing takes a while
            self._next_draw = 0.0
            self._show_curves()

    def _show_curves(self) -> None:
        """Draw where there is something new, it is wanted, and the last time was long enough ago."""
        ranks = self.snapshot.ranks if self.snapshot is not None else ()
        wanted = self.draw.value and any(rank.curve for rank in ranks)
        self.curves.layout.display = None if wanted else "none"
        curves = [rank.curve for rank in ranks]
        if not wanted or curves == self._drawn or time.monotonic() < self._next_draw:
            return
        started = time.monotonic()
        if self._figure is None:
            self._figure = LiveFigure()
        self.curves.value = self._figure.draw(ranks)
        self._drawn = curves
        self._next_draw = time.monotonic() + max(POLL_SECONDS, DRAWING_PART * (time.monotonic() - started))


def _place(snapshot: Snapshot) -> tuple[str, Path | None, bool]:
    """What the list of runs and the Start button go by."""
    return snapshot.status, snapshot.run_dir, snapshot.ended

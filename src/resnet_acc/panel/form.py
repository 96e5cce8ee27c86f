"""The controls that choose a run. Buttons, boxes and fields of HTML: Tab reaches each, Space or keys work it.

There is no list to drop down: while one has the focus, JupyterLab takes the arrow keys for itself.
"""

import dataclasses
import html
import threading
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as widgets

from resnet_acc.config import RunConfig
from resnet_acc.launch.live_command import shell_command
from resnet_acc.panel.choices import FOLDER, Choices, Option, Precision
from resnet_acc.panel.front_end import set_classes

_WIDE = {"description_width": "9em"}


class Form:
    """What is chosen, the command that does it, and what is in its way.

    Args:
        choices: what there is to choose.
        changed: called after each change, from whichever thread noticed it.
    """

    def __init__(self, choices: Choices, changed: Callable[[], None]) -> None:
        self._choices, self._changed = choices, changed
        self._updating = False
        self._round = 0
        self._counting = threading.Lock()
        self.problem: str | None = None
        self._make(choices.base)
        self.box = set_classes(widgets.VBox([*self._arm_rows, *self._rows, self.message, self.command]), "ra-form")
        self.check_again()
        for control in self._controls():
            control.observe(self._on_change, names="value")
        self.command.observe(self._restore_command, names="value")

    def _make(self, base: RunConfig) -> None:
        self.arms: dict[str, widgets.Checkbox] = {}
        self._arm_notes: dict[str, widgets.HTML] = {}
        for option in self._choices.arms():
            asked = option.value in self._choices.asked_arms
            box = widgets.Checkbox(value=asked, description=option.label, indent=False, layout={"width": "9em"})
            self.arms[option.value] = set_classes(box, "ra-arm", f"ra-arm-{option.value}")
            self._arm_notes[option.value] = widgets.HTML()
        self._arm_rows = [
            widgets.HTML("<b>Arms</b> (several run one after the other)"),
            *(widgets.HBox([box, self._arm_notes[arm]]) for arm, box in self.arms.items()),
        ]
        self.processes = set_classes(widgets.ToggleButtons(description="Processes", style=_buttons()), "ra-processes")
        self.precision = set_classes(widgets.ToggleButtons(description="Precision", style=_buttons()), "ra-precision")
        self.data = set_classes(widgets.ToggleButtons(description="Data", style=_buttons()), "ra-data")
        self.batch = set_classes(
            widgets.IntText(value=base.batch_size, description="Batch size", style=_WIDE), "ra-batch"
        )
        named = base.data if base.data not in ("mock", "synthetic") else ""
        self.folder = widgets.Text(
            value=named,
            description="Image folder",
            placeholder="/path/with/train/class/image.JPEG",
            continuous_update=False,
            style=_WIDE,
            layout={"width": "40em"},
        )
        set_classes(self.folder, "ra-folder")
        self._notes = {name: widgets.HTML() for name in ("processes", "precision", "data")}
        self._rows = [
            widgets.HBox([self.processes, self._notes["processes"]], layout={"flex_flow": "row wrap"}),
            widgets.HBox([self.precision, self._notes["precision"]], layout={"flex_flow": "row wrap"}),
            widgets.HBox([self.batch, widgets.HTML("images per process and step")]),
            widgets.HBox([self.data, self._notes["data"]], layout={"flex_flow": "row wrap"}),
            self.folder,
        ]
        self.message = set_classes(widgets.HTML(), "ra-message")
        self.command = widgets.Textarea(
            description="Shell command",
            continuous_update=False,
            rows=3,
            style=_WIDE,
            layout={"width": "98%"},
        )
        set_classes(self.command, "ra-command")

    def _controls(self) -> list[Any]:
        return [*self.arms.values(), self.processes, self.precision, self.batch, self.data, self.folder]

    @property
    def chosen_arms(self) -> tuple[str, ...]:
        """Arms with a mark, in the order they are shown."""
        return tuple(arm for arm, box in self.arms.items() if box.value and not box.disabled)

    def config(self) -> RunConfig:
        """The chosen run, but for the arm.

        Raises:
            ValueError: nothing, or nothing good, was chosen; the message says where.
        """
        for name, control in (("processes", self.processes), ("precision", self.precision), ("data", self.data)):
            if control.value is None:
                raise ValueError(f"{name}: choose one")
        data = self.folder.value.strip() if self.data.value == FOLDER else self.data.value
        if not data:
            raise ValueError("image folder: name one that holds train/<class>/<image>")
        precision: Precision = self.precision.value
        return dataclasses.replace(
            self._choices.base,
            nproc_per_node=self.processes.value,
            amp_level=precision.amp_level,
            amp_dtype=precision.amp_dtype,
            batch_size=self.batch.value,
            data=data,
        )

    def check_again(self) -> None:
        """Ask anew what can be chosen: mock data may have been made meanwhile."""
        for option in self._choices.arms():
            box, note = self.arms[option.value], self._arm_notes[option.value]
            box.disabled = option.reason is not None
            if option.reason is not None:
                box.value = False
            note.value = _reason(option)
        base = self._choices.base
        self._set_options(self.data, "data", self._choices.data(), base.data if _is_word(base.data) else FOLDER)
        self._update()

    def _set_options(self, control: Any, name: str, options: Sequence[Option], first: Any) -> None:
        """Offer what can be chosen and say why the rest cannot; a choice that is no longer offered is taken back."""
        offered = [(option.label, option.value) for option in options if option.reason is None]
        if list(control.options) != offered:
            wanted = first if not control.options else control.value
            control.options = offered
            control.value = wanted if wanted in [value for _, value in offered] else None
        refused = [option for option in options if option.reason is not None]
        self._notes[name].value = "<br>".join(_reason(option, named=True) for option in refused)

    def _on_change(self, change: Any) -> None:
        if not self._updating:
            self._update()

    def _update(self) -> None:
        """After any change: what can be chosen beside it, the command, and what is in the way."""
        self._updating = True
        try:
            arms, base = self.chosen_arms, self._choices.base
            shown = arms or self._choices.asked_arms[:1]
            self._set_options(self.processes, "processes", self._choices.processes(shown), base.nproc_per_node)
            self._set_options(
                self.precision, "precision", self._choices.precisions(shown), Precision(base.amp_level, base.amp_dtype)
            )
            self.folder.layout.display = None if self.data.value == FOLDER else "none"
        finally:
            self._updating = False
        self._round += 1
        try:
            config = self.config()
        except ValueError as error:
            self.command.value = ""
            self._tell(str(error))
            return
        self.command.value = shell_command(config, arms) if arms else ""
        problem = self._choices.problem(config, arms)
        warnings = [] if problem else self._choices.warnings(config, arms)
        if problem is None and not _is_word(config.data):
            self._tell(None, [f"counting the images of {config.data}", *warnings])
            arguments = (self._round, config.with_arm(arms[0]), warnings)
            threading.Thread(target=self._count, args=arguments, daemon=True).start()
        else:
            self._tell(problem or self._choices.data_problem(config.with_arm(arms[0])), warnings)

    def _count(self, number: int, config: RunConfig, warnings: list[str]) -> None:
        """Beside the kernel's own thread, for a folder may hold a million images; a later change makes it pointless."""
        with self._counting:
            if number != self._round:
                return
            problem = self._choices.data_problem(config)
        if number == self._round:
            self._tell(problem, warnings)

    def _tell(self, problem: str | None, warnings: Sequence[str] = ()) -> None:
        self.problem = problem
        lines = [f"<b>Cannot start:</b> {html.escape(problem)}"] if problem else []
        lines += [f"Note: {html.escape(warning)}" for warning in warnings]
        self.message.value = f'<div role="status">{"<br>".join(lines)}</div>' if lines else ""
        self._changed()

    def _restore_command(self, change: Any) -> None:
        """The command is there to be copied: what is typed into it would change nothing."""
        try:
            wanted = shell_command(self.config(), self.chosen_arms) if self.chosen_arms else ""
        except ValueError:
            wanted = ""
        if change["new"] != wanted:
            self.command.value = wanted


def _buttons() -> dict[str, str]:
    return {**_WIDE, "button_width": "auto"}


def _is_word(data: str) -> bool:
    return data in ("mock", "synthetic")


def _reason(option: Option, named: bool = False) -> str:
    if option.reason is None:
        return ""
    what = f"{option.label} cannot be chosen: " if named else "cannot run: "
    return f'<span class="ra-reason">{html.escape(what + option.reason)}</span>'

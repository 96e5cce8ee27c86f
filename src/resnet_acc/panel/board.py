"""The whole panel, and attach() for a run that goes on: by widgets, or as text and pictures."""

import html
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resnet_acc.config import RunConfig
from resnet_acc.launch import live
from resnet_acc.launch.live import LiveRun
from resnet_acc.launch.live_command import shell_command
from resnet_acc.launch.live_find import ListedRun, list_runs
from resnet_acc.launch.supervisor import RunFailed
from resnet_acc.panel import front_end
from resnet_acc.panel.choices import Choices
from resnet_acc.panel.curves import LiveFigure
from resnet_acc.panel.tables import Comparison, compare_runs, ranks_table, runs_picture, runs_table

if TYPE_CHECKING:
    from resnet_acc.panel.controls import Controls

_OWN = ("start", "wait", "stop", "headless")


class Panel:
    """Chooses, starts, watches, stops and compares runs below one output folder.

    Args:
        parameters: values of the notebook's parameters cell: arms, processes, preset, and fields of RunConfig, where
            None stands for the preset's own value; start, wait, stop and headless, which are the notebook's.
        environment: what preflight.probe said, where it was asked already.

    Raises:
        ValueError: a value is no good; the message names it and the mend.
    """

    def __init__(self, parameters: Mapping[str, Any], environment: dict[str, Any] | None = None) -> None:
        self.headless: bool | None = parameters.get("headless")
        values = {name: value for name, value in parameters.items() if name not in _OWN}
        self.choices = Choices(values, environment)
        self.output = self.choices.output
        self.arms = self.choices.asked_arms
        self.config: RunConfig = self.choices.base
        self._controls: Controls | None = None

    @property
    def command(self) -> str:
        """The shell command of the run that the parameters ask for."""
        return shell_command(self.config, self.arms)

    @property
    def runs(self) -> list[ListedRun]:
        """All runs below the output folder, the newest first."""
        return list_runs(self.output)

    @property
    def newest(self) -> LiveRun | None:
        """The run that goes on, whether or not it has a folder yet, else the newest one; None before the first."""
        going = live.find_running(self.output)
        if going or not (listed := self.runs):
            return going[0] if going else None
        return live.attach(listed[0].run_dir)

    @property
    def finished(self) -> list[Path]:
        """Folders of those that finished, the newest first."""
        return [run.run_dir for run in self.runs if run.status.is_result]

    def describe(self) -> str:
        """What is asked for and what this machine can do, as Markdown."""
        config = self.config
        lines = [
            f"- {config.model} at {config.image_size} px, {config.batch_size} images per process and step, "
            f"AMP {config.amp_level}, data: {_literally(config.data)}",
            f"- arms: {', '.join(self.arms)}; processes: {config.nproc_per_node}",
            f"- machine: {self.choices.machine}",
            f"- output: {_literally(str(self.output))}",
        ]
        for option in self.choices.arms():
            said = "can run" if option.reason is None else f"cannot run: {_literally(option.reason)}"
            lines.append(f"- `{option.label}`: {said}")
        return "\n".join(lines)

    def show(self) -> None:
        """Widgets where a front end draws them (or `headless` is False), else a table and a picture of the runs."""
        if front_end.widgets_work(self.headless):
            from resnet_acc.panel.controls import Controls

            if self._controls is not None:
                self._controls.close()
            self._controls = Controls(self.choices)
            self._controls.show()
            return
        self.show_runs()

    def show_runs(self) -> None:
        """A table of all runs, a picture of those that finished, and how those stand that go on."""
        listed = self.runs
        table, runs = runs_table(listed, self.output)
        front_end.show(table.to_text(), table.to_html(), runs_picture(runs, "Runs"))
        for run in live.find_running(self.output):
            show_run(run)

    def start(self, wait: bool = False) -> LiveRun:
        """Start what the parameters ask for, by the command that is printed.

        Args:
            wait: until it has ended, and print what it says. An interrupt of the cell ends the waiting, not the run.

        Raises:
            ValueError: it cannot start as asked; nothing was started.
            RunFailed: it was waited for and did not finish.
        """
        print(f"$ {self.command}", flush=True)
        run = live.start(self.config, self.arms, environment=self.choices.environment)
        if run.already_running:
            print(f"this run goes on already, and is not started again: {run.snapshot().line}", flush=True)
        if self._controls is not None:
            self._controls.watch(run)
        if wait:
            _wait(run)
        return run

    def compare(
        self, first: str | os.PathLike[str] | None = None, second: str | os.PathLike[str] | None = None
    ) -> Comparison:
        """Show two runs side by side and return what is shown; without names, the newest two finished ones.

        Raises:
            ValueError: there are no two such runs.
        """
        if first is None or second is None:
            finished = self.finished
            if len(finished) < 2:
                raise ValueError(f"{len(finished)} runs have finished below {self.output}; two are needed to compare")
            first, second = finished[0], finished[1]
        dirs = [live.attach(run, str(self.output)).run_dir for run in (first, second)]
        found = compare_runs(dirs[0] or Path(), dirs[1] or Path())
        front_end.show(found.to_text(), found.to_html(), found.picture)
        return found

    def close(self) -> None:
        """Look no more at any run. Runs go on."""
        if self._controls is not None:
            self._controls.close()


def attach(
    run: "str | os.PathLike[str] | LiveRun | None" = None,
    output: "str | os.PathLike[str]" = RunConfig.output,
    *,
    headless: bool | None = None,
) -> LiveRun:
    """Show a run that is there already, from any cell of any kernel, and return it.

    Args:
        run: its folder, its id, or how its id begins. None is the newest that runs, else the newest of all.
        output: the folder below which it lies; a relative one hangs on the repository's root.
        headless: True for text, False for widgets, None for what the front end can do.

    Raises:
        ValueError: there is no such run, or there are several.
    """
    found = live.attach(run, os.fspath(output))
    if front_end.widgets_work(headless):
        from resnet_acc.panel.controls import show_view

        show_view(found)
    else:
        show_run(found)
    return found


def show_run(run: LiveRun) -> None:
    """A run as it stands now: one line, a table of its ranks, and their curves."""
    snapshot = run.snapshot()
    table = ranks_table(snapshot)
    page = f"<p>{html.escape(snapshot.line)}</p>{table.to_html()}"
    curves = LiveFigure().draw(snapshot.ranks) if any(rank.curve for rank in snapshot.ranks) else None
    front_end.show(f"{snapshot.line}\n{table.to_text()}", page, curves)


def _literally(text: str) -> str:
    """A text in Markdown that stays as it is: a path may hold what is HTML or Markdown's own."""
    return re.sub(r"[^\w\s/.,:;()=-]|\b_|_\b", lambda found: f"&#{ord(found[0])};", text)


def _wait(run: LiveRun) -> None:
    try:
        ended = run.wait(echo=lambda line: print(line, flush=True))
    except KeyboardInterrupt:
        name = run.run_dir.name if run.run_dir is not None else None
        print(f"waited no more; the run goes on: attach({name!r}) shows it, and .stop() ends it", flush=True)
        raise
    if ended.status != "finished":
        raise RunFailed({"status": ended.status, "reason": ended.line}, ended.run_dir)

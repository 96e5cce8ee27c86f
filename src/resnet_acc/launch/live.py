"""Runs that belong to their launcher and not to a cell: started, found again after a restart, watched and stopped.

run = start(RunConfig(data="synthetic"))   # a process of its own; the kernel may be restarted
run.snapshot().line                        # "running: step 40/100, 512.3 images/s, ..."
run = attach("20261201-1153")              # the same run from anywhere: a folder, an id, or how an id begins
run.stop()                                 # returns when nothing of it lives
"""

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resnet_acc.config import RunConfig
from resnet_acc.launch import live_stop, preflight
from resnet_acc.launch.failure import clean_lines, read_tail
from resnet_acc.launch.live_command import command_arguments
from resnet_acc.launch.live_find import find_run, list_runs, output_folder
from resnet_acc.launch.live_job import Job, running_jobs, start_job
from resnet_acc.launch.live_ranks import RankState, RunProgress
from resnet_acc.launch.live_screen import Screen
from resnet_acc.launch.progress import LineReader
from resnet_acc.launch.supervisor import SCREEN_LOG
from resnet_acc.results.status import RunStatus, read_json, read_status

POLL_SECONDS = 0.5
_MOST_LINES = 8
ENDED = ("finished", "failed", "interrupted", "refused")
"""What a run may come to; refused: it ended before it had a folder."""


@dataclass(frozen=True)
class Snapshot:
    """A run at one moment.

    `status` is starting, running, one of ENDED, or unknown (a folder of another making). `steady_images_per_s` is that
    of all ranks over the timed windows so far. `part`: which run of how many, where several arms run in turn.
    `ended`: its launcher is gone too, so that the same run can be started again. `host`: the other machine that it runs
    on, whose processes cannot be seen from here; None of this one.
    """

    status: str
    reason: str | None = None
    run_dir: Path | None = None
    ranks: tuple[RankState, ...] = ()
    step: int = 0
    total_steps: int | None = None
    seconds_left: float | None = None
    steady_images_per_s: float | None = None
    loss: float | None = None
    last_lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    part: tuple[int, int] | None = None
    ended: bool = False
    host: str | None = None

    @property
    def name(self) -> str:
        """Arm and processes, and the id; nothing before there is a folder."""
        return f"{self.run_dir.parent.name} {self.run_dir.name}" if self.run_dir is not None else ""

    @property
    def line(self) -> str:
        """The state in one line."""
        of = f" (run {self.part[0]} of {self.part[1]})" if self.part else ""
        said = self.reason
        if not self.ended and self.status in ("starting", "running"):
            said = self.ranks[0].line if self.ranks else "checking this machine and starting processes"
        elif self.status == "finished":
            rate = self.steady_images_per_s
            said = f"{rate:,.1f} images/s after warm-up" if rate is not None else "n/a (0 steps after warm-up)"
        where = f" on {self.host}" if self.host else ""
        head = f"{self.name} {self.status}".strip() + where + of
        return f"{head}: {said}" if said else head


class LiveRun:
    """A run, or several arms in turn, that goes on whatever becomes of this process. May be used from any thread."""

    def __init__(self, job: Job | None = None, run_dir: Path | None = None, *, already_running: bool = False) -> None:
        self.already_running = already_running
        self._job, self._run_dir = job, run_dir
        self._screen = Screen(job.screen) if job is not None else None
        self._progress: RunProgress | None = None
        self._asked_to_stop = False
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<LiveRun {self.snapshot().line}>"

    @property
    def run_dir(self) -> Path | None:
        """The run's folder, once there is one; of several arms in turn, that of the present one."""
        with self._lock:
            self._look()
            return self._run_dir

    @property
    def name(self) -> str:
        """Its id; before there is one, the number of its launcher."""
        run_dir = self.run_dir
        return run_dir.name if run_dir is not None else f"of process {self._job.pid if self._job else None}"

    @property
    def is_batch(self) -> bool:
        """Whether it runs several arms in turn."""
        return self._job is not None and "compare" in self._job.arguments[:3]

    @property
    def screen_log(self) -> Path | None:
        """The file that what the launcher says goes to; None of a run that was started in a terminal or a cell."""
        if self._job is not None:
            return self._job.screen
        path = self._run_dir / SCREEN_LOG if self._run_dir is not None else None
        return path if path is not None and path.is_file() else None

    def snapshot(self) -> Snapshot:
        """How it stands. What the ranks wrote is read on from where the last call came to."""
        with self._lock:
            # First who lives, then what they wrote: so the last words of a launcher that has just gone are not missed.
            gone = self._job is None or self._job.process is None
            self._look()
            if self._run_dir is None:
                return self._without_folder(gone)
            status = read_status(self._run_dir)
            if self._progress is None or self._progress.run_dir != self._run_dir:
                self._progress = RunProgress(self._run_dir)
            ranks = tuple(self._progress.update())
        return self._describe(status, ranks, gone)

    def _look(self) -> None:
        """Read on what the launcher says: the folder of the run, or of the next one."""
        if self._screen is not None:
            self._screen.update()
            self._run_dir = self._screen.run_dir or self._run_dir

    def _without_folder(self, gone: bool) -> Snapshot:
        part = self._screen.part if self._screen is not None else None
        lines = self._last_lines()
        if not gone:
            return Snapshot("starting", last_lines=lines, part=part)
        said = lines[-1].removeprefix("error: ") if lines else "its launcher ended without a word"
        stopped = self._asked_to_stop or said.startswith("interrupted by")
        return Snapshot("interrupted" if stopped else "refused", said, last_lines=lines, ended=True)

    def _describe(self, status: RunStatus, ranks: tuple[RankState, ...], gone: bool) -> Snapshot:
        name, reason = status.status, status.reason
        if self.is_batch:
            name, reason = self._batch_status(name, reason, gone)
        lefts = [rank.seconds_left for rank in ranks if rank.seconds_left is not None]
        begun = [rank for rank in ranks if rank.step]
        return Snapshot(
            status=name,
            reason=reason,
            run_dir=self._run_dir,
            ranks=ranks,
            step=min((rank.step for rank in begun), default=0),
            total_steps=next((rank.total_steps for rank in ranks if rank.total_steps), None),
            seconds_left=max(lefts, default=None) if name == "running" else None,
            steady_images_per_s=next((r.steady_images_per_s for r in ranks if r.steady_images_per_s), None),
            loss=begun[0].loss if begun else None,
            last_lines=tuple(status.last_lines[-_MOST_LINES:]) or self._last_lines(),
            warnings=tuple(status.warnings),
            part=self._screen.part if self._screen is not None else None,
            ended=gone and name != "running",
            host=status.host if name == "running" and gone and not status.is_running_here else None,
        )

    def _batch_status(self, name: str, reason: str | None, gone: bool) -> tuple[str, str | None]:
        """Of several arms in turn: running until the last is through and compared."""
        if not gone:
            return "running", None
        last = (self._last_lines() or ("",))[-1]
        if self._asked_to_stop or last.startswith("interrupted by"):
            return "interrupted", reason or last
        if last.startswith("error: "):
            return "failed", last.removeprefix("error: ")
        return ("interrupted", "its launcher is gone") if name == "running" else (name, reason)

    def _last_lines(self) -> tuple[str, ...]:
        path = self.screen_log
        if path is None and self._run_dir is not None:
            path = self._run_dir / "launcher.log"
        return tuple(clean_lines(read_tail(path, 20_000))[-_MOST_LINES:])

    def wait(self, seconds: float | None = None, echo: Callable[[str], None] | None = None) -> Snapshot:
        """Wait until it has ended, or so long, and return how it then stands. An interrupt ends the waiting alone.

        Args:
            echo: takes what the launcher says meanwhile, line by line.
        """
        until = None if seconds is None else time.monotonic() + seconds
        path = self.screen_log if echo is not None else None
        lines = LineReader(path) if path is not None else None
        if lines is not None and (self.already_running or self._job is None):
            lines.skip()
        while True:
            snapshot = self.snapshot()
            if lines is not None and echo is not None:
                for line in lines.new_lines():
                    echo(line.decode(errors="replace"))
            if snapshot.ended or (until is not None and time.monotonic() >= until):
                return snapshot
            time.sleep(POLL_SECONDS)

    def stop(self) -> Snapshot:
        """End it and return when nothing of it lives, which takes 15 s at most; of several arms in turn, end all.

        Raises:
            ValueError: it runs on another machine.
            PermissionError: it is another user's.
            RuntimeError: something could not be ended.
        """
        with self._lock:
            self._look()
            self._asked_to_stop = True
            run_dir = self._run_dir
        launcher = self._job.process if self._job is not None else live_stop.launcher_of(run_dir)
        live_stop.end_run(launcher, run_dir)
        later = self.run_dir
        if later != run_dir:  # it made its folder between the look and the interrupt
            live_stop.end_run(None, later)
        return self.snapshot()


def start(config: RunConfig, arms: Sequence[str] = (), *, environment: dict[str, Any] | None = None) -> LiveRun:
    """Start a run, or several arms in turn, as a process of its own and return at once.

    Where the same configuration runs already below the same output, that run is returned: `already_running` says so. A
    run that its launcher refuses comes to the status "refused" with the reason.

    Args:
        config: the run.
        arms: none for the configuration's own; several run one after the other, and are compared at the end.
        environment: what preflight.probe said. With it, a run that cannot start is refused here and now.

    Raises:
        ValueError: an unknown arm, or the run cannot start as asked; nothing was started.
        OSError: the process cannot be started.
    """
    configs = [config.with_arm(arm) for arm in dict.fromkeys(arms)] or [config]
    if environment is not None:
        for each in configs:
            preflight.check(each, environment)
    if len(configs) == 1 and (running := _same_running(preflight.resolve(configs[0]))) is not None:
        return attach(running)
    identity = json.dumps([preflight.resolve(each).to_json() for each in configs])
    job, is_new = start_job(command_arguments(config, arms), identity, _has_ended)
    return LiveRun(job, already_running=not is_new)


def attach(run: "str | os.PathLike[str] | LiveRun | None" = None, output: str = RunConfig.output) -> LiveRun:
    """A run that is there already, whoever started it.

    Args:
        run: its folder, its id, or how its id begins. None is the newest that runs, else the newest of all.
        output: the folder below which it lies; a relative one hangs on the repository's root.

    Raises:
        ValueError: there is no such run, or there are several.
    """
    if isinstance(run, LiveRun):
        return run
    if run is None and (going := find_running(output)):
        return going[0]
    run_dir = find_run(run, output)
    launcher = live_stop.launcher_of(run_dir) if read_status(run_dir).is_running_here else None
    jobs = running_jobs() if launcher is not None else []
    return LiveRun(next((job for job in jobs if job.process == launcher), None), run_dir, already_running=True)


def find_running(output: str | os.PathLike[str] = RunConfig.output) -> list[LiveRun]:
    """All that goes on below an output folder on this machine, the newest first; what has no folder yet before that."""
    folder = output_folder(output)
    jobs = [job for job in running_jobs() if _output_of(job) == folder]
    going = [LiveRun(job, already_running=True) for job in jobs]
    shown = {run.run_dir for run in going}
    listed = [each.run_dir for each in list_runs(folder) if each.is_running_here and each.run_dir not in shown]
    return going + [LiveRun(run_dir=run_dir, already_running=True) for run_dir in listed]


def _output_of(job: Job) -> Path:
    named = [text.partition("=")[2] for text in job.arguments if text.startswith("--output=")]
    return output_folder(named[-1] if named else RunConfig.output)


def _has_ended(job: Job) -> bool:
    """Whether the launcher of a single run has nothing left to do but to leave."""
    run = LiveRun(job)
    return not run.is_batch and run.snapshot().status in ENDED


def _same_running(config: RunConfig) -> Path | None:
    wanted = config.to_json()
    for listed in list_runs(config.output):
        if listed.is_running_here and read_json(listed.run_dir / "config.json") == wanted:
            return listed.run_dir
    return None

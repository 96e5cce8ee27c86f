"""Runs torchrun for one run, watches it, and leaves nothing of it behind, whatever happens."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from resnet_acc.config import RunConfig
from resnet_acc.launch import guard, preflight, processes, resume, xla_plugin
from resnet_acc.launch.failure import Failure, find_failure, signal_name
from resnet_acc.launch.folder import RunFolder
from resnet_acc.launch.preflight import Preflight
from resnet_acc.launch.progress import Progress, duration, peak_memory_gib, read_end
from resnet_acc.launch.torchrun import TRAINER, TRAINER_VARIABLE, agent_command, child_environment
from resnet_acc.launch.watch import RankWatch

RUN_FOLDER_LINE = "run folder: "
"""How the first line of a run on the screen begins."""
SCREEN_VARIABLE = "RESNET_ACC_SCREEN"
"""Environment variable of a launcher that nobody's screen belongs to: what it says goes to the run's screen.log too."""
SCREEN_LOG = "screen.log"

STATUS_SECONDS = 5.0
POLL_SECONDS = 0.2
LOST_RANK_SECONDS = 20.0
"""How long the other ranks may go on after one is gone without its end record. torchrun itself ends them within seconds
of an error, but takes a rank that left with exit status 0 for a finished one, and the others would wait for it."""
LEAVE_SECONDS = 60.0
"""How long a rank may take to leave after its end record, before it is ended."""

Echo = Callable[[str], None]


class RunFailed(RuntimeError):
    """A run ended badly; `status` is its status.json, `run_dir` its folder (None where it was refused before)."""

    def __init__(self, status: dict[str, Any], run_dir: Path | None) -> None:
        super().__init__(str(status.get("reason")))
        self.status, self.run_dir = status, run_dir


class RunInterrupted(KeyboardInterrupt):
    """A run was stopped from outside; everything of it has ended. No `except Exception` swallows it."""

    def __init__(self, signal_number: int, run_dir: Path | None = None) -> None:
        super().__init__(f"interrupted by {signal_name(signal_number)}")
        self.signal_number, self.run_dir = signal_number, run_dir


def launch(
    config: RunConfig,
    *,
    echo: Echo = print,
    environment: dict[str, Any] | None = None,
    checked: Preflight | None = None,
    trainer: str | None = None,
    stop: threading.Event | None = None,
) -> Path:
    """Run one run to its end and return its folder.

    Args:
        config: the run.
        echo: takes each line for the screen.
        environment: what preflight.probe said, where it was asked already.
        checked: what preflight.check said, likewise.
        trainer: module to run as a rank in place of the training; for tests.
        stop: set it from another thread to interrupt the run.

    Raises:
        ValueError: the run cannot start as asked; nothing was started.
        RunFailed: a rank failed, or ended before its training did.
        RunInterrupted: SIGINT, SIGTERM, SIGHUP or `stop`.
    """
    config = preflight.resolve(config)
    if environment is None:
        environment = preflight.probe(quick=config.arm != "torchacc")
    checked = preflight.check(config, environment) if checked is None else checked
    echo = _unbreakable(echo)
    config, resumed = resume.choose(config, checked.device_name)
    with signals_collected() as received, processes.adopting():
        run = RunFolder(config, checked, environment)
        if os.environ.get(SCREEN_VARIABLE):
            echo = _kept(echo, run.path / SCREEN_LOG)
        echo(f"{RUN_FOLDER_LINE}{run.path}")
        if config.arm == "torchacc" and checked.device == "cuda" and environment["torchacc"] is None:
            echo(f"torch_xla {environment['torch_xla']} on NVIDIA: {xla_plugin.describe(environment)}")
        for warning in checked.warnings:
            echo(f"warning: {warning}")
        for line in resumed:
            echo(line)
        command = agent_command(config, run.path, trainer or os.environ.get(TRAINER_VARIABLE) or TRAINER)
        with guard.guarded(run.path):
            supervision = _Supervision(config, run, echo)
            try:
                supervision.run(command, child_environment(config, checked, run.run_id), received, stop)
            finally:
                supervision.end()
            return supervision.conclude()


class _Supervision:
    """One run while it lasts."""

    def __init__(self, config: RunConfig, run: RunFolder, echo: Echo) -> None:
        self._config, self._folder, self._echo = config, run, echo
        self._progress = Progress(run.path, run.ranks[0], config.arm)
        self._before = processes.own_children()
        self._agent: subprocess.Popen[bytes] | None = None
        self._exit_code: int | None = None
        self._watch: RankWatch | None = None
        self._signal: int | None = None
        self._error: BaseException | None = None
        self._leftovers: list[int] = []
        self._started = time.monotonic()

    def run(
        self, command: list[str], environment: dict[str, str], received: list[int], stop: threading.Event | None
    ) -> None:
        """Start torchrun and watch it until it ends, a rank is lost, or somebody wants it to stop."""
        try:
            with open(self._folder.path / "launcher.log", "ab") as log:
                self._agent = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=processes.die_with_parent(signal.SIGKILL),
                )
            self._watch = RankWatch(self._agent.pid, self._folder)
            next_line = self._started + STATUS_SECONDS
            while self._exit_code is None:
                if received or (stop is not None and stop.is_set()):
                    self._signal = received[0] if received else signal.SIGINT
                    return
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._exit_code = self._agent.wait(POLL_SECONDS)
                self._watch.poll()
                lost, over = self._watch.seconds_since_loss(), self._watch.seconds_since_end()
                if lost > LOST_RANK_SECONDS or over > LEAVE_SECONDS:
                    return
                if time.monotonic() >= next_line:
                    next_line = time.monotonic() + STATUS_SECONDS
                    self._progress.update()
                    self._echo(f"[{duration(time.monotonic() - self._started)}] {self._progress.line()}")
            if received:
                self._signal = received[0]
        except BaseException as error:
            self._error = error

    def end(self) -> None:
        """End whatever is left of the run."""
        if self._signal is not None:
            self._echo(f"{signal_name(self._signal)}: ending the run")
        agent = self._agent
        self._leftovers = processes.end_processes(self._folder.run_id, self._before, agent.pid if agent else None)
        if agent is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(1.0)

    def conclude(self) -> Path:
        """Write the final status and the last line, and say by an exception what went wrong."""
        self._progress.update()
        if self._leftovers:
            self._echo(f"warning: processes {self._leftovers} could not be ended")
        if self._signal is not None:
            reason = f"interrupted by {signal_name(self._signal)}"
            self._finish("interrupted", exit_code=128 + self._signal, reason=reason)
            raise RunInterrupted(self._signal, self._folder.path)
        if self._error is not None:
            status = self._finish("failed", exit_code=1, reason=f"the launcher failed: {self._error!r}")
            if isinstance(self._error, Exception):
                raise RunFailed(status, self._folder.path) from self._error
            raise self._error
        failure = self._failure()
        if failure is not None:
            status = self._finish(
                "failed",
                exit_code=1,
                failed_rank=failure.rank,
                reason=failure.reason,
                last_lines=failure.last_lines,
            )
            for line in failure.last_lines:
                self._echo(f"    {line}")
            raise RunFailed(status, self._folder.path)
        self._finish("finished", exit_code=0)
        memory = peak_memory_gib(self._folder.path, self._folder.ranks)
        self._echo(f"finished: {self._folder.path}: {self._progress.summary(memory)}")
        return self._folder.path

    def _failure(self) -> Failure | None:
        everyone_done = all(read_end(self._folder.path, rank) is not None for rank in self._folder.ranks)
        if self._exit_code is None and everyone_done:
            self._echo(f"warning: ranks had not left {LEAVE_SECONDS:.0f} s after their end record and were ended")
            return None
        return find_failure(self._folder, self._watch.gone_at if self._watch else {}, self._exit_code)

    def _finish(self, status: str, **values: Any) -> dict[str, Any]:
        try:
            return self._folder.end(status, **values)
        except OSError as error:
            self._echo(f"warning: status.json could not be written ({error}), so it still says running")
            return {"status": status, **values}


@contextlib.contextmanager
def signals_collected() -> Iterator[list[int]]:
    """Collect SIGINT, SIGTERM and SIGHUP instead of acting on them: a second one must not break off the tidying up.

    A SIGHUP that is ignored already stays so: that is what nohup means. Outside the main thread nothing is changed.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, lambda seen, frame: received.append(seen))
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _kept(echo: Echo, path: Path) -> Echo:
    """The same, and each line goes to a file as well."""

    def write(line: str) -> None:
        echo(line)
        with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as stream:
            stream.write(f"{line}\n")

    return write


def _unbreakable(echo: Echo) -> Echo:
    """A screen that has gone away (a closed terminal, `| head`) must not end a run."""

    def write(line: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            echo(line)

    return write

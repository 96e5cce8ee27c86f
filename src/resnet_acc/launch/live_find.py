"""Runs below an output folder: all of them with what became of them, and the one that a reader means."""

import os
from dataclasses import dataclass
from pathlib import Path

from resnet_acc.config import RunConfig
from resnet_acc.launch import preflight
from resnet_acc.results.attempts import rank_folders
from resnet_acc.results.runs import find_runs
from resnet_acc.results.status import RunStatus, read_status

_MOST_NAMED = 5


@dataclass(frozen=True)
class ListedRun:
    """A run's folder, <output>/<model>/<tag>/<suffix>/<run_id>, and what became of it."""

    run_dir: Path
    status: RunStatus

    @property
    def is_running(self) -> bool:
        """Whether its launcher is at work, as far as can be known of one on another machine."""
        return self.status.status == "running"

    @property
    def is_running_here(self) -> bool:
        """Whether its launcher is at work on this machine."""
        return self.status.is_running_here

    @property
    def state(self) -> str:
        """The status, with the machine where it runs on another one."""
        return f"running on {self.status.host}" if self.is_running and not self.is_running_here else self.status.status

    @property
    def run_id(self) -> str:
        """The folder's name."""
        return self.run_dir.name

    @property
    def suffix(self) -> str:
        """Arm and processes, such as eager_x1."""
        return self.run_dir.parent.name

    @property
    def model(self) -> str:
        """The model's name."""
        return self.run_dir.parents[2].name

    @property
    def tag(self) -> str:
        """What is held equal between runs, such as h200_O1_bs128."""
        return self.run_dir.parents[1].name


def output_folder(output: str | os.PathLike[str]) -> Path:
    """The absolute folder that an output means; a relative one hangs on the repository's root."""
    return Path(preflight.resolve(RunConfig(output=os.fspath(output))).output)


def list_runs(output: str | os.PathLike[str]) -> list[ListedRun]:
    """All runs below an output folder, the newest first; none where there is no such folder yet."""
    folder = output_folder(output)
    if not folder.is_dir():
        return []
    listed = [ListedRun(run_dir.absolute(), read_status(run_dir)) for run_dir in find_runs(folder)]
    return sorted(listed, key=lambda run: (run.status.started_at or 0.0, run.run_id), reverse=True)


def find_run(run: str | os.PathLike[str] | None, output: str | os.PathLike[str]) -> Path:
    """The folder of the run that is meant.

    Args:
        run: a run's folder, its id, or how the id begins. None is the newest that runs, else the newest of all.

    Raises:
        ValueError: there is none, or there are several.
    """
    folder = output_folder(output)
    listed = list_runs(folder)
    if run is None:
        chosen = next((each for each in listed if each.is_running), listed[0] if listed else None)
        if chosen is None:
            raise ValueError(f"there is no run below {folder} yet; start one, or give another output")
        return chosen.run_dir
    text = os.fspath(run).strip()
    if text and "\0" not in text and (given := _folder_named(text, folder)) is not None:
        return given
    matches = [each for each in listed if text and each.run_id.startswith(text)]
    exact = [each for each in matches if each.run_id == text]
    if len(exact or matches) == 1:
        return (exact or matches)[0].run_dir
    if matches:
        named = ", ".join(f"{each.suffix}/{each.run_id}" for each in matches[:_MOST_NAMED])
        raise ValueError(f"run {text!r} could be {len(matches)} runs below {folder} ({named}); give more of its id")
    newest = ", ".join(each.run_id for each in listed[:_MOST_NAMED])
    mend = f"the newest are {newest}" if listed else "there is none yet; start one, or give another output"
    raise ValueError(f"run {text!r} is no folder of a run, nor how the id of one below {folder} begins; {mend}")


def _folder_named(text: str, output: Path) -> Path | None:
    """A path as it stands, or one below the output folder, that is a run's folder."""
    path = Path(text).expanduser()
    for place in (path, output / path):
        if (place / "config.json").is_file() or (place / "status.json").is_file() or rank_folders(place):
            return place.absolute()
    return None

"""Which checkpoint a run goes on from."""

import dataclasses
import json
from pathlib import Path

from resnet_acc import checkpoints
from resnet_acc.config import RunConfig


def choose(config: RunConfig, device_name: str) -> tuple[RunConfig, list[str]]:
    """The run with `resume` as the path of one whole checkpoint, or "no"; and what to say about it.

    Args:
        config: the run, with absolute folders.
        device_name: as in the run's folder.

    Raises:
        ValueError: what was asked for by its path is no whole checkpoint of the same training.
    """
    if config.resume == "no":
        return config, []
    if config.resume == "auto":
        parent = Path(config.output) / config.model / config.tag(device_name) / config.suffix
        run_dirs = [path for path in parent.glob("*") if not _is_done(path, config)]
        found, lines = checkpoints.newest_whole(run_dirs, config)
        if found is None:
            lines.append(f"nothing to resume below {parent}: starting anew")
            return dataclasses.replace(config, resume="no"), lines
    else:
        found, lines = _asked_for(Path(config.resume), config), []
    steps = f"step {found.step}" + (f" of {config.max_steps}" if config.max_steps else "")
    return dataclasses.replace(config, resume=str(found.path)), [*lines, f"resuming from {found.path} ({steps})"]


def _asked_for(path: Path, config: RunConfig) -> checkpoints.Checkpoint:
    if not path.is_dir():
        raise ValueError(f"resume is {config.resume!r}, which is no folder; give a checkpoint, its run, auto or no")
    if (path / checkpoints.MANIFEST).is_file():
        found = checkpoints.read_checkpoint(path)
        checkpoints.check_training(found, config)
        return found
    folders = checkpoints.checkpoint_folders(path)
    if not folders:
        raise ValueError(f"resume is {config.resume!r}, which has no checkpoint; give another run or checkpoint")
    notes = []
    for folder in reversed(folders):
        try:
            found = checkpoints.read_checkpoint(folder)
        except checkpoints.BadCheckpoint as error:
            notes.append(str(error))
            continue
        checkpoints.check_training(found, config)
        return found
    raise ValueError(f"resume is {config.resume!r}, which has no whole checkpoint: {'; '.join(notes)}")


def _is_done(run_dir: Path, config: RunConfig) -> bool:
    """Whether that run came to the end that this one has: it leaves nothing to go on with."""
    try:
        status = json.loads((run_dir / "status.json").read_text(encoding="utf-8"))["status"]
        planned = json.loads((run_dir / "config.json").read_text(encoding="utf-8"))
        same_end = (planned["epochs"], planned["max_steps"]) == (config.epochs, config.max_steps)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(status == "finished" and same_end)

"""Checkpoints on disk: one folder for each, whole or not there. Found, checked and thinned out here, without torch.

    <run_dir>/checkpoints/step_00000050/
        manifest.json    what was trained and how far; size and SHA-256 of each file beside it
        machine0.pt      what all ranks of that machine have in common: parameters, optimizer, loss scaling
        rank0.pt         what is each rank's own: buffers and random numbers

A checkpoint is written into a folder whose name begins with a dot and renamed when it is whole.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resnet_acc.config import RunConfig

SCHEMA = 1
FOLDER = "checkpoints"
MANIFEST = "manifest.json"
_NAME = re.compile(r"step_(\d{8,})")

# What must be equal for training to go on as if it had never stopped.
_SAME = (
    *("model", "data", "image_size", "batch_size", "nproc_per_node", "nnodes", "seed", "amp_level", "amp_dtype"),
    *("compiler_opt", "compiler", "kernel_opt", "lr", "lr_schedule", "weight_decay"),
)
# A schedule is laid over all steps; without one a run may be made longer.
_SAME_IF_SCHEDULED = ("epochs", "max_steps")


class BadCheckpoint(ValueError):
    """Not a whole checkpoint, or another run's; the message names the folder."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was found: its folder and what its manifest says."""

    path: Path
    manifest: dict[str, Any]

    @property
    def step(self) -> int:
        """Steps done when it was written, over all epochs."""
        return int(self.manifest["step"])

    @property
    def order(self) -> tuple[float, int]:
        """Sorts by the time of writing."""
        return float(self.manifest["time"]), self.step


def name_of(step: int) -> str:
    """The folder's name."""
    return f"step_{step:08d}"


def training_of(config: RunConfig) -> dict[str, Any]:
    """The settings that must be those of a run that goes on from a checkpoint."""
    names = _SAME if config.lr_schedule == "constant" else _SAME + _SAME_IF_SCHEDULED
    return {name: getattr(config, name) for name in names}


def read_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint whose every byte is there.

    Raises:
        BadCheckpoint: no manifest, or a file that is missing, cut off or changed.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        checkpoint = Checkpoint(path, manifest)
        checkpoint.order  # noqa: B018 (raises where they are missing)
        files = dict(manifest["files"])
        if manifest["schema"] != SCHEMA or not isinstance(manifest["training"], dict) or not files:
            raise ValueError
    except OSError as error:
        raise BadCheckpoint(f"{path} is no checkpoint: {MANIFEST} cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError):
        raise BadCheckpoint(f"{path} is no checkpoint: {MANIFEST} is none of this program's") from None
    for name, expected in files.items():
        _check_file(path / name, expected)
    return checkpoint


def _check_file(path: Path, expected: Any) -> None:
    try:
        size, digest = path.stat().st_size, str(expected["sha256"])
        if size != expected["bytes"]:
            raise BadCheckpoint(f"{path} has {size} bytes instead of {expected['bytes']}: cut off or changed")
        if file_sha256(path) != digest:
            raise BadCheckpoint(f"{path} fails its checksum: changed or damaged")
    except OSError as error:
        raise BadCheckpoint(f"{path} cannot be read ({error.strerror})") from None
    except (KeyError, TypeError):
        raise BadCheckpoint(f"{path.parent} is no checkpoint: {MANIFEST} is none of this program's") from None


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def newest_whole(run_dirs: Iterable[Path], config: RunConfig) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint of these runs that was written last, is whole, and is of the same training.

    Returns:
        It, or None; and a line for each newer one that was passed over because it is damaged.
    """
    candidates = []
    notes: list[str] = []
    for path in (path for run_dir in run_dirs for path in checkpoint_folders(run_dir)):
        try:
            manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            if manifest["training"] == training_of(config):
                candidate = Checkpoint(path, manifest)
                candidates.append((candidate.order, candidate))
        except (OSError, ValueError, KeyError, TypeError):
            notes.append(f"passed over: {path / MANIFEST} cannot be read, or is none of this program's")
    for _, candidate in sorted(candidates, key=lambda pair: pair[0], reverse=True):
        try:
            return read_checkpoint(candidate.path), notes
        except BadCheckpoint as error:
            notes.append(f"passed over: {error}")
    return None, notes


def checkpoint_folders(run_dir: Path) -> list[Path]:
    """A run's checkpoints by their steps, whole or damaged."""
    try:
        found = [entry for entry in (run_dir / FOLDER).iterdir() if _NAME.fullmatch(entry.name)]
    except OSError:
        return []
    return sorted(found, key=lambda path: int(path.name.removeprefix("step_")))


def check_training(checkpoint: Checkpoint, config: RunConfig) -> None:
    """Raises BadCheckpoint where it is another training's, with what differs."""
    saved = checkpoint.manifest["training"]
    for name, value in training_of(config).items():
        if saved.get(name) != value:
            raise BadCheckpoint(
                f"{checkpoint.path} was trained with {name} {saved.get(name)!r}, and this run has {value!r}; "
                "give the same, or another checkpoint"
            )


def thin_out(run_dir: Path, keep: int) -> None:
    """Remove all but the last `keep` of a run's checkpoints. One that cannot be removed stays."""
    for path in checkpoint_folders(run_dir)[:-keep]:
        doomed = path.with_name(f".{path.name}.old")
        with contextlib.suppress(OSError):
            os.replace(path, doomed)  # first its name, so that no reader meets half of one
            shutil.rmtree(doomed, ignore_errors=True)

"""A run's state written while it trains, and read back so that training goes on as if it had never stopped."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from resnet_acc import checkpoints
from resnet_acc.config import RunConfig
from resnet_acc.files import write_json
from resnet_acc.logger import log_record, log_text
from resnet_acc.training.accelerators.base import Accelerator
from resnet_acc.training.distributed import HostGroup, Place


@dataclass(frozen=True)
class Position:
    """How far training has come: `step` over all epochs, `done` steps of `epoch`, and a streak of non-finite losses."""

    step: int = 0
    epoch: int = 0
    done: int = 0
    streak: float = 0.0


class Checkpoints:
    """Writes and reads one run's checkpoints. Every rank calls the same methods at the same steps."""

    def __init__(
        self, config: RunConfig, place: Place, run_dir: Path, accelerator: Accelerator, group: HostGroup
    ) -> None:
        self._config, self._place, self._run_dir = config, place, run_dir
        self._accelerator, self._group = accelerator, group
        self._machine = place.rank // config.nproc_per_node
        self._leads = place.local_rank == 0
        self._folder = run_dir / checkpoints.FOLDER

    def is_due(self, step: int, total_steps: int) -> bool:
        """Whether one is written after this many steps: every checkpoint_interval, and after the last."""
        every = self._config.checkpoint_interval
        return every is not None and (step % every == 0 or step == total_steps)

    def save(self, position: Position) -> None:
        """Write a checkpoint, whole or not at all, then remove all but the last few.

        Raises:
            OSError: it cannot be written (a full disk); what was there before stays.
            RuntimeError: another rank of this run could not.
        """
        begin = time.perf_counter()
        name = checkpoints.name_of(position.step)
        partial, whole = self._folder / f".{name}.partial", self._folder / name
        try:
            if self._leads:
                self._together(lambda: _make_anew(partial), "make its folder")
            else:
                self._together(lambda: None, "make its folder")
            self._together(lambda: self._write_states(partial), "write its part of a checkpoint")
            self._together(lambda: self._publish(partial, whole, position), "write a checkpoint's manifest")
        except BaseException:
            if self._leads:
                shutil.rmtree(partial, ignore_errors=True)
            raise
        values = {"step": position.step, "path": str(whole), "seconds": time.perf_counter() - begin}
        log_record("checkpoint", **values)
        log_text("checkpoint", values)

    def _together(self, work: Callable[[], None], what: str) -> None:
        """Do this rank's part; every rank learns here whether all could, so that none waits for one that failed."""
        failure: BaseException | None = None
        try:
            work()
        except (OSError, RuntimeError) as error:
            failure = error
        failed = [rank for rank, (ok,) in enumerate(self._group.gather([float(failure is None)])) if not ok]
        if failure is not None:
            raise OSError(f"a checkpoint in {self._folder} cannot be written: {failure}") from failure
        if failed:
            raise RuntimeError(f"rank {failed[0]} could not {what} in {self._folder}; see its log")

    def _write_states(self, folder: Path) -> None:
        accelerator = self._accelerator
        model = accelerator.inner_model()
        # By state_dict: its hooks give the layout that load_state_dict takes back (torchacc stores weights in another).
        state, own_names = model.state_dict(), {name for name, _ in model.named_buffers()}
        if self._leads:
            _write(
                folder / f"machine{self._machine}.pt",
                {
                    "parameters": {name: value for name, value in state.items() if name not in own_names},
                    "optimizer": accelerator.optimizer.state_dict(),
                    "scaler": accelerator.scaler.state_dict(),
                },
            )
        buffers = {name: value for name, value in state.items() if name in own_names}
        own: dict[str, Any] = {"buffers": buffers, "random": torch.get_rng_state()}
        if accelerator.device.type == "cuda":
            own["cuda_random"] = torch.cuda.get_rng_state(accelerator.device)
        _write(folder / f"rank{self._place.rank}.pt", own)

    def _publish(self, partial: Path, whole: Path, position: Position) -> None:
        if not self._leads:
            return
        files = {
            path.name: {"bytes": path.stat().st_size, "sha256": checkpoints.file_sha256(path)}
            for path in sorted(partial.iterdir())
        }
        write_json(
            partial / checkpoints.MANIFEST,
            {
                "schema": checkpoints.SCHEMA,
                "time": time.time(),
                "training": checkpoints.training_of(self._config),
                **{name: getattr(position, name) for name in ("step", "epoch", "done", "streak")},
                "torch_version": torch.__version__,
                "files": files,
            },
        )
        if whole.exists():  # of an attempt before this one, and perhaps damaged
            shutil.rmtree(whole)
        os.replace(partial, whole)
        _sync_folder(whole.parent)
        checkpoints.thin_out(self._run_dir, self._config.keep_checkpoints)

    def resume(self) -> Position:
        """Read back what the launcher chose, or after a restart within the run its own newest; say which.

        Raises:
            BadCheckpoint: it is not whole, or another training's.
            RuntimeError: the ranks' checkpoints are of different steps.
        """
        checkpoint = self._chosen()
        steps = [int(step) for (step,) in self._group.gather([-1.0 if checkpoint is None else float(checkpoint.step)])]
        if len(set(steps)) > 1:
            raise RuntimeError(
                f"the ranks would go on from different steps ({', '.join(map(str, steps))}; -1: from none); "
                "give every machine the same checkpoint with --resume=FOLDER"
            )
        if checkpoint is None:
            return Position()
        self._load(checkpoint.path)
        manifest = checkpoint.manifest
        log_text("resumed", {"step": checkpoint.step, "path": str(checkpoint.path)})
        log_record("resumed", step=checkpoint.step, path=str(checkpoint.path))
        return Position(checkpoint.step, int(manifest["epoch"]), int(manifest["done"]), float(manifest["streak"]))

    def _chosen(self) -> checkpoints.Checkpoint | None:
        if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
            own, notes = checkpoints.newest_whole([self._run_dir], self._config)
            for note in notes:
                log_text("warning", {"text": note})
            if own is not None:
                return own
        if self._config.resume == "no":
            return None
        checkpoint = checkpoints.read_checkpoint(Path(self._config.resume))
        checkpoints.check_training(checkpoint, self._config)
        return checkpoint

    def _load(self, folder: Path) -> None:
        accelerator = self._accelerator
        shared, own = _read(folder / f"machine{self._machine}.pt"), _read(folder / f"rank{self._place.rank}.pt")
        accelerator.inner_model().load_state_dict({**shared["parameters"], **own["buffers"]})
        accelerator.optimizer.load_state_dict(shared["optimizer"])
        if shared["scaler"]:
            accelerator.scaler.load_state_dict(shared["scaler"])
        accelerator.finish()
        torch.set_rng_state(own["random"])
        if "cuda_random" in own and accelerator.device.type == "cuda":
            torch.cuda.set_rng_state(own["cuda_random"], accelerator.device)


def _make_anew(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # what a killed run left
    folder.mkdir(parents=True)


def _write(path: Path, state: dict[str, Any]) -> None:
    with open(path, "wb") as stream:
        torch.save(_on_host(state), stream)
        stream.flush()
        os.fsync(stream.fileno())


def _read(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise checkpoints.BadCheckpoint(f"{path} cannot be read: {error}") from None
    return state


def _on_host(state: Any) -> Any:
    """The same with every tensor copied to the host, in its own memory format."""
    if torch.is_tensor(state):
        return state.detach().cpu().clone()
    if isinstance(state, dict):
        return {name: _on_host(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_on_host(value) for value in state)
    return state


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

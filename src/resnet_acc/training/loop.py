"""The only training loop. Every arm trains, is timed and is logged here."""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resnet_acc.config import RunConfig
from resnet_acc.logger import log_metrics, log_record, log_text
from resnet_acc.training.accelerators.base import Accelerator, Batches
from resnet_acc.training.checkpoint import Checkpoints, Position
from resnet_acc.training.data import Plan, TrainingData
from resnet_acc.training.distributed import HostGroup

NONFINITE_LIMIT = 20
"""Steps in a row whose loss may be inf or nan; float16's loss scaling halves its way down in fewer."""


class NonFiniteLoss(RuntimeError):
    """The loss has been inf or nan for so long that training cannot recover."""


@dataclass
class Window:
    """The time between two records. `begin` is read when the device has finished what came before."""

    begin: float
    steps: int = 0
    data_s: float = 0.0
    host_s: float = 0.0


class Loop:
    """Trains one model by one arm.

    The device is waited for at the edges of an interval and nowhere within; each interval begins where the one before
    ended, so that no time is left out but validation's.
    """

    def __init__(
        self, config: RunConfig, accelerator: Accelerator, data: TrainingData, process_start: float, run_dir: Path
    ) -> None:
        self._config, self._accelerator, self._data = config, accelerator, data
        self._plan: Plan = data.plan
        self._group = HostGroup()
        self._process_start = process_start
        self._checkpoints = Checkpoints(config, accelerator.place, run_dir, accelerator, self._group)
        self._begin = self._step = 0
        self._done = 0  # steps of the present epoch
        self._streak = 0.0
        self._rate = config.learning_rate
        self._compilations = 0
        self._ended = {"images": 0, "seconds": 0.0, "skipped_steps": 0, "nonfinite_steps": 0}

    def run(self) -> None:
        """Train from the start or a checkpoint, validate after each epoch, and write every record.

        Raises:
            NonFiniteLoss: the loss has not been finite for NONFINITE_LIMIT steps.
            BadCheckpoint: the checkpoint to go on from is not whole, or is another training's.
            OSError: a checkpoint cannot be written.
        """
        source = self._accelerator.train_batches(self._data)
        position = self._resume()
        self._accelerator.start_totals(self._streak)
        for epoch in range(position.epoch, self._config.epochs):
            self._done = position.done if epoch == position.epoch else 0
            steps = min(self._plan.steps_per_epoch - self._done, self._plan.total_steps - self._step)
            if steps == 0 and self._done == 0:
                break
            self._train_epoch(epoch, source.epoch(epoch, steps, self._done))
            if self._data.val:
                self._validate(epoch)
        if self._streak and self._streak >= self._step / 2:
            raise NonFiniteLoss(self._nonfinite_text())  # too short for the limit, and yet no result
        peak = self._accelerator.peak_memory_gib()
        log_record("end", step=self._step, peak_memory_gib=peak, **self._ended)

    def _resume(self) -> Position:
        position = self._checkpoints.resume()
        self._begin = self._step = position.step
        self._streak = position.streak
        if position.step:
            self._rate = math.nan  # whatever the checkpoint's optimizer has, this run's first rate is set
        return position

    def _train_epoch(self, epoch: int, batches: Batches) -> None:
        self._accelerator.finish()
        window = Window(time.perf_counter())
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            got = time.perf_counter()
            if batch is None:
                break
            if self._step == self._begin:
                setup_s = time.time() - self._process_start
            self._set_learning_rate()
            self._accelerator.train_step(*batch)
            window.host_s += time.perf_counter() - got
            window.data_s += got - asked
            window.steps += 1
            self._step += 1
            self._done += 1
            if self._step == self._begin + 1:
                self._accelerator.finish()
                self._log_startup(setup_s, time.perf_counter() - got)
            if self._is_edge(window.steps):
                window = self._close(epoch, window)
                if self._checkpoints.is_due(self._step, self._plan.total_steps):
                    self._checkpoints.save(Position(self._step, epoch, self._done, self._streak))
                    window = Window(time.perf_counter())
        if window.steps:
            self._close(epoch, window)

    def _set_learning_rate(self) -> None:
        rate = self._config.learning_rate_at(self._step, self._plan.total_steps)
        if rate != self._rate:
            self._accelerator.set_learning_rate(rate)
            self._rate = rate

    def _is_edge(self, steps: int) -> bool:
        """Whether a record is due: first step, end of warm-up, every log_interval steps, and at a checkpoint."""
        done = self._step - self._begin
        due = done in (1, self._plan.warmup_steps) or steps == self._config.log_interval
        return due or self._checkpoints.is_due(self._step, self._plan.total_steps)

    def _close(self, epoch: int, window: Window) -> Window:
        """End an interval: wait for the device, read the totals back once, write the record."""
        self._accelerator.finish()
        end = time.perf_counter()
        own = self._accelerator.read_totals()
        self._streak = own["nonfinite_streak"]
        self._accelerator.start_totals(self._streak)
        self._log_interval(epoch, window, end - window.begin, own)
        if self._streak >= NONFINITE_LIMIT:
            raise NonFiniteLoss(self._nonfinite_text())
        return Window(end)

    def _nonfinite_text(self) -> str:
        return (
            f"the loss has been inf or nan since step {self._step - int(self._streak) + 1} (now {self._step}); "
            f"use a smaller --lr than {self._config.learning_rate}, or --amp_level=O0"
        )

    def _log_startup(self, setup_s: float, first_step_s: float) -> None:
        accelerator = self._accelerator
        values = {
            "setup_s": setup_s,
            "first_step_s": first_step_s,
            "compile_s": accelerator.compile_seconds(),
            "compilations": accelerator.compilations(),
            "compile_cache_hits": accelerator.compile_cache_hits(),
        }
        log_record("startup", **values)
        log_text("startup", values)

    def _log_interval(self, epoch: int, window: Window, seconds: float, own: dict[str, float]) -> None:
        everyone = self._group.gather(list(own.values()))
        ranks = [dict(zip(own, values, strict=True)) for values in everyone]
        images = window.steps * self._config.global_batch_size
        mean = {name: sum(rank[name] for rank in ranks) / images for name in ("loss", "correct1", "correct5")}
        # A step counts once, on however many ranks it went wrong.
        nonfinite, skipped = (int(max(rank[name] for rank in ranks)) for name in ("nonfinite_steps", "skipped_steps"))
        compilations = self._accelerator.compilations()
        warmup = self._step - self._begin <= self._plan.warmup_steps  # a resumed run starts up and compiles anew
        record: dict[str, Any] = {
            "epoch": epoch,
            "step": self._step,
            "steps": window.steps,
            "warmup": warmup,
            "images": images,
            "loss": mean["loss"],
            "acc1": 100.0 * mean["correct1"],
            "acc5": 100.0 * mean["correct5"],
            "step_time_s": seconds / window.steps,
            "data_time_s": window.data_s / window.steps,
            "host_time_s": window.host_s / window.steps,
            "images_per_s": images / seconds,
            "images_per_s_per_rank": images / seconds / self._config.world_size,
            "peak_memory_gib": self._accelerator.peak_memory_gib(),
            "lr": self._rate,
            "loss_scale": self._accelerator.loss_scale(),
            "skipped_steps": skipped,
            "nonfinite_steps": nonfinite,
            "compilations": compilations - self._compilations,
        }
        self._compilations = compilations
        log_record("interval", **record)
        log_metrics(
            epoch,
            self._step,
            self._config.batch_size,
            record["loss"],
            record["step_time_s"],
            record["images_per_s"],
            record["peak_memory_gib"],
        )
        if record["compilations"]:
            log_text("compilation", {"step": self._step, "compilations": record["compilations"]})
        self._ended["skipped_steps"] += skipped
        self._ended["nonfinite_steps"] += nonfinite
        if not warmup:
            self._ended["images"] += images
            self._ended["seconds"] += seconds

    def _validate(self, epoch: int) -> None:
        begin = time.perf_counter()
        sums = self._accelerator.evaluate(iter(self._data.val_loader()), self._group)
        loss, correct1, correct5, images = (sum(column) for column in zip(*self._group.gather(sums), strict=True))
        assert images == self._plan.num_val_images, f"{images} of {self._plan.num_val_images} validation images counted"
        values = {
            "epoch": epoch,
            "step": self._step,
            "images": int(images),
            "loss": loss / images,
            "acc1": 100.0 * correct1 / images,
            "acc5": 100.0 * correct5 / images,
            "seconds": time.perf_counter() - begin,
        }
        self._compilations = self._accelerator.compilations()  # validation's graph is not the next interval's
        log_record("validation", **values)
        log_text("validation", values)

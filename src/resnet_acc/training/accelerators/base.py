"""The contract between the one training loop and the arms."""

import abc
import resource
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import nn

from resnet_acc.config import RunConfig
from resnet_acc.training.data import NUM_SYNTHETIC_BATCHES, SyntheticBatches, TrainingData, pad_batch
from resnet_acc.training.distributed import HostGroup, Place
from resnet_acc.training.model import TOTALS, add_to_totals, correct_counts
from resnet_acc.training.precision import Precision, resolve_precision

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


class Accelerator(abc.ABC):
    """One arm. The loop calls setup, prepare, then batches, train_step, finish and the read-outs, and teardown.

    Data order, loss, optimizer settings, logging and timing are the loop's; an arm only says how a step is computed.
    """

    device: torch.device
    precision: Precision
    memory_format: torch.memory_format = torch.contiguous_format

    def __init__(self, config: RunConfig, place: Place, device_type: str) -> None:
        self.config, self.place = config, place
        self.device_type = device_type
        self.precision = resolve_precision(config, device_type, self.autocast_device_type())
        self.criterion = nn.CrossEntropyLoss()
        self.model: nn.Module
        self.optimizer: torch.optim.Optimizer
        self.scaler: Any  # torch.amp.GradScaler, or the arm's own with the same methods
        self._totals: torch.Tensor

    @property
    def compile_mode(self) -> str | None:
        """How the arm's compiler is asked to work, for the records; None where it has no modes."""
        return None

    def autocast_device_type(self) -> str:
        """The device type that autocast is asked for."""
        return self.device_type

    @abc.abstractmethod
    def setup(self) -> None:
        """Start the process group and open the device.

        Raises:
            RuntimeError: the arm cannot do here what its name says; the message names the mend.
        """

    @abc.abstractmethod
    def prepare(self, model: nn.Module) -> None:
        """Place the model on the device and make the optimizer."""

    @abc.abstractmethod
    def train_step(self, images: torch.Tensor, target: torch.Tensor) -> None:
        """One update on a batch on the device, images [N, 3, H, W] and classes [N]. Never waits for the device."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Wait until the device has done everything asked of it."""

    @abc.abstractmethod
    def peak_memory_gib(self) -> float:
        """Most memory that this process has held on the device so far (on a CPU: of the process), in GiB."""

    def compilations(self) -> int:
        """Graphs compiled so far."""
        return 0

    def compile_seconds(self) -> float | None:
        """Seconds that the compiler says it has spent so far; None where it does not say."""
        return 0.0

    def compile_cache_hits(self) -> int:
        """Graphs that came from a cache of an earlier run instead of being compiled."""
        return 0

    def loss_scale(self) -> float | None:
        """Present loss scale, or None without loss scaling."""
        return None

    def train_batches(self, data: TrainingData) -> "EpochSource":
        """Where the loop gets an epoch's batches from."""
        return EpochSource(self, data)

    def on_device(self, batches: Batches) -> Batches:
        """Move a loader's batches to the device as they come."""
        for images, target in batches:
            yield (
                images.to(self.device, non_blocking=True, memory_format=self.memory_format),
                target.to(self.device, non_blocking=True),
            )

    def start_totals(self, streak: float = 0.0) -> None:
        """Begin a new interval's totals on the device; the streak of non-finite losses goes on across intervals."""
        # Copied from the host, not made on the device: for torch-xla a fresh constant would be another graph.
        self._totals = torch.tensor([0.0] * (len(TOTALS) - 1) + [streak]).to(self.device)

    def read_totals(self) -> dict[str, float]:
        """The interval's totals on the host, by their names in TOTALS: the one read-back of an interval."""
        return dict(zip(TOTALS, self._totals.tolist(), strict=True))

    def add_totals(
        self, output: torch.Tensor, target: torch.Tensor, loss: torch.Tensor, skipped: torch.Tensor | None = None
    ) -> None:
        """Count one step on the device."""
        self._totals = self.totals_after(self._totals, output, target, loss, skipped)

    @staticmethod
    def totals_after(
        totals: torch.Tensor,
        output: torch.Tensor,
        target: torch.Tensor,
        loss: torch.Tensor,
        skipped: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Totals with one more step in them (see add_to_totals); None stands for no skipped update."""
        return add_to_totals(totals, output, target, loss, loss.new_zeros(()) if skipped is None else skipped)

    def set_learning_rate(self, rate: float) -> None:
        """The learning rate from the next step on."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate

    def inner_model(self) -> nn.Module:
        """The model without what an arm wrapped around it."""
        return self.model

    def evaluate(self, batches: Batches, group: HostGroup) -> list[float]:
        """Sums over this rank's validation images: loss, right within one guess, right within five, images."""
        self.synchronise_buffers(group)
        model = self.inner_model().eval()
        sums = torch.zeros(4).to(self.device)
        for images, target in batches:
            images, target, count = pad_batch(images, target, self.config.batch_size)
            counts = torch.zeros(self.config.batch_size)
            counts[:count] = 1.0
            sums = sums + self.eval_step(model, images, target, counts)
            self.end_eval_step()
        model.train()
        return sums.tolist()

    def eval_step(
        self, model: nn.Module, images: torch.Tensor, target: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        """Shape [4]: summed loss, right within one guess, within five, and images, of a padded host batch."""
        images = images.to(self.device, non_blocking=True, memory_format=self.memory_format)
        target, counts = target.to(self.device, non_blocking=True), counts.to(self.device)
        with torch.no_grad(), self.precision.autocast():
            output = model(images)
            losses = nn.functional.cross_entropy(output, target, reduction="none").float()
        hits = correct_counts(output, target, counts)
        return torch.cat([(losses * counts).sum().reshape(1), hits, counts.sum().reshape(1)])

    def end_eval_step(self) -> None:  # noqa: B027 (a hook: most arms need nothing here)
        """What the device needs after each validation batch."""

    def synchronise_buffers(self, group: HostGroup) -> None:
        """Give every rank rank 0's BatchNorm statistics, so that a validation image's score is the same on any rank."""
        buffers = list(self.inner_model().buffers())
        on_host = [buffer.detach().cpu() for buffer in buffers]
        group.broadcast_(on_host)
        if group.world_size > 1:
            with torch.no_grad():
                for buffer, host in zip(buffers, on_host, strict=True):
                    buffer.copy_(host.to(self.device))

    def teardown(self) -> None:
        """Leave the process group."""
        if torch.distributed.is_initialized():
            # DDP's reducer must not be the group's last owner: freed with the interpreter's lock held, the group waits
            # for a gloo thread that itself waits for the lock, and the rank would never leave.
            group = torch.distributed.group.WORLD
            self.model = self.inner_model()
            torch.distributed.destroy_process_group()
            del group


class EpochSource:
    """Batches on the device, epoch by epoch, from the loader or from synthetic data."""

    def __init__(self, accelerator: Accelerator, data: TrainingData) -> None:
        self._accelerator = accelerator
        config = accelerator.config
        self._loader = data.train_loader() if data.train else None
        self._synthetic: SyntheticBatches | None = None
        if self._loader is None:
            drawn, data.synthetic = data.synthetic, ()  # the host's copies go when the device has its own
            where = (accelerator.device, accelerator.memory_format)
            self._synthetic = SyntheticBatches(config, accelerator.place, *where, drawn)

    def epoch(self, number: int, steps: int, skip: int = 0) -> Batches:
        """Exactly so many batches of an epoch, after the first `skip`, which a run before this one has trained on.

        Raises:
            RuntimeError: the loader ended early, which a short epoch would hide.
        """
        if self._synthetic is not None:
            source: Batches = islice(self._synthetic, skip % NUM_SYNTHETIC_BATCHES, None)
        else:
            assert self._loader is not None
            self._loader.sampler.begin(number, skip * self._loader.batch_size)  # type: ignore[attr-defined,operator]
            source = self._accelerator.on_device(iter(self._loader))
        for done in range(steps):
            batch = next(source, None)
            if batch is None:
                raise RuntimeError(f"the loader ended after {done} of {steps} batches of epoch {number}")
            yield batch


def process_peak_gib() -> float:
    """Most memory that this process has held so far, in GiB: what stands for device memory on a CPU."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # Linux gives KiB

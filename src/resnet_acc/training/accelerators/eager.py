"""eager, the article's baseline (PyTorch, DDP, AMP), and kernel, the strong one."""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from resnet_acc.training.accelerators.base import Accelerator, process_peak_gib
from resnet_acc.training.distributed import verify_gradient_mean
from resnet_acc.training.model import correct_counts
from resnet_acc.training.precision import found_inf, verify_autocast


class KeptSteps:
    """Outputs and losses of an interval's steps, counted when it ends.

    Counting each step on its own takes some twenty small kernels, which the host launches one at a time while the
    device waits. Kept and counted together they cost nothing within the interval. (torch-xla counts within its graph.)
    """

    LONGEST = 64
    """Steps after which outputs are counted and let go, so that a long interval does not fill the device."""

    def __init__(self, streak: float) -> None:
        self._streak = streak
        self._outputs: list[torch.Tensor] = []
        self._targets: list[torch.Tensor] = []
        self._losses: list[torch.Tensor] = []
        self._skipped: list[torch.Tensor] = []
        self._images: list[int] = []
        self._correct: torch.Tensor | None = None

    def add(self, output: torch.Tensor, target: torch.Tensor, loss: torch.Tensor, skipped: torch.Tensor | None) -> None:
        """Keep one step's results (shapes as in add_to_totals); launches nothing on the device."""
        self._outputs.append(output)
        self._targets.append(target)
        self._losses.append(loss)
        self._images.append(target.shape[0])
        if skipped is not None:
            self._skipped.append(skipped)
        if len(self._outputs) == self.LONGEST:
            self._count()

    def _count(self) -> None:
        correct = correct_counts(torch.cat(self._outputs), torch.cat(self._targets))
        self._correct = correct if self._correct is None else self._correct + correct
        self._outputs, self._targets = [], []

    def read(self) -> dict[str, float]:
        """The totals by their names in model.TOTALS, read back from the device once."""
        if self._outputs:
            self._count()
        assert self._correct is not None, "an interval has at least one step"
        steps = len(self._losses)
        read = torch.cat(
            [self._correct, *(torch.stack(part).float() for part in (self._losses, self._skipped) if part)]
        ).tolist()
        losses, skipped = read[2 : 2 + steps], read[2 + steps :]
        nonfinite = [not math.isfinite(loss) for loss in losses]
        last_finite = max((number for number, bad in enumerate(nonfinite) if not bad), default=-1)
        return {
            "loss": sum(loss * images for loss, images in zip(losses, self._images, strict=True)),
            "correct1": read[0],
            "correct5": read[1],
            "nonfinite_steps": float(sum(nonfinite)),
            "skipped_steps": float(sum(skipped)),
            "nonfinite_streak": steps - 1 - last_finite + (self._streak if last_finite < 0 else 0.0),
        }


class EagerAccelerator(Accelerator):
    """PyTorch as the article has it: NCHW, DDP where there are several processes, autocast, AdamW."""

    fused_optimizer: bool | None = None
    """AdamW's `fused`: None leaves PyTorch's own choice, as the article does."""

    def setup(self) -> None:
        on_cuda = self.device_type == "cuda"
        self.device = torch.device("cuda", self.place.local_rank) if on_cuda else torch.device("cpu")
        if on_cuda:
            torch.cuda.set_device(self.device)
        if self.place.world_size > 1:
            dist.init_process_group("nccl" if on_cuda else "gloo", init_method="env://")
            verify_gradient_mean(self._mean, self.place, self.device)
        verify_autocast(self.precision, self.device)

    def _mean(self, gradients: list[torch.Tensor]) -> None:
        for gradient in gradients:
            dist.all_reduce(gradient)
            gradient.div_(self.place.world_size)

    def prepare(self, model: nn.Module) -> None:
        self._inner = model.to(self.device, memory_format=self.memory_format)  # type: ignore[call-overload]
        self.model = self.distribute(self._inner)
        self.optimizer = torch.optim.AdamW(
            self._inner.parameters(),
            self.config.learning_rate,
            weight_decay=self.config.weight_decay,
            fused=self.fused_optimizer,
        )
        self.scaler = self.precision.make_scaler()

    def distribute(self, model: nn.Module) -> nn.Module:
        """DDP around the model where there is more than one process."""
        if self.place.world_size == 1:
            return model
        return DistributedDataParallel(model, device_ids=[self.device.index] if self.device_type == "cuda" else None)

    def inner_model(self) -> nn.Module:
        return self._inner

    def start_totals(self, streak: float = 0.0) -> None:
        self._kept = KeptSteps(streak)

    def add_totals(
        self, output: torch.Tensor, target: torch.Tensor, loss: torch.Tensor, skipped: torch.Tensor | None = None
    ) -> None:
        self._kept.add(output.detach(), target, loss.detach(), skipped)

    def read_totals(self) -> dict[str, float]:
        return self._kept.read()

    def train_step(self, images: torch.Tensor, target: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        with self.precision.autocast():
            output = self.model(images)
            loss = self.criterion(output, target)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        skipped = found_inf(self.scaler, self.optimizer) if self.scaler.is_enabled() else None
        self.scaler.update()
        self.add_totals(output, target, loss, skipped)

    def loss_scale(self) -> float | None:
        return self.scaler.get_scale() if self.scaler.is_enabled() else None

    def finish(self) -> None:
        if self.device_type == "cuda":
            torch.cuda.synchronize(self.device)

    def peak_memory_gib(self) -> float:
        if self.device_type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**30
        return process_peak_gib()


class KernelAccelerator(EagerAccelerator):
    """Eager with three changes that need no compiler: channels_last, a fused optimizer, cudnn's own search.

    The strong baseline: what a compiler gains over this is the compiler's, what it gains over eager is mostly not.
    """

    memory_format = torch.channels_last
    fused_optimizer = True

    def setup(self) -> None:
        torch.backends.cudnn.benchmark = True
        super().setup()

"""eager, the article's baseline (PyTorch, DDP, AMP), and kernel, the strong one."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from resnet_acc.training.accelerators.base import Accelerator, process_peak_gib
from resnet_acc.training.distributed import verify_gradient_mean
from resnet_acc.training.precision import verify_autocast


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
        self._inner = model.to(self.device, memory_format=self.memory_format)
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

    def train_step(self, images: torch.Tensor, target: torch.Tensor) -> None:
        with self.precision.autocast():
            output = self.model(images)
            loss = self.criterion(output, target)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        skipped = self._skipped()
        self.scaler.update()
        self.add_totals(output, target, loss, skipped)

    def _skipped(self) -> torch.Tensor | None:
        """1.0 where the scaler saw inf or nan and passed over the update; read before update() forgets it."""
        if not self.scaler.is_enabled():
            return None
        # The scaler's own check, by its device-side tensors: get_scale() would wait for the device in every step.
        state = self.scaler._per_optimizer_states[id(self.optimizer)]
        return torch.stack([found.to(self.device) for found in state["found_inf_per_device"].values()]).amax()

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

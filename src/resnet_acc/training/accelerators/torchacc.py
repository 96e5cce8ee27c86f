"""torchacc: the article's steps on the XLA compiler, in the article's order.

Upstream torch_xla 2.9 stands in for Alibaba's closed fork; where the vendor's own namespace is installed it is used.
Readers are sent to this file, so it reads from top to bottom as the article does.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from resnet_acc.logger import enable_torchacc_compiler
from resnet_acc.training.accelerators.base import Accelerator, Batches, process_peak_gib
from resnet_acc.training.distributed import HostGroup, verify_gradient_mean
from resnet_acc.training.precision import verify_autocast

# --- 1. imports ---
if enable_torchacc_compiler():
    try:
        import torchacc.torch_xla as torch_xla
        import torchacc.torch_xla.core.xla_model as xm
        import torchacc.torch_xla.debug.metrics as xla_metrics
        import torchacc.torch_xla.distributed.parallel_loader as parallel_loader
        import torchacc.torch_xla.distributed.xla_backend  # noqa: F401 (registers the backend)
        from torchacc.torch_xla.amp import syncfree
    except ImportError:
        import torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.debug.metrics as xla_metrics
        import torch_xla.distributed.parallel_loader as parallel_loader
        import torch_xla.distributed.xla_backend
        from torch_xla.amp import syncfree


class TorchaccAccelerator(Accelerator):
    """A step traced into one XLA graph: forward, backward, gradient all-reduce and update."""

    def autocast_device_type(self) -> str:
        # torch_xla.amp.autocast does nothing off a TPU; PyTorch's own takes effect on every XLA device.
        return "xla"

    # --- 2. process group, 3. set_replication ---
    def setup(self) -> None:
        if self.precision.dtype is torch.float16:
            raise RuntimeError("torchacc has no loss scaling for float16 (torch-xla 2.9); use --amp_dtype=bfloat16")
        if self.place.world_size > 1:
            dist.init_process_group(backend="xla", init_method="env://")
        self.device = xm.xla_device()
        xm.set_replication(self.device, [self.device])
        self._host_group = HostGroup()
        self._sum_on_host = self.device_type == "cpu" and self.place.world_size > 1
        if self.place.world_size > 1:
            verify_gradient_mean(self._mean, self.place, self.device)
        verify_autocast(self.precision, self.device)

    # --- 4. loader ---
    def on_device(self, batches: Batches) -> Batches:
        source = _Relay(batches)
        yield from parallel_loader.MpDeviceLoader(source, self.device, loader_prefetch_size=4, device_prefetch_size=2)
        source.raise_error()

    # --- 5. model placement, 6. optimizer ---
    def prepare(self, model: nn.Module) -> None:
        self.model = model.to(self.device)
        settings: dict[str, Any] = {"lr": self.config.learning_rate, "weight_decay": self.config.weight_decay}
        if self.precision.enabled:
            self.optimizer = syncfree.AdamW(self.model.parameters(), **settings)
        else:
            # capturable: the step count lies on the device, so that it is an input of the graph and no new constant.
            self.optimizer = torch.optim.AdamW(self.model.parameters(), capturable=True, **settings)
        self._materialise_optimizer_state()
        self._found_inf = torch.zeros(()).to(self.device)  # bfloat16 has float32's range: no step is skipped
        torch_xla.sync()

    def _materialise_optimizer_state(self) -> None:
        """Make the optimizer's state before the first step, where AdamW would make it.

        Made within the first step its zeros would be constants of that graph, and the second step, which reads them
        from the device, another graph: twice the compilation.
        """
        for parameter in self.model.parameters():
            state = self.optimizer.state[parameter]
            state["step"] = torch.zeros(()).to(self.device)
            for moment in ("exp_avg", "exp_avg_sq"):
                state[moment] = torch.zeros(parameter.shape, dtype=parameter.dtype).to(self.device)
            if self.precision.enabled:
                state["max_exp_avg_sq"] = torch.empty(0).to(self.device)  # syncfree reads it even without amsgrad

    def train_step(self, images: torch.Tensor, target: torch.Tensor) -> None:
        # --- 7. autocast ---
        with self.precision.autocast():
            output = self.model(images)
            loss = self.criterion(output, target)
        self.optimizer.zero_grad()
        loss.backward()
        # --- 8. gradient all-reduce ---
        self._mean(xm._fetch_gradients(self.optimizer))
        if self.precision.enabled:
            self.optimizer.step(found_inf=self._found_inf)  # type: ignore[call-overload]
        else:
            self.optimizer.step()
        self.add_totals(output, target, loss)
        # --- 9. one graph per step ---
        torch_xla.sync()

    def _mean(self, gradients: list[torch.Tensor]) -> None:
        """Replace gradients by their means over the ranks, within the graph where the backend can."""
        if not self._sum_on_host:
            xm.all_reduce("sum", gradients, scale=1.0 / self.place.world_size)
            return
        # On a CPU each process is an XLA world of its own, and xm.all_reduce returns the local value without a word.
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        torch_xla.sync()  # computes everything pending at once; the copy alone would compute the forward pass twice
        on_host = flat.cpu()
        self._host_group.mean_([on_host])
        parts = on_host.to(self.device).split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def end_eval_step(self) -> None:
        torch_xla.sync()

    def finish(self) -> None:
        torch_xla.sync()
        xm.wait_device_ops()

    def peak_memory_gib(self) -> float:
        with contextlib.suppress(RuntimeError, KeyError):
            return xm.get_memory_info(self.device)["peak_bytes_used"] / 2**30
        return process_peak_gib()

    def compilations(self) -> int:
        data = xla_metrics.metric_data("CompileTime")
        return int(data[0]) if data else 0

    def compile_seconds(self) -> float:
        data = xla_metrics.metric_data("CompileTime")
        return data[1] / 1e9 if data else 0.0


class _Relay:
    """Hands a loader's batches to MpDeviceLoader's thread and keeps the error that the thread would swallow."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        try:
            yield from self._batches
        except Exception as error:
            self._error = error

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error

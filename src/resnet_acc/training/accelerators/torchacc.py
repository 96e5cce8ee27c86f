"""torchacc: the article's steps on the XLA compiler, in the article's order.

Upstream torch_xla 2.9 stands in for Alibaba's closed fork; where the vendor's own namespace is installed it is used.
Readers are sent to this file, so it reads from top to bottom as the article does.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from resnet_acc.logger import enable_torchacc_compiler
from resnet_acc.training.accelerators import pjrt
from resnet_acc.training.accelerators.base import Accelerator, Batches, process_peak_gib
from resnet_acc.training.accelerators.captured_step import CapturedStep, own_storage
from resnet_acc.training.accelerators.xla_modules import adapt_to_xla
from resnet_acc.training.distributed import HostGroup, verify_gradient_mean
from resnet_acc.training.precision import SyncfreeGradScaler, found_inf, verify_autocast

# --- 1. imports ---
if enable_torchacc_compiler():
    try:
        import torchacc.torch_xla.core.xla_model as xm
    except ImportError:
        on_nvidia = os.environ.get("RESNET_ACC_DEVICE") == "cuda"
        if on_nvidia:
            pjrt.prepare_environment()
        import torch_xla
        import torch_xla.core.xla_model as xm
        import torch_xla.debug.metrics as xla_metrics
        import torch_xla.distributed.parallel_loader as parallel_loader
        import torch_xla.distributed.xla_backend
        import torch_xla.runtime
        from torch_xla.amp import syncfree

        if on_nvidia:
            pjrt.register()
        GradScaler, mark_step, xla_world_size = SyncfreeGradScaler, torch_xla.sync, torch_xla.runtime.world_size
    else:  # the vendor's, and then all of it: a run labelled torchacc must not be half of each
        import torchacc.torch_xla as torch_xla  # type: ignore[no-redef]
        import torchacc.torch_xla.debug.metrics as xla_metrics  # type: ignore[no-redef]
        import torchacc.torch_xla.distributed.parallel_loader as parallel_loader  # type: ignore[no-redef]
        import torchacc.torch_xla.distributed.xla_backend  # noqa: F401 (registers the backend)
        from torchacc.torch_xla.amp import GradScaler, syncfree  # type: ignore[no-redef]

        mark_step, xla_world_size = xm.mark_step, xm.xrt_world_size


class TorchaccAccelerator(Accelerator):
    """A step as one XLA graph: forward, backward, gradient all-reduce and update.

    The graph is traced once and replayed (captured_step.py); with --no-capture the step is traced each time.
    """

    def autocast_device_type(self) -> str:
        # torch_xla.amp.autocast is for TPUs alone; PyTorch's own takes effect on every XLA device.
        return "xla"

    @property
    def compile_mode(self) -> str:
        """captured or traced. Where gradients travel by the host a step is no single graph, and is traced."""
        return "captured" if self.config.capture and not self._sum_on_host and _can_capture() else "traced"

    # --- 2. process group, 3. set_replication ---
    def setup(self) -> None:
        if self.place.world_size > 1:
            dist.init_process_group(backend="xla", init_method="env://")
        self.device = xm.xla_device()
        xm.set_replication(self.device, [self.device])
        self._host_group = HostGroup()
        if self.place.world_size > 1:
            if not self._sum_on_host and xla_world_size() != self.place.world_size:
                raise RuntimeError(
                    f"torch-xla sees {xla_world_size()} processes where torchrun started {self.place.world_size}: "
                    "gradients would not be reduced; run one process, or another arm"
                )
            verify_gradient_mean(self._mean, self.place, self.device)
        verify_autocast(self.precision, self.device)

    @property
    def _sum_on_host(self) -> bool:
        """On a CPU each process is an XLA world of its own; xm.all_reduce returns the local value without a word."""
        return self.device_type == "cpu" and self.place.world_size > 1

    # --- 4. loader ---
    def on_device(self, batches: Batches) -> Batches:
        source = _Relay(batches)
        # The loader ends the step as each batch is asked for; a captured step has nothing pending then.
        steps_each = sys.maxsize if self.compile_mode == "captured" else 1
        yield from parallel_loader.MpDeviceLoader(
            source, self.device, loader_prefetch_size=4, device_prefetch_size=2, batches_per_execution=steps_each
        )
        source.raise_error()

    # --- 5. model placement, 6. optimizer ---
    def prepare(self, model: nn.Module) -> None:
        self.model = adapt_to_xla(model.to(self.device))
        settings: dict[str, Any] = {"lr": self.config.learning_rate, "weight_decay": self.config.weight_decay}
        if self.precision.enabled:
            self.optimizer = syncfree.AdamW(self.model.parameters(), **settings)
        else:
            # capturable, and a tensor as learning rate: step count and rate lie on the device, inputs of the graph.
            settings["lr"] = torch.tensor(settings["lr"]).to(self.device)
            self.optimizer = torch.optim.AdamW(self.model.parameters(), capturable=True, **settings)
        self._materialise_optimizer_state()
        self.optimizer.register_load_state_dict_post_hook(self._adopt_loaded_state)
        self._none_found = torch.zeros(()).to(self.device)  # bfloat16 has float32's range: no step is skipped
        self.scaler = GradScaler(enabled=self.precision.dtype is torch.float16)
        self.scaler.scale(self._none_found)  # makes the scale on the device before the first step reads it
        self._captured: CapturedStep | None = None
        if self.compile_mode == "captured":
            self._captured = CapturedStep(
                self._step,
                self._state(),
                learning_rate=self._learning_rate,
                set_learning_rate=self._write_learning_rate,
                frozen=self._frozen,
                forget=self.optimizer.zero_grad,
                xla=torch_xla,
            )
        else:
            own_storage(self._state())  # else the second step's inputs could alias other outputs: another graph
        mark_step()

    def _materialise_optimizer_state(self) -> None:
        """Make the optimizer's state before the first step, where AdamW would make it.

        Made within the first step its zeros would be constants of that graph, and the second step, which reads them
        from the device, another graph: twice the compilation.
        """
        self._steps = torch.zeros(()).to(self.device)
        self._rates = [group["lr"] if torch.is_tensor(group["lr"]) else None for group in self.optimizer.param_groups]
        for parameter in self.model.parameters():
            state = self.optimizer.state[parameter]
            state["step"] = self._steps
            for moment in ("exp_avg", "exp_avg_sq"):
                state[moment] = torch.zeros(parameter.shape, dtype=parameter.dtype).to(self.device)
            if self.precision.enabled:
                state["max_exp_avg_sq"] = torch.empty(0).to(self.device)  # syncfree reads it even without amsgrad
        self._optimizer_state = dict(self.optimizer.state)

    def _adopt_loaded_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Copy what load_state_dict brought into the tensors that a captured graph reads, and keep those."""
        with torch.no_grad():
            for parameter, own in self._optimizer_state.items():
                for name, value in optimizer.state.get(parameter, {}).items():
                    if name in own:
                        own[name].copy_(torch.as_tensor(value).to(self.device))
                optimizer.state[parameter] = own

    def _adopt_rates(self) -> None:
        """Write a learning rate that was set from outside into the tensor that a captured graph reads."""
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            if rate is not None and group["lr"] is not rate:
                rate.copy_(torch.as_tensor(group["lr"]))
                group["lr"] = rate

    def _step(self, images: torch.Tensor, target: torch.Tensor, totals: torch.Tensor) -> tuple[torch.Tensor]:
        """One update; gives the interval's totals with this step in them."""
        # --- 7. autocast ---
        with self.precision.autocast():
            output = self.model(images)
            loss = self.criterion(output, target)
        self.scaler.scale(loss).backward()
        # --- 8. gradient all-reduce ---
        self._mean(xm._fetch_gradients(self.optimizer))
        skipped = self._update()
        self.optimizer.zero_grad()  # what lives when a step ends is an output of its graph: gradients need not be
        return (self.totals_after(totals, output, target, loss, skipped),)

    def _update(self) -> torch.Tensor | None:
        """The optimizer's step; gives 1.0 where loss scaling passed over it, None without loss scaling.

        All parameters have taken as many steps. Their counts begin as copies of one and end as one, so that the
        compiler sees one count, and one bias correction, instead of one for each parameter.
        """
        states = list(self.optimizer.state.values())
        for state in states:
            state["step"] = self._steps.clone()
        skipped = None
        if self.scaler.is_enabled():
            self.scaler.step(self.optimizer)
            skipped = found_inf(self.scaler, self.optimizer)
            self.scaler.update()
        elif self.precision.enabled:
            self.optimizer.step(found_inf=self._none_found)  # type: ignore[call-overload]
        else:
            self.optimizer.step()
        self._steps.copy_(states[0]["step"])
        for state in states:
            state["step"] = self._steps
        return skipped

    def train_step(self, images: torch.Tensor, target: torch.Tensor) -> None:
        self._adopt_rates()
        # --- 9. one graph per step ---
        if self._captured is not None:
            (self._totals,) = self._captured(images, target, self._totals)
        else:
            (self._totals,) = self._step(images, target, self._totals)
            mark_step()

    def _mean(self, gradients: list[torch.Tensor]) -> None:
        """Replace gradients by their means over the ranks, within the graph where the backend can."""
        if not self._sum_on_host:
            xm.all_reduce("sum", gradients, scale=1.0 / self.place.world_size)
            return
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        mark_step()  # computes everything pending at once; the copy alone would compute the forward pass twice
        on_host = flat.cpu()
        self._host_group.mean_([on_host])
        parts = on_host.to(self.device).split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def _state(self) -> list[torch.Tensor]:
        """Every tensor that outlives a step and that a step reads or changes."""
        tensors = [*self.model.parameters(), *self.model.buffers(), self._none_found, self._steps]
        for values in self.optimizer.state.values():
            tensors += [value for name, value in values.items() if torch.is_tensor(value) and name != "step"]
        tensors += [group["lr"] for group in self.optimizer.param_groups if torch.is_tensor(group["lr"])]
        if self.scaler.is_enabled():
            tensors += [t for t in (self.scaler._scale, self.scaler._growth_tracker) if t is not None]
        return tensors

    def _frozen(self) -> tuple:
        """What a trace writes into the graph: the optimizer's numbers but the learning rate, and the model's modes."""
        groups = tuple(
            tuple((name, value) for name, value in group.items() if name not in ("params", "lr"))
            for group in self.optimizer.param_groups
        )
        modes = tuple(module.training for module in self.model.modules())
        return groups, modes, tuple(parameter.requires_grad for parameter in self.model.parameters())

    def _learning_rate(self) -> float:
        rate = self.optimizer.param_groups[0]["lr"]
        return 0.0 if torch.is_tensor(rate) else rate  # a tensor is part of the state

    def _write_learning_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            if not torch.is_tensor(group["lr"]):
                group["lr"] = rate

    def set_learning_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self._adopt_rates()

    def loss_scale(self) -> float | None:
        return self.scaler.get_scale() if self.scaler.is_enabled() else None

    def end_eval_step(self) -> None:
        mark_step()

    def finish(self) -> None:
        mark_step()
        xm.wait_device_ops()

    def peak_memory_gib(self) -> float:
        with contextlib.suppress(RuntimeError, KeyError, AttributeError):
            return xm.get_memory_info(self.device)["peak_bytes_used"] / 2**30
        return process_peak_gib()

    def compilations(self) -> int:
        data = xla_metrics.metric_data("CompileTime")
        return int(data[0]) if data else 0

    def compile_cache_hits(self) -> int:
        own = pjrt.cache_hits() if os.environ.get("PJRT_DEVICE") == pjrt.DEVICE else 0
        return own + int(xla_metrics.counter_value("PersistentCacheHit") or 0)

    def compile_seconds(self) -> float:
        data = xla_metrics.metric_data("CompileTime")
        return data[1] / 1e9 if data else 0.0


def _can_capture() -> bool:
    return all(hasattr(torch_xla._XLAC, name) for name in CapturedStep.NEEDS)


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

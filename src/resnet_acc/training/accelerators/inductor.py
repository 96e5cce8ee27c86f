"""inductor: torch.compile on top of the kernel arm's changes."""

import torch
import torch._inductor.config
from torch import nn
from torch._dynamo import utils as dynamo_utils

from resnet_acc.training.accelerators.eager import KernelAccelerator


class InductorAccelerator(KernelAccelerator):
    """The kernel arm with forward and backward pass compiled by TorchInductor."""

    @property
    def compile_mode(self) -> str:
        """torch.compile's mode: on one GPU the compiled kernels are replayed as CUDA graphs.

        Launched one by one from Python they take longer than they run on a fast card. With DDP around the model the
        default is kept: CUDA graphs and DDP's hooks together were not tried.
        """
        return "reduce-overhead" if self.device_type == "cuda" and self.place.world_size == 1 else "default"

    def setup(self) -> None:
        if self.device_type == "cpu":
            # On a CPU nothing travels beside computation, so the graph is not split at DDP's buckets, and the number of
            # threads is not written into the code: one compilation then serves any number of processes.
            torch._dynamo.config.optimize_ddp = False
            torch._inductor.config.cpp.dynamic_threads = True
        super().setup()

    def distribute(self, model: nn.Module) -> nn.Module:
        if self.device_type == "cuda":
            # DDP inside: the graph is split at DDP's buckets, so that gradients travel while others are computed.
            return torch.compile(super().distribute(model), mode=self.compile_mode)  # type: ignore[return-value]
        return super().distribute(torch.compile(model, mode=self.compile_mode))  # type: ignore[arg-type]

    def add_totals(
        self, output: torch.Tensor, target: torch.Tensor, loss: torch.Tensor, skipped: torch.Tensor | None = None
    ) -> None:
        if self.compile_mode != "default":
            output = output.detach().clone()  # the next replay writes over a graph's output
        super().add_totals(output, target, loss, skipped)

    def compilations(self) -> int:
        return dynamo_utils.counters["stats"]["unique_graphs"]

    def compile_seconds(self) -> float | None:
        spent = getattr(dynamo_utils, "calculate_time_spent", None)  # since torch 2.4
        return spent().get("total_wall_time", 0.0) if spent else None

    def compile_cache_hits(self) -> int:
        return (
            dynamo_utils.counters["inductor"]["fxgraph_cache_hit"]
            + dynamo_utils.counters["aot_autograd"]["autograd_cache_hit"]
        )

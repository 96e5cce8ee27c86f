"""This process's place among the ranks, and the small host-side exchanges that every arm shares.

Records are summed over ranks on the host through gloo, at interval ends only: no arm's device work differs by it.
"""

import ctypes
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from resnet_acc.training import PARENT_PID


@dataclass(frozen=True, kw_only=True)
class Place:
    """Rank of this process, its rank on this machine, and the number of all processes."""

    rank: int
    local_rank: int
    world_size: int


def read_place() -> Place:
    """Read what torchrun says in the environment; a process started without it is the only one."""
    return Place(
        rank=int(os.environ.get("RANK", "0")),
        local_rank=int(os.environ.get("LOCAL_RANK", "0")),
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
    )


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent ends, however that ends: no rank outlives its run."""
    libc = ctypes.CDLL(None, use_errno=True)
    pr_set_pdeathsig = 1  # linux/prctl.h
    if libc.prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != PARENT_PID:  # it had ended before it was asked
        os.kill(os.getpid(), signal.SIGKILL)


class HostGroup:
    """All ranks over gloo on the host, beside whatever backend the device uses."""

    def __init__(self) -> None:
        needs_own = dist.is_initialized() and dist.get_world_size() > 1 and dist.get_backend() != "gloo"
        self._group = dist.new_group(backend="gloo") if needs_own else None
        self.world_size = dist.get_world_size() if dist.is_initialized() else 1

    def gather(self, values: list[float]) -> list[list[float]]:
        """Every rank's values, in rank order; each rank must give as many."""
        if self.world_size == 1:
            return [values]
        own = torch.tensor(values, dtype=torch.float64)
        everyone = [torch.empty_like(own) for _ in range(self.world_size)]
        dist.all_gather(everyone, own, group=self._group)
        return [other.tolist() for other in everyone]

    def mean_(self, tensors: list[torch.Tensor]) -> None:
        """Replace host tensors by their means over the ranks, in one exchange for each dtype."""
        self._exchange(tensors, lambda flat: (dist.all_reduce(flat, group=self._group), flat.div_(self.world_size)))

    def broadcast_(self, tensors: list[torch.Tensor]) -> None:
        """Replace host tensors by rank 0's, in one exchange for each dtype."""
        self._exchange(tensors, lambda flat: dist.broadcast(flat, src=0, group=self._group))

    def _exchange(self, tensors: list[torch.Tensor], exchange: Callable[[torch.Tensor], object]) -> None:
        if self.world_size == 1:
            return
        # In the tensors' own order: that of a set of dtypes differs between processes, whose exchanges would then mix.
        for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
            same = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.reshape(-1) for tensor in same])
            exchange(flat)
            for tensor, part in zip(same, flat.split([tensor.numel() for tensor in same]), strict=True):
                tensor.copy_(part.view_as(tensor))


def verify_gradient_mean(reduce: Callable[[list[torch.Tensor]], None], place: Place, device: torch.device) -> None:
    """Check an arm's gradient all-reduce with a known sum before any training.

    A backend that reduces nothing returns the local value without a word, and each rank then trains a model of its own.

    Raises:
        RuntimeError: the mean of rank + 1 over all ranks, (world_size + 1) / 2, did not come back.
    """
    probe = torch.full((4,), float(place.rank + 1)).to(device)
    reduce([probe])
    expected = (place.world_size + 1) / 2
    seen = probe.cpu().tolist()
    if any(abs(value - expected) > 1e-6 for value in seen):
        raise RuntimeError(
            f"the gradient all-reduce of {place.world_size} processes on {device.type} gave {seen[0]} instead of "
            f"{expected}: the ranks would train apart; run one process, or another arm"
        )

"""The device as torch-xla sees it: one GPU for each process, and the options that its client is opened with."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch_xla.experimental.plugins import DevicePlugin

from resnet_acc.training.accelerators.pjrt.build import shim_library
from resnet_acc.training.accelerators.pjrt.plugin import check_shim
from resnet_acc.training.accelerators.pjrt.settings import client_options
from resnet_acc.training.nvidia import nvidia_gpus


@dataclass(frozen=True)
class _Ranks:
    """This process's number on its machine and among all, and how many there are in all."""

    local_rank: int
    rank: int
    world_size: int


def _read_ranks(environment: Mapping[str, str]) -> _Ranks:
    """Read as torch-xla's coordinator reads them (csrc/runtime/pjrt_registry.cpp), so that both mean the same ranks."""

    def number(default: int, *names: str) -> int:
        return next((int(environment[name]) for name in names if environment.get(name)), default)

    local_rank = number(0, "PJRT_LOCAL_PROCESS_RANK", "LOCAL_RANK")
    local_world_size = number(1, "PJRT_LOCAL_PROCESS_COUNT", "LOCAL_WORLD_SIZE")
    return _Ranks(local_rank, number(local_rank, "RANK"), number(local_world_size, "WORLD_SIZE"))


class NvidiaPlugin(DevicePlugin):
    """NVIDIA GPUs through OpenXLA's CUDA plugin and the shim before it."""

    def library_path(self) -> str:
        """The compiled shim.

        Raises:
            RuntimeError: it cannot be compiled, or the plugin behind it cannot be used.
        """
        shim = shim_library()
        check_shim(shim)
        return str(shim)

    def physical_chip_count(self) -> int:
        """GPUs that CUDA_VISIBLE_DEVICES leaves of this machine's; 1 where NVML cannot be asked."""
        try:
            return len(nvidia_gpus().names)
        except OSError:
            return 1

    def configure_single_process(self) -> None:
        """Nothing to do: a process has one GPU as it is."""

    def client_create_options(self) -> dict[str, Any]:
        """Options that xla/pjrt/c/pjrt_c_api_gpu_internal.cc of openxla/xla takes; ranks as in the former CUDA plugin.

        visible_devices is given to a single process too: it would else take three quarters of every card's memory.
        """
        ranks = _read_ranks(os.environ)
        return client_options(os.environ) | {
            "visible_devices": [ranks.local_rank],
            "node_id": ranks.rank,
            "num_nodes": ranks.world_size,
        }

    def requires_xla_coordinator(self) -> bool:
        """Several processes exchange NCCL's ids through the coordinator; a single one would open a port for nothing."""
        return _read_ranks(os.environ).world_size > 1

"""torch-xla on NVIDIA GPUs, through the CUDA plugin of OpenXLA that jax-cuda12-pjrt and jax-cuda13-pjrt ship.

Importing this imports neither torch nor torch_xla, for torch_xla itself imports it while it is being imported.
"""

from typing import TYPE_CHECKING, Any

from resnet_acc.training.accelerators.pjrt.build import shim_library
from resnet_acc.training.accelerators.pjrt.compile_cache import cache_hits
from resnet_acc.training.accelerators.pjrt.library import PluginLibrary, api_version, cudnn, find_plugin
from resnet_acc.training.accelerators.pjrt.plugin import DEVICE, entry_point, prepare_environment, register

if TYPE_CHECKING:
    from resnet_acc.training.accelerators.pjrt.device import NvidiaPlugin

__all__ = [
    "DEVICE",
    "NvidiaPlugin",
    "PluginLibrary",
    "api_version",
    "cache_hits",
    "cudnn",
    "entry_point",
    "find_plugin",
    "prepare_environment",
    "register",
    "shim_library",
]


def __getattr__(name: str) -> Any:
    """NvidiaPlugin derives from a class of torch_xla, which is imported when it is asked for, not with this module."""
    if name == "NvidiaPlugin":
        from resnet_acc.training.accelerators.pjrt.device import NvidiaPlugin

        return NvidiaPlugin
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

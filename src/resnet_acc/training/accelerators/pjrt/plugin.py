"""torch-xla on NVIDIA GPUs: prepare_environment() before torch_xla is imported, register() after it.

A script of its own needs neither: with PJRT_DEVICE=NVGPU torch_xla finds the entry point below by itself.
"""

import ctypes
import os
from pathlib import Path
from typing import Any

from resnet_acc.training.accelerators.pjrt.build import cache_folder, made, shim_library
from resnet_acc.training.accelerators.pjrt.compile_cache import use_compile_cache
from resnet_acc.training.accelerators.pjrt.library import find_plugin
from resnet_acc.training.accelerators.pjrt.settings import set_variables

DEVICE = "NVGPU"
"""What PJRT_DEVICE is called; not CUDA, a name over which torch-xla 2.9 ends the process (shim.c)."""
PATH_VARIABLE = "RESNET_ACC_PJRT_PLUGIN_PATH"
"""Where shim.c reads the plugin's path from; set here, by nobody else."""


def prepare_environment(local_rank: int | None = None) -> None:
    """Set what torch-xla, XLA and the shim read, compile the shim and make the caches' folders. Can be called again.

    Args:
        local_rank: number of this process on this machine, where LOCAL_RANK does not say it.

    Raises:
        ImportError: there is no plugin, or one that is too old.
        RuntimeError: the shim cannot be compiled, or the cache cannot be written.
    """
    plugin = find_plugin()
    shim_library()
    os.environ["PJRT_DEVICE"] = DEVICE
    os.environ[PATH_VARIABLE] = str(plugin.path)
    if local_rank is not None:
        os.environ["PJRT_LOCAL_PROCESS_RANK"] = str(local_rank)
    set_variables(os.environ, str(made(cache_folder() / "xla_autotune" / plugin.label)))
    use_compile_cache(plugin, os.environ)
    _choose_coordinator_port()


def register() -> None:
    """Make the device known to torch_xla. Can be called again.

    Call it when torch_xla is imported and no device is open yet.

    Raises:
        RuntimeError: the plugin cannot be used with this shim (said before torch-xla ends the process over it), or
            torch-xla has opened another device already.
    """
    import torch_xla
    from torch_xla.experimental import plugins

    if torch_xla._XLAC._xla_runtime_is_initialized():
        if DEVICE in plugins._plugin_registry and os.environ.get("PJRT_DEVICE") == DEVICE:
            return
        raise RuntimeError(
            f"torch-xla has opened {os.environ.get('PJRT_DEVICE')!r} already; call prepare_environment() and "
            "register() before anything uses an XLA device"
        )
    check_shim(shim_library())
    if DEVICE not in plugins._plugin_registry:
        from resnet_acc.training.accelerators.pjrt.device import NvidiaPlugin

        plugins.use_dynamic_plugins()
        plugins.register_plugin(DEVICE, NvidiaPlugin())


def check_shim(shim: Path) -> None:
    """Let the shim load the plugin, as torch-xla is about to.

    Raises:
        RuntimeError: it cannot; the shim's own words.
    """
    library = ctypes.CDLL(str(shim))
    library.GetPjrtApi.restype = ctypes.c_void_p
    library.resnet_acc_pjrt_reason.restype = ctypes.c_char_p
    if not library.GetPjrtApi():
        raise RuntimeError(library.resnet_acc_pjrt_reason().decode(errors="replace"))


def entry_point() -> Any:
    """What torch_xla calls for each installed plugin while it is itself being imported; see pyproject.toml.

    Where another device is asked for it makes an object and nothing else.
    """
    from resnet_acc.training.accelerators.pjrt.device import NvidiaPlugin

    if os.environ.get("PJRT_DEVICE") == DEVICE:
        prepare_environment()
    return NvidiaPlugin()


def _choose_coordinator_port() -> None:
    """Let the ranks of one run meet beside its MASTER_PORT: torch-xla's fixed 8547 would be shared by all runs.

    Every rank, on whatever machine, has the same MASTER_PORT, which torchrun keeps busy itself.
    """
    port = os.environ.get("MASTER_PORT", "")
    if port.isdecimal() and int(os.environ.get("WORLD_SIZE") or "1") > 1:
        neighbour = int(port) + 1 if int(port) < 65535 else int(port) - 1
        os.environ.setdefault("XLA_COORDINATOR_PORT", str(neighbour))

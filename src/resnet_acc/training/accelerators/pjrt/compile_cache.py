"""Where compile_cache.c keeps compiled programs: which folder, for whom, and how large it may grow."""

import contextlib
import ctypes
import hashlib
import re
import time
from collections.abc import MutableMapping
from importlib import metadata
from pathlib import Path

from resnet_acc.config_values import slug
from resnet_acc.training.accelerators.pjrt.build import cache_folder, library_path, made
from resnet_acc.training.accelerators.pjrt.library import PluginLibrary
from resnet_acc.training.nvidia import nvidia_gpus

FOLDER_VARIABLE = "RESNET_ACC_PJRT_COMPILE_CACHE"
"""Read by compile_cache.c. Set by a user it stands: another folder, or nothing for no cache."""
FLAGS_VARIABLE = "RESNET_ACC_PJRT_PLUGIN_XLA_FLAGS"
"""XLA flags that a user has for the plugin alone: torch-xla's own XLA ends the process over flags newer than itself."""
LIMIT_BYTES = 2 * 2**30
"""Together the programs of one folder stay below this: a ResNet's step has some 10 MB."""
_LEFTOVER_SECONDS = 3600.0
_OUR_NAME = re.compile(r"[0-9a-f]{16}(\.\w{6})?")


def use_compile_cache(plugin: PluginLibrary, environment: MutableMapping[str, str]) -> None:
    """Name the folder in `environment`, make it, and remove what has not been used for longest.

    One process alone: of several ranks that compile together each waits for what the others have tuned, and one that
    finds its program in the cache would never answer.

    Raises:
        RuntimeError: the folder cannot be made.
    """
    if int(environment.get("WORLD_SIZE") or "1") > 1:
        environment.pop(FOLDER_VARIABLE, None)
        return
    folder = environment.setdefault(FOLDER_VARIABLE, str(cache_folder() / "xla_compile" / _name(plugin, environment)))
    if folder:
        prune(made(Path(folder)), LIMIT_BYTES)


def _name(plugin: PluginLibrary, environment: MutableMapping[str, str]) -> str:
    """Plugin and card for people, and a hash of them and of whatever else a compiled program depends on.

    The program itself and its compile options are compared by compile_cache.c.
    """
    card, driver = "gpu", ""
    with contextlib.suppress(OSError, IndexError, ValueError):
        gpus = nvidia_gpus()
        card = gpus.names[int(environment.get("PJRT_LOCAL_PROCESS_RANK") or environment.get("LOCAL_RANK") or "0")]
        driver = gpus.driver or ""
    basis = [plugin.label, card, driver, _cudnn_package(plugin.cuda_major)]
    flags = " ".join(environment.get(name, "") for name in ("XLA_FLAGS", FLAGS_VARIABLE)).split()
    basis += sorted(flag for flag in flags if not flag.startswith("--xla_cpu_"))  # torch-xla adds one of those itself
    return f"{plugin.label}_{slug(card)}_{hashlib.sha256(chr(0).join(basis).encode()).hexdigest()[:12]}"


def _cudnn_package(cuda_major: int) -> str:
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(f"nvidia-cudnn-cu{cuda_major}")
    return ""


def prune(folder: Path, limit_bytes: int) -> None:
    """Remove the programs of a folder that were not used for longest until the rest is within the limit.

    What a killed process left half-written (its name has a dot) goes after an hour. Another process may do the same.
    Whatever else lies in the folder, which a user may have chosen, stays.
    """
    kept = 0
    files = []
    for path in folder.iterdir():
        if not _OUR_NAME.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError):
            status = path.stat()
            files.append((status.st_mtime, status.st_size, path))
    for modified, size, path in sorted(files, reverse=True):
        half = path.suffix and time.time() - modified > _LEFTOVER_SECONDS
        kept += 0 if half else size
        if half or kept > limit_bytes:
            with contextlib.suppress(OSError):
                path.unlink()


def cache_hits() -> int:
    """Programs that this process loaded instead of compiling them."""
    library = ctypes.CDLL(str(library_path()))
    library.resnet_acc_pjrt_cache_hits.restype = ctypes.c_size_t
    return int(library.resnet_acc_pjrt_cache_hits())

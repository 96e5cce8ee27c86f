"""What XLA, its plugin and torch-xla are told by default on NVIDIA GPUs: one table, with a reason for each entry."""

import os
import re
from collections.abc import Mapping
from typing import Any

FLAG, VARIABLE, OPTION = "XLA flag", "environment variable", "client option"

AUTOTUNE_CACHE = "<autotune cache>"
"""Stands in the table for the folder, which depends on the plugin and the user."""

# A flag must be known to the XLA within torch-xla (2.9: August 2025) and to the one within the plugin (from 0.7.1 on):
# both read XLA_FLAGS, and each ends the process over a name that it does not know. What the user gave stands.
# Flags are part of the name of the compile cache's folder (compile_cache.py).
DEFAULTS: tuple[tuple[str, str, Any], ...] = (
    # Which kernel is fastest for a convolution or product is measured once per plugin version instead of at every
    # start. All ranks may write: XLA writes to another name and renames (autotuner_util.cc, "Rename trick").
    (FLAG, "xla_gpu_per_fusion_autotune_cache_dir", AUTOTUNE_CACHE),
    # Only errors: below that XLA and its plugin log devices, NUMA nodes and autotuning at each start.
    (VARIABLE, "TF_CPP_MIN_LOG_LEVEL", "2"),
    # What the CUDA client is called to the plugin; torch-xla sees the shim's name for it.
    (OPTION, "platform_name", "cuda"),
    # XLA's own pool (BFC), the plugin's default too: its count is where the peak of xm.get_memory_info comes from.
    (OPTION, "allocator", "default"),
    # Taken at once, so that no cudaMalloc, which waits for the device, falls into a timed window. The peak that is
    # reported is what was in use, not what was taken.
    (OPTION, "preallocate", True),
    # XLA's own default, said here because it is a choice: a quarter of the card stays for the CUDA context, cuDNN's and
    # NCCL's own memory, and an eager model in another process (the notebook's kernel).
    (OPTION, "memory_fraction", 0.75),
)

# Names that torch-xla's former CUDA plugin read for the same options; a user's value goes before the table's.
USER_OPTIONS = {"memory_fraction": "PJRT_ALLOCATOR_FRACTION", "preallocate": "PJRT_ALLOCATOR_PREALLOCATE"}
CUDA_ASYNC_VARIABLE = "PJRT_ALLOCATOR_CUDA_ASYNC"


def defaults(kind: str) -> dict[str, Any]:
    """The table's entries of one kind, in its order."""
    return {name: value for entry, name, value in DEFAULTS if entry == kind}


def merge_flags(given: str, flags: Mapping[str, str]) -> str:
    """XLA_FLAGS with the flags that it does not name yet; whatever is given stands first, as it is."""
    missing = [
        f"--{name}={_quoted(value)}"
        for name, value in flags.items()
        if not re.search(rf"(^|\s)--{name}(=|\s|$)", given)
    ]
    return " ".join([*([given.strip()] if given.strip() else []), *missing])


def _quoted(value: str) -> str:
    """XLA splits at white space outside of quotes (parse_flags_from_env.cc)."""
    if not re.search(r"\s", value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def client_options(environment: Mapping[str, str]) -> dict[str, Any]:
    """The plugin's options about memory: the table's, with what the user asked for by environment variable.

    Raises:
        ValueError: PJRT_ALLOCATOR_FRACTION is no number above 0 and up to 1.
    """
    options = defaults(OPTION)
    for name, variable in USER_OPTIONS.items():
        text = environment.get(variable, "").strip()
        if text:
            options[name] = _fraction(variable, text) if name == "memory_fraction" else _truth(text)
    if _truth(environment.get(CUDA_ASYNC_VARIABLE, "")):
        options["allocator"] = "cuda_async"
    return options


def _fraction(variable: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= 1.0:
        raise ValueError(f"{variable} is {text!r}; give a part of the card's memory, above 0 and up to 1")
    return value


def _truth(text: str) -> bool:
    return text.strip().lower() in ("1", "true", "yes", "on")


def set_variables(environment: "os._Environ[str] | dict[str, str]", autotune_cache: str) -> None:
    """Put the table's flags and variables into an environment; what is there already stays."""
    flags = {name: autotune_cache if value == AUTOTUNE_CACHE else value for name, value in defaults(FLAG).items()}
    environment["XLA_FLAGS"] = merge_flags(environment.get("XLA_FLAGS", ""), flags)
    for name, value in defaults(VARIABLE).items():
        environment.setdefault(name, value)

"""Whether torch-xla can train on this machine's NVIDIA GPUs, from what the probe said; each refusal in one line."""

import re
from typing import Any

INSTALL = "pip install 'resnet-acc[nvidia-xla]'"
INSTALL_CUDA13 = "pip install 'resnet-acc[nvidia-xla-cuda13]'"
OLDEST_TORCH_XLA = (2, 9)
"""The release whose structs the shim was written for; older ones had a CUDA device of their own."""
NEWEST_TORCH_XLA = (2, 9)
"""The last release that was there when this was written; no torch after 2.9 has one."""
OLDEST_API = (0, 57)
"""PJRT_Api was rearranged there (CHANGELOG.md beside pjrt_c_api.h of openxla/xla); shim.c refuses what is older."""
OLDEST_DRIVER = {12: 525, 13: 580}
"""NVIDIA, CUDA Compatibility, table 1 of "Minor Version Compatibility"
(docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html)."""
OLDEST_CUDNN = (
    (13, (0, 7, 1), (9, 12)),
    (12, (0, 11, 2), (9, 10)),
    (12, (0, 7, 1), (9, 8)),
)
"""cuDNN of a CUDA's plugin from a version on: what jax-cuda12-plugin and jax-cuda13-plugin of the same version require.
XLA takes the major version that it was compiled with and that minor or a later one (cuda_dnn.cc)."""


def gpus(environment: dict[str, Any]) -> dict[str, Any]:
    """Count, names and driver of the GPUs that torch sees or, where it sees none, of those that the driver has."""
    cuda, nvidia = environment["cuda"], environment.get("nvidia") or {}
    return nvidia if nvidia.get("count") and not cuda["count"] else cuda


def only_for_xla(environment: dict[str, Any]) -> bool:
    """Whether there are GPUs that the driver has and torch does not see (torch may be built for the CPU)."""
    return not environment["cuda"]["count"] and bool(gpus(environment)["count"])


def why_not(environment: dict[str, Any]) -> str | None:
    """None where torch_xla and the plugin can train on the GPUs, else which version is in the way and what to do.

    That torch_xla fits torch is checked before this.
    """
    plugin, xla = environment.get("nvidia_xla"), environment["torch_xla"]
    if _numbers(xla)[:2] < OLDEST_TORCH_XLA:
        return f"torchacc on cuda needs torch_xla 2.9 or newer, not {xla}; use an environment with torch 2.9"
    if plugin is None:
        reason = environment.get("errors", {}).get("nvidia_xla", "there is no CUDA PJRT plugin")
        mend = "" if "pip install" in reason else f"; {INSTALL}"
        other = "or use --compiler=inductor, or --device=cpu"
        return f"torchacc on cuda needs a CUDA plugin for torch_xla {xla}: {reason}{mend}, {other}"
    if not environment.get("c_compiler"):
        found = environment.get("errors", {}).get("c_compiler", "there is none")
        return (
            f"torchacc on cuda with {_named(plugin)} needs a C compiler for its shim ({found}); install gcc and "
            "libc6-dev, or set CC"
        )
    return _why_not_pair(plugin, gpus(environment).get("driver"))


def _why_not_pair(plugin: dict[str, Any], driver: str | None) -> str | None:
    cuda_major, api = plugin["cuda_major"], plugin["api_version"]
    needed = OLDEST_DRIVER.get(cuda_major)
    if driver is not None and needed is not None and _numbers(driver)[:1] < (needed,):
        mend = f"install a newer driver, or {INSTALL}" if cuda_major == 13 else "install a newer driver"
        return (
            f"{_named(plugin)} is for CUDA {cuda_major}, which needs NVIDIA driver {needed} or newer, and this is "
            f"{driver}; {mend}"
        )
    if api is None:
        return None  # the plugin was not loaded: nothing more is known of it
    if _numbers(api)[:1] != (0,) or _numbers(api) < OLDEST_API:
        return (
            f"{_named(plugin)} has PJRT API {api}, and the shim for torch_xla is for 0.{OLDEST_API[1]} and later 0.x; "
            f"{_install(plugin)}"
        )
    oldest = _oldest_cudnn(plugin)
    if plugin["cudnn"] is None:
        return f"{_named(plugin)} needs cuDNN 9, and no libcudnn.so.9 can be loaded; {_install(plugin)}"
    if oldest is not None and not oldest <= _numbers(plugin["cudnn"])[:2] < (oldest[0] + 1,):
        return (
            f"{_named(plugin)} needs cuDNN {oldest[0]}.{oldest[1]} or a later {oldest[0]}.x and would get "
            f"{plugin['cudnn']}, which torch or the system brings; {_other(plugin)}"
        )
    return None


def warnings(environment: dict[str, Any]) -> list[str]:
    """What a run on the GPUs through torch_xla should know of, though it is no obstacle."""
    plugin = environment.get("nvidia_xla") or {}
    cudnn_for, cuda_major = plugin.get("cudnn_cuda_major"), plugin.get("cuda_major")
    found = []
    if cudnn_for and cuda_major and cudnn_for != cuda_major:
        found.append(
            f"{_named(plugin)} is for CUDA {cuda_major} and gets a cuDNN {plugin['cudnn']} for CUDA {cudnn_for}, a "
            f"pair that was not tried; {_other(plugin)}"
        )
    if only_for_xla(environment):
        found.append(
            f"torch {environment['torch']} sees no GPU, so only torchacc trains on it here and the other arms on the "
            "CPU: they cannot be compared; give --device=cpu for that, or install a torch for CUDA"
        )
    return found


def describe(environment: dict[str, Any]) -> str:
    """One line: the plugin's version, its PJRT API, the driver and cuDNN, or why there is no plugin."""
    plugin = environment.get("nvidia_xla")
    if plugin is None:
        return f"none ({environment.get('errors', {}).get('nvidia_xla', 'not looked for')})"
    cuda, api = plugin["cuda_major"] or "unknown", plugin["api_version"] or "not asked"
    driver, cudnn = gpus(environment).get("driver") or "none", plugin["cudnn"] or "none"
    return f"{_named(plugin)} (CUDA {cuda}), PJRT API {api}, driver {driver}, cuDNN {cudnn}"


def _named(plugin: dict[str, Any]) -> str:
    return f"{plugin['package']} {plugin['version']}"


def _install(plugin: dict[str, Any]) -> str:
    return INSTALL_CUDA13 if plugin["cuda_major"] == 13 else INSTALL


def _other(plugin: dict[str, Any]) -> str:
    """The mend where torch's own cuDNN is the wrong one: the plugin for torch's CUDA."""
    if plugin["cuda_major"] == 13:
        return f"beside a torch for CUDA 12: pip uninstall {plugin['package']}, then {INSTALL}"
    return f"beside a torch for CUDA 13: {INSTALL_CUDA13}; else an older {plugin['package']}"


def _oldest_cudnn(plugin: dict[str, Any]) -> tuple[int, int] | None:
    version = _numbers(plugin["version"])
    rows = (cudnn for major, first, cudnn in OLDEST_CUDNN if major == plugin["cuda_major"] and version >= first)
    return next(rows, None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0]))

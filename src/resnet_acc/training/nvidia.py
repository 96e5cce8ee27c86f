"""This machine's NVIDIA GPUs as the driver names them, without torch or CUDA: no context is made on any of them.

NVML through ctypes: a rank's ring has no nvidia-ml-py, and a torch without CUDA sees no GPU.
Source of names and sizes: NVIDIA's NVML API reference (nvml.h).
"""

import ctypes
import os
from dataclasses import dataclass
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_NAME_BYTES, _UUID_BYTES, _VERSION_BYTES = 96, 96, 80  # NVML_DEVICE_NAME_V2_, _UUID_V2_ and _SYSTEM_DRIVER_VERSION_


@dataclass(frozen=True)
class Gpus:
    """Names of the GPUs that CUDA_VISIBLE_DEVICES leaves, in its order, and the driver's version."""

    names: list[str]
    driver: str | None


def nvidia_gpus() -> Gpus:
    """Ask the driver. NVML counts cards by their place on the bus; CUDA may put faster ones first where they differ.

    Raises:
        OSError: there is no driver, or it does not answer.
    """
    try:
        nvml = ctypes.CDLL(LIBRARY)
    except OSError:
        raise OSError(f"there is no NVIDIA driver ({LIBRARY} is not there)") from None
    _check(nvml.nvmlInit_v2(), "nvmlInit")
    try:
        count = ctypes.c_uint()
        _check(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), "nvmlDeviceGetCount")
        cards = [_card(nvml, index) for index in range(count.value)]
        driver = _text(nvml.nvmlSystemGetDriverVersion, _VERSION_BYTES)
    finally:
        nvml.nvmlShutdown()
    places = visible([uuid for _, uuid in cards], os.environ.get("CUDA_VISIBLE_DEVICES"))
    return Gpus([cards[place][0] for place in places], driver)


def visible(uuids: list[str], setting: str | None) -> list[int]:
    """Places of the GPUs that CUDA_VISIBLE_DEVICES leaves (CUDA C++ Programming Guide, "CUDA Environment Variables").

    An entry is a number or the beginning of one GPU's UUID; the first that is neither ends the list. MIG parts, which
    have UUIDs of their own, are not looked up.
    """
    if setting is None:
        return list(range(len(uuids)))
    places: list[int] = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.isdecimal():
            found = [int(entry)] if int(entry) < len(uuids) else []
        else:
            found = [place for place, uuid in enumerate(uuids) if entry.startswith("GPU-") and uuid.startswith(entry)]
        if len(found) != 1:
            break
        if found[0] in places:
            return []  # CUDA sees no GPU at all where one is named twice
        places += found
    return places


def _card(nvml: Any, index: int) -> tuple[str, str]:
    handle = ctypes.c_void_p()
    _check(nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle)), "nvmlDeviceGetHandleByIndex")
    return _text(nvml.nvmlDeviceGetName, _NAME_BYTES, handle), _text(nvml.nvmlDeviceGetUUID, _UUID_BYTES, handle)


def _text(function: Any, size: int, *arguments: Any) -> str:
    buffer = ctypes.create_string_buffer(size)
    _check(function(*arguments, buffer, ctypes.c_uint(size)), function.__name__)
    return buffer.value.decode(errors="replace")


def _check(status: int, what: str) -> None:
    if status:
        raise OSError(f"the NVIDIA driver does not answer ({what} gave status {status})")

"""How busy this machine is before a run: what others take of it would be measured as the run's own slowness.

Not the load average: that still holds the run before, which is this package's own.
"""

import contextlib
import os
from typing import Any

SAMPLE_SECONDS = 1.0


def sample(seconds: float = SAMPLE_SECONDS) -> dict[str, Any]:
    """Cores in use over so many seconds, of all of the machine's cores, and percent of the time each GPU was.

    The GPUs are those that CUDA_VISIBLE_DEVICES leaves; there are none where no NVIDIA driver answers.
    """
    import psutil

    num_cores = psutil.cpu_count() or 1
    cores = psutil.cpu_percent(seconds) / 100.0 * num_cores
    return {"cores": round(cores, 2), "of_cores": num_cores, "gpu_percent": _gpu_percent()}


def _gpu_percent() -> list[int]:
    import pynvml

    with contextlib.suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
            return [int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) for handle in _visible(handles)]
        finally:
            pynvml.nvmlShutdown()
    return []


def _visible(handles: list[Any]) -> list[Any]:
    """The GPUs that CUDA_VISIBLE_DEVICES names by number or by the beginning of their UUID; all without it."""
    import pynvml

    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return handles
    names = [name.strip() for name in text.split(",") if name.strip()]
    chosen = []
    for number, handle in enumerate(handles):
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        uuid = uuid.decode() if isinstance(uuid, bytes) else uuid
        if any(name == str(number) or (not name.isdigit() and uuid.startswith(name)) for name in names):
            chosen.append(handle)
    return chosen

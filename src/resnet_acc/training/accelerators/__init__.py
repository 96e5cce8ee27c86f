"""The arms: one class each behind the contract in base.py.

Nothing is imported before it is asked for: torch_xla imports pjrt/ below this package while it is being imported.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resnet_acc.config import RunConfig
    from resnet_acc.training.accelerators.base import Accelerator
    from resnet_acc.training.distributed import Place


def make_accelerator(config: "RunConfig", place: "Place", device_type: str) -> "Accelerator":
    """The arm that the configuration chooses, on "cpu", "cuda" or "tpu".

    An arm's module is imported only when it is chosen: torch-xla opens its device at import on some systems.

    Raises:
        ImportError: a package that the arm needs is missing or does not fit.
    """
    if config.arm == "torchacc":
        from resnet_acc.training.accelerators.torchacc import TorchaccAccelerator

        return TorchaccAccelerator(config, place, device_type)
    if config.arm == "inductor":
        from resnet_acc.training.accelerators.inductor import InductorAccelerator

        return InductorAccelerator(config, place, device_type)
    from resnet_acc.training.accelerators.eager import EagerAccelerator, KernelAccelerator

    return (KernelAccelerator if config.arm == "kernel" else EagerAccelerator)(config, place, device_type)

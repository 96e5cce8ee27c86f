"""Mixed precision: which dtype amp_level and amp_dtype stand for on a device, and proof that autocast took effect."""

from dataclasses import dataclass

import torch

from resnet_acc.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Autocast for one device type; `dtype` is what convolutions and matrix products run in."""

    device_type: str
    dtype: torch.dtype

    @property
    def enabled(self) -> bool:
        return self.dtype is not torch.float32

    @property
    def name(self) -> str:
        """The dtype's name for records, such as bfloat16."""
        return str(self.dtype).removeprefix("torch.")

    def autocast(self) -> torch.autocast:
        """A context in which the forward pass runs in `dtype`; one that does nothing for float32."""
        # A disabled context still checks its dtype against the device, so float32 is not handed on.
        return torch.autocast(
            self.device_type, dtype=self.dtype if self.enabled else torch.bfloat16, enabled=self.enabled
        )

    def make_scaler(self) -> torch.amp.GradScaler:
        """Loss scaling, which float16 needs (its smallest number is 6e-8) and bfloat16 and float32 do not."""
        return torch.amp.GradScaler(self.device_type, enabled=self.dtype is torch.float16)


def resolve_precision(config: RunConfig, device_type: str) -> Precision:
    """The precision of a run on "cpu", "cuda" or "xla".

    auto is float16 on CUDA, as in the article, and bfloat16 elsewhere: CPUs and TPUs have units for it and no
    loss scaling is needed.
    """
    if config.amp_level == "O0":
        dtype = torch.float32
    elif config.amp_dtype == "auto":
        dtype = torch.float16 if device_type == "cuda" else torch.bfloat16
    else:
        dtype = getattr(torch, config.amp_dtype)
    return Precision(device_type=device_type, dtype=dtype)


def verify_autocast(precision: Precision, device: torch.device) -> None:
    """Raise RuntimeError where a product under autocast is not in the dtype that the records will claim."""
    left = torch.ones(8, 8, device=device)
    with precision.autocast():
        seen = (left @ left).dtype
    if seen is not precision.dtype:
        raise RuntimeError(
            f"autocast on {device.type} gave {seen}, not {precision.dtype}: a run labelled {precision.name} would be "
            f"another one; use --amp_level=O0 or another --amp_dtype"
        )

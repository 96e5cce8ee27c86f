"""Mixed precision: which dtype amp_level and amp_dtype stand for on a device, and proof that autocast took effect."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch.amp.grad_scaler import _refresh_per_optimizer_state

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


class SyncfreeGradScaler(torch.amp.GradScaler):
    """torch.amp.GradScaler on an XLA device without a read-back: the optimizer itself passes over an update.

    torch-xla had a class of its own for this until 2.8. Scale, growth and backoff follow PyTorch's rule (see update)
    as operations on the device. The decision whether to step is handed to the optimizer, which must take found_inf
    (torch_xla.amp.syncfree). Inf and nan are looked for in all gradients together, since a search in each would be a
    kernel or two for each.
    """

    def __init__(self, enabled: bool = True, **settings: Any) -> None:
        super().__init__("xla", enabled=enabled, **settings)

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor, allow_fp16: bool
    ) -> dict[torch.device, torch.Tensor]:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if any(gradient.dtype is torch.float16 for gradient in gradients) and not allow_fp16:
            raise ValueError("Attempting to unscale FP16 gradients.")  # torch.amp.GradScaler's own words
        # Sums over all but the first dimension, which no layout of a weight is in the way of, then one over those.
        small = [gradient.reshape(-1) for gradient in gradients if gradient.dim() < 2]
        parts = [_num_nonfinite(torch.cat(small))] if small else []
        parts += [
            _num_nonfinite(gradient).sum(tuple(range(1, gradient.dim())))
            for gradient in gradients
            if gradient.dim() > 1
        ]
        found = (torch.cat(parts).sum() > 0).float() if parts else torch.zeros_like(inv_scale)
        for gradient in gradients:
            gradient.mul_(inv_scale)
        return {inv_scale.device: torch.maximum(found_inf, found)}

    def _maybe_opt_step(
        self, optimizer: torch.optim.Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> float | None:
        found = sum(optimizer_state["found_inf_per_device"].values())
        return optimizer.step(*args, found_inf=found, **kwargs)  # type: ignore[call-overload, no-any-return]

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """The scale of the next step, by the rule of ATen's amp_update_scale_cuda_kernel (native/cuda/AmpKernels.cu).

        torch-xla has that operation too, but lets a scale grow to inf, and its growth interval is that of the first
        scaler of the process.
        """
        if new_scale is not None or not self.is_enabled():
            super().update(new_scale)
            return
        scale, tracker = self._scale, self._growth_tracker
        assert scale is not None, "scale() comes before update()"
        assert tracker is not None
        states = self._per_optimizer_states.values()
        found = sum(found for state in states for found in state["found_inf_per_device"].values()) > 0
        num_good = tracker + 1
        grows = num_good == self._growth_interval
        grown = scale * self._growth_factor
        kept = torch.where(grows & torch.isfinite(grown), grown, scale)
        scale.copy_(torch.where(found, scale * self._backoff_factor, kept))
        tracker.copy_(torch.where(found | grows, torch.zeros_like(tracker), num_good))
        self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)


def _num_nonfinite(values: torch.Tensor) -> torch.Tensor:
    """1.0 where a value is inf or nan."""
    return (~torch.isfinite(values)).float()


def found_inf(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """1.0 where the scaler saw inf or nan in the gradients and passed over the update, else 0.0; on the device.

    Read between the scaler's step and update, which forgets it. get_scale() would wait for the device in every step.
    """
    (found,) = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()
    return found.reshape(())


def resolve_precision(config: RunConfig, device_type: str, autocast_device_type: str) -> Precision:
    """The precision of a run on a device.

    auto is float16 on CUDA, as in the article, and bfloat16 elsewhere: CPUs and TPUs have units for it and no
    loss scaling is needed.

    Args:
        config: the run's.
        device_type: "cpu", "cuda" or "tpu".
        autocast_device_type: what autocast calls the device; "xla" for all three in torchacc.
    """
    if config.amp_level == "O0":
        dtype = torch.float32
    elif config.amp_dtype == "auto":
        dtype = torch.float16 if device_type == "cuda" else torch.bfloat16
    else:
        dtype = getattr(torch, config.amp_dtype)
    return Precision(device_type=autocast_device_type, dtype=dtype)


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

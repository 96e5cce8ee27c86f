"""Loss scaling: gradients lost below and above a range of scales, and the scale's way after a provoked overflow.

python -m resnet_acc.training.lessons.loss_scaling
"""

import argparse
import contextlib
import math
from typing import Any

import torch

from resnet_acc.training.accelerators.base import Accelerator
from resnet_acc.training.lessons.common import Batch, batches, lesson_parser, on_device, ready_arm, run_lesson, say

SPIKE = 1e5
"""What the pixels of one batch are multiplied with: beyond float16's largest number, 65504, within a layer."""


def lesson(options: argparse.Namespace) -> dict[str, Any]:
    if not 1 <= options.spike_step <= options.steps:
        raise ValueError(f"spike_step is {options.spike_step}; give a step from 1 to steps, {options.steps}")
    sweep = scale_sweep(options)
    for row in sweep:
        say(
            f"scale 2^{row['log2_scale']:<3} {100 * row['zero']:5.1f} % of the gradients are zero, "
            f"{100 * row['nonfinite']:5.1f} % inf or nan"
        )
    scaled, unscaled = (train(options, enabled=enabled) for enabled in (True, False))
    for step in scaled["steps"]:
        skipped = "  inf in the gradients: update skipped, scale halved" if step["skipped"] else ""
        say(f"step {step['step']:2}: scale {step['scale']:8g}{skipped}")
    say(f"with loss scaling {100 * scaled['nan_weights']:.0f} % of the weights are nan in the end, ")
    say(f"without it {100 * unscaled['nan_weights']:.0f} %")
    return {
        "arm": options.arm,
        "device": scaled.pop("device"),
        "spike_step": options.spike_step,
        "growth_interval": options.growth_interval,
        "loss_weight": options.loss_weight,
        "sweep": sweep,
        "with": scaled,
        "without": {name: value for name, value in unscaled.items() if name != "device"},
    }


def scale_sweep(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Gradients of one batch in float16 at each scale, against those in float32.

    The loss is weighted down so that gradients are as small as they get deep in a network and late in training.
    """
    accelerator = ready_arm(options, arm=options.arm, amp_dtype="float16")
    batch = on_device(accelerator, batches(options, 1)[0])
    accelerator.finish()
    exact = _gradients(accelerator, batch, options.loss_weight, scale=None)
    rows: list[dict[str, Any]] = []
    for exponent in range(0, options.largest_exponent + 1, 4):
        seen = _gradients(accelerator, batch, options.loss_weight, scale=2.0**exponent)
        finite = torch.isfinite(seen)
        error = (seen - exact).norm() / exact.norm()
        rows.append(
            {
                "log2_scale": exponent,
                "zero": ((seen == 0) & (exact != 0)).float().mean().item(),
                "nonfinite": (~finite).float().mean().item(),
                "error": error.item() if finite.all() else None,
            }
        )
    return rows


def _gradients(accelerator: Accelerator, batch: Batch, weight: float, scale: float | None) -> torch.Tensor:
    """All gradients in one vector on the host, the scale divided out again; in float32 where scale is None."""
    images, target = batch
    model = accelerator.inner_model()
    # A tensor from the host is an input of the graph: another number is not another graph.
    factor = torch.full((1,), weight * (scale or 1.0)).to(accelerator.device)
    with accelerator.precision.autocast() if scale is not None else contextlib.nullcontext():
        loss = accelerator.criterion(model(images), target)
    (loss * factor).sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.reshape(-1).float() for gradient in gradients])
    accelerator.optimizer.zero_grad()
    accelerator.finish()  # one graph for all that is pending, BatchNorm's statistics among it, and each time the same
    return flat.cpu() / (scale or 1.0)


def train(options: argparse.Namespace, *, enabled: bool) -> dict[str, Any]:
    """Some steps in float16, the pixels of one of them far too large; with the loss scaler of the arm, or without."""
    accelerator = ready_arm(options, arm=options.arm, amp_dtype="float16")
    settings: dict[str, Any] = {"enabled": enabled, "growth_interval": options.growth_interval}
    scaler = type(accelerator.scaler)  # type: ignore[attr-defined]
    if scaler is torch.amp.GradScaler:
        settings["device"] = accelerator.device_type
    accelerator.scaler = scaler(**settings)  # type: ignore[attr-defined]
    if enabled:
        accelerator.scaler.scale(torch.zeros(()).to(accelerator.device))  # type: ignore[attr-defined]
    steps, before = [], _weights(accelerator)
    for number, (images, target) in enumerate(batches(options, options.steps), 1):
        spike = number == options.spike_step
        batch = on_device(accelerator, (images * SPIKE if spike else images, target))
        scale = accelerator.loss_scale()
        accelerator.start_totals()
        accelerator.train_step(*batch)
        accelerator.finish()
        totals, after = accelerator.read_totals(), _weights(accelerator)
        loss = totals["loss"] / options.batch_size
        steps.append(
            {
                "step": number,
                "spike": spike,
                "scale": scale,
                "skipped": bool(totals["skipped_steps"]),
                "loss": loss if math.isfinite(loss) else None,
                "weights_changed": not torch.equal(before, after),
                "nan_weights": (~torch.isfinite(after)).float().mean().item(),
            }
        )
        before = after
    return {
        "device": accelerator.device_type,
        "steps": steps,
        "last_scale": accelerator.loss_scale(),
        "nan_weights": steps[-1]["nan_weights"],
    }


def _weights(accelerator: Accelerator) -> torch.Tensor:
    """All parameters in one vector on the host."""
    return torch.cat([p.detach().reshape(-1).cpu() for p in accelerator.inner_model().parameters()])


if __name__ == "__main__":
    own = lesson_parser(__doc__, arms=("torchacc", "eager"), steps=14)
    own.add_argument("--spike_step", type=int, default=6, help="step whose batch overflows")
    own.add_argument("--growth_interval", type=int, default=4, help="good steps after which the scale doubles")
    own.add_argument("--loss_weight", type=float, default=1e-6, help="factor of the loss in the sweep over scales")
    own.add_argument("--largest_exponent", type=int, default=40, help="largest power of two in the sweep")
    run_lesson(lesson, own)

"""The model, its loss, what is counted of a batch on the device, and its arithmetic."""

import torch
import torchvision
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

TOTALS = ("loss", "correct1", "correct5", "nonfinite_steps", "skipped_steps", "nonfinite_streak")
"""Entries of the totals vector that lies on the device between two records; loss is summed over images."""


def build_model(name: str, num_classes: int) -> nn.Module:
    """A torchvision ResNet with random weights, on the CPU.

    Raises:
        ValueError: torchvision has no model of that name.
    """
    if name not in torchvision.models.list_models():
        known = [known for known in torchvision.models.list_models() if known.startswith(("resne", "wide_resnet"))]
        raise ValueError(f"model is {name!r}; torchvision has {', '.join(known)}")
    return torchvision.models.get_model(name, weights=None, num_classes=num_classes)


def correct_counts(output: torch.Tensor, target: torch.Tensor, counts: torch.Tensor | None = None) -> torch.Tensor:
    """How many images of a batch are right within the first and the first five guesses.

    Args:
        output: scores, shape [N, num_classes].
        target: classes, shape [N].
        counts: 1.0 for an image that counts and 0.0 for padding, shape [N]; all count without it.

    Returns:
        Shape [2], float32, on the device; with fewer than five classes the second counts all of them.
    """
    with torch.no_grad():
        guesses = output.float().topk(min(5, output.shape[1]), dim=1).indices
        hits = guesses.eq(target.unsqueeze(1)).float()
        if counts is not None:
            hits = hits * counts.unsqueeze(1)
        return torch.stack([hits[:, 0].sum(), hits.sum()])


def add_to_totals(
    totals: torch.Tensor, output: torch.Tensor, target: torch.Tensor, loss: torch.Tensor, skipped: torch.Tensor
) -> torch.Tensor:
    """Totals (see TOTALS) after one more step, without a synchronisation with the device.

    Args:
        totals: shape [6], float32.
        output, target: as in correct_counts.
        loss: mean cross-entropy of the batch, a scalar tensor.
        skipped: 1.0 where loss scaling skipped the update, else 0.0; a scalar tensor.
    """
    with torch.no_grad():
        loss = loss.detach().float()
        nonfinite = 1.0 - torch.isfinite(loss).float()
        step = torch.stack([loss * target.shape[0], *correct_counts(output, target), nonfinite, skipped.float()])
        streak = (totals[5:] + 1.0) * nonfinite
        return torch.cat([totals[:5] + step, streak])


def training_flops_per_image(name: str, num_classes: int, image_size: int) -> int:
    """Floating-point operations of one image's forward and backward pass (a multiply-add counts as two).

    Counted by torch.utils.flop_counter on shapes alone, without arithmetic. Convolutions and matrix products only,
    which is what a card's peak is quoted for. Backward is twice the forward pass, the gradients of inputs and of
    weights, but for the first convolution, whose input needs none. Counting it too would take three times as long,
    before each run's first step.
    """
    with torch.device("meta"):
        model = build_model(name, num_classes)
        images = torch.empty(2, 3, image_size, image_size)
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    forward, of_first = FlopCounterMode(display=False), FlopCounterMode(display=False)
    with torch.no_grad():
        with forward:
            model(images)
        with of_first:
            first(images)
    return (3 * forward.get_total_flops() - of_first.get_total_flops()) // 2

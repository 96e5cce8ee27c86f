"""A value read from the device inside the loop: what it makes the host wait for, and what it cuts the graph into.

python -m resnet_acc.training.lessons.read_back
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from resnet_acc.training.accelerators.base import Accelerator
from resnet_acc.training.lessons.common import (
    batches,
    counts_since,
    lesson_parser,
    median_step_s,
    on_device,
    ready_arm,
    run_lesson,
    say,
    xla_counts,
)

VARIANTS = {
    "captured, nothing read": ("captured", None),
    "traced, nothing read": ("traced", None),
    "traced, loss read after each step": ("traced", "after"),
    "traced, loss.item() before backward": ("traced", "within"),
}


class _Read(nn.Module):
    """The loss, read by the host at once."""

    def __init__(self, criterion: nn.Module) -> None:
        super().__init__()
        self.criterion, self.last = criterion, 0.0

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.criterion(output, target)
        self.last = loss.item()
        return loss


def lesson(options: argparse.Namespace) -> dict[str, Any]:
    if options.arm == "eager":
        chosen = {name.partition(", ")[2]: how for name, how in VARIANTS.items() if how[0] == "traced"}
    else:
        chosen = VARIANTS
    rows, device = [], ""
    for name, (mode, read) in chosen.items():
        accelerator = ready_arm(options, arm=options.arm, amp_dtype="auto", capture=mode == "captured")
        rows.append({"variant": name, **_measure(accelerator, read, options)})
        device = accelerator.device_type
        graphs = f", {rows[-1]['executions_per_step']:g} graphs a step" if options.arm == "torchacc" else ""
        say(f"{name}: {1000 * rows[-1]['step_time_s']:.2f} ms a step{graphs}")
    return {"arm": options.arm, "device": device, "rows": rows}


def _measure(accelerator: Accelerator, read: str | None, options: argparse.Namespace) -> dict[str, Any]:
    if read == "within":
        accelerator.criterion = _Read(accelerator.criterion)  # type: ignore[assignment]
    given = [on_device(accelerator, batch) for batch in batches(options, options.steps)]

    def step(number: int) -> None:
        accelerator.train_step(*given[number % len(given)])
        if read == "after":
            accelerator.read_totals()
            accelerator.start_totals()

    count: Callable[[], dict[str, float]] = xla_counts if options.arm == "torchacc" else dict
    accelerator.finish()
    start = count()
    for number in range(3):  # compiles whatever it needs
        step(number)
    accelerator.finish()
    compiled = counts_since(start) if start else {}
    before = count()
    seconds = median_step_s(accelerator, step, options.steps)
    after = counts_since(before) if before else {}
    num_steps = 3 * options.steps
    return {
        "step_time_s": seconds,
        "compilations": compiled.get("compilations"),
        "compile_s": compiled.get("compile_s"),
        "executions_per_step": after["executions"] / num_steps if after else None,
        "read_backs_per_step": after["read_backs"] / num_steps if after else None,
    }


if __name__ == "__main__":
    run_lesson(lesson, lesson_parser(__doc__, arms=("torchacc", "eager"), batch_size=32, image_size=64, steps=20))

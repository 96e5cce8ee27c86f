"""The optimizer and the loss scaler of the XLA path against PyTorch's own: graphs compiled and values read back.

python -m resnet_acc.training.lessons.optimizer_state
"""

import argparse
from typing import Any

import torch

from resnet_acc.training.accelerators.base import Accelerator
from resnet_acc.training.lessons.common import (
    Batch,
    batches,
    counts_since,
    lesson_parser,
    make_arm,
    median_step_s,
    network,
    on_device,
    ready_arm,
    run_lesson,
    say,
    xla_counts,
)


def lesson(options: argparse.Namespace) -> dict[str, Any]:
    if options.steps < 4:
        raise ValueError(f"steps is {options.steps}; give at least 4: the first ones compile")
    own = ready_arm(options, amp_dtype="float16")
    plain = _Plain(make_arm(options, amp_dtype="float16"), network(options))
    rows = [
        _measure("syncfree.AdamW and SyncfreeGradScaler", own, own.train_step, options),
        _measure("torch.optim.AdamW and torch.amp.GradScaler", plain.accelerator, plain.train_step, options),
    ]
    for row in rows:
        say(
            f"{row['optimizer']}: {row['compilations']:g} graphs compiled in {row['compile_s']:.1f} s, then "
            f"{row['read_backs_per_step']:g} read-backs, {row['executions_per_step']:g} graphs and "
            f"{1000 * row['step_time_s']:.1f} ms a step"
        )
    return {"device": own.device_type, "rows": rows}


class _Plain:
    """A step as PyTorch has it, on XLA: state made in the first step, the decision to skip taken on the host."""

    def __init__(self, accelerator: Accelerator, model: torch.nn.Module) -> None:
        from resnet_acc.training.accelerators import torchacc

        self.accelerator, self.mark_step = accelerator, torchacc.mark_step
        self.model = model.to(accelerator.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scaler = torch.amp.GradScaler("xla")
        self.mark_step()

    def train_step(self, images: torch.Tensor, target: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        with self.accelerator.precision.autocast():
            loss = self.accelerator.criterion(self.model(images), target)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.mark_step()


def _measure(name: str, accelerator: Accelerator, train_step: Any, options: argparse.Namespace) -> dict[str, Any]:
    given: list[Batch] = [on_device(accelerator, batch) for batch in batches(options, options.steps)]
    accelerator.finish()
    start = xla_counts()
    for batch in given:  # compiles whatever it needs
        train_step(*batch)
    accelerator.finish()
    compiled, before = counts_since(start), xla_counts()
    seconds = median_step_s(accelerator, lambda number: train_step(*given[number % len(given)]), options.steps)
    num_steps, after = 3 * options.steps, counts_since(before)
    return {
        "optimizer": name,
        "compilations": compiled["compilations"],
        "compile_s": compiled["compile_s"],
        "read_backs_per_step": after["read_backs"] / num_steps,
        "executions_per_step": after["executions"] / num_steps,
        "later_compilations": after["compilations"],
        "step_time_s": seconds,
    }


if __name__ == "__main__":
    run_lesson(lesson, lesson_parser(__doc__))

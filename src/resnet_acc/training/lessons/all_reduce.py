"""The gradient all-reduce: each rank's own gradients, their sum and mean, and how ranks drift apart without it.

python -m torch.distributed.run --standalone --local-addr 127.0.0.1 --nproc-per-node 2 -m \
resnet_acc.training.lessons.all_reduce
"""

import argparse
from typing import Any

import torch

from resnet_acc.training.accelerators.base import Accelerator
from resnet_acc.training.distributed import HostGroup, read_place
from resnet_acc.training.lessons.common import (
    Batch,
    batches,
    lesson_parser,
    network,
    on_device,
    ready_arm,
    run_lesson,
    say,
)

SHOWN = 3
"""Entries of the last layer's bias gradient that are shown one by one."""


def lesson(options: argparse.Namespace) -> dict[str, Any]:
    place = read_place()
    if options.steps < 0:
        raise ValueError(f"steps is {options.steps}; give 0 (no training) or more")
    accelerator = ready_arm(options, arm=options.arm)
    group = HostGroup()
    sums = gradient_sums(accelerator, batches(options, 1, rank=place.rank)[0], group)
    runs: dict[str, list[dict[str, Any]]] = {"with": [], "without": []}
    for name in runs if options.steps else ():
        accelerator.prepare(network(options))
        if name == "without":
            _leave_out_all_reduce(accelerator)
        runs[name] = drift(accelerator, batches(options, options.steps, rank=place.rank), group)
    if place.rank == 0:
        for row in sums["ranks"]:
            entries = ", ".join(f"{value:+.5f}" for value in row["local"])
            say(f"rank {row['rank']}: own gradient {entries} ...; norm of all {row['local_norm']:.5f}")
        say(f"sum over the ranks:   {', '.join(f'{value:+.5f}' for value in sums['sum'])} ...")
        say(f"mean after the step:  {', '.join(f'{value:+.5f}' for value in sums['ranks'][0]['mean'])} ...")
        for name, run in runs.items() if options.steps else ():
            say(f"{name} all-reduce: after {options.steps} steps weights differ by up to {run[-1]['difference']:g}")
    result = {"arm": options.arm, "device": accelerator.device_type, "world_size": place.world_size, **sums}
    accelerator.teardown()
    return {**result, **runs}


def gradient_sums(accelerator: Accelerator, batch: Batch, group: HostGroup) -> dict[str, Any]:
    """One backward pass on each rank's own batch, and the arm's all-reduce on its gradients."""
    images, target = on_device(accelerator, batch)
    with accelerator.precision.autocast():
        loss = accelerator.criterion(accelerator.inner_model()(images), target)
    loss.backward()
    gradients = [p.grad for p in accelerator.inner_model().parameters() if p.grad is not None]
    accelerator.finish()  # one graph for all gradients, where reading each would be one for each
    local = _flat(gradients)
    if group.world_size > 1:
        accelerator._mean(gradients)  # type: ignore[attr-defined]
    accelerator.finish()
    mean = _flat(gradients)
    accelerator.optimizer.zero_grad()
    shown = slice(-SHOWN, None)  # the end of the last layer's bias
    own = [*local[shown].tolist(), *mean[shown].tolist(), local.norm().item(), mean.norm().item()]
    ranks = [
        {
            "rank": rank,
            "local": values[:SHOWN],
            "mean": values[SHOWN : 2 * SHOWN],
            "local_norm": values[-2],
            "mean_norm": values[-1],
        }
        for rank, values in enumerate(group.gather(own))
    ]
    expected = local.clone()
    group.mean_([expected])
    error = group.gather([(mean - expected).abs().max().item()])
    total = [sum(column) for column in zip(*(row["local"] for row in ranks), strict=True)]  # type: ignore[call-overload]
    return {"ranks": ranks, "sum": total, "largest_error": max(max(row) for row in error)}


def drift(accelerator: Accelerator, given: list[Batch], group: HostGroup) -> list[dict[str, Any]]:
    """Train, and after each step compare every rank's weights with rank 0's."""
    rows = []
    for number, batch in enumerate(given, 1):
        accelerator.start_totals()
        accelerator.train_step(*on_device(accelerator, batch))
        accelerator.finish()
        own = _flat(list(accelerator.inner_model().parameters()))
        first = own.clone()
        group.broadcast_([first])
        loss = accelerator.read_totals()["loss"] / len(batch[1])
        gathered = group.gather([(own - first).abs().max().item(), loss])
        rows.append(
            {"step": number, "difference": max(row[0] for row in gathered), "losses": [row[1] for row in gathered]}
        )
    return rows


def _leave_out_all_reduce(accelerator: Accelerator) -> None:
    """Train on as if each rank were alone."""
    accelerator.model = accelerator.inner_model()  # eager: without DDP around it
    accelerator._mean = lambda gradients: None  # type: ignore[attr-defined]


def _flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    """All of them in one vector on the host."""
    return torch.cat([tensor.detach().reshape(-1).float().cpu() for tensor in tensors])


if __name__ == "__main__":
    run_lesson(lesson, lesson_parser(__doc__, arms=("torchacc", "eager")))

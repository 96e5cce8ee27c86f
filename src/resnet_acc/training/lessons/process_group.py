"""The process group: who is who, and whether a sum over the processes is one.

python -m torch.distributed.run --standalone --local-addr 127.0.0.1 --nproc-per-node 2 -m \
resnet_acc.training.lessons.process_group --arm torchacc
"""

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist

from resnet_acc.training.accelerators.base import Accelerator
from resnet_acc.training.distributed import HostGroup, read_place
from resnet_acc.training.lessons.common import first_line, lesson_parser, make_arm, run_lesson, say


def lesson(options: argparse.Namespace) -> dict[str, Any]:
    place = read_place()
    without = _rank_without_group()
    accelerator = make_arm(options, arm=options.arm)  # setup() checks the gradients' mean with a known sum
    group = HostGroup()
    local = float(place.rank + 1)
    alone = _backends_own_sum(accelerator, options.arm, local)
    probe = torch.full((4,), local).to(accelerator.device)
    if place.world_size > 1:
        accelerator._mean([probe])  # type: ignore[attr-defined]
    world, ordinal = _seen_by_xla(options.arm)
    own = [float(os.getpid()), float(world), float(ordinal), local, alone, probe.cpu()[0].item()]
    names = ("pid", "xla_world_size", "xla_ordinal", "local", "backend_sum", "mean")
    ranks = [{"rank": rank, **dict(zip(names, values, strict=True))} for rank, values in enumerate(group.gather(own))]
    backend = dist.get_backend() if dist.is_initialized() else None
    if place.rank == 0:
        say(f"before init_process_group, dist.get_rank(): {without}")
        say(f"after: backend {backend}, {place.world_size} ranks on {accelerator.device_type}")
        for rank in ranks:
            say(
                f"rank {rank['rank']}: brings {rank['local']:g}; the backend's own all_reduce gives "
                f"{rank['backend_sum']:g}, the mean this package takes is {rank['mean']:g}"
            )
    if dist.is_initialized():
        dist.destroy_process_group()
    return {
        "arm": options.arm,
        "device": accelerator.device_type,
        "backend": backend,
        "world_size": place.world_size,
        "without_group": without,
        "expected_sum": place.world_size * (place.world_size + 1) / 2,
        "expected_mean": (place.world_size + 1) / 2,
        "ranks": ranks,
    }


def _rank_without_group() -> str:
    """What PyTorch says about this process's rank before there is a group."""
    try:
        return str(dist.get_rank())
    except (ValueError, RuntimeError) as error:
        return first_line(error)


def _backends_own_sum(accelerator: Accelerator, arm: str, value: float) -> float:
    """What the all_reduce of the article's line gives for one value of each rank, whether it is the sum or not."""
    probe = torch.full((4,), value).to(accelerator.device)
    if arm == "torchacc":
        from resnet_acc.training.accelerators import torchacc

        torchacc.xm.all_reduce("sum", [probe])
    elif dist.is_initialized():
        dist.all_reduce(probe)
    return float(probe.cpu()[0])


def _seen_by_xla(arm: str) -> tuple[int, int]:
    """World size and this process's number as torch-xla counts them; -1 without torch-xla."""
    if arm != "torchacc":
        return -1, -1
    from resnet_acc.training.accelerators import torchacc

    runtime = getattr(torchacc.torch_xla, "runtime", None)  # a vendor's older torch_xla has none
    return torchacc.xla_world_size(), runtime.global_ordinal() if runtime else torchacc.xm.get_ordinal()


if __name__ == "__main__":
    run_lesson(lesson, lesson_parser(__doc__, arms=("torchacc", "eager")))

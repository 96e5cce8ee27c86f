"""What averaging the gradients costs, alone and within a step; under torchrun:

python -m torch.distributed.run --standalone --nproc-per-node 2 -m resnet_acc.training.communication --model=resnet50

The arms send gradients by DistributedDataParallel (DDP): NCCL between GPUs, gloo between processes on CPUs, float32,
in buckets of 25 MiB, the first of 1 MiB, while the backward pass still runs. Two things are measured:

- the all-reduce alone: buckets of the model's sizes, sent one behind the other while nothing is computed;
- what it adds to a step: steps with it and steps without it (DDP's no_sync), by turns.

The last line is RESULT and one JSON object.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from resnet_acc.config import AMP_LEVELS, DEVICES, RunConfig
from resnet_acc.training.accelerators import make_accelerator
from resnet_acc.training.accelerators.base import Accelerator
from resnet_acc.training.data import SYNTHETIC_CLASSES, SyntheticBatches
from resnet_acc.training.distributed import HostGroup, Place, die_with_parent, read_place
from resnet_acc.training.model import build_model

BUCKET_BYTES = (2**20, 25 * 2**20)
"""Capacity of DDP's first bucket and of the others: its own defaults (bucket_cap_mb)."""
WINDOW_SECONDS = 0.5
"""About how long the steps of one measurement take together."""
WARM_UP_STEPS = 3


def main() -> None:
    """Measure, and print the result on rank 0."""
    die_with_parent()
    place = read_place()
    parser = _parser()
    options = parser.parse_args()
    device_type = options.device
    if device_type == "auto":
        device_type = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        config = _config(options, place, device_type)
    except ValueError as error:
        parser.error(str(error))
    accelerator = make_accelerator(config, place, device_type)
    accelerator.setup()
    torch.manual_seed(config.seed)
    accelerator.prepare(build_model(config.model, SYNTHETIC_CLASSES))
    result = measure(accelerator, options.repeats)
    if place.rank == 0:
        print("RESULT " + json.dumps(result, allow_nan=False), flush=True)
    accelerator.teardown()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="What averaging the gradients costs.")
    parser.add_argument("--arm", default="eager", choices=("eager", "kernel"), help="the arms that train eagerly")
    parser.add_argument("--model", default="resnet50", help="torchvision ResNet")
    parser.add_argument("--batch_size", type=int, default=128, help="images per process and step")
    parser.add_argument("--image_size", type=int, default=224, help="pixels")
    parser.add_argument("--amp_level", default="O0", choices=AMP_LEVELS)
    parser.add_argument("--device", default="auto", choices=DEVICES)
    parser.add_argument("--repeats", type=int, default=10, help="measurements of each kind")
    return parser


def _config(options: argparse.Namespace, place: Place, device_type: str) -> RunConfig:
    if place.world_size < 2:
        raise ValueError("one process averages no gradients; start at least 2 by torchrun --nproc-per-node")
    if options.repeats < 1:
        raise ValueError(f"repeats is {options.repeats}; give at least 1")
    if device_type == "cuda" and place.local_rank >= torch.cuda.device_count():
        raise ValueError(
            f"{place.world_size} processes need as many GPUs, and there are {torch.cuda.device_count()}; "
            "start fewer, or give --device=cpu"
        )
    return RunConfig(
        model=options.model,
        batch_size=options.batch_size,
        image_size=options.image_size,
        amp_level=options.amp_level,
        data="synthetic",
    ).with_arm(options.arm, place.world_size)


def measure(accelerator: Accelerator, repeats: int) -> dict[str, Any]:
    """Seconds of the all-reduce alone, of a step with it and of a step without it: every repeat, slowest rank's."""
    config, group = accelerator.config, HostGroup()
    parameters = [parameter for parameter in accelerator.inner_model().parameters() if parameter.requires_grad]
    sizes = bucket_sizes(parameters)
    buckets = [torch.zeros(size, device=accelerator.device) for size in sizes]
    alone = [_slowest(group, _timed(accelerator, lambda: _all_reduce(buckets))) for _ in range(repeats + 2)][2:]
    step_s, without_s, num_steps = _measure_steps(accelerator, group, repeats)
    return {
        "arm": config.arm,
        "model": config.model,
        "batch_size": config.batch_size,
        "image_size": config.image_size,
        "amp_dtype": accelerator.precision.name,
        "device": accelerator.device_type,
        "backend": dist.get_backend(),
        "world_size": config.world_size,
        "num_parameters": sum(sizes),
        "num_bytes": 4 * sum(sizes),
        "num_buckets": len(sizes),
        "steps_per_repeat": num_steps,
        "all_reduce_s": alone,
        "step_s": step_s,
        "step_without_s": without_s,
    }


def bucket_sizes(parameters: Sequence[nn.Parameter]) -> list[int]:
    """Elements of each of DDP's buckets: gradients come last layer first, and a bucket closes when it is full."""
    sizes: list[int] = []
    held = 0
    for parameter in reversed(parameters):
        held += parameter.numel()
        if 4 * held >= BUCKET_BYTES[min(len(sizes), 1)]:
            sizes.append(held)
            held = 0
    return [*sizes, held] if held else sizes


def _all_reduce(buckets: Sequence[torch.Tensor]) -> None:
    works = [dist.all_reduce(bucket, async_op=True) for bucket in buckets]
    for work in works:
        work.wait()


def _measure_steps(accelerator: Accelerator, group: HostGroup, repeats: int) -> tuple[list[float], list[float], int]:
    place: Place = accelerator.place
    batches = iter(SyntheticBatches(accelerator.config, place, accelerator.device, accelerator.memory_format))

    def steps(num: int, synchronise: bool) -> float:
        accelerator.start_totals()
        with nullcontext() if synchronise else accelerator.model.no_sync():  # type: ignore[operator]
            return _timed(accelerator, lambda: [accelerator.train_step(*next(batches)) for _ in range(num)]) / num

    steps(WARM_UP_STEPS, True)
    steps(WARM_UP_STEPS, False)
    num = max(1, min(50, round(WINDOW_SECONDS / _slowest(group, steps(1, True)))))
    found: dict[bool, list[float]] = {True: [], False: []}
    for repeat in range(repeats):
        for synchronise in (True, False) if repeat % 2 == 0 else (False, True):
            found[synchronise].append(_slowest(group, steps(num, synchronise)))
    if place.rank == 0:
        told = [f"{1e3 * statistics.median(found[kind]):.2f} ms" for kind in (True, False)]
        print(f"a step takes {told[0]} with the all-reduce and {told[1]} without it", flush=True)
    return found[True], found[False], num


def _timed(accelerator: Accelerator, work: Callable[[], object]) -> float:
    """Seconds of work, the device being waited for at both ends; the ranks begin together."""
    accelerator.finish()
    dist.barrier()
    accelerator.finish()
    begin = time.perf_counter()
    work()
    accelerator.finish()
    return time.perf_counter() - begin


def _slowest(group: HostGroup, seconds: float) -> float:
    return max(values[0] for values in group.gather([seconds]))


if __name__ == "__main__":
    main()

"""Images per second of the loader alone, for several numbers of loader processes:

python -m resnet_acc.training.loader_rate --data=DIR --image_size=224 --batch_size=128 --workers=1,2,4

The loader is training's own (TrainingData.train_loader): the same files, order, augmentation and batches; nothing
consumes them. Under torchrun every rank loads its part at the same time, as in training, and their rates are added up.
The last line is RESULT and one JSON object.
"""

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from resnet_acc.config import DEVICES, RunConfig
from resnet_acc.training.data import TrainingData
from resnet_acc.training.distributed import HostGroup, Place, die_with_parent, read_place


def main() -> None:
    """Measure each number of workers, by turns, and print the result."""
    die_with_parent()
    place = read_place()
    parser = _parser()
    options = parser.parse_args()
    try:
        configs = _configs(options, place)
        data = TrainingData(configs[0], place, "cpu")  # refuses what training would refuse
    except (ValueError, OSError) as error:
        parser.error(str(error))
    if place.world_size > 1:
        dist.init_process_group("gloo", init_method="env://")
    rates = _measure_by_turns(configs, place, _device_type(options.device), options)
    if place.rank == 0:
        result = {
            "data": options.data,
            "image_size": options.image_size,
            "batch_size": options.batch_size,
            "world_size": place.world_size,
            "num_train_images": data.plan.num_train_images,
            "num_classes": data.plan.num_classes,
            "rates": rates,
        }
        print("RESULT " + json.dumps(result, allow_nan=False), flush=True)
    if dist.is_initialized():
        dist.destroy_process_group()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Images per second of the loader alone.")
    parser.add_argument("--data", default="mock", help="mock, or a folder with train/<class>/")
    parser.add_argument("--image_size", type=int, default=224, help="pixels")
    parser.add_argument("--batch_size", type=int, default=128, help="images of a batch")
    parser.add_argument("--workers", default="1", help="loader processes of each rank, such as 0,1,2,4")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one measurement")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each number of workers")
    parser.add_argument("--device", default="auto", choices=DEVICES, help="with cuda batches lie in pinned memory")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _configs(options: argparse.Namespace, place: Place) -> list[RunConfig]:
    try:
        counts = list(dict.fromkeys(int(part) for part in options.workers.split(",")))
    except ValueError:
        raise ValueError(f"workers is {options.workers!r}; give counts such as 0,1,2") from None
    if options.data == "synthetic":
        raise ValueError("data is 'synthetic', which no loader loads; give mock or a folder")
    if options.repeats < 1 or not 0 < options.seconds < 3600:
        raise ValueError(f"repeats is {options.repeats} and seconds {options.seconds}; give at least 1 and above 0")
    config = RunConfig(
        data=options.data,
        image_size=options.image_size,
        batch_size=options.batch_size,
        nproc_per_node=place.world_size,
        seed=options.seed,
        validate=False,
    )
    return [dataclasses.replace(config, workers=count) for count in counts]


def _device_type(device: str) -> str:
    return ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device


def _measure_by_turns(
    configs: list[RunConfig], place: Place, device_type: str, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """One entry for each number of workers: images/s of all ranks, in every repeat and their median."""
    group = HostGroup()
    found: dict[int, list[float]] = {config.workers or 0: [] for config in configs}
    for repeat in range(options.repeats):
        for config in configs if repeat % 2 == 0 else configs[::-1]:
            own = measure(config, place, device_type, options.seconds, group)
            rate = sum(values[0] for values in group.gather([own]))
            found[config.workers or 0].append(rate)
            if place.rank == 0:
                print(f"workers {config.workers}, repeat {repeat + 1}: {rate:,.1f} images/s", flush=True)
    return [
        {"workers": workers, "images_per_s": statistics.median(rates), "repeats": rates}
        for workers, rates in found.items()
    ]


def measure(config: RunConfig, place: Place, device_type: str, seconds: float, group: HostGroup) -> float:
    """Images per second of this rank's loader, from when its processes have started and each has given a batch.

    What they loaded ahead of the first timed batch is a few batches at most; the last ones loaded ahead are not
    counted in their stead.
    """
    data = TrainingData(config, place, device_type)
    batches = _endless(data)
    for _ in range(1 + (config.workers or 0)):
        next(batches)
    group.gather([0.0])  # all ranks begin together
    images, begin, now = 0, time.perf_counter(), 0.0
    while now < begin + seconds:
        images += next(batches)[0].shape[0]
        now = time.perf_counter()
    return images / (now - begin)


def _endless(data: TrainingData) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Epoch after epoch, in training's order."""
    loader, epoch = data.train_loader(), 0
    while True:
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        yield from loader
        epoch += 1


if __name__ == "__main__":
    main()

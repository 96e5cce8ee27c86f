"""What torchrun starts for each rank: python -m resnet_acc.training.main RUN_DIR

RUN_DIR holds the run's config.json, which the launcher wrote; this process adds <rank>/log and <rank>/metrics.jsonl.
"""

import contextlib
import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch.distributed.elastic.multiprocessing.errors import record

from resnet_acc.config import RunConfig
from resnet_acc.logger import create_logger, log_params, log_record
from resnet_acc.training import PROCESS_START
from resnet_acc.training.accelerators import make_accelerator
from resnet_acc.training.accelerators.base import Accelerator
from resnet_acc.training.data import Plan, TrainingData
from resnet_acc.training.distributed import Place, die_with_parent, read_place
from resnet_acc.training.loop import Loop
from resnet_acc.training.model import build_model, training_flops_per_image
from resnet_acc.training.nvidia import nvidia_gpus


@record
def main() -> None:
    """Train as RUN_DIR/config.json says; an error ends up in this rank's log and in torchrun's report."""
    die_with_parent()
    run_dir = Path(sys.argv[1])
    config = RunConfig.from_json(json.loads((run_dir / "config.json").read_text(encoding="utf-8")))
    place = read_place()
    logger = create_logger(run_dir, place.rank)
    try:
        train(config, place, run_dir)
    except BaseException as error:
        logger.exception("rank %d failed: %s", place.rank, error)
        raise


def train(config: RunConfig, place: Place, run_dir: Path) -> None:
    """One run of one arm in this process, from an open log to the end record."""
    device_type = os.environ.get("RESNET_ACC_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")
    data = TrainingData(config, place, device_type)
    accelerator = make_accelerator(config, place, device_type)
    accelerator.setup()
    torch.manual_seed(config.seed)  # the same first weights on every rank and for every arm
    model = build_model(config.model, data.plan.num_classes)
    start = start_record(config, place, run_dir.name, accelerator, data)
    log_record("start", **start)
    log_params(start)
    accelerator.prepare(model)
    torch.manual_seed(config.seed * 1009 + place.rank)
    Loop(config, accelerator, data, PROCESS_START, run_dir).run()
    accelerator.teardown()


def start_record(
    config: RunConfig, place: Place, run_id: str, accelerator: Accelerator, data: TrainingData
) -> dict[str, Any]:
    """What was asked for and what takes effect, so that a record can be read without its config.json."""
    plan: Plan = data.plan
    return {
        "attempt": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        "run_id": run_id,
        "resumed_from": None if config.resume == "no" else config.resume,
        "arm": config.arm,
        "rank": place.rank,
        "world_size": place.world_size,
        "model": config.model,
        "device": accelerator.device_type,
        "device_name": gpu_name(place.local_rank) if accelerator.device_type == "cuda" else cpu_name(),
        "compile_mode": accelerator.compile_mode,
        "amp_level": config.amp_level,
        "amp_dtype": accelerator.precision.name,
        "batch_size": config.batch_size,
        "global_batch_size": config.global_batch_size,
        "image_size": config.image_size,
        "data": config.data,
        "num_classes": plan.num_classes,
        "num_train_images": plan.num_train_images,
        "num_val_images": plan.num_val_images,
        "steps_per_epoch": plan.steps_per_epoch,
        "total_steps": plan.total_steps,
        "warmup_steps": plan.warmup_steps,
        "dropped_images": plan.dropped_images,
        "log_interval": config.log_interval,
        "lr": config.learning_rate,
        "weight_decay": config.weight_decay,
        "seed": config.seed,
        "workers": data.num_workers,
        "torch_version": torch.__version__,
        "torchvision_version": torchvision.__version__,
        "torch_xla_version": _xla_version() if config.arm == "torchacc" else None,
        "flops_per_image": training_flops_per_image(config.model, plan.num_classes, config.image_size),
    }


def gpu_name(local_rank: int) -> str:
    """Name of this rank's GPU: torch's where it uses it, else the driver's, which opens none of them."""
    if torch.cuda.is_initialized():
        return torch.cuda.get_device_name()
    return nvidia_gpus().names[local_rank]


def _xla_version() -> str | None:
    """Version of torch_xla, or of the vendor's torchacc where that brings it without a package of its own."""
    for package in ("torch_xla", "torchacc"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(package)
    return None


def cpu_name() -> str:
    """The processor's name as Linux gives it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()

"""What every lesson needs: its options, an accelerator ready to train, counters of what XLA did, its result line."""

import argparse
import atexit
import json
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from resnet_acc.config import RunConfig
from resnet_acc.logger import COMPILER_VARIABLE
from resnet_acc.training.accelerators import make_accelerator
from resnet_acc.training.accelerators.base import Accelerator
from resnet_acc.training.accelerators.pjrt.compile_cache import FOLDER_VARIABLE
from resnet_acc.training.distributed import die_with_parent, read_place
from resnet_acc.training.model import build_model

SMALL = "small"
"""The network that compiles in a second or two; other names are torchvision's."""
NUM_CLASSES = 10

Batch = tuple[torch.Tensor, torch.Tensor]


class CannotRun(Exception):
    """This machine cannot do what a lesson shows; the message is the reason in one line."""


def say(text: str) -> None:
    """One line for people, in one write: the lines of several ranks must not mix."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def run_lesson(lesson: Callable[[argparse.Namespace], dict[str, Any]], parser: argparse.ArgumentParser) -> None:
    """Run a lesson on the command line's options; rank 0 prints its result as the last line.

    Where the lesson cannot run here the result is {"skipped": reason}. A value that is no good ends the process with
    exit status 2 and one line.
    """
    die_with_parent()
    options = parser.parse_args()
    try:
        result = lesson(options)
    except CannotRun as reason:
        say(f"cannot run here: {reason}")
        result = {"skipped": str(reason)}
    except ValueError as error:
        parser.error(str(error))
    if read_place().rank == 0:
        say("RESULT " + json.dumps(result, allow_nan=False))


def lesson_parser(description: str | None, *, arms: tuple[str, ...] = ("torchacc",), **defaults: Any) -> Any:
    """A parser with the options that lessons share; `defaults` overrides theirs."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    if len(arms) > 1:
        parser.add_argument("--arm", choices=arms, default=arms[0], help="way to train")
    parser.add_argument("--model", default=SMALL, help=f"{SMALL} (two convolutions) or a torchvision ResNet")
    parser.add_argument("--batch_size", type=int, default=8, help="images per process and step")
    parser.add_argument("--image_size", type=int, default=32, help="height and width of an image, in pixels")
    parser.add_argument("--steps", type=int, default=8, help="training steps")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and batches")
    parser.set_defaults(**defaults)
    return parser


def device_type() -> str:
    """cuda or cpu (or tpu): what RESNET_ACC_DEVICE says, else whether torch sees a GPU."""
    return os.environ.get("RESNET_ACC_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")


def prepare_environment(arm: str) -> None:
    """Set what torch-xla reads while it is imported, as the launcher does for a run."""
    os.environ["RESNET_ACC_DEVICE"] = device_type()
    os.environ[COMPILER_VARIABLE] = arm if arm == "torchacc" else ""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if device_type() == "cpu":
        os.environ["PJRT_DEVICE"] = "CPU"
    # A cache of compiled graphs, torch-xla's or the plugin's, would leave nothing to count and no text to read.
    os.environ.pop("XLA_PERSISTENT_CACHE_PATH", None)
    os.environ[FOLDER_VARIABLE] = ""
    warnings.filterwarnings("ignore", message="Use torch_xla.* instead", category=DeprecationWarning)


def make_arm(
    options: argparse.Namespace, *, arm: str = "torchacc", amp_dtype: str | None = None, capture: bool = False
) -> Accelerator:
    """An accelerator after its setup, without a model.

    Args:
        amp_dtype: autocast's dtype, or "auto"; None for float32.
        capture: torchacc: trace the step once and replay it.

    Raises:
        CannotRun: the arm cannot be had on this device.
        ValueError: an option's value is no good.
    """
    prepare_environment(arm)
    place = read_place()
    model = "resnet18" if options.model == SMALL else options.model
    amp: dict[str, Any] = {"amp_level": "O0"} if amp_dtype is None else {"amp_level": "O1", "amp_dtype": amp_dtype}
    config = RunConfig(
        model=model,
        batch_size=options.batch_size,
        image_size=options.image_size,
        seed=options.seed,
        data="synthetic",
        lr=1e-2,
        capture=capture,
        **amp,
    ).with_arm(arm, place.world_size)
    try:
        accelerator = make_accelerator(config, place, device_type())
        accelerator.setup()
    except (ImportError, OSError, RuntimeError) as error:
        raise CannotRun(f"{arm} on {device_type()}: {first_line(error)}") from error
    return accelerator


def ready_arm(options: argparse.Namespace, **settings: Any) -> Accelerator:
    """An accelerator with a model on the device, ready to train; see make_arm."""
    accelerator = make_arm(options, **settings)
    accelerator.prepare(network(options))
    accelerator.start_totals()
    return accelerator


def network(options: argparse.Namespace) -> nn.Module:
    """The model on the CPU, with weights that hang on the seed alone: the same on every rank.

    Raises:
        ValueError: torchvision has no model of that name.
    """
    torch.manual_seed(options.seed)
    if options.model != SMALL:
        return build_model(options.model, NUM_CLASSES)
    return nn.Sequential(  # one of each kind of layer that a ResNet has
        nn.Conv2d(3, 16, 3, stride=2, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(16, 32, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, NUM_CLASSES),
    )


def batches(options: argparse.Namespace, number: int, *, rank: int = 0, size: int | None = None) -> list[Batch]:
    """Different batches on the host, images [N, 3, H, W] and classes [N]; each rank has its own."""
    random = torch.Generator().manual_seed(options.seed * 1009 + rank)
    count, pixels = options.batch_size if size is None else size, options.image_size
    return [
        (
            torch.randn(count, 3, pixels, pixels, generator=random),
            torch.randint(0, NUM_CLASSES, (count,), generator=random),
        )
        for _ in range(number)
    ]


def on_device(accelerator: Accelerator, batch: Batch) -> Batch:
    """A host batch on the device."""
    images, target = batch
    return images.to(accelerator.device), target.to(accelerator.device)


def xla_counts() -> dict[str, float]:
    """What torch-xla has done in this process so far: graphs compiled and run, seconds of compiling, read-backs."""
    from resnet_acc.training.accelerators import torchacc

    def data(name: str) -> tuple[float, float]:
        found = torchacc.xla_metrics.metric_data(name)
        return (found[0], found[1]) if found else (0, 0)

    compilations, compile_ns = data("CompileTime")
    return {
        "compilations": compilations,
        "compile_s": compile_ns / 1e9,
        "executions": data("ExecuteTime")[0],
        "read_backs": data("TransferFromDeviceTime")[0],
    }


def counts_since(before: dict[str, float]) -> dict[str, float]:
    """xla_counts() less an earlier one."""
    return {name: value - before[name] for name, value in xla_counts().items()}


def median_step_s(accelerator: Accelerator, step: Callable[[int], None], steps: int, windows: int = 3) -> float:
    """Seconds of one step: the median of several windows, the device waited for at their edges alone."""
    times = []
    for window in range(windows):
        accelerator.finish()
        begin = time.perf_counter()
        for number in range(steps):
            step(window * steps + number)
        accelerator.finish()
        times.append((time.perf_counter() - begin) / steps)
    return sorted(times)[windows // 2]


def scratch_folder() -> Path:
    """A new temporary folder that is gone when this process ends."""
    folder = tempfile.mkdtemp(prefix="resnet_acc_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def first_line(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

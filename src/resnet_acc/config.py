"""RunConfig: everything one run of one arm is told, its checks, named presets, and its way to and from JSON.

The command line, the notebook's parameter cell and the ranks all read this one dataclass; its field metadata is where
help texts and units stand.
"""

import dataclasses
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resnet_acc.config_values import at_least, checked_type, refuse_unknown, slug

ARMS = ("eager", "kernel", "inductor", "torchacc")
COMPILERS = ("torchacc", "inductor")
AMP_LEVELS = ("O0", "O1")
AMP_DTYPES = ("auto", "float16", "bfloat16")
SCHEDULES = ("constant", "cosine")
BAD_IMAGES = ("strict", "skip")
RDZV_BACKENDS = ("static", "c10d")
DEVICES = ("auto", "cpu", "cuda", "tpu")

MODELS = (
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    *("resnext50_32x4d", "resnext101_32x8d", "resnext101_64x4d", "wide_resnet50_2", "wide_resnet101_2"),
)
"""torchvision's ResNets (a test holds this list against torchvision's own)."""

SYNTHETIC_EPOCH_STEPS = 100
"""Steps of one epoch of synthetic data, which has no end of its own, where max_steps is not given."""


def _option(default: Any, help_text: str, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"help": help_text, "choices": choices})


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run: which arm trains which model on which data, on how many processes, and how it is timed.

    Raises:
        ValueError: a value of another type than the field's (True and "64" are no int; 64.0 is taken as 64), out of
            range, or two that contradict each other; the message names value and mend.
    """

    nproc_per_node: int = _option(1, "processes on this machine, one per device")
    amp_level: str = _option("O0", "O0: float32; O1: autocast, its dtype in every record", AMP_LEVELS)
    amp_dtype: str = _option("auto", "dtype of O1; auto: float16 on CUDA, bfloat16 on CPU and TPU", AMP_DTYPES)
    compiler_opt: bool = _option(False, "train with a compiler (see --compiler)")
    compiler: str = _option("torchacc", "compiler that --compiler-opt uses", COMPILERS)
    capture: bool = _option(True, "torchacc: trace the step once and replay its graph, instead of tracing each step")
    kernel_opt: bool = _option(False, "eager with channels_last, a fused optimizer and cudnn's search")
    batch_size: int = _option(128, "images per process and step")
    model: str = _option("resnet50", "torchvision ResNet to train", MODELS)
    image_size: int = _option(224, "height and width of an image, in pixels")
    data: str = _option("mock", "synthetic | mock | path of a folder with train/<class>/ and val/<class>/")
    bad_images: str = _option(
        "strict",
        "strict: stop at a file that cannot be read as an image and name it; skip: leave it out and count it",
        BAD_IMAGES,
    )
    allow_empty: bool = _option(False, "keep a class whose folder holds no image, instead of stopping")
    epochs: int = _option(1, "passes over the training data, at most")
    max_steps: int | None = _option(
        None,
        f"training steps at most, over all epochs (none: no cap; an epoch of synthetic is {SYNTHETIC_EPOCH_STEPS})",
    )
    warmup_steps: int | None = _option(None, "steps before the first timed interval (none: 10, at most a quarter)")
    log_interval: int = _option(10, "steps between two records")
    validate: bool = _option(True, "measure top-1 and top-5 on val/ after each epoch (synthetic data has none)")
    lr: float | None = _option(None, "learning rate (none: 1e-3, or 1e-6 on synthetic data, whose labels are noise)")
    lr_schedule: str = _option("constant", "constant; cosine: linear warm-up over a twentieth, then cosine", SCHEDULES)
    weight_decay: float = _option(0.01, "AdamW's decoupled weight decay")
    seed: int = _option(0, "seed of weights, data order and augmentation")
    workers: int | None = _option(
        None,
        "loader processes per rank (none: a rank's share of the cores, at most 16; on a CPU, which also trains, one)",
    )
    checkpoint_interval: int | None = _option(None, "steps between checkpoints, and one after the last (none: none)")
    keep_checkpoints: int = _option(2, "checkpoints of a run that are kept, the last ones")
    resume: str = _option(
        "no", "no | auto: from the newest whole checkpoint of this training, if any | path of a checkpoint or its run"
    )
    device: str = _option("auto", "auto: cuda where the arm can use a GPU, else cpu", DEVICES)
    nnodes: int = _option(1, "machines")
    node_rank: int = _option(0, "number of this machine, from 0")
    master_addr: str = _option("127.0.0.1", "address of machine 0")
    master_port: int | None = _option(None, "port of machine 0 (none: a free one on one machine, 29500 on several)")
    rdzv_backend: str = _option("static", "how machines find each other: torchrun's rendezvous", RDZV_BACKENDS)
    rdzv_endpoint: str | None = _option(None, "host:port where they meet (none: master_addr and master_port)")
    rdzv_id: str | None = _option(None, "name of the job at that place (none: the run's)")
    max_restarts: int = _option(0, "times that all ranks are started again after one failed, from the last checkpoint")
    hang_timeout_s: float | None = _option(
        None, "seconds without a step after which a rank counts as hanging (none: 30, or 20 times the longest interval)"
    )
    output: str = _option("output", "folder under which the run leaves its files")

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for spec in dataclasses.fields(self):
            object.__setattr__(self, spec.name, checked_type(spec.name, getattr(self, spec.name), hints[spec.name]))
            choices = spec.metadata["choices"]
            if choices and getattr(self, spec.name) not in choices:
                raise ValueError(f"{spec.name} is {getattr(self, spec.name)!r}; choose one of {', '.join(choices)}")
        self._check_ranges()
        self._check_pairs()

    def _check_ranges(self) -> None:
        for name in (
            "nproc_per_node",
            "batch_size",
            "epochs",
            "max_steps",
            "log_interval",
            "nnodes",
            "checkpoint_interval",
            "keep_checkpoints",
        ):
            at_least(name, getattr(self, name), 1)
        for name in (
            "hang_timeout_s",
            "warmup_steps",
            "workers",
            "node_rank",
            "seed",
            "weight_decay",
            "lr",
            "max_restarts",
        ):
            at_least(name, getattr(self, name), 0)
        if not 32 <= self.image_size <= 4096:
            raise ValueError(f"image_size is {self.image_size}; a ResNet needs 32 to 4096 pixels")
        if self.seed >= 2**32:  # a rank's own seeds are multiples of it, and torch's have 64 bits
            raise ValueError(f"seed is {self.seed}; give a number below 2**32")
        if self.master_port is not None and not 1 <= self.master_port <= 65535:
            raise ValueError(f"master_port is {self.master_port}; give a port from 1 to 65535")
        for name in ("data", "output", "master_addr", "resume"):
            if not getattr(self, name).strip() or "\0" in getattr(self, name):
                raise ValueError(f"{name} is {getattr(self, name)!r}; it cannot be empty")

    def _check_pairs(self) -> None:
        if self.compiler_opt and self.kernel_opt:
            raise ValueError(
                "compiler_opt and kernel_opt are two arms; give one of them (inductor has kernel_opt's changes)"
            )
        if self.compiler != "torchacc" and not self.compiler_opt:
            raise ValueError(
                f"compiler is {self.compiler!r} without compiler_opt, so nothing would use it; add --compiler-opt"
            )
        if self.amp_level == "O0" and self.amp_dtype != "auto":
            raise ValueError(f"amp_dtype is {self.amp_dtype!r} with amp_level O0, which is float32; use amp_level O1")
        if self.node_rank >= self.nnodes:
            raise ValueError(
                f"node_rank is {self.node_rank} with nnodes {self.nnodes}; it counts from 0 to {self.nnodes - 1}"
            )
        if self.nnodes > 1 and self.master_addr in ("127.0.0.1", "localhost"):
            raise ValueError(f"nnodes is {self.nnodes} but master_addr is {self.master_addr}; give machine 0's address")
        if self.max_steps is not None and self.warmup_steps is not None and self.warmup_steps >= self.max_steps:
            raise ValueError(
                f"warmup_steps is {self.warmup_steps} and max_steps {self.max_steps}: 0 steps after warm-up; "
                f"give more steps or at most {self.max_steps - 1} warm-up steps"
            )

    @property
    def arm(self) -> str:
        """Which of ARMS the options choose."""
        if self.compiler_opt:
            return self.compiler
        return "kernel" if self.kernel_opt else "eager"

    @property
    def world_size(self) -> int:
        """Processes over all machines."""
        return self.nproc_per_node * self.nnodes

    @property
    def global_batch_size(self) -> int:
        """Images of one step over all processes."""
        return self.batch_size * self.world_size

    @property
    def learning_rate(self) -> float:
        """lr, or its default: small on synthetic data, so that the random labels are not learnt by heart."""
        if self.lr is not None:
            return self.lr
        return 1e-6 if self.data == "synthetic" else 1e-3

    def learning_rate_at(self, step: int, total_steps: int) -> float:
        """The learning rate of a step, counted from 0.

        cosine is that of He et al. 2019 (arXiv:1812.01187), sections 3.1 and 5.1: up in a line to the whole rate over
        the first twentieth of the steps, then down to near 0 by half a cosine.
        """
        if self.lr_schedule == "constant":
            return self.learning_rate
        rising = max(1, total_steps // 20)
        if step < rising:
            return self.learning_rate * (step + 1) / rising
        done = (step - rising) / max(1, total_steps - rising)
        return self.learning_rate * 0.5 * (1.0 + math.cos(math.pi * done))

    @property
    def suffix(self) -> str:
        """Folder that names arm and process count, such as eager_x1."""
        return f"{self.arm}_x{self.world_size}"

    def tag(self, device_name: str) -> str:
        """Folder that names what is held equal between runs, such as h200_O1_bs128; what is not default is added."""
        parts = [device_name, self.amp_level, f"bs{self.batch_size}"]
        if self.amp_dtype != "auto":
            parts.append(self.amp_dtype)
        if self.image_size != 224:
            parts.append(f"{self.image_size}px")
        if self.data != "mock":
            parts.append(slug(Path(self.data).name))
        return "_".join(parts)

    def with_arm(self, arm: str, nproc_per_node: int | None = None) -> "RunConfig":
        """The same run by another arm and, where given, another number of processes.

        Raises:
            ValueError: the arm is not one of ARMS.
        """
        if arm not in ARMS:
            raise ValueError(f"arm is {arm!r}; choose one of {', '.join(ARMS)}")
        return dataclasses.replace(
            self,
            compiler_opt=arm in COMPILERS,
            compiler=arm if arm in COMPILERS else "torchacc",
            kernel_opt=arm == "kernel",
            nproc_per_node=self.nproc_per_node if nproc_per_node is None else nproc_per_node,
        )

    def to_arguments(self) -> list[str]:
        """Options for launch_single_task that give this configuration again; defaults are left out."""
        arguments = []
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            if value == spec.default:
                continue
            if isinstance(value, bool):
                arguments.append(f"--{spec.name.replace('_', '-')}" if value else f"--no-{spec.name.replace('_', '-')}")
            else:
                arguments.append(f"--{spec.name}={value}")
        return arguments

    def to_json(self) -> dict[str, Any]:
        """Field names and plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "RunConfig":
        """Build from plain values.

        Raises:
            ValueError: a name that is no field, with the nearest fields named.
        """
        refuse_unknown(values, [spec.name for spec in dataclasses.fields(cls)])
        return cls(**values)


PRESETS: dict[str, dict[str, Any]] = {
    # ResNet-18 at 32 px, so that four arms on one and two processes, compilation included, take minutes on two cores.
    "quick": {
        "model": "resnet18",
        "image_size": 32,
        "batch_size": 16,
        "amp_level": "O1",
        "epochs": 2,
        "warmup_steps": 5,
        "log_interval": 5,
        "workers": 1,
    },
    # The article's model on what a workstation can do.
    "standard": {
        "model": "resnet50",
        "image_size": 128,
        "batch_size": 32,
        "amp_level": "O1",
        "max_steps": 100,
        "warmup_steps": 10,
        "log_interval": 10,
    },
    # The article's own settings.
    "article": {
        "model": "resnet50",
        "image_size": 224,
        "batch_size": 128,
        "amp_level": "O1",
        "max_steps": 200,
        "warmup_steps": 20,
        "log_interval": 20,
    },
}


def preset_config(preset: str, **overrides: Any) -> RunConfig:
    """The configuration of a preset, with overrides on top.

    Raises:
        ValueError: no preset of that name.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset is {preset!r}; choose one of {', '.join(PRESETS)}")
    return RunConfig.from_json({**PRESETS[preset], **overrides})

"""The arm torchacc in the tests' own process, on XLA's CPU device, with a model that compiles in a second."""

from collections.abc import Iterable, Sequence

import pytest
import torch
from torch import nn

from resnet_acc.config import RunConfig
from resnet_acc.logger import COMPILER_VARIABLE
from resnet_acc.training.accelerators import make_accelerator
from resnet_acc.training.accelerators.base import Accelerator
from resnet_acc.training.distributed import Place

ALONE = Place(rank=0, local_rank=0, world_size=1)
CLASSES = 10
FLOAT32 = {"amp_level": "O0"}
BFLOAT16 = {"amp_level": "O1", "amp_dtype": "bfloat16"}
FLOAT16 = {"amp_level": "O1", "amp_dtype": "float16"}
PRECISIONS = [pytest.param(FLOAT32, id="O0"), pytest.param(BFLOAT16, id="bf16"), pytest.param(FLOAT16, id="fp16")]

Batch = tuple[torch.Tensor, torch.Tensor]


def small_model(classes: int = CLASSES) -> nn.Module:
    """Every kind of layer that a ResNet has, with weights that are always the same."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(8, 8, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, classes),
    )


def torchacc_arm(place: Place = ALONE, **values: object) -> Accelerator:
    """The arm, not yet set up."""
    settings = {"model": "resnet18", "image_size": 32, "batch_size": 8, "data": "synthetic", "lr": 1e-2, **values}
    config = RunConfig(**settings).with_arm("torchacc", place.world_size)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:  # read when the arm's module is imported
        patch.setenv(COMPILER_VARIABLE, "torchacc")
        patch.setenv("RESNET_ACC_DEVICE", "cpu")
        return make_accelerator(config, place, "cpu")


def ready_arm(model: nn.Module | None = None, **values: object) -> Accelerator:
    """The arm with a model on the device, ready to train."""
    accelerator = torchacc_arm(**values)
    accelerator.setup()
    accelerator.prepare(small_model() if model is None else model)
    return accelerator


def batches(number: int, size: int = 8, image_size: int = 32, seed: int = 1) -> list[Batch]:
    """Different batches on the host, always the same ones."""
    random = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, 3, image_size, image_size, generator=random),
            torch.randint(0, CLASSES, (size,), generator=random),
        )
        for _ in range(number)
    ]


def train(accelerator: Accelerator, given: Iterable[Batch]) -> list[float]:
    """Each step's summed loss."""
    losses = []
    for images, target in given:
        accelerator.start_totals()
        accelerator.train_step(images.to(accelerator.device), target.to(accelerator.device))
        accelerator.finish()
        losses.append(accelerator.read_totals()["loss"])
    return losses


def values(accelerator: Accelerator) -> list[torch.Tensor]:
    """All that training changes, on the host: the model's state, then the optimizer's."""
    tensors = [*accelerator.model.state_dict().values()]
    for state in accelerator.optimizer.state_dict()["state"].values():
        tensors += [value for value in state.values() if torch.is_tensor(value)]
    return [tensor.detach().cpu().clone() for tensor in tensors]


def assert_same(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> None:
    """Equal to the last bit, and as many."""
    assert len(left) == len(right) > 0
    for one, other in zip(left, right, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)

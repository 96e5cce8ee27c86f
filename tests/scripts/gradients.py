"""Started by a test for each rank: gradients of one step of an arm on this rank's part of a fixed batch.

Usage: gradients.py ARM OUT_FILE      (rank 0 writes the file)
"""

import sys

import torch
from torch import nn

from resnet_acc.config import RunConfig
from resnet_acc.training.accelerators import make_accelerator
from resnet_acc.training.distributed import read_place

NUM_IMAGES, SIZE, CLASSES = 8, 32, 10


class Recorder:
    """Stands where the optimizer is and keeps the gradients it would have used."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.gradients: list[torch.Tensor] = []

    def __call__(self, *args: object, **options: object) -> None:
        parameters = self._optimizer.param_groups[0]["params"]
        self.gradients = [parameter.grad.detach().clone() for parameter in parameters]


def main() -> None:
    arm, out = sys.argv[1:]
    place = read_place()
    config = RunConfig(
        model="resnet18",
        image_size=SIZE,
        batch_size=NUM_IMAGES // place.world_size,
        nproc_per_node=place.world_size,
        capture=False,  # a captured step keeps nothing of what happens within it
    ).with_arm(arm)
    accelerator = make_accelerator(config, place, "cpu")
    accelerator.setup()
    torch.manual_seed(0)
    # No BatchNorm: its statistics are each rank's own, so its gradients differ by design.
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )
    accelerator.prepare(model)
    recorder = Recorder(accelerator.optimizer)
    accelerator.optimizer.step = recorder  # type: ignore[method-assign]
    images, target = torch.randn(NUM_IMAGES, 3, SIZE, SIZE), torch.randint(0, CLASSES, (NUM_IMAGES,))
    own = slice(place.rank * config.batch_size, (place.rank + 1) * config.batch_size)
    ((on_device, classes),) = accelerator.on_device(iter([(images[own], target[own])]))
    accelerator.start_totals()
    accelerator.train_step(on_device, classes)
    accelerator.finish()
    if place.rank == 0:
        torch.save([gradient.cpu() for gradient in recorder.gradients], out)
    accelerator.teardown()


if __name__ == "__main__":
    main()

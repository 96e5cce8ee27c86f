"""What a user changes between steps reaches a captured step, or is refused: never silently what it was."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from xla_tools import BFLOAT16, FLOAT32, batches, ready_arm, small_model, train

from resnet_acc.training.accelerators.base import Accelerator

pytest.importorskip("torch_xla")


class Doubling(nn.Module):
    """Another function while training than in evaluation, as Dropout is, and without random numbers."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return 2.0 * values if self.training else values


def model() -> nn.Module:
    return nn.Sequential(*list(small_model())[:-1], Doubling(), small_model()[-1])


def evaluate_one_module(arm: Accelerator) -> None:
    arm.inner_model()[-2].eval()  # type: ignore[index]


def freeze_a_weight(arm: Accelerator) -> None:
    arm.inner_model()[0].weight.requires_grad_(False)  # type: ignore[index]


@pytest.mark.parametrize("precision", [FLOAT32, BFLOAT16], ids=["O0", "bf16"])
@pytest.mark.parametrize("change", [evaluate_one_module, freeze_a_weight])
def test_a_changed_model_is_traced_anew(
    xla_device: torch.device, precision: dict[str, str], change: Callable[[Accelerator], None]
) -> None:
    losses = {}
    for capture in (True, False):
        arm = ready_arm(model(), capture=capture, **precision)
        losses[capture] = train(arm, batches(1))
        change(arm)
        losses[capture] += train(arm, batches(4)[1:])
    assert losses[True] == losses[False]
    unchanged = train(ready_arm(model(), **precision), batches(4))
    assert losses[True][0] == unchanged[0]
    assert losses[True][-1] != unchanged[-1]


@pytest.mark.parametrize("precision", [FLOAT32, BFLOAT16], ids=["O0", "bf16"])
@pytest.mark.parametrize("rate", [0.5, 0.0, 1.0])
def test_a_learning_rate_set_in_the_optimizer_is_the_next_steps(
    xla_device: torch.device, precision: dict[str, str], rate: float
) -> None:
    losses = {}
    for capture in (True, False):
        arm = ready_arm(capture=capture, **precision)
        losses[capture] = train(arm, batches(1))
        arm.optimizer.param_groups[0]["lr"] = rate
        losses[capture] += train(arm, batches(4)[1:])
    assert losses[True] == losses[False]
    assert losses[True][-1] != train(ready_arm(**precision), batches(4))[-1]

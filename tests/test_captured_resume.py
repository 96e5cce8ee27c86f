"""State taken from the arm torchacc and given back: training goes on as if nothing had been between."""

import copy

import pytest
import torch
from xla_tools import PRECISIONS, batches, ready_arm, train

from resnet_acc.training.accelerators.base import Accelerator

pytest.importorskip("torch_xla")
STEPS = 3


def state_of(arm: Accelerator) -> list[dict]:
    """Copies on the host of everything that outlives a step."""
    model = {name: value.cpu() for name, value in arm.inner_model().state_dict().items()}
    return [model, copy.deepcopy(arm.optimizer.state_dict()), arm.scaler.state_dict()]  # type: ignore[attr-defined]


def load(arm: Accelerator, state: list[dict]) -> None:
    model, optimizer, scaler = copy.deepcopy(state)
    arm.inner_model().load_state_dict(model)
    arm.optimizer.load_state_dict(optimizer)
    if scaler:
        arm.scaler.load_state_dict(scaler)  # type: ignore[attr-defined]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("capture", [True, False], ids=["captured", "traced"])
@pytest.mark.parametrize("fresh", [True, False], ids=["another arm", "the same arm, trained on meanwhile"])
def test_training_goes_on_from_loaded_state(
    xla_device: torch.device, precision: dict[str, str], capture: bool, fresh: bool
) -> None:
    data = batches(2 * STEPS)
    whole = train(ready_arm(capture=capture, **precision), data)
    arm = ready_arm(capture=capture, **precision)
    first = train(arm, data[:STEPS])
    state = state_of(arm)
    if fresh:
        arm = ready_arm(capture=capture, **precision)
    else:
        train(arm, data[:2])
    load(arm, state)
    assert first + train(arm, data[STEPS:]) == whole
    assert len(set(whole)) == 2 * STEPS

"""The arm torchacc captured and traced: the same numbers to the last bit, and what a captured run writes down."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_training_loop import records
from torch import nn
from torchrun import train as train_in_own_process
from xla_tools import (
    BFLOAT16,
    FLOAT32,
    PRECISIONS,
    assert_same,
    batches,
    ready_arm,
    small_model,
    torchacc_arm,
    train,
    values,
)

from resnet_acc.config import RunConfig
from resnet_acc.logger import create_logger
from resnet_acc.training.accelerators.base import Accelerator
from resnet_acc.training.data import TrainingData
from resnet_acc.training.distributed import HostGroup, Place
from resnet_acc.training.loop import Loop
from resnet_acc.training.main import start_record

pytest.importorskip("torch_xla")

NO_SCALING = [pytest.param(FLOAT32, id="O0"), pytest.param(BFLOAT16, id="bf16")]


@pytest.fixture(autouse=True)
def _device(xla_device: torch.device) -> None:
    """Every test here needs it."""


def both(
    use: Callable[[Accelerator], Any], model: Callable[[], nn.Module] = small_model, **settings: object
) -> tuple[Any, Any]:
    """What a use of the arm gives captured and traced, once it is sure that each is what it is called."""
    given = []
    for capture in (True, False):
        accelerator = ready_arm(model(), capture=capture, **settings)
        assert accelerator.compile_mode == ("captured" if capture else "traced")
        given.append(use(accelerator))
    return given[0], given[1]


def num_graphs(accelerator: Accelerator) -> int:
    return accelerator._captured.num_graphs  # type: ignore[attr-defined]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_fifty_steps_are_those_of_the_traced_arm_to_the_last_bit(precision: dict[str, str]) -> None:
    def use(accelerator: Accelerator) -> tuple[list[float], list[torch.Tensor], float | None]:
        return train(accelerator, batches(50)), values(accelerator), accelerator.loss_scale()

    captured, traced = both(use, **precision)
    assert captured[0] == traced[0]
    assert_same(captured[1], traced[1])
    assert captured[2] == traced[2]
    assert len(set(captured[0])) == 50


@pytest.mark.slow
def test_fifty_steps_of_resnet18_are_those_of_the_traced_arm_to_the_last_bit(tmp_path: Path) -> None:
    runs = {}
    for capture in (True, False):
        config = RunConfig(
            model="resnet18", image_size=32, batch_size=4, data="synthetic", max_steps=50, warmup_steps=1,
            log_interval=1, lr=1e-4, lr_schedule="cosine", capture=capture,
        )  # fmt: skip
        runs[capture] = train_in_own_process(config.with_arm("torchacc"), tmp_path / str(capture))
    losses = {capture: [record["loss"] for record in events["interval"]] for capture, events in runs.items()}
    assert losses[True] == losses[False]
    assert len(set(losses[True])) == 50
    assert runs[True]["start"][0]["compile_mode"] == "captured"
    assert runs[False]["start"][0]["compile_mode"] == "traced"
    assert [record["compilations"] for record in runs[True]["interval"][1:]] == [0] * 49


def run_loop(folder: Path, **settings: object) -> list[dict]:
    """Twenty steps by the loop on synthetic data, which has 1000 classes; the records of the intervals."""
    accelerator = torchacc_arm(max_steps=20, warmup_steps=2, log_interval=1, **settings)
    accelerator.setup()
    accelerator.prepare(small_model(classes=1000))
    create_logger(folder, 0)
    data = TrainingData(accelerator.config, accelerator.place, "cpu")
    Loop(accelerator.config, accelerator, data, time.time(), Path("unused")).run()
    if accelerator.compile_mode == "captured":
        assert num_graphs(accelerator) == 1
    return records(folder, "interval")


def losses(intervals: list[dict]) -> list[float]:
    return [record["loss"] for record in intervals]


@pytest.mark.parametrize("precision", NO_SCALING)
def test_a_scheduled_learning_rate_is_an_input_of_the_captured_step(precision: dict[str, str], tmp_path: Path) -> None:
    captured = run_loop(tmp_path / "captured", lr_schedule="cosine", **precision)
    traced = run_loop(tmp_path / "traced", lr_schedule="cosine", capture=False, **precision)
    constant = run_loop(tmp_path / "constant", **precision)
    assert losses(captured) == losses(traced)
    # The first step's rate is the whole one in both, and the rate of step 2 first shows in the loss of step 3.
    parted = [one != other for one, other in zip(losses(captured), losses(constant), strict=True)]
    assert parted[:2] == [False, False]
    assert all(parted[3:])


@pytest.mark.parametrize("precision", NO_SCALING)
def test_records_hold_the_rate_in_use_and_no_compilation_after_the_first_step(
    precision: dict[str, str], tmp_path: Path
) -> None:
    intervals = run_loop(tmp_path, lr_schedule="cosine", image_size=33, **precision)  # a size of no other test
    config = RunConfig(lr=1e-2, lr_schedule="cosine")
    assert [record["lr"] for record in intervals] == [config.learning_rate_at(step, 20) for step in range(20)]
    assert len({record["lr"] for record in intervals}) > 15
    compilations = [record["compilations"] for record in intervals]
    assert compilations[0] >= 1
    assert compilations[1:] == [0] * 19


@pytest.mark.parametrize("capture", [True, False])
def test_host_time_is_in_every_interval_and_a_part_of_it(capture: bool, tmp_path: Path) -> None:
    intervals = run_loop(tmp_path, capture=capture)
    assert len(intervals) == 20
    for record in intervals:
        assert 0 < record["host_time_s"] <= record["step_time_s"] - record["data_time_s"]


@pytest.mark.parametrize(
    ("settings", "num_processes", "mode"),
    [({}, 1, "captured"), ({"capture": False}, 1, "traced"), ({}, 2, "traced"), ({"capture": False}, 2, "traced")],
)
def test_the_start_record_says_how_steps_are_compiled(settings: dict, num_processes: int, mode: str) -> None:
    place = Place(rank=0, local_rank=0, world_size=num_processes)
    accelerator = torchacc_arm(place, **settings)
    data = TrainingData(accelerator.config, place, "cpu")
    record = start_record(accelerator.config, place, "run", accelerator, data)
    assert record["compile_mode"] == mode


@pytest.mark.parametrize("precision", NO_SCALING)
def test_a_batch_of_another_shape_is_compiled_once_and_right(precision: dict[str, str]) -> None:
    given = [batches(1, size, image_size=34)[0] for size in (6, 6, 3, 6, 3)]  # a size of no other test

    def use(accelerator: Accelerator) -> tuple[list[float], list[torch.Tensor], list[int]]:
        found, compiled = [], []
        for batch in given:
            before = accelerator.compilations()
            found += train(accelerator, [batch])
            compiled.append(accelerator.compilations() - before)
        if accelerator.compile_mode == "captured":
            assert num_graphs(accelerator) == 2
        return found, values(accelerator), compiled

    captured, traced = both(use, **precision)
    assert captured[0] == traced[0]
    assert_same(captured[1], traced[1])
    assert captured[2][0] >= 1
    assert captured[2][1:] == [0, 1, 0, 0]


@pytest.mark.parametrize("precision", NO_SCALING)
@pytest.mark.parametrize(
    ("name", "value"), [("weight_decay", 0.9), ("weight_decay", 0.0), ("eps", 1.0), ("betas", (0.1, 0.2))]
)
def test_another_setting_of_the_optimizer_is_traced_and_right(
    precision: dict[str, str], name: str, value: object
) -> None:
    def use(accelerator: Accelerator, change: bool = True) -> list[torch.Tensor]:
        train(accelerator, batches(3))
        if change:
            accelerator.optimizer.param_groups[0][name] = value
        train(accelerator, batches(3))
        if accelerator.compile_mode == "captured":
            assert num_graphs(accelerator) == (2 if change else 1)
        return values(accelerator)

    captured, traced = both(use, **precision)
    assert_same(captured, traced)
    unchanged = use(ready_arm(**precision), change=False)
    assert any(not torch.equal(one, other) for one, other in zip(captured, unchanged, strict=True))


class DoubledInTraining(nn.Module):
    """Differs between training and evaluation. (torch-xla has no backward pass of BatchNorm in evaluation.)"""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values * 2.0 if self.training else values


@pytest.mark.parametrize("precision", NO_SCALING)
def test_training_and_evaluation_mode_are_two_graphs(precision: dict[str, str]) -> None:
    def use(accelerator: Accelerator) -> tuple[list[float], list[torch.Tensor]]:
        found = []
        for training in (True, False, True, False):
            accelerator.model.train(training)
            found += train(accelerator, batches(1))
        if accelerator.compile_mode == "captured":
            assert num_graphs(accelerator) == 2
        return found, values(accelerator)

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), DoubledInTraining(), nn.Linear(12, 10))

    captured, traced = both(use, model, **precision)
    assert captured[0] == traced[0]
    assert len(set(captured[0])) == 4
    assert_same(captured[1], traced[1])


@pytest.mark.parametrize("precision", NO_SCALING)
@pytest.mark.parametrize("rates", [(0.0, 0.0), (1.0, 1.0), (0.3, 0.3), (0.3, 0.0), (0.0, 1.0), (0.3, 0.01)])
def test_a_learning_rate_may_be_any_number(precision: dict[str, str], rates: tuple[float, float]) -> None:
    # 0 and 1 are constants to torch-xla; 0.3 is the weight decay as well, which must stay when the rate changes.
    def use(accelerator: Accelerator) -> tuple[list[float], list[torch.Tensor]]:
        found = train(accelerator, batches(2))
        accelerator.set_learning_rate(rates[1])
        return found + train(accelerator, batches(2, seed=2)), values(accelerator)

    captured, traced = both(use, lr=rates[0], weight_decay=0.3, **precision)
    assert captured[0] == traced[0]
    assert_same(captured[1], traced[1])


@pytest.mark.parametrize("precision", NO_SCALING)
def test_a_learning_rate_of_zero_changes_no_parameter(precision: dict[str, str]) -> None:
    accelerator = ready_arm(lr=0.0, **precision)
    before = [parameter.detach().cpu() for parameter in accelerator.model.parameters()]
    train(accelerator, batches(2))
    assert_same([parameter.detach().cpu() for parameter in accelerator.model.parameters()], before)


@pytest.mark.parametrize("precision", NO_SCALING)
def test_evaluation_between_steps_sees_the_new_values_and_disturbs_nothing(precision: dict[str, str]) -> None:
    def use(accelerator: Accelerator) -> tuple[list[float], list[float], list[torch.Tensor]]:
        found, scores = [], []
        for _ in range(3):
            found += train(accelerator, batches(3))
            scores += accelerator.evaluate(iter(batches(2, size=5, seed=2)), HostGroup())
        if accelerator.compile_mode == "captured":
            assert num_graphs(accelerator) == 1
        return found, scores, values(accelerator)

    captured, traced = both(use, **precision)
    assert captured[:2] == traced[:2]
    assert_same(captured[2], traced[2])
    assert len(set(captured[1][::4])) == 3  # the summed losses of three evaluations


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_loaded_between_steps_is_what_the_next_step_reads(precision: dict[str, str]) -> None:
    fresh = small_model().state_dict()

    def use(accelerator: Accelerator) -> tuple[list[float], list[torch.Tensor]]:
        train(accelerator, batches(2))
        accelerator.model.load_state_dict(fresh)
        loaded = accelerator.model.state_dict()
        assert_same([loaded[name].cpu() for name in fresh], list(fresh.values()))
        return train(accelerator, batches(2)), values(accelerator)

    captured, traced = both(use, **precision)
    assert captured[0] == traced[0]
    assert_same(captured[1], traced[1])


def test_views_of_parameters_see_the_new_values() -> None:
    accelerator = ready_arm()
    weight = accelerator.model[-1].weight  # type: ignore[index]
    transposed, detached, first = weight.T, weight.detach(), weight.data[0]
    before = weight.detach().cpu()
    train(accelerator, batches(2))
    now = weight.detach().cpu()
    assert not torch.equal(now, before)
    assert_same([transposed.detach().cpu(), detached.cpu(), first.cpu()], [now.T, now, now[0]])


def test_a_model_with_dropout_is_refused_and_left_as_it_was() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(3 * 32 * 32, 10))
    accelerator = ready_arm(model)
    before = values(accelerator)
    with pytest.raises(RuntimeError, match="random numbers.*--no-capture"):
        train(accelerator, batches(1))
    assert_same(values(accelerator), before)
    assert all(parameter.grad is None for parameter in accelerator.model.parameters())

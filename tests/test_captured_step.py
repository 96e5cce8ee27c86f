"""A function that is traced once and replayed: what it may read, what it refuses, and whose buffers it overwrites."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from resnet_acc.training.accelerators import captured_step
from resnet_acc.training.accelerators.captured_step import CapturedStep

torch_xla = pytest.importorskip("torch_xla")

Function = Callable[..., tuple[torch.Tensor, ...]]


@pytest.fixture
def donating(monkeypatch: pytest.MonkeyPatch) -> None:
    """State of any size gives up its buffer."""
    monkeypatch.setattr(captured_step, "DONATED_BYTES", 0)


class Sum:
    """A state of shape [2, 3] to which each step adds its input; gives the sum of all entries."""

    def __init__(self, device: torch.device, function: Function | None = None, **settings: object) -> None:
        self.device = device
        self.state = torch.arange(6.0).reshape(2, 3).to(device)
        self.step = CapturedStep(function or self.add, [self.state], xla=torch_xla, **settings)  # type: ignore[arg-type]

    def add(self, values: torch.Tensor) -> tuple[torch.Tensor]:
        self.state.add_(values)
        return (self.state.sum(),)

    def __call__(self, value: float = 1.0, shape: tuple[int, ...] = (2, 3)) -> float:
        return self.step(torch.full(shape, value).to(self.device))[0].item()

    @property
    def values(self) -> list[float]:
        return self.state.cpu().flatten().tolist()


START = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def after(steps: float) -> list[float]:
    return [value + steps for value in START]


def on_device(value: float, device: torch.device) -> torch.Tensor:
    tensor = torch.full((2, 3), value).to(device)
    torch_xla.sync()
    return tensor


@pytest.mark.parametrize("donated_bytes", [0, captured_step.DONATED_BYTES])
def test_steps_follow_one_another(
    xla_device: torch.device, monkeypatch: pytest.MonkeyPatch, donated_bytes: int
) -> None:
    monkeypatch.setattr(captured_step, "DONATED_BYTES", donated_bytes)
    total = Sum(xla_device)
    assert [total(1.0), total(2.0), total(3.0)] == [21.0, 33.0, 51.0]
    assert total.values == after(6.0)


def test_python_runs_in_the_first_step_only(xla_device: torch.device) -> None:
    calls = []
    total = Sum(xla_device, lambda values: (calls.append(1), total.add(values))[1])
    for _ in range(5):
        total()
    assert len(calls) == total.step.num_graphs == 1


def test_another_shape_is_traced_and_both_graphs_stay(xla_device: torch.device) -> None:
    total = Sum(xla_device, lambda values: total.add(values.sum()))
    for shape in ((2, 3), (4,), (2, 3), (4,)):
        total(1.0, shape)
    assert total.values == after(6 + 4 + 6 + 4)
    assert total.step.num_graphs == 2


def test_another_dtype_is_traced(xla_device: torch.device) -> None:
    total = Sum(xla_device, lambda values: total.add(values / 2))
    total.step(torch.ones(2, 3).to(xla_device))
    total.step(torch.ones(2, 3, dtype=torch.int32).to(xla_device))
    assert total.values == after(1.0)
    assert total.step.num_graphs == 2


def test_a_frozen_number_that_changes_is_traced_anew(xla_device: torch.device) -> None:
    number = {"factor": 1.0}
    total = Sum(xla_device, lambda values: total.add(values * number["factor"]), frozen=lambda: number["factor"])
    for number["factor"] in (1.0, 10.0, 1.0):
        total()
    assert total.values == after(12.0)
    assert total.step.num_graphs == 2


def scaled(device: torch.device, rate: dict[str, float], use: Callable[[float], float]) -> Sum:
    """A step that adds its input times use(learning rate)."""
    total = Sum(
        device,
        lambda values: total.add(values * use(rate["lr"]) * rate["other"]),
        learning_rate=lambda: rate["lr"],
        set_learning_rate=lambda value: rate.update(lr=value),
    )
    return total


def test_the_learning_rate_is_an_input(xla_device: torch.device) -> None:
    rate = {"lr": 0.5, "other": 1.0}
    total = scaled(xla_device, rate, lambda lr: lr)
    for rate["lr"] in (0.5, 0.25, 0.0, 1.0):
        total()
    assert total.values == after(1.75)
    assert total.step.num_graphs == 1
    assert rate["lr"] == 1.0  # what stands for it while tracing is taken out again


def test_another_number_of_the_same_value_is_not_taken_for_the_learning_rate(xla_device: torch.device) -> None:
    rate = {"lr": 0.5, "other": 0.5}
    total = scaled(xla_device, rate, lambda lr: lr)
    total()
    rate["lr"] = 2.0
    total()
    assert total.values == after(0.25 + 1.0)


def test_a_learning_rate_that_is_only_a_part_of_a_number_is_refused(xla_device: torch.device) -> None:
    rate = {"lr": 0.5, "other": 1.0}
    total = scaled(xla_device, rate, lambda lr: -lr)
    with pytest.raises(RuntimeError, match="learning rate.*--no-capture"):
        total()
    assert (total.values, rate["lr"]) == (START, 0.5)


@pytest.mark.parametrize("shape", [(2, 3), ()])
def test_a_tensor_that_the_step_closes_over_is_refused(xla_device: torch.device, shape: tuple[int, ...]) -> None:
    other = torch.full(shape, 5.0).to(xla_device)
    total = Sum(xla_device, lambda values: total.add(values * other))
    with pytest.raises(RuntimeError, match="neither its input nor its state.*--no-capture"):
        total()
    assert total.values == START
    assert total.step.num_graphs == 0


def test_a_tensor_that_the_step_brings_from_the_host_is_refused(xla_device: torch.device) -> None:
    total = Sum(xla_device, lambda values: total.add(values * torch.tensor([1.0, 2.0, 3.0]).to(xla_device)))
    with pytest.raises(RuntimeError, match=r"shape \[3\].*--no-capture"):
        total()
    assert total.values == START


@pytest.mark.parametrize("draw", [nn.functional.dropout, torch.rand_like, torch.bernoulli])
def test_random_numbers_are_refused(xla_device: torch.device, draw: Callable[[torch.Tensor], torch.Tensor]) -> None:
    total = Sum(xla_device, lambda values: total.add(draw(values)))
    with pytest.raises(RuntimeError, match="random numbers.*--no-capture"):
        total()
    assert total.values == START
    assert total.step.num_graphs == 0


def test_dropout_that_draws_nothing_is_taken(xla_device: torch.device) -> None:
    total = Sum(xla_device, lambda values: total.add(nn.functional.dropout(values, training=False)))
    total()
    assert total.values == after(1.0)


@pytest.mark.parametrize("steps_before", [0, 2])
def test_an_error_while_tracing_leaves_the_state_and_what_comes_later(
    xla_device: torch.device, donating: None, steps_before: int
) -> None:
    forgotten = []

    def fail(values: torch.Tensor) -> tuple[torch.Tensor]:
        total.add(values.sum())
        if broken:
            raise KeyError("broken")
        return (total.state.sum(),)

    total = Sum(xla_device, fail, forget=lambda: forgotten.append(1))
    broken = False
    for _ in range(steps_before):
        total()
    broken = True
    with pytest.raises(KeyError, match="broken"):
        total(1.0, (4,))
    assert len(forgotten) == bool(steps_before) + 1  # gradients of a step that failed must not meet the next one's
    assert total.values == after(6.0 * steps_before)
    broken = False
    total(1.0, (4,))
    total()
    assert total.values == after(6.0 * steps_before + 10.0)


def test_a_donated_buffer_is_gone_after_the_step(xla_device: torch.device, donating: None) -> None:
    total = Sum(xla_device)
    total()
    before = total.state.detach().clone()  # another name of the buffer
    total()
    with pytest.raises(RuntimeError, match="deleted or donated"):
        before.cpu()


def test_a_small_buffer_is_kept(xla_device: torch.device) -> None:
    total = Sum(xla_device)
    total()
    before = total.state.detach().clone()
    total()
    assert before.cpu().flatten().tolist() == after(1.0)


def test_a_copy_that_was_computed_outlives_the_buffer(xla_device: torch.device, donating: None) -> None:
    total = Sum(xla_device)
    total()
    before = total.state.detach().clone()
    torch_xla.sync()
    total()
    assert before.cpu().flatten().tolist() == after(1.0)


def test_what_the_state_was_copied_from_at_first_lives_on(xla_device: torch.device, donating: None) -> None:
    other = on_device(7.0, xla_device)
    state = other.clone()

    def add(values: torch.Tensor) -> tuple[torch.Tensor]:
        state.add_(values)
        return (state.sum(),)

    step = CapturedStep(add, [state], xla=torch_xla)
    for _ in range(2):
        step(on_device(1.0, xla_device))
    assert (other.cpu().unique().tolist(), state.cpu().unique().tolist()) == ([7.0], [9.0])


@pytest.mark.parametrize("sync", [False, True])
def test_what_is_copied_into_the_state_lives_on(xla_device: torch.device, donating: None, sync: bool) -> None:
    total = Sum(xla_device)
    total()
    other = on_device(7.0, xla_device)
    total.state.copy_(other)
    if sync:
        torch_xla.sync()
    total()
    total()
    assert (other.cpu().unique().tolist(), total.state.cpu().unique().tolist()) == ([7.0], [9.0])


def test_one_entry_of_the_state_may_be_copied_into_another(xla_device: torch.device, donating: None) -> None:
    one, other = on_device(1.0, xla_device), on_device(2.0, xla_device)

    def change(values: torch.Tensor) -> tuple[torch.Tensor]:
        one.add_(values)
        other.mul_(2.0)
        return (one.sum(),)

    step = CapturedStep(change, [one, other], xla=torch_xla)
    step(on_device(1.0, xla_device))
    other.copy_(one)
    step(on_device(1.0, xla_device))
    assert (one.cpu().unique().tolist(), other.cpu().unique().tolist()) == ([3.0], [4.0])


def test_an_input_outlives_the_step(xla_device: torch.device, donating: None) -> None:
    total, values = Sum(xla_device), on_device(1.0, xla_device)
    for _ in range(2):
        total.step(values)
    assert (values.cpu().unique().tolist(), total.values) == ([1.0], after(2.0))


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda state: state.fill_(10.0), id="fill"),
        pytest.param(lambda state: state.mul_(0.0).add_(10.0), id="in place"),
        pytest.param(lambda state: state.copy_(torch.full((2, 3), 10.0)), id="copy from the host"),
        pytest.param(lambda state: state.copy_(torch.full((2, 3), 10.0, dtype=torch.bfloat16)), id="copy and cast"),
        pytest.param(lambda state: state.t().fill_(10.0), id="through a view"),
        pytest.param(lambda state: state.data.fill_(10.0), id="through data"),
        pytest.param(lambda state: state.detach().mul_(0.0).add_(10.0), id="through detach"),
    ],
)
def test_what_is_written_into_the_state_is_what_the_next_step_reads(
    xla_device: torch.device, donating: None, write: Callable[[torch.Tensor], object]
) -> None:
    total = Sum(xla_device)
    total()
    view = total.state.t()
    write(total.state)
    total()
    assert total.values == [11.0] * 6
    assert view.cpu().flatten().tolist() == [11.0] * 6


@pytest.mark.parametrize("taken", ["before", "between", "after"])
@pytest.mark.parametrize("view", [torch.t, torch.detach, lambda state: state[1], lambda state: state.view(6)])
def test_views_see_the_new_values(
    xla_device: torch.device, donating: None, taken: str, view: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    total = Sum(xla_device)
    early = view(total.state)
    total()
    middle = view(total.state)
    total()
    seen = {"before": early, "between": middle, "after": view(total.state)}[taken]
    assert torch.equal(seen.cpu(), view(torch.tensor(after(2.0)).reshape(2, 3)))

"""Loss scaling on an XLA device: PyTorch's scales, growth and skips, without a look at the device within a step."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from xla_tools import ALONE, FLOAT16, PRECISIONS, assert_same, batches, ready_arm, values

from resnet_acc.config import RunConfig
from resnet_acc.training.accelerators.base import Accelerator
from resnet_acc.training.accelerators.eager import EagerAccelerator
from resnet_acc.training.precision import SyncfreeGradScaler, found_inf

torch_xla = pytest.importorskip("torch_xla")
from torch_xla.amp import syncfree  # noqa: E402 (only where there is a torch_xla)
from torch_xla.debug import metrics  # noqa: E402

pytestmark = pytest.mark.usefixtures("xla_device")

TOO_LARGE = 1e34
"""A gradient that overflows float32 at a scale of 65536, and does not at 4."""


class Training:
    """A weight, a bias and a number, trained on gradients that a test gives."""

    def __init__(self, device: str, scaler: torch.amp.GradScaler, columns: int = 3) -> None:
        self.scaler = scaler
        shapes: list[tuple[int, ...]] = [(2, columns), (3,), ()]
        self.parameters = [torch.ones(shape).to(device).requires_grad_() for shape in shapes]
        make = syncfree.AdamW if device == "xla" else torch.optim.AdamW
        self.optimizer = make(self.parameters, lr=0.1)
        self.device = device

    def step(self, gradient: float, where: int = 0) -> torch.Tensor:
        """One step with a gradient of 1.0 everywhere but in one entry of one parameter; gives found_inf."""
        factors = [torch.ones(parameter.shape) for parameter in self.parameters]
        factors[where].view(-1)[-1] = gradient
        loss = sum((p * f.to(self.device)).sum() for p, f in zip(self.parameters, factors, strict=True))
        self.scaler.scale(loss).backward()  # type: ignore[union-attr]
        self.scaler.step(self.optimizer)
        found = found_inf(self.scaler, self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.device == "xla":
            torch_xla.sync()
        return found

    def values(self) -> list[torch.Tensor]:
        """Parameters, moments and step counts, on the host."""
        states = [self.optimizer.state[parameter] for parameter in self.parameters]
        tensors = [*self.parameters, *(state[name] for state in states for name in ("exp_avg", "exp_avg_sq", "step"))]
        return [tensor.detach().cpu().clone() for tensor in tensors]


def follow(device: str, series: Sequence[tuple[float, int]], **numbers: Any) -> tuple[list[Any], list[torch.Tensor]]:
    """The scaler's state and whether the step was skipped, after each step; and the parameters at the end."""
    scaler = SyncfreeGradScaler(**numbers) if device == "xla" else torch.amp.GradScaler(device, **numbers)
    training = Training(device, scaler)
    history = []
    for gradient, where in series:
        found = training.step(gradient, where)
        history.append((scaler.state_dict(), bool(found.item())))
    return history, [parameter.detach().cpu() for parameter in training.parameters]


def assert_follows_torch(series: Sequence[tuple[float, int]], **numbers: Any) -> list[tuple[dict[str, Any], bool]]:
    ours, our_parameters = follow("xla", series, **numbers)
    theirs, their_parameters = follow("cpu", series, **numbers)
    assert ours == theirs
    for one, other in zip(our_parameters, their_parameters, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    return ours


FINE, OVERFLOW = (1.0, 0), (math.inf, 0)


@pytest.mark.parametrize(
    ("series", "scales", "skips"),
    [
        pytest.param([FINE] * 5, [16.0, 32.0, 32.0, 64.0, 64.0], [], id="growth"),
        pytest.param([OVERFLOW] * 3, [8.0, 4.0, 2.0], [0, 1, 2], id="backoff"),
        pytest.param([FINE, OVERFLOW, FINE, FINE], [16.0, 8.0, 8.0, 16.0], [1], id="an overflow restarts the count"),
        pytest.param([FINE, FINE, (math.nan, 0), FINE], [16.0, 32.0, 16.0, 16.0], [2], id="nan"),
        pytest.param([(-math.inf, 0), FINE], [8.0, 8.0], [0], id="minus infinity"),
        pytest.param([FINE, (math.inf, 1), (math.inf, 2)], [16.0, 8.0, 4.0], [1, 2], id="in a bias or a number"),
    ],
)
def test_scales_and_skips_are_torchs(series: list[tuple[float, int]], scales: list[float], skips: list[int]) -> None:
    history = assert_follows_torch(series, init_scale=16.0, growth_interval=2)
    assert [state["scale"] for state, _ in history] == scales
    assert [number for number, (_, skipped) in enumerate(history) if skipped] == skips


def test_a_scale_that_is_too_large_comes_down_until_gradients_are_finite() -> None:
    history = assert_follows_torch([(TOO_LARGE, 0)] * 4, init_scale=2.0**16, growth_interval=100)
    assert [(state["scale"], skipped) for state, skipped in history] == [
        (2.0**15, True),
        (2.0**15, False),
        (2.0**15, False),
        (2.0**15, False),
    ]


GRADIENTS = st.sampled_from([1.0, -1.0, 0.0, TOO_LARGE, -TOO_LARGE, math.inf, -math.inf, math.nan])


@settings(max_examples=40, deadline=None)
@given(
    series=st.lists(st.tuples(GRADIENTS, st.integers(0, 2)), min_size=1, max_size=10),
    init_scale=st.sampled_from([1.0, 2.0**16, 2.0**100]),
    growth_interval=st.integers(1, 3),
)
def test_any_series_is_followed_as_torch_follows_it(
    series: list[tuple[float, int]], init_scale: float, growth_interval: int
) -> None:
    assert_follows_torch(series, init_scale=init_scale, growth_interval=growth_interval)


def test_a_scale_stays_finite() -> None:
    # The scales alone: the reciprocal of 2**127 is no normal number, and XLA takes it for 0.
    ours, theirs = (follow(device, [FINE] * 3, init_scale=2.0**126, growth_interval=1)[0] for device in ("xla", "cpu"))
    assert ours == theirs
    assert [state["scale"] for state, _ in ours] == [2.0**127] * 3


def test_two_growth_intervals_in_one_process() -> None:
    for interval in (1, 4):
        training = Training("xla", SyncfreeGradScaler(init_scale=1.0, growth_interval=interval), columns=9)
        for _ in range(4):
            training.step(1.0)
        assert training.scaler.get_scale() == 2.0 ** (4 // interval)


@pytest.mark.parametrize("gradient", [math.inf, -math.inf, math.nan, TOO_LARGE])
@pytest.mark.parametrize("where", [0, 1, 2])
def test_a_skipped_step_changes_nothing_of_the_optimizer(gradient: float, where: int) -> None:
    training = Training("xla", SyncfreeGradScaler(init_scale=2.0**16, growth_interval=2))
    training.step(1.0)
    before = training.values()
    training.step(gradient, where)
    assert_same(training.values(), before)
    training.step(1.0)
    assert all(not torch.equal(one, other) for one, other in zip(training.values(), before, strict=True))


def test_without_scaling_nothing_is_skipped_or_scaled() -> None:
    scaler = SyncfreeGradScaler(enabled=False)
    loss = torch.ones(()).to("xla")
    assert scaler.scale(loss) is loss
    assert not scaler.is_enabled()


def test_float16_gradients_are_refused_as_torch_refuses_them() -> None:
    parameter = torch.ones(2, dtype=torch.float16).to("xla").requires_grad_()
    optimizer, scaler = syncfree.AdamW([parameter]), SyncfreeGradScaler()
    scaler.scale(parameter.sum()).backward()
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.step(optimizer)


class ReadBacks:
    """Counts what brings a number from the device to the host."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__"):
            monkeypatch.setattr(torch.Tensor, name, self._counted(name, getattr(torch.Tensor, name)))
        self._before = self._transfers()

    def _counted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def counted(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
            self.calls.append(name)
            return original(tensor, *args, **options)

        return counted

    @staticmethod
    def _transfers() -> int:
        return sum((metrics.metric_data(name) or [0])[0] for name in ("TransferFromDeviceTime", "InboundData"))

    def count(self) -> int:
        return len(self.calls) + self._transfers() - self._before


def test_steps_read_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    scaler = SyncfreeGradScaler(growth_interval=2)
    training = Training("xla", scaler)
    reads = ReadBacks(monkeypatch)
    for gradient in (1.0, math.inf, 1.0, 1.0):
        training.step(gradient)
    assert reads.count() == 0
    scaler.get_scale()
    assert reads.count() == 3  # by item, as one transfer that two metrics know of


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_arms_steps_read_nothing_back(
    monkeypatch: pytest.MonkeyPatch, precision: dict[str, str], capture: bool
) -> None:
    accelerator = ready_arm(capture=capture, **precision)
    accelerator.start_totals()
    given = [(images.to(accelerator.device), target.to(accelerator.device)) for images, target in batches(3)]
    for batch in given:  # compilation may look at what the graph takes
        accelerator.train_step(*batch)
    reads = ReadBacks(monkeypatch)
    for batch in given:
        accelerator.train_step(*batch)
    assert reads.count() == 0
    accelerator.read_totals()
    assert reads.count() > 0


def plain_model() -> nn.Module:
    """Without BatchNorm, which would keep an inf in its running statistics."""
    torch.manual_seed(0)
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 10))


def run_arm(accelerator: Accelerator, bad: dict[int, float]) -> tuple[list[Any], list[list[torch.Tensor]]]:
    """Twelve steps, some on images of inf or nan: scale and skips after each, and all that is trained."""
    assert accelerator.scaler.is_enabled()  # type: ignore[attr-defined]
    accelerator.scaler.set_growth_interval(3)  # type: ignore[attr-defined]
    history, seen = [], [values(accelerator)]
    for step, (images, target) in enumerate(batches(12)):
        accelerator.start_totals()
        images = torch.full_like(images, bad[step]) if step in bad else images
        accelerator.train_step(images.to(accelerator.device), target.to(accelerator.device))
        accelerator.finish()
        history.append((accelerator.loss_scale(), accelerator.read_totals()["skipped_steps"]))
        seen.append(values(accelerator))
    return history, seen


BAD = {0: math.inf, 4: math.nan, 5: -math.inf}


def test_a_captured_step_scales_and_skips_as_torch_does_on_the_host() -> None:
    captured, seen = run_arm(ready_arm(plain_model(), **FLOAT16), BAD)
    host = EagerAccelerator(RunConfig(model="resnet18", image_size=32, batch_size=8, lr=1e-2, **FLOAT16), ALONE, "cpu")
    host.setup()
    host.prepare(plain_model())
    assert captured == run_arm(host, BAD)[0]
    assert [step for step, (_, skipped) in enumerate(captured) if skipped] == list(BAD)
    assert [math.log2(scale) for scale, _ in captured] == [15, 15, 15, 16, 15, 14, 14, 14, 15, 15, 15, 16]
    for step in range(12):
        if step in BAD:
            assert_same(seen[step + 1], seen[step])
        else:
            assert not torch.equal(seen[step + 1][0], seen[step][0])


def test_a_captured_step_scales_and_skips_as_a_traced_one_does() -> None:
    captured, traced = (run_arm(ready_arm(plain_model(), capture=capture, **FLOAT16), BAD) for capture in (True, False))
    assert captured[0] == traced[0]
    for one, other in zip(captured[1], traced[1], strict=True):
        assert_same(one, other)

"""Layers adapted to XLA: PyTorch's results, names and state_dict."""

import copy
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from xla_tools import assert_same, small_model

from resnet_acc.training.accelerators import xla_modules
from resnet_acc.training.accelerators.xla_modules import adapt_to_xla
from resnet_acc.training.model import build_model

DEVICES = ["cpu", "xla"]
HALVES = [torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def _device(xla_device: torch.device) -> None:
    """Every test here may put something on it."""


def resnet_pool() -> nn.MaxPool2d:
    """The adapted layer."""
    (pool,) = adapt_to_xla(nn.Sequential(nn.MaxPool2d(3, 2, 1)))
    assert type(pool) is xla_modules.MaxPool2d
    return pool


def pooled(
    pool: nn.Module, images: torch.Tensor, gradient: torch.Tensor | None = None, device: str = "cpu"
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output, and the input's gradient for an output's gradient (none: 1, 2, 3 and so on), on the host."""
    given = images.detach().to(device).requires_grad_()
    output = pool(given)
    if gradient is None:
        gradient = torch.arange(1.0, output.numel() + 1).reshape(output.shape).to(output.dtype)
    output.backward(gradient.to(device))
    assert given.grad is not None
    return output.detach().cpu(), given.grad.cpu()


def assert_pools_like_torch(images: torch.Tensor, device: str = "cpu") -> None:
    assert_same(pooled(resnet_pool(), images, device=device), pooled(nn.MaxPool2d(3, 2, 1), images))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", [(1, 1), (1, 2), (2, 1), (2, 2), (3, 3), (4, 7), (8, 8), (9, 5)])
def test_pooling_is_torchs_at_any_size(device: str, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    assert_pools_like_torch(torch.randn(2, 3, *size), device)


@pytest.mark.parametrize("device", DEVICES)
def test_of_equal_values_the_one_that_torch_takes_gets_the_gradient(device: str) -> None:
    torch.manual_seed(0)
    assert_pools_like_torch(torch.randint(0, 3, (4, 3, 9, 8)).float(), device)
    assert_pools_like_torch(torch.zeros(1, 1, 7, 7), device)


@pytest.mark.parametrize("device", DEVICES)
def test_nan_is_passed_on_and_gets_the_gradient_as_in_torch(device: str) -> None:
    images = torch.zeros(1, 1, 9, 9)
    images[0, 0, 2, 3] = images[0, 0, 3, 4] = images[0, 0, 8, 8] = math.nan
    assert_pools_like_torch(images, device)


@pytest.mark.parametrize("device", DEVICES)
def test_infinities_are_pooled_as_in_torch(device: str) -> None:
    torch.manual_seed(0)
    images = torch.randn(1, 2, 8, 9)
    images[:, :, ::3, ::2] = -math.inf
    images[:, :, 1::4, 1::5] = math.inf
    assert_pools_like_torch(images, device)


@pytest.mark.parametrize("device", DEVICES)
def test_where_all_is_minus_infinity_the_first_value_gets_the_gradient_as_in_torch(device: str) -> None:
    assert_pools_like_torch(torch.full((1, 1, 7, 6), -math.inf), device)


VALUES = st.sampled_from([0.0, 1.0, -1.0, 2.5, -0.0, math.nan, math.inf, -math.inf, 1e30, 1e-40])


@settings(max_examples=100, deadline=None)
@given(size=st.tuples(st.integers(1, 6), st.integers(1, 6)), drawn=st.data())
def test_any_image_is_pooled_as_in_torch(size: tuple[int, int], drawn: st.DataObject) -> None:
    count = size[0] * size[1]
    images = torch.tensor(drawn.draw(st.lists(VALUES, min_size=count, max_size=count))).reshape(1, 1, *size)
    assert_pools_like_torch(images)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_gradients_are_added_in_float32(device: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    images = torch.randint(0, 4, (2, 3, 9, 8)).to(dtype)  # ties: many windows meet in one value
    gradient = torch.randn(2, 3, 5, 4).to(dtype)
    output, ours = pooled(resnet_pool(), images, gradient, device)
    expected, exact = pooled(nn.MaxPool2d(3, 2, 1), images.float(), gradient.float())
    assert (output.dtype, ours.dtype) == (dtype, dtype)
    assert torch.equal(output.float(), expected)
    assert torch.equal(ours, exact.to(dtype))


@pytest.mark.parametrize(
    "pool",
    [
        nn.MaxPool2d(2, 2, 1),
        nn.MaxPool2d(3, 1, 1),
        nn.MaxPool2d(3, 2, 0),
        nn.MaxPool2d(3, 2, 1, dilation=2),
        nn.MaxPool2d(3, 2, 1, ceil_mode=True),
        nn.MaxPool2d(3, 2, 1, return_indices=True),
        nn.MaxPool2d((3, 2), 2, 1),
        nn.AvgPool2d(3, 2, 1),
        nn.AdaptiveAvgPool2d(1),
    ],
)
def test_other_poolings_are_left_alone(pool: nn.Module) -> None:
    kind = type(pool)
    adapt_to_xla(nn.Sequential(pool))
    assert type(pool) is kind


@pytest.mark.parametrize("dtype", HALVES)
def test_batch_norm_gives_the_dtype_that_it_takes_under_autocast(dtype: torch.dtype) -> None:
    images = torch.randn(4, 3, 5, 5).to("xla")
    with torch.autocast("xla", dtype=dtype):
        plain, adapted = nn.BatchNorm2d(3).to("xla"), adapt_to_xla(nn.Sequential(nn.BatchNorm2d(3).to("xla")))
        assert plain(images.to(dtype)).dtype is torch.float32  # what the adapted one is for
        assert adapted(images.to(dtype)).dtype is dtype
        assert adapted(images).dtype is torch.float32
    assert adapted[0].running_mean.dtype is torch.float32


NORMS: dict[str, Callable[[], nn.BatchNorm2d]] = {
    "usual": lambda: nn.BatchNorm2d(3),
    "no weights": lambda: nn.BatchNorm2d(3, affine=False),
    "no statistics": lambda: nn.BatchNorm2d(3, track_running_stats=False),
    "another momentum": lambda: nn.BatchNorm2d(3, eps=0.1, momentum=0.5),
    "momentum 0": lambda: nn.BatchNorm2d(3, momentum=0.0),
    "a mean over all batches": lambda: nn.BatchNorm2d(3, momentum=None),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NORMS)
def test_batch_norm_is_torchs_in_float32(name: str, device: str) -> None:
    torch.manual_seed(0)
    plain = nn.Sequential(NORMS[name]()).to(device)
    adapted = adapt_to_xla(copy.deepcopy(plain))
    results = []
    for model in (plain, adapted):
        torch.manual_seed(1)
        found = []
        for training in (True, True, False):
            images = (2 + 3 * torch.randn(4, 3, 5, 5)).to(device)
            model.train(training)
            found.append(model(images).detach().cpu())
        results.append(found + [value.cpu() for value in model.state_dict().values()])
    assert_same(results[1], results[0])


def random_resnet(name: str, seed: int) -> nn.Module:
    """Every entry of its state_dict differs from what a new model has."""
    torch.manual_seed(seed)
    model = build_model(name, 10)
    for value in model.state_dict().values():
        value.copy_(torch.randn(value.shape) if value.is_floating_point() else torch.tensor(7 * seed))
    return model


def assert_same_state(left: nn.Module, right: nn.Module) -> None:
    one, other = left.state_dict(), right.state_dict()
    assert list(one) == list(other)
    assert_same(list(one.values()), list(other.values()))


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_a_state_dict_stays_what_it_was(name: str) -> None:
    plain = random_resnet(name, seed=1)
    parameters = list(plain.parameters())
    adapted = adapt_to_xla(copy.deepcopy(plain))
    assert_same_state(adapted, plain)
    adapt_to_xla(plain)
    assert all(one is other for one, other in zip(plain.parameters(), parameters, strict=True))


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_a_plain_models_state_loads_into_an_adapted_one(name: str) -> None:
    plain, adapted = random_resnet(name, seed=1), adapt_to_xla(random_resnet(name, seed=2))
    adapted.load_state_dict(plain.state_dict())
    assert_same_state(adapted, plain)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_an_adapted_models_state_loads_into_a_plain_one(name: str) -> None:
    plain, adapted = random_resnet(name, seed=1), adapt_to_xla(random_resnet(name, seed=2))
    plain.load_state_dict(adapted.state_dict())
    assert_same_state(adapted, plain)
    assert_same_state(plain, random_resnet(name, seed=2))


def test_an_adapted_models_state_loads_into_another_adapted_one() -> None:
    one, other = (adapt_to_xla(random_resnet("resnet18", seed)) for seed in (1, 2))
    one.load_state_dict(other.state_dict())
    assert_same_state(one, random_resnet("resnet18", 2))


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_an_adapted_model_trains_as_a_plain_one(name: str) -> None:
    torch.manual_seed(0)
    plain = build_model(name, 10).double()  # so that an order of summation cannot be taken for a fault
    adapted = adapt_to_xla(copy.deepcopy(plain))
    for model in (plain, adapted):
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(4, 3, 40, 40, dtype=torch.double)).square().mean().backward()
            optimizer.step()
        model.eval()
        model(torch.randn(2, 3, 40, 40, dtype=torch.double))
    one, other = adapted.state_dict(), plain.state_dict()
    for key in other:
        torch.testing.assert_close(one[key], other[key], rtol=0, atol=2e-5)  # the pooling adds in float32
    assert other["bn1.num_batches_tracked"] == 2


def test_the_layers_of_a_resnet_are_adapted() -> None:
    model = adapt_to_xla(build_model("resnet18", 10))
    kinds = {type(module) for module in model.modules()}
    assert {xla_modules.BatchNorm2d, xla_modules.MaxPool2d} <= kinds
    assert not {nn.BatchNorm2d, nn.MaxPool2d} & kinds


def test_a_model_without_such_layers_is_left_alone() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    before = copy.deepcopy(model)
    assert adapt_to_xla(model) is model
    assert_same_state(model, before)


def test_two_adapted_models_have_nothing_in_common() -> None:
    one, other = (adapt_to_xla(small_model()) for _ in range(2))
    before = copy.deepcopy(other.state_dict())
    one(torch.randn(2, 3, 16, 16))
    assert_same(list(other.state_dict().values()), list(before.values()))


def test_a_copy_of_an_adapted_model_has_nothing_in_common_with_it() -> None:
    model = adapt_to_xla(small_model())
    before = copy.deepcopy(model.state_dict())
    twin = copy.deepcopy(model)
    twin(torch.randn(2, 3, 16, 16))
    assert_same(list(model.state_dict().values()), list(before.values()))
    assert twin.state_dict()["1.num_batches_tracked"] == 1

"""Three layers as XLA compiles them well: what they compute is PyTorch's, and so are their names and state_dict.

What to change was found by reading the compiled graph of ResNet-50 and a trace of its kernels on an H200
(benchmarks/README.md has the figures).
"""

from typing import Any

import torch
from torch import nn
from torch.nn import functional


def adapt_to_xla(model: nn.Module) -> nn.Module:
    """Replace a ResNet's convolutions, BatchNorms and max-pooling in place. The model lies on its device already.

    Parameters stay the same objects; a state_dict is the same as before and is taken as before.
    """
    norms = [module for module in model.modules() if type(module) is nn.BatchNorm2d and module.momentum is not None]
    for module in model.modules():
        if type(module) is nn.Conv2d and module.kernel_size != (1, 1):
            module.__class__ = Conv2d
            module.weight.data = module.weight.data.permute(0, 2, 3, 1).contiguous()
        elif type(module) is nn.MaxPool2d and _is_three_by_two(module):
            module.__class__ = MaxPool2d
    counters = [norm.num_batches_tracked for norm in norms if norm.num_batches_tracked is not None]
    for norm in norms:
        norm.__class__ = BatchNorm2d
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked = counters[0]
    if counters:
        model.register_forward_pre_hook(_count_batch)
    return model


def _count_batch(model: nn.Module, _: Any) -> None:
    norm = next(module for module in model.modules() if type(module) is BatchNorm2d)
    if model.training and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)


class Conv2d(nn.Conv2d):
    """A convolution whose weight lies as cudnn takes it: [out, height, width, in].

    As [out, in, height, width] the weight and both of AdamW's moments would be transposed in each step, and back. The
    state_dict has PyTorch's order. (A 1 x 1 weight is the same in both.)
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return self._conv_forward(input, self.weight.permute(0, 3, 1, 2), self.bias)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight"] = destination[prefix + "weight"].permute(0, 3, 1, 2)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        key = prefix + "weight"
        if key in state_dict:
            state_dict = {**state_dict, key: state_dict[key].permute(0, 2, 3, 1)}
        super()._load_from_state_dict(state_dict, prefix, *args)


class BatchNorm2d(nn.BatchNorm2d):
    """BatchNorm that gives the dtype it takes, as on CUDA under autocast: statistics in float32, activations in half.

    torch-xla's autocast turns the input into float32 and leaves the output so; what is kept for the backward pass, and
    the gradient of a residual connection, would then take twice the memory traffic. All of a model's BatchNorms have
    seen as many batches, so they share one count, which the model's own forward pass raises.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        training = self.training or self.running_mean is None
        output: torch.Tensor = functional.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, training, self.momentum or 0.0, self.eps
        )
        return output.to(input.dtype)


class MaxPool2d(nn.MaxPool2d):
    """Max-pooling over 3 x 3 with stride 2 and padding 1, whose backward pass gathers.

    XLA's own is select-and-scatter, which on a GPU becomes a scatter with one atomic addition for each output and four
    32-bit indices kept for each: 2.5 GB of traffic for a batch of 128 at 224 px, where 0.3 GB do.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return _MaxPool.apply(input)  # type: ignore[no-any-return]


def _is_three_by_two(pool: nn.MaxPool2d) -> bool:
    """Whether it is the ResNet's: any other is left as it is."""
    settings = (pool.kernel_size, pool.stride, pool.padding, pool.dilation)
    return settings == (3, 2, 1, 1) and not pool.ceil_mode and not pool.return_indices


class _MaxPool(torch.autograd.Function):
    """With H, W the input's size, the output's is ceil(H / 2), ceil(W / 2)."""

    @staticmethod
    def forward(ctx: Any, images: torch.Tensor) -> torch.Tensor:
        height, width = images.shape[2:]
        rows, columns = (height + 1) // 2, (width + 1) // 2
        padded = functional.pad(images, (1, 1, 1, 1), value=-float("inf"))
        best, place = None, None
        for number in range(9):  # PyTorch's order, so that of equal values the same one gets the gradient
            down, right = divmod(number, 3)
            value = padded[:, :, down : down + 2 * rows - 1 : 2, right : right + 2 * columns - 1 : 2]
            if best is None or place is None:
                # Padding is no value: where all are -inf it is the first value that gets the gradient.
                down_at_edge, right_at_edge = (torch.arange(n, device=images.device) == 0 for n in (rows, columns))
                first = 3 * down_at_edge[:, None].to(torch.uint8) + right_at_edge.to(torch.uint8)
                best, place = value, first.expand(value.shape)
                continue
            larger = (value > best) | value.isnan()
            best = torch.where(larger, value, best)
            place = torch.where(larger, torch.full_like(place, number), place)
        ctx.save_for_backward(place)
        ctx.size = (height, width)
        assert best is not None
        return best

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (place,) = ctx.saved_tensors
        exact = gradient.to(
            torch.promote_types(gradient.dtype, torch.float32)
        )  # up to four windows meet in one value; PyTorch adds them in float32 too
        parts = [torch.where(place == number, exact, torch.zeros_like(exact)) for number in range(9)]

        def up(part: torch.Tensor) -> torch.Tensor:
            return functional.pad(part[:, :, 1:], (0, 0, 0, 1))

        def left(part: torch.Tensor) -> torch.Tensor:
            return functional.pad(part[:, :, :, 1:], (0, 1))

        # Value (h, w) lies in window (i, j) at place (h + 1 - 2i, w + 1 - 2j): even rows and columns in one window.
        even_rows = _interleave(parts[4], parts[5] + left(parts[3]), 3)
        odd_rows = _interleave(
            parts[7] + up(parts[1]), parts[8] + left(parts[6]) + up(parts[2]) + up(left(parts[0])), 3
        )
        height, width = ctx.size
        return _interleave(even_rows, odd_rows, 2)[:, :, :height, :width].to(gradient.dtype)


def _interleave(even: torch.Tensor, odd: torch.Tensor, dim: int) -> torch.Tensor:
    """Entries of two tensors of one shape in turn along a dimension."""
    shape = list(even.shape)
    shape[dim] *= 2
    return torch.stack([even, odd], dim + 1).reshape(shape)

"""Autocast, layer by layer: the dtype that each layer gives and its weight lies in, and the graph's products.

python -m resnet_acc.training.lessons.autocast_dtypes --model resnet18
"""

import argparse
import warnings
from collections import Counter
from typing import Any

import torch
from torch import nn

from resnet_acc.training.accelerators.base import Accelerator
from resnet_acc.training.lessons.common import (
    Batch,
    batches,
    first_line,
    lesson_parser,
    on_device,
    ready_arm,
    run_lesson,
    say,
)
from resnet_acc.training.lessons.hlo import parse_hlo


def lesson(options: argparse.Namespace) -> dict[str, Any]:
    passes = {}
    for level, amp_dtype in (("O0", None), ("O1", options.amp_dtype)):
        accelerator = ready_arm(options, arm=options.arm, amp_dtype=amp_dtype)
        passes[level] = _forward(accelerator, on_device(accelerator, batches(options, 1)[0]))
        passes[level]["products"] = _products_in_graph(accelerator) if options.arm == "torchacc" else None
        say(f"{level}: {passes[level]['activation_mib']:.2f} MiB of layer outputs, the loss in {passes[level]['loss']}")
        for row in passes[level]["layers"]:
            say(f"  {row['count']:3} {row['layer']:18} weight {row['weight'] or '-':9} gives {row['output']}")
        if passes[level]["products"]:
            say(f"  convolutions and products in the graph: {passes[level]['products']}")
    result = {"arm": options.arm, "device": accelerator.device_type, **passes, "torch_xla_autocast": None}
    if options.arm == "torchacc":
        result["torch_xla_autocast"] = _under_torch_xla_autocast(accelerator)
        say(f"the article's own torch_xla.amp.autocast: {result['torch_xla_autocast']}")
    return result


def _forward(accelerator: Accelerator, batch: Batch) -> dict[str, Any]:
    """One forward pass with a hook on each layer."""
    seen: Counter[tuple[str, str, str]] = Counter()
    num_bytes = 0

    def note(layer: nn.Module, _: Any, output: torch.Tensor) -> None:
        nonlocal num_bytes
        weight = getattr(layer, "weight", None)
        seen[type(layer).__name__, "" if weight is None else name(weight.dtype), name(output.dtype)] += 1
        num_bytes += output.nbytes

    layers = [module for module in accelerator.inner_model().modules() if not list(module.children())]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    images, target = batch
    with accelerator.precision.autocast():
        accelerator.last_loss = loss = accelerator.criterion(accelerator.model(images), target)  # type: ignore[attr-defined]
    for hook in hooks:
        hook.remove()
    return {
        "dtype": accelerator.precision.name,
        "layers": [
            {"layer": kind, "weight": weight, "output": output, "count": count}
            for (kind, weight, output), count in seen.items()
        ],
        "loss": name(loss.dtype),
        "activation_mib": num_bytes / 2**20,
    }


def _products_in_graph(accelerator: Accelerator) -> dict[str, int]:
    """Convolutions and matrix products of the forward and backward pass by dtype, as the graph that was traced says."""
    from resnet_acc.training.accelerators import torchacc

    accelerator.scaler.scale(accelerator.last_loss).backward()  # type: ignore[attr-defined]
    gradients = torchacc.xm._fetch_gradients(accelerator.optimizer)
    graph = parse_hlo(torchacc.torch_xla._XLAC._get_xla_tensors_hlo(gradients))
    return dict(Counter(item.dtype for item in graph.instructions() if item.is_product))


def _under_torch_xla_autocast(accelerator: Accelerator) -> str:
    """What the article's autocast does on this device today: the dtype of a product, or the error."""
    from resnet_acc.training.accelerators import torchacc

    values = torch.ones(8, 8).to(accelerator.device)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with torchacc.torch_xla.amp.autocast(accelerator.device):
                return f"a product in {name((values @ values).dtype)}"
    except (AttributeError, ImportError, RuntimeError) as error:
        return first_line(error)


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    own = lesson_parser(__doc__, arms=("torchacc", "eager"), model="resnet18")
    own.add_argument("--amp_dtype", choices=("auto", "float16", "bfloat16"), default="auto", help="autocast's dtype")
    run_lesson(lesson, own)

"""One training step as XLA sees it: operations before and after fusion, and compilations as batch sizes change.

python -m resnet_acc.training.lessons.step_graph --model resnet18
"""

import argparse
import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

from torch import nn

from resnet_acc.training.accelerators.pjrt.settings import merge_flags
from resnet_acc.training.lessons.common import (
    CannotRun,
    batches,
    counts_since,
    lesson_parser,
    on_device,
    ready_arm,
    run_lesson,
    say,
    scratch_folder,
    xla_counts,
)
from resnet_acc.training.lessons.hlo import BOOKKEEPING, Graph, Instruction, dumped_graphs

_LAYOUT = re.compile(r"\{[\d,:A-Z()]*\}")
SHOWN_FUSION = range(4, 13)
"""Operations of the fusion that is shown whole: enough to be one, few enough to be read."""


def lesson(options: argparse.Namespace) -> dict[str, Any]:
    folder = scratch_folder()
    flags = {"xla_dump_to": str(folder), "xla_dump_hlo_as_text": "true"}
    os.environ["XLA_FLAGS"] = merge_flags(os.environ.get("XLA_FLAGS", ""), flags)
    sizes = batch_sizes(options.sizes)
    accelerator = ready_arm(options, amp_dtype="auto", capture=not options.traced)
    steps = []
    for number, size in enumerate(sizes, 1):
        (batch,) = batches(options, 1, size=size)
        images, target = on_device(accelerator, batch)
        accelerator.finish()
        before, known, begin = xla_counts(), num_step_graphs(folder), time.perf_counter()
        accelerator.train_step(images, target)
        accelerator.finish()
        step = {"step": number, "size": size, "step_time_s": time.perf_counter() - begin, **counts_since(before)}
        steps.append(step | {"step_graphs": num_step_graphs(folder) - known})
        say(_line(steps[-1]))
    graph = describe_graphs(folder)
    say(
        f"one step: {graph['before']['operations']} operations traced, {graph['after']['launches']} launched after "
        f"fusion, {graph['after']['fusions']} of them fusions"
    )
    return {
        "device": accelerator.device_type,
        "model": options.model,
        "layers": layer_counts(accelerator.inner_model()),
        "dtype": accelerator.precision.name,
        "mode": accelerator.compile_mode,
        "steps": steps,
        **graph,
    }


def _line(step: dict[str, Any]) -> str:
    line = f"step {step['step']}: {step['size']:3} images, {step['step_time_s']:.3f} s"
    if step["compilations"]:
        line += f", {step['compilations']:g} compilations in {step['compile_s']:.1f} s, {step['step_graphs']} of a step"
    return line


def num_step_graphs(folder: Path) -> int:
    """Graphs with a convolution that XLA has dumped so far.

    The others are small: a captured step, for one, begins by giving large tensors buffers of their own.
    """
    paths = folder.glob("module_*before_optimizations.txt")
    return sum(" convolution(" in path.read_text(encoding="utf-8") for path in paths)


def batch_sizes(text: str) -> list[int]:
    """Sizes such as "8,8,5".

    Raises:
        ValueError: it holds something else than whole numbers, or one below 2.
    """
    try:
        sizes = [int(size) for size in text.split(",")]
    except ValueError:
        raise ValueError(f'sizes is {text!r}; give whole numbers such as "8,8,5"') from None
    if min(sizes) < 2:
        raise ValueError(f"sizes is {text!r}; BatchNorm needs at least 2 images in each batch")
    return sizes


def layer_counts(model: nn.Module) -> dict[str, int]:
    """Convolutions and fully connected layers of a model, whose products its step must hold."""
    layers = list(model.modules())
    return {
        "convolutions": sum(isinstance(layer, nn.Conv2d) for layer in layers),
        "linear": sum(isinstance(layer, nn.Linear) for layer in layers),
    }


def describe_graphs(folder: Path) -> dict[str, Any]:
    """The step's graph before and after XLA's optimisation: the first of those with most convolutions.

    Raises:
        CannotRun: XLA left no text of a graph with a convolution.
    """
    before, after = (dumped_graphs(folder, f"{stage}_optimizations") for stage in ("before", "after"))
    both = [name for name in before if name in after and before[name].num_convolutions()]
    if not both:
        raise CannotRun(f"XLA wrote no graph of a step to {folder}; it may not know --xla_dump_to here")
    name = max(both, key=lambda each: before[each].num_convolutions())
    return {"before": describe_before(before[name]), "after": describe_after(after[name])}


def describe_before(graph: Graph) -> dict[str, Any]:
    """Counts of a traced graph, and of its convolutions and products by dtype."""
    kinds = graph.kinds()
    return {
        "operations": kinds.total(),
        "kinds": dict(kinds.most_common()),
        "convolutions": graph.num_convolutions(),
        "backward_convolutions": sum(item.is_backward for item in graph.instructions() if item.is_convolution),
        "all_reduces": kinds["all-reduce"],
        "dtypes": _dtypes(graph),
        "excerpt": _excerpt([item for item in graph.computations[graph.entry] if item.kind not in BOOKKEEPING]),
    }


def describe_after(graph: Graph) -> dict[str, Any]:
    """Counts of a compiled graph: what is launched, by kind, and how many operations its fusions hold."""
    launched = graph.launched()
    fusions = [item for item in launched if item.kind == "fusion"]
    inside = [len(graph.fused(item)) for item in fusions]
    return {
        "launches": len(launched),
        "kinds": dict(Counter(item.kind for item in launched).most_common()),
        "fusions": len(fusions),
        "fused_operations": sum(inside),
        "largest_fusion": max(inside, default=0),
        "convolutions": graph.num_convolutions(),
        "all_reduces": sum(item.kind.startswith("all-reduce") for item in launched),
        "dtypes": _dtypes(graph),
        "example": _example(graph, fusions),
        "excerpt": _excerpt(launched),
    }


def _dtypes(graph: Graph) -> dict[str, int]:
    """Convolutions and matrix products by the dtype of their result."""
    return dict(Counter(item.dtype for item in graph.instructions() if item.is_product))


def _excerpt(items: list[Instruction]) -> list[str]:
    """HLO's own lines around the first product, the details behind the operands left out."""
    first = next((place for place, item in enumerate(items) if item.is_product), 0)
    lines = [item.line.partition("), ") for item in items[max(0, first - 3) : first + 4]]
    return [_LAYOUT.sub("", operands + closing[:1]) for operands, closing, _ in lines]


def _example(graph: Graph, fusions: list[Instruction]) -> list[str]:
    """What one fusion computes, line by line: of those short enough to be read, the one of most kinds."""
    bodies = [graph.fused(item) for item in fusions]
    short = [body for body in bodies if len(body) in SHOWN_FUSION]
    if not short:
        return []
    best = max(short, key=lambda body: len({item.kind for item in body}))
    return [f"{item.type.partition('{')[0]} {item.kind}" for item in best]


if __name__ == "__main__":
    own = lesson_parser(__doc__, model="resnet18")
    own.add_argument("--sizes", default="8,8,8,5,8,5", help="images of each step's batch, in turn")
    own.add_argument("--traced", action="store_true", help="trace each step anew instead of replaying a captured one")
    run_lesson(lesson, own)

"""One training step as XLA sees it: operations before and after fusion, and compilations as batch sizes change.

python -m resnet_acc.training.lessons.step_graph --model resnet18
"""

import argparse
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

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
from resnet_acc.training.lessons.hlo import Graph, Instruction, dumped_graphs

SHOWN_FUSION = range(4, 13)
"""Operations of the fusion that is shown whole: enough to be one, few enough to be read."""


def lesson(options: argparse.Namespace) -> dict[str, Any]:
    folder = scratch_folder()
    flags = {"xla_dump_to": str(folder), "xla_dump_hlo_as_text": "true"}
    os.environ["XLA_FLAGS"] = merge_flags(os.environ.get("XLA_FLAGS", ""), flags)
    sizes = [int(size) for size in options.sizes.split(",")]
    if min(sizes) < 2:
        raise ValueError(f"sizes is {options.sizes!r}; BatchNorm needs at least 2 images in each batch")
    accelerator = ready_arm(options, amp_dtype="auto", capture=not options.traced)
    steps = []
    for number, size in enumerate(sizes, 1):
        (batch,) = batches(options, 1, size=size)
        images, target = on_device(accelerator, batch)
        accelerator.finish()
        before, begin = xla_counts(), time.perf_counter()
        accelerator.train_step(images, target)
        accelerator.finish()
        step = {"step": number, "size": size, "step_time_s": time.perf_counter() - begin, **counts_since(before)}
        steps.append(step)
        compiled = f", compiled {step['compilations']:g} graph in {step['compile_s']:.1f} s"
        say(f"step {number}: {size:3} images, {step['step_time_s']:.3f} s{compiled if step['compilations'] else ''}")
    graph = describe_graphs(folder)
    say(
        f"one step: {graph['before']['operations']} operations traced, {graph['after']['launches']} launched after "
        f"fusion, {graph['after']['fusions']} of them fusions"
    )
    precision = accelerator.precision.name
    return {"device": accelerator.device_type, "model": options.model, "dtype": precision, "steps": steps, **graph}


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
        "all_reduces": kinds["all-reduce"],
        "dtypes": _dtypes(graph),
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
    }


def _dtypes(graph: Graph) -> dict[str, int]:
    """Convolutions and matrix products by the dtype of their result."""
    return dict(Counter(item.dtype for item in graph.instructions() if item.is_convolution or item.kind == "dot"))


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

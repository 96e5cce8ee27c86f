"""What mark_step is for: without it one graph holds all steps since the last, and grows with their number.

python -m resnet_acc.training.lessons.step_boundary
"""

import argparse
import time
from typing import Any

from resnet_acc.training.lessons.common import (
    batches,
    counts_since,
    lesson_parser,
    on_device,
    ready_arm,
    run_lesson,
    say,
    xla_counts,
)
from resnet_acc.training.lessons.hlo import parse_hlo


def lesson(options: argparse.Namespace) -> dict[str, Any]:
    if min(options.steps_each) < 1:
        raise ValueError(f"steps_each is {options.steps_each}; give numbers of steps from 1 on")
    rows = [_without_boundary(options, number) for number in options.steps_each]
    return {"device": rows[0].pop("device"), "rows": [{k: v for k, v in row.items() if k != "device"} for row in rows]}


def _without_boundary(options: argparse.Namespace, number: int) -> dict[str, Any]:
    """So many steps, and only then mark_step; done twice, since the second time nothing needs to be compiled."""
    accelerator = ready_arm(options)
    from resnet_acc.training.accelerators import torchacc

    batch = on_device(accelerator, batches(options, 1)[0])
    accelerator.finish()
    row: dict[str, Any] = {"device": accelerator.device_type, "steps_in_graph": number}
    for turn in ("first", "second"):
        before, begin = xla_counts(), time.perf_counter()
        for _ in range(number):
            # train_step without its last line, which is mark_step
            (accelerator._totals,) = accelerator._step(*batch, accelerator._totals)  # type: ignore[attr-defined]
        row[f"{turn}_traced_s"] = time.perf_counter() - begin
        if turn == "first":
            pending = [accelerator._totals, *accelerator.model.parameters()]
            graph = parse_hlo(torchacc.torch_xla._XLAC._get_xla_tensors_hlo(pending))
            row |= {"operations": graph.kinds().total(), "convolutions": graph.num_convolutions()}
            begin = time.perf_counter()
        accelerator.finish()
        row[f"{turn}_s"] = time.perf_counter() - begin
        row[f"{turn}_compilations"] = counts_since(before)["compilations"]
        row[f"{turn}_compile_s"] = counts_since(before)["compile_s"]
    say(
        f"{number} steps before mark_step: one graph of {row['operations']} operations ({row['convolutions']} "
        f"convolutions), compiled in {row['first_compile_s']:.1f} s"
    )
    return row


if __name__ == "__main__":
    own = lesson_parser(__doc__)
    own.add_argument("--steps_each", type=int, nargs="+", default=[1, 2, 4], help="steps before each mark_step")
    run_lesson(lesson, own)

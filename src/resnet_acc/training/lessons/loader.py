"""The wrapped loader: batches on their way to the device beside the step, and what becomes of a loader's error.

python -m resnet_acc.training.lessons.loader
"""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

from resnet_acc.training.accelerators.base import Accelerator, Batches
from resnet_acc.training.lessons.common import (
    Batch,
    batches,
    counts_since,
    first_line,
    lesson_parser,
    on_device,
    ready_arm,
    run_lesson,
    say,
    xla_counts,
)

WINDOWS = 3


def lesson(options: argparse.Namespace) -> dict[str, Any]:
    if options.steps < 2:
        raise ValueError(f"steps is {options.steps}; give at least 2")
    accelerator = ready_arm(options)
    given = batches(options, options.steps)
    accelerator.train_step(*on_device(accelerator, given[0]))  # compiles
    accelerator.finish()
    rows = []
    for name, source in (("copied in the loop", _copied), ("wrapped loader", accelerator.on_device)):
        rows.append({"loop": name, **_measure(accelerator, source, given)})
        row = rows[-1]
        say(f"{name}: {1000 * row['step_time_s']:.2f} ms a step, {row['executions_per_step']:g} graphs a step")
    errors = [_with_error(accelerator, name, given) for name in ("torch-xla's loader as it is", "this package's")]
    for error in errors:
        said = f"the loop got {error['raised']}" if error["raised"] else "the loop saw an ordinary end"
        say(f"{error['loader']}, broken at batch {error['broken_at']}: {error['batches']} batches, then {said}")
    return {"device": accelerator.device_type, "mode": accelerator.compile_mode, "rows": rows, "errors": errors}


def _measure(accelerator: Accelerator, source: Any, given: list[Batch]) -> dict[str, Any]:
    """Seconds of a step that gets its batch from the host: the median of several passes over the batches."""
    times, before = [], xla_counts()
    for _ in range(WINDOWS):
        accelerator.finish()
        begin = time.perf_counter()
        for images, target in source(accelerator, given) if source is _copied else source(iter(given)):
            accelerator.train_step(images, target)
        accelerator.finish()
        times.append((time.perf_counter() - begin) / len(given))
    counts = counts_since(before)
    return {
        "step_time_s": sorted(times)[WINDOWS // 2],
        "compilations": counts["compilations"],
        "executions_per_step": counts["executions"] / (WINDOWS * len(given)),
    }


def _copied(accelerator: Accelerator, given: list[Batch]) -> Batches:
    """As PyTorch's loop has it."""
    for batch in given:
        yield on_device(accelerator, batch)


def _with_error(accelerator: Accelerator, name: str, given: list[Batch]) -> dict[str, Any]:
    """What the loop sees of a loader that fails before its last batch."""
    from resnet_acc.training.accelerators import torchacc

    def broken() -> Iterator[Batch]:
        yield from given[:-1]
        raise OSError("the image is cut off")

    num_batches, raised = 0, None
    own = name == "this package's"
    source: Any = broken()
    with _quiet():  # the reading thread's traceback
        loop = (
            accelerator.on_device(source)
            if own
            else torchacc.parallel_loader.MpDeviceLoader(_Sized(source, len(given)), accelerator.device)
        )
        try:
            for _ in loop:
                num_batches += 1
        except OSError as error:
            raised = first_line(error)
    accelerator.finish()
    return {"loader": name, "broken_at": len(given), "batches": num_batches, "raised": raised}


class _Sized:
    """An iterator with a length, as a DataLoader has one."""

    def __init__(self, source: Iterator[Batch], length: int) -> None:
        self._source, self._length = source, length

    def __iter__(self) -> Iterator[Batch]:
        return self._source

    def __len__(self) -> int:
        return self._length


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without stderr."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            time.sleep(0.1)  # the thread ends after the loop
            sys.stderr.flush()
            os.dup2(kept, 2)
            os.close(kept)


if __name__ == "__main__":
    run_lesson(lesson, lesson_parser(__doc__))

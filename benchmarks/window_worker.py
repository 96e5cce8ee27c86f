"""One arm, ready to train, that times windows of steps when it is asked to.

Started by compare_steps.py, which keeps one worker for each arm and asks them in turn, so that arms are compared within
seconds of one another on a card at one temperature. What runs is the product's own arm on the product's own data.

Writes one JSON object a line: `prepared`, then, for each line `run STEPS` on standard input, what that window took. The
first step is a window of its own. `quit` ends it.
"""

import argparse
import json
import sys
import time
from typing import Any

STARTED = time.time()

from resnet_acc.config import RunConfig  # noqa: E402 (the clock starts before the imports, as a run's does)


def main() -> None:
    """Prepare the arm, then obey."""
    options = read_options()
    import torch

    from resnet_acc.training.accelerators import make_accelerator
    from resnet_acc.training.data import TrainingData
    from resnet_acc.training.distributed import Place
    from resnet_acc.training.model import build_model

    config = RunConfig.from_json(json.loads(options.config))
    place = Place(rank=0, local_rank=0, world_size=1)
    accelerator = make_accelerator(config, place, options.device)
    data = TrainingData(config, place, options.device)
    accelerator.setup()
    torch.manual_seed(config.seed)
    accelerator.prepare(build_model(config.model, data.plan.num_classes))
    batches = accelerator.train_batches(data).epoch(0, 10**9)
    accelerator.start_totals()
    accelerator.finish()
    write({"prepared_s": time.time() - STARTED, "mode": accelerator.compile_mode, "dtype": accelerator.precision.name})
    for line in sys.stdin:
        word, _, steps = line.strip().partition(" ")
        if word == "quit":
            break
        write(run(accelerator, batches, int(steps)))
    accelerator.teardown()


def run(accelerator: Any, batches: Any, steps: int) -> dict[str, Any]:
    """Train so many steps between two moments at which the device is idle."""
    accelerator.finish()
    host_s, begin = 0.0, time.perf_counter()
    for _ in range(steps):
        batch = next(batches)
        asked = time.perf_counter()
        accelerator.train_step(*batch)
        host_s += time.perf_counter() - asked
    accelerator.finish()
    seconds = time.perf_counter() - begin
    totals = accelerator.read_totals()
    accelerator.start_totals(totals["nonfinite_streak"])
    images = steps * accelerator.config.batch_size
    return {
        "steps": steps,
        "images": images,
        "seconds": seconds,
        "host_s": host_s,
        "loss": totals["loss"] / images,
        "skipped_steps": totals["skipped_steps"],
        "peak_memory_gib": accelerator.peak_memory_gib(),
        "compilations": accelerator.compilations(),
        "compile_s": accelerator.compile_seconds(),
    }


def write(values: dict[str, Any]) -> None:
    """One JSON line, at once."""
    print(json.dumps(values), flush=True)


def read_options() -> argparse.Namespace:
    """The run's configuration as JSON, and its device."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--config", required=True, help="RunConfig as one JSON object")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""set_replication: what it changes in torch-xla's state and in the graph of an all-reduce, here and today.

python -m resnet_acc.training.lessons.replication
"""

import argparse
import os
from typing import Any

import torch

from resnet_acc.training.distributed import read_place
from resnet_acc.training.lessons.common import counts_since, lesson_parser, make_arm, run_lesson, say, xla_counts
from resnet_acc.training.lessons.hlo import parse_hlo


def lesson(options: argparse.Namespace) -> dict[str, Any]:
    os.environ["XLA_ALWAYS_ALLREDUCE"] = "1"  # a world of one has an all-reduce in its graph too
    accelerator = make_arm(options)
    from resnet_acc.training.accelerators import torchacc

    # setup() has called set_replication; an empty list takes it back.
    torchacc.xm.set_replication(accelerator.device, [])
    before = _observe(torchacc, accelerator.device)
    torchacc.xm.set_replication(accelerator.device, [accelerator.device])
    after = _observe(torchacc, accelerator.device)
    same = before.pop("graph") == after.pop("graph")
    if read_place().rank == 0:
        say(f"without set_replication: devices {before['devices']}, {before['all_reduces']} all-reduce in the graph")
        say(f"with set_replication:    devices {after['devices']}, {after['all_reduces']} all-reduce in the graph")
        say(f"the two graphs are {'the same, and compiled once' if same else 'not the same'}")
    return {"device": accelerator.device_type, "without": before, "with": after, "same_graph": same}


def _observe(torchacc: Any, device: torch.device) -> dict[str, Any]:
    """The devices that torch-xla replicates over, and an all-reduce: its graph, its result, and what it compiled."""
    values = torch.tensor([1.5, 2.5, 3.5]).to(device)
    torchacc.mark_step()
    torchacc.xm.all_reduce("sum", [values], scale=0.5)
    text = torchacc.torch_xla._XLAC._get_xla_tensors_hlo([values])
    counts = xla_counts()
    result = values.cpu().tolist()
    return {
        "devices": list(torchacc.torch_xla._XLAC._xla_get_replication_devices()),
        "world_size": torchacc.xla_world_size(),
        "all_reduces": parse_hlo(text).kinds()["all-reduce"],
        "compilations": counts_since(counts)["compilations"],
        "result": result,
        "graph": text,
    }


if __name__ == "__main__":
    run_lesson(lesson, lesson_parser(__doc__))

"""Starting ranks of the real training code in a test."""

import json
import os
import subprocess
import sys
from pathlib import Path

from resnet_acc.config import RunConfig


def torchrun(nproc: int, arguments: list[str], arm: str) -> None:
    """Run a script or module on so many processes; the test fails with its output where it fails."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    environment = {
        **os.environ,
        "RESNET_ACC_COMPILER": arm if arm in ("torchacc", "inductor") else "",
        "RESNET_ACC_DEVICE": "cpu",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [*command, f"--nproc-per-node={nproc}", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def train(config: RunConfig, run_dir: Path) -> dict[str, list[dict]]:
    """Train as a run does and give rank 0's records by event."""
    run_dir.mkdir(parents=True)
    (run_dir / "config.json").write_text(json.dumps(config.to_json()))
    torchrun(config.nproc_per_node, ["-m", "resnet_acc.training.main", str(run_dir)], config.arm)
    events: dict[str, list[dict]] = {}
    for line in (run_dir / "0" / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        events.setdefault(record["event"], []).append(record)
    return events

"""Shared by the tests of the launcher: an environment that needs no asking, and looks at what a run left behind."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

TESTS = Path(__file__).parent

CPU_ENVIRONMENT: dict[str, Any] = {
    "python": "3.11.7",
    "torch": "2.9.1+cpu",
    "torchvision": "0.24.1",
    "torch_xla": "2.9.0",
    "torchacc": None,
    "triton": None,
    "cuda": {"available": False, "count": 0, "names": [], "driver": None, "runtime": None},
    "cudnn": None,
    "nvidia": {"count": 0, "names": [], "driver": None},
    "nvidia_xla": None,
    "tpu": False,
    "cxx_compiler": "/usr/bin/g++",
    "c_compiler": "/usr/bin/gcc",
    "python_headers": True,
    "errors": {"torchacc": "ImportError: torchacc is not installed", "cuda": "torch 2.9.1+cpu is built without CUDA"},
}


XLA_PLUGIN: dict[str, Any] = {
    "package": "jax-cuda12-pjrt",
    "version": "0.10.2",
    "cuda_major": 12,
    "path": "/site/jax_plugins/xla_cuda12/xla_cuda_plugin.so",
    "api_version": "0.108",
    "cudnn": "9.10.2",
    "cudnn_cuda_major": 12,
}


def gpus(count: int, **changes: Any) -> dict[str, Any]:
    """An environment with so many GPUs."""
    nvidia = {"count": count, "names": ["NVIDIA H200"] * count, "driver": "570.1"}
    cuda = nvidia | {"available": True, "runtime": "12.8"}
    return CPU_ENVIRONMENT | {"cuda": cuda, "nvidia": nvidia, "triton": "3.5.1"} | changes


def gpus_for_xla(count: int, plugin: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """An environment whose torch is built for the CPU and which has GPUs and the plugin for torch-xla all the same."""
    nvidia = {"count": count, "names": ["NVIDIA H200"] * count, "driver": "580.95.05"}
    return CPU_ENVIRONMENT | {"nvidia": nvidia, "nvidia_xla": XLA_PLUGIN | (plugin or {})} | changes


def fake_environment(**variables: str) -> dict[str, str]:
    """The environment of a launcher whose ranks are tests/fake_trainer.py."""
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "RESNET_ACC_TRAINER": "fake_trainer", **variables}


def start(arguments: list[str], **variables: str) -> "subprocess.Popen[str]":
    """Start launch_single_task with fake ranks on synthetic data."""
    return subprocess.Popen(
        [sys.executable, "-m", "resnet_acc.launch_single_task", "--data=synthetic", *arguments],
        env=fake_environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What a condition gives once it is true; the test fails where that takes too long."""
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)
    return value


def pids_below(folder: Path, count: int) -> list[int]:
    """Pids that the ranks and what they started have written, once there are so many."""

    def read() -> list[int]:
        texts = [path.read_text() for path in folder.iterdir()]
        return [int(text) for text in texts if text] if len(texts) >= count and all(texts) else []

    return wait_for(read)


def alive(pids: list[int]) -> list[int]:
    """Those that still run; a zombie does not."""
    running = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                running.append(pid)
    return running


def processes_with(run_id: str) -> list[int]:
    """Live processes that carry a run's id."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("RESNET_ACC_RUN_ID") == run_id and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def run_folders(output: Path) -> list[Path]:
    """Folders of runs below an output folder."""
    return sorted(path.parent for path in output.glob("*/*/*/*/status.json"))


def read_status(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "status.json").read_text(encoding="utf-8"))


def records(run_dir: Path, rank: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / str(rank) / "metrics.jsonl").read_text().splitlines()]

"""A run's folder: made under an id of its own, and the files about the run that the launcher writes into it."""

import datetime
import os
import platform
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from resnet_acc import __version__
from resnet_acc.config import RunConfig
from resnet_acc.files import write_atomically, write_json
from resnet_acc.launch import machine, xla_plugin
from resnet_acc.launch.preflight import Preflight

ELASTIC_FOLDER = ".elastic"
"""Where torchrun keeps each rank's own stdout, stderr and error file while the run lasts."""


def new_id() -> str:
    """Time of the start and six random digits, as in 20261201-115300-3f9a2c."""
    return f"{datetime.datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def make_folder(parent: Path) -> Path:
    """Make a folder under a new id, which no other start can have at the same time.

    Raises:
        OSError: the folder cannot be made.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for _ in range(100):
        folder = parent / new_id()
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            continue
    raise FileExistsError(f"no free run id under {parent}")


class RunFolder:
    """The folder of one run and its status."""

    def __init__(self, config: RunConfig, checked: Preflight, environment: dict[str, Any]) -> None:
        """Make the folder with config.json, command.txt, env.json and a status of "running".

        Raises:
            ValueError: the output folder cannot be written.
        """
        self._config = config
        parent = Path(config.output) / config.model / config.tag(checked.device_name) / config.suffix
        try:
            self.path = make_folder(parent)
        except (OSError, ValueError) as error:
            raise ValueError(f"output {config.output!r} cannot be written ({error}); give another --output") from None
        try:
            write_json(self.path / "config.json", config.to_json())
            write_atomically(self.path / "command.txt", shlex.join(rerun_command(config)) + "\n")
            write_json(self.path / "env.json", describe_environment(environment, checked))
            self._status = _first_status(self.path.name, checked.warnings)
            write_json(self.path / "status.json", self._status)
        except (OSError, ValueError) as error:
            shutil.rmtree(self.path, ignore_errors=True)  # half a folder would be read as a run
            raise ValueError(f"output {config.output!r} cannot be written ({error}); give another --output") from None

    @property
    def run_id(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def ranks(self) -> list[int]:
        """Numbers, among all machines' ranks, of those that this machine runs."""
        first = self._config.node_rank * self._config.nproc_per_node
        return list(range(first, first + self._config.nproc_per_node))

    def elastic(self, rank: int, name: str) -> Path | None:
        """One of torchrun's files of a rank, such as stderr.log."""
        found = sorted((self.path / ELASTIC_FOLDER).glob(f"*/attempt_*/{rank - self.ranks[0]}/{name}"))
        return found[-1] if found else None

    def end(self, status: str, **values: Any) -> dict[str, Any]:
        """Write the final status, and drop torchrun's own files; what they held is in launcher.log as well."""
        self._status = self._status | {"status": status, "ended_at": time.time()} | values
        write_json(self.path / "status.json", self._status)
        shutil.rmtree(self.path / ELASTIC_FOLDER, ignore_errors=True)
        return self._status


def rerun_command(config: RunConfig) -> list[str]:
    """A command that does the same run again from any folder."""
    return [sys.executable, "-m", "resnet_acc.launch_single_task", *config.to_arguments()]


def describe_environment(environment: dict[str, Any], checked: Preflight) -> dict[str, Any]:
    """What env.json holds: named facts only, so that no secret of the shell's environment gets in."""
    cuda, gpus = environment["cuda"], xla_plugin.gpus(environment)
    names = ("torch", "torchvision", "torch_xla", "torchacc", "triton", "cudnn")
    return {
        "schema": 1,
        "resnet_acc": __version__,
        "git_commit": _git_commit(),
        "python": environment["python"],
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cpu_model": machine.cpu_model(),
        "num_cores": machine.num_cores(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS") or None,  # None: a rank's share of the cores
        "memory_gib": round(machine.memory_gib(), 2),
        **{f"{name}_version": environment[name] for name in names},
        "cuda_runtime": cuda["runtime"],
        "driver": gpus["driver"],
        "gpu_names": gpus["names"],
        "nvidia_xla": environment.get("nvidia_xla"),
        "device": checked.device,
        "num_devices": checked.num_devices,
    }


def _first_status(run_id: str, warnings: list[str]) -> dict[str, Any]:
    return {
        "schema": 1,
        "status": "running",
        "run_id": run_id,
        "pid": os.getpid(),
        "pid_create_time": psutil.Process().create_time(),
        "host": socket.gethostname(),
        "started_at": time.time(),
        "ended_at": None,
        "exit_code": None,
        "failed_rank": None,
        "reason": None,
        "last_lines": [],
        "warnings": warnings,
    }


def _git_commit() -> str | None:
    folder = Path(__file__).resolve().parents[3]
    if not (folder / ".git").exists():
        return None  # an installed package: a repository further up is another's
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None

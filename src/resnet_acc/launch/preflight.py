"""Everything that can be known to go wrong before a process is started, said in one line each."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resnet_acc.config import ARMS, SYNTHETIC_EPOCH_STEPS, RunConfig
from resnet_acc.files import project_root
from resnet_acc.launch import machine, xla_plugin

PROBE_SECONDS = 180
"""Importing torch takes seconds, but minutes where many runs are started at once on few cores."""
RANK_GIB = 0.3
"""Memory that a process takes at the least: torch and nothing else."""


@dataclass(frozen=True)
class Preflight:
    """What a run will use: "cpu", "cuda" or "tpu", its name as a folder's part, its GPUs (or cores), and warnings."""

    device: str
    device_name: str
    num_devices: int
    warnings: list[str] = field(default_factory=list)


def resolve(config: RunConfig) -> RunConfig:
    """The same run with absolute folders; relative ones hang on the repository's root."""
    output = project_root() / Path(config.output).expanduser()
    data = config.data
    if data not in ("mock", "synthetic"):
        data = os.path.abspath(project_root() / Path(data).expanduser())
    resume = config.resume
    if resume not in ("no", "auto"):
        resume = os.path.abspath(project_root() / Path(resume).expanduser())
    return dataclasses.replace(config, output=os.path.abspath(output), data=data, resume=resume)


def probe(python: str = sys.executable, *, quick: bool = False) -> dict[str, Any]:
    """What an environment can do (see resnet_acc.training.probe); torch is imported in a subprocess only.

    Args:
        python: interpreter of the environment.
        quick: import nothing but torch, which is enough for every arm but torchacc.
    """
    command = [python, "-m", "resnet_acc.training.probe", *(["--quick"] if quick else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return _unknown_environment(f"it did not answer within {PROBE_SECONDS} s")
    except OSError as error:
        return _unknown_environment(str(error))
    try:
        report = json.loads(done.stdout)
        return report if isinstance(report, dict) else _unknown_environment("it gave no report")
    except ValueError:
        lines = done.stderr.strip().splitlines() or ["it printed nothing"]
        return _unknown_environment(f"exit status {done.returncode}: {lines[-1]}")


def _unknown_environment(reason: str) -> dict[str, Any]:
    names = ("python", "torch", "torchvision", "torch_xla", "torchacc", "triton", "cudnn", "cxx_compiler", "c_compiler")
    nvidia = {"count": 0, "names": [], "driver": None}
    empty: dict[str, Any] = dict.fromkeys((*names, "nvidia_xla"))
    errors = {"probe": f"asking the environment failed: {reason}"}
    cuda = nvidia | {"available": False, "runtime": None}
    return empty | {"cuda": cuda, "nvidia": nvidia, "tpu": False, "python_headers": False, "errors": errors}


def resolve_device(config: RunConfig, environment: dict[str, Any]) -> str:
    """The device that --device means here.

    A GPU that torch itself does not see (a torch for the CPU) is one for torchacc, where that can use it.
    """
    if config.device != "auto":
        return config.device
    if environment["cuda"]["count"]:
        return "cuda"
    only_xla = config.arm == "torchacc" and xla_plugin.only_for_xla(environment)
    return "cuda" if only_xla and _why_not("torchacc", environment, "cuda") is None else "cpu"


def runnable_arms(environment: dict[str, Any], device: str) -> dict[str, str | None]:
    """For each arm None where it can run on the device, else which package, which version, and what to do."""
    return {arm: _why_not(arm, environment, device) for arm in ARMS}


def _why_not(arm: str, environment: dict[str, Any], device: str) -> str | None:
    errors = environment.get("errors", {})
    torch = environment["torch"]
    if torch is None or environment["torchvision"] is None:
        missing = "torch" if torch is None else "torchvision"
        reason = errors.get("probe") or errors.get(missing) or f"{missing} is not installed"
        return f"{missing} cannot be imported ({reason}); run: bash prepare.sh"
    if device == "tpu" and arm != "torchacc":
        return f"{arm} has no TPU device; use --compiler-opt, or --device=cpu"
    if arm in ("kernel", "inductor") and device == "cpu" and version(torch) < (2, 4):
        return f"{arm} needs torch >= 2.4 for its fused optimizer on cpu and this is {torch}; install a newer torch"
    if arm == "inductor":
        return _why_not_inductor(environment, device)
    if arm == "torchacc":
        return _why_not_torchacc(environment, device)
    return None


def _why_not_inductor(environment: dict[str, Any], device: str) -> str | None:
    errors = environment.get("errors", {})
    folder = environment.get("torch_folder") or ""
    if device == "cpu" and re.search(r"\s", folder):
        # TorchInductor hands -L with this folder to the compiler unquoted.
        return (
            f"inductor on cpu cannot use torch {environment['torch']} from {folder}: there is white space in the path, "
            "which TorchInductor's call of the compiler does not survive; use an environment at a path without"
        )
    compiler = "c_compiler" if device == "cuda" else "cxx_compiler"
    needs = [compiler, "python_headers", *(["triton"] if device == "cuda" else [])]
    for name in needs:
        if not environment.get(name):
            mend = "install triton" if name == "triton" else "install g++ and the Python headers (python3-dev)"
            found = errors.get(name, f"{name} is missing")
            return f"inductor on {device} with torch {environment['torch']} needs {name}: {found}; {mend}"
    return None


def _why_not_torchacc(environment: dict[str, Any], device: str) -> str | None:
    errors, torch = environment.get("errors", {}), environment["torch"]
    if environment["torchacc"] is not None:
        return None
    vendor = errors.get("torchacc", "torchacc is not installed")
    xla, wanted = environment["torch_xla"], ".".join(map(str, version(torch)))
    if xla is None:
        mend = f"pip install 'torch_xla=={wanted}.*'"
        if version(torch) > xla_plugin.NEWEST_TORCH_XLA:
            mend = "the newest is 2.9, so use an environment with torch 2.9"
        elif device == "cuda":
            mend = xla_plugin.INSTALL  # brings torch_xla as well
        return (
            f"torchacc on {device} needs torch_xla {wanted}, and there is none "
            f"({errors.get('torch_xla', 'not installed')}; {vendor}); {mend}, or leave --compiler-opt out"
        )
    if version(xla) != version(torch):
        return f"torchacc needs torch_xla {wanted} beside torch {torch}, not {xla}; install torch_xla=={wanted}.*"
    return xla_plugin.why_not(environment) if device == "cuda" else None


def version(text: str) -> tuple[int, int]:
    """Major and minor number; (0, 0) where the text has none."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def check(config: RunConfig, environment: dict[str, Any]) -> Preflight:
    """Check a run against the environment, the data, the port and the output folder.

    Raises:
        ValueError: it cannot run as asked; one line with the offending values and the mend.
    """
    config = resolve(config)
    device = resolve_device(config, environment)
    warnings: list[str] = []
    num_devices = _check_devices(config, environment, device, warnings)
    reason = runnable_arms(environment, device)[config.arm]
    if reason is not None:
        raise ValueError(reason)
    if config.arm == "torchacc" and environment["torchacc"] is None:
        if "Alibaba" in _error(environment, "torchacc"):
            warnings.append(_error(environment, "torchacc"))
        if device == "cuda":
            warnings += xla_plugin.warnings(environment)
    if config.arm == "torchacc" and config.amp_dtype == "float16" and device == "tpu":
        raise ValueError("amp_dtype is 'float16', for which a TPU has no units; use --amp_dtype=bfloat16")
    _check_output(config)
    _check_port(config)
    _check_data(config, warnings)
    name = machine.gpu_slug(_gpus(config, environment)["names"][0]) if device == "cuda" else device
    return Preflight(device, name, num_devices, warnings)


def _gpus(config: RunConfig, environment: dict[str, Any]) -> dict[str, Any]:
    """The GPUs that the arm could use: torch's own, and for torchacc also those that only the driver sees."""
    cuda: dict[str, Any] = environment["cuda"]
    return xla_plugin.gpus(environment) if config.arm == "torchacc" else cuda


def _error(environment: dict[str, Any], name: str) -> str:
    return str(environment.get("errors", {}).get(name, ""))


def _check_devices(config: RunConfig, environment: dict[str, Any], device: str, warnings: list[str]) -> int:
    asked = config.nproc_per_node
    errors = environment.get("errors", {})
    if device == "cuda":
        count = int(_gpus(config, environment)["count"])
        if asked > count:
            why = errors.get("cuda") or errors.get("torch") or errors.get("probe")
            mend = f"give --nproc_per_node={count} or less" if count else "use --device=cpu"
            raise ValueError(
                f"nproc_per_node is {asked} with device cuda, but {count} GPUs are available"
                f"{f' ({why})' if why else ''}; {mend}"
            )
        return count
    if device == "tpu" and not environment["tpu"]:
        raise ValueError("device is 'tpu' but no TPU is visible here; use --device=cpu")
    cores = machine.num_cores()
    most = max(cores, int(machine.memory_gib() / RANK_GIB))
    if asked > most:
        raise ValueError(
            f"nproc_per_node is {asked}, and {machine.memory_gib():.1f} GiB of memory hold at most {most} processes; "
            f"give --nproc_per_node={cores}"
        )
    if device == "cpu" and asked > cores:
        warnings.append(f"{asked} processes > {cores} cores: they will wait for each other, and rates say little")
    return cores


def _check_output(config: RunConfig) -> None:
    """No folder is made here: the nearest one that exists must take a new entry."""
    folder = Path(config.output)
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
    except OSError as error:
        raise ValueError(f"output {config.output} cannot be used ({error.strerror}); give another --output") from None
    if not folder.is_dir():
        raise ValueError(f"output {config.output} cannot be used: {folder} is no folder; give another --output")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"output {config.output} cannot be written: no permission in {folder}; give another --output")


def _check_port(config: RunConfig) -> None:
    port = config.master_port
    if config.node_rank or (port is None and config.nnodes == 1):
        return
    port = 29500 if port is None else port
    mend = "leave --master_port out for a free one" if config.nnodes == 1 else "give every machine another one"
    try:
        free = machine.port_is_free(port)
    except PermissionError:
        raise ValueError(f"master_port {port} needs root; give a port from 1024 on") from None
    if not free:
        raise ValueError(f"master_port {port} is in use on this machine; {mend}")


def _check_data(config: RunConfig, warnings: list[str]) -> None:
    per_epoch = config.max_steps or SYNTHETIC_EPOCH_STEPS
    if config.data != "synthetic":
        per_epoch = _steps_per_epoch(config)
    steps = per_epoch * config.epochs
    steps = min(steps, config.max_steps or steps)
    if config.warmup_steps is not None and config.warmup_steps >= steps:
        warnings.append(
            f"warmup_steps is {config.warmup_steps} and the run has {steps} steps: 0 steps after warm-up, so no rate"
        )


def _steps_per_epoch(config: RunConfig) -> int:
    from resnet_acc.datasets.folder import count_images

    folder = project_root() / "data" / "mock_imagenet" if config.data == "mock" else Path(config.data)
    mend = "make it with: resnet-acc data mock" if config.data == "mock" else "give the folder that holds train/"
    if not folder.is_dir():
        raise ValueError(f"data {config.data!r}: {folder} is no folder; {mend}")
    try:
        images = count_images(folder).train_images
    except OSError as error:
        raise ValueError(f"data {config.data!r}: {folder} cannot be read ({error}); {mend}") from None
    except ValueError as error:
        raise ValueError(f"data {config.data!r}: {error}") from None
    steps = images // config.world_size // config.batch_size
    if steps == 0:
        most = images // config.world_size
        fit = f"use --batch_size={most} or less, or more images" if most else "use fewer processes, or more images"
        raise ValueError(f"{images} images < batch {config.batch_size} x {config.world_size} processes: 0 steps; {fit}")
    return steps

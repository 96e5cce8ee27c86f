"""One page about this machine and environment: what is there, and for each arm whether it can run and if not why."""

import sys
from pathlib import Path
from typing import Any

from resnet_acc.config import RunConfig
from resnet_acc.files import project_root
from resnet_acc.launch import machine, preflight, xla_plugin


def examine() -> dict[str, Any]:
    """Everything doctor says, as plain values."""
    environment = preflight.probe()
    device = preflight.resolve_device(RunConfig(), environment)
    mock = project_root() / "data" / "mock_imagenet"
    return {
        "environment": environment,
        "machine": {
            "cpu_model": machine.cpu_model(),
            "num_cores": machine.num_cores(),
            "memory_gib": machine.memory_gib(),
            "shm_free_gib": machine.free_gib(Path("/dev/shm")),
            "disk_free_gib": machine.free_gib(project_root()),
            "project_root": str(project_root()),
            "mock_data": (mock / "train").is_dir(),
        },
        "device": device,
        "arms": preflight.runnable_arms(environment, device),
    }


def page(report: dict[str, Any]) -> list[str]:
    """The lines of the page."""
    environment, host = report["environment"], report["machine"]
    cuda, errors = environment["cuda"], environment["errors"]
    gpus = ", ".join(cuda["names"]) or f"none ({errors.get('cuda', 'none is visible')})"
    if xla_plugin.only_for_xla(environment):
        names = ", ".join(xla_plugin.gpus(environment)["names"])
        gpus = f"{names}; none for torch ({errors.get('cuda', 'none is visible')})"
    rows = [
        ("Python", f"{environment['python']} at {sys.executable}"),
        *((name, _version(environment, name)) for name in ("torch", "torchvision", "torch_xla", "torchacc", "triton")),
        ("GPUs", gpus),
        ("CUDA", f"runtime {cuda['runtime']}, driver {cuda['driver']}, cuDNN {environment['cudnn']}"),
        ("XLA plugin", xla_plugin.describe(environment)),
        ("TPU", "yes" if environment["tpu"] else "none"),
        ("CPU", f"{host['cpu_model']}, {host['num_cores']} cores usable"),
        ("memory", f"{host['memory_gib']:.1f} GiB"),
        ("/dev/shm", _shm(host["shm_free_gib"])),
        ("disk", f"{_gib(host['disk_free_gib'])} free at {host['project_root']}"),
        ("C++ compiler", environment["cxx_compiler"] or f"none ({errors.get('cxx_compiler', 'not found')})"),
        ("Python.h", "yes" if environment["python_headers"] else f"none ({errors.get('python_headers', 'not found')})"),
        ("mock data", "yes" if host["mock_data"] else "none; make it with: resnet-acc data mock"),
    ]
    lines = [f"{name:<13} {text}" for name, text in rows]
    if "probe" in errors:
        lines.append(f"{'error':<13} {errors['probe']}")
    lines.append("")
    lines.append(f"Arms on {report['device']}:")
    for arm, why in report["arms"].items():
        lines.append(f"  {arm:<11} {'can run' if why is None else 'cannot run: ' + why}")
    if report["device"] == "cpu" and xla_plugin.only_for_xla(environment):
        why = preflight.runnable_arms(environment, "cuda")["torchacc"]
        lines += ["Arms on cuda:", f"  {'torchacc':<11} {'can run' if why is None else 'cannot run: ' + why}"]
    return lines


def exit_status(report: dict[str, Any]) -> int:
    """1 where not even plain PyTorch can train here."""
    return 0 if report["arms"]["eager"] is None else 1


def _version(environment: dict[str, Any], name: str) -> str:
    return environment[name] or f"none ({environment['errors'].get(name, 'not installed')})"


def _shm(free_gib: float | None) -> str:
    if free_gib is None:
        return "none; loader processes need it, so use --workers=0"
    small = (
        "" if free_gib >= 1 else "; small for loader processes: give the container --shm-size=8g, or use --workers=0"
    )
    return f"{_gib(free_gib)} free{small}"


def _gib(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f} GiB"

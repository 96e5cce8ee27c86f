"""`python -m resnet_acc.arms`: say which arms this environment can run. Used by prepare.sh.

Asking takes seconds, since torch and torch-xla have to be imported for it. The answer is kept beside the packages and
given again until something that it rests on has changed.
"""

import contextlib
import glob
import json
import os
import shutil
import sysconfig
from pathlib import Path
from typing import Any

from resnet_acc.launch import preflight, xla_plugin
from resnet_acc.requirements import installed_versions

_PACKAGES = (
    *("resnet-acc", "torch", "torchvision", "torch-xla", "torchacc", "triton"),
    *("jax-cuda12-pjrt", "jax-cuda13-pjrt", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
)

_SETTINGS = ("CUDA_VISIBLE_DEVICES", "PJRT_DEVICE", "RESNET_ACC_PJRT_PLUGIN", "CXX", "CC")


def main() -> None:
    """Print one line of the arms that can run, and one for each that cannot, with the reason."""
    path = Path(sysconfig.get_paths()["purelib"]) / ".resnet_acc-arms.json"
    basis = _basis()
    lines = _kept_answer(path, basis)
    if lines is None:
        environment = preflight.probe()
        lines = describe(environment)
        if "probe" not in environment.get("errors", {}):
            with contextlib.suppress(OSError):
                path.write_text(json.dumps({"basis": basis, "lines": lines}), encoding="utf-8")
    for line in lines:
        print(f"prepare.sh: {line}")


def describe(environment: dict[str, Any]) -> list[str]:
    """The lines to print for what preflight.probe gave."""
    device = "cuda" if environment["cuda"]["count"] else "tpu" if environment.get("tpu") else "cpu"
    reasons = preflight.runnable_arms(environment, device)
    runnable = [arm for arm, reason in reasons.items() if reason is None]
    lines = [f"arms that this environment can run on {device}: {', '.join(runnable) or 'none'}"]
    lines += [f"not {arm}: {reason}" for arm, reason in reasons.items() if reason is not None]
    if device == "cpu" and xla_plugin.only_for_xla(environment):
        reason = preflight.runnable_arms(environment, "cuda")["torchacc"]
        lines.append("torchacc can run on the GPU" if reason is None else f"not torchacc on the GPU: {reason}")
    return lines


def _basis() -> dict[str, Any]:
    """What the answer rests on, read without importing any of it."""
    versions = installed_versions()
    return {
        "packages": {name: versions.get(name) for name in _PACKAGES},
        "compilers": {name: shutil.which(name) for name in ("g++", "c++", "clang++", "gcc", "cc")},
        "headers": os.path.isfile(os.path.join(sysconfig.get_paths()["include"], "Python.h")),
        "driver": _text("/proc/driver/nvidia/version"),
        "gpus": sorted(glob.glob("/dev/nvidia[0-9]*") + glob.glob("/dev/accel*") + glob.glob("/dev/vfio/[0-9]*")),
        "settings": {name: os.environ.get(name) for name in _SETTINGS},
    }


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return None


def _kept_answer(path: Path, basis: dict[str, Any]) -> list[str] | None:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return [str(line) for line in kept["lines"]] if kept["basis"] == basis else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


if __name__ == "__main__":
    main()

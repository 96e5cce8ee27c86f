"""Which of the names that the article imports exist here, and what stands in for those that are gone.

python -m resnet_acc.training.lessons.article_names
"""

import argparse
import importlib
from importlib import metadata
from types import ModuleType
from typing import Any

from resnet_acc.training.lessons.common import CannotRun, first_line, prepare_environment, run_lesson, say

NAMES = (
    ("core.xla_model", "xla_device", ""),
    ("core.xla_model", "set_replication", ""),
    ("core.xla_model", "mark_step", "torch_xla.sync"),
    ("core.xla_model", "_fetch_gradients", ""),
    ("core.xla_model", "all_reduce", ""),
    ("core.xla_model", "get_ordinal", "torch_xla.runtime.global_ordinal"),
    ("core.xla_model", "xrt_world_size", "torch_xla.runtime.world_size"),
    ("distributed.xla_backend", None, ""),
    ("amp", "autocast", 'torch.autocast("xla")'),
    ("amp", "GradScaler", "resnet_acc.training.precision.SyncfreeGradScaler"),
    ("amp.syncfree", "AdamW", ""),
)
"""Module, name (None: the module itself) and what this package uses instead, as the article imports them."""


def lesson(options: argparse.Namespace) -> dict[str, Any]:
    prepare_environment("torchacc")
    home = "torchacc.torch_xla"
    try:
        importlib.import_module("torchacc.torch_xla.core.xla_model")
    except ImportError:
        home = "torch_xla"
    try:
        importlib.import_module(home)
    except (ImportError, OSError, RuntimeError) as error:
        raise CannotRun(first_line(error)) from error
    say(f"the article's torchacc.torch_xla is {home} here")
    rows = []
    for module, name, instead in NAMES:
        there = _has(home, module, name)
        rows.append({"name": f"{module}.{name}" if name else module, "there": there, "instead": instead})
        say(f"{rows[-1]['name']:28} {'there' if there else 'gone':6} {instead and 'used here: ' + instead}".rstrip())
    return {"namespace": home, "version": _version(), "names": rows}


def _has(home: str, module: str, name: str | None) -> bool:
    try:
        found: ModuleType = importlib.import_module(f"{home}.{module}")
    except ImportError:
        return False
    return name is None or hasattr(found, name)


def _version() -> str | None:
    for package in ("torch_xla", "torchacc"):
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None


if __name__ == "__main__":
    run_lesson(lesson, argparse.ArgumentParser(description=__doc__))

"""What `resnet-acc doctor` says of the software: Python, the packages, and how they fit each other."""

import importlib.metadata
import importlib.util
import json
import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from resnet_acc.launch import preflight, xla_plugin
from resnet_acc.requirements import TORCHVISION_OFFSET

OK, WARN, CANNOT = "ok", "warn", "cannot"
OLDEST_TORCH = (2, 3)
SET_UP = "bash prepare.sh (in the repository)"


@dataclass(frozen=True)
class Check:
    """One line: what was looked at, its state (ok, warn, cannot), what was found, and where it is not ok the mend."""

    what: str
    state: str
    value: str
    mend: str = ""

    def to_json(self) -> dict[str, str]:
        """Plain values."""
        return asdict(self)


def judged(what: str, value: str, mend: str, arms: Iterable[str], asked: Iterable[str]) -> Check:
    """A fault that only some arms suffer from: "cannot" where one of them was asked for, else "warn"."""
    return Check(what, CANNOT if set(arms) & set(asked) else WARN, value, mend)


def software_checks(environment: dict[str, Any], device: str, asked: list[str]) -> list[Check]:
    """Python, torch, torchvision, CUDA, torch-xla, its plugin, the vendor's torchacc, and the notebook's side.

    Args:
        environment: what preflight.probe said.
        device: "cpu", "cuda" or "tpu".
        asked: arms that are to run.
    """
    return [
        _python(),
        _packages(),
        _torch(environment),
        _torchvision(environment),
        _cuda(environment, device, asked),
        _torch_xla(environment, device, asked),
        _plugin(environment, device, asked),
        _vendor(environment),
        *_compilers(environment, device, asked),
        _kernel(),
    ]


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    value = f"{version} at {sys.executable}"
    return Check("Python", OK, value)


def _packages() -> Check:
    """Requirements of this package that are missing or of another version, by the packages' own metadata."""
    try:
        lines = importlib.metadata.requires("resnet_acc") or []
    except importlib.metadata.PackageNotFoundError:
        return Check("packages", WARN, "resnet_acc is not installed here, only found on the path", SET_UP)
    wrong = []
    wanted = [Requirement(line) for line in lines if "extra ==" not in line]
    for item in wanted:
        if item.name in ("torch", "torchvision") or (item.marker is not None and not item.marker.evaluate()):
            continue  # those two have lines of their own
        try:
            version = importlib.metadata.version(item.name)
            if not item.specifier.contains(version, prereleases=True):
                wrong.append(f"{item.name} {version} (needs {item.specifier})")
        except (importlib.metadata.PackageNotFoundError, InvalidRequirement):
            wrong.append(f"{item.name} is missing")
    if wrong:
        return Check("packages", WARN, ", ".join(wrong), SET_UP)
    return Check("packages", OK, f"the {len(wanted)} that resnet_acc requires are installed")


def _torch(environment: dict[str, Any]) -> Check:
    version, errors = environment["torch"], environment.get("errors", {})
    if version is None:
        reason = errors.get("torch") or errors.get("probe") or "not installed"
        return Check("torch", CANNOT, f"cannot be imported: {reason}", SET_UP)
    if preflight.version(version) < OLDEST_TORCH:
        return Check("torch", WARN, version, f"torch {'.'.join(map(str, OLDEST_TORCH))} or newer was tried; {SET_UP}")
    return Check("torch", OK, version)


def _torchvision(environment: dict[str, Any]) -> Check:
    version, torch = environment["torchvision"], environment["torch"]
    if version is None:
        errors = environment.get("errors", {})
        reason = errors.get("torchvision") or errors.get("probe") or "not installed"
        return Check("torchvision", CANNOT, f"cannot be imported: {reason}", SET_UP)
    major, minor = preflight.version(torch or "")
    if major == 2 and preflight.version(version) != (0, minor + TORCHVISION_OFFSET):
        wanted = f"0.{minor + TORCHVISION_OFFSET}"
        return Check(
            "torchvision", WARN, f"{version} beside torch {torch}", f"pip install 'torchvision=={wanted}.*' --no-deps"
        )
    return Check("torchvision", OK, version)


def _cuda(environment: dict[str, Any], device: str, asked: list[str]) -> Check:
    cuda, errors = environment["cuda"], environment.get("errors", {})
    value = f"runtime {cuda['runtime'] or 'none'}, driver {_driver(environment) or 'none'}"
    if environment["cudnn"]:
        value += f", cuDNN {environment['cudnn']}"
    if cuda["count"]:
        return Check("CUDA", OK, value)
    why = errors.get("cuda") or errors.get("torch") or "torch sees no GPU"
    if xla_plugin.only_for_xla(environment):
        mend = "install a torch for CUDA for the other arms; torchacc can use them through the XLA plugin"
        concerned = asked if device == "cuda" else ()
        return judged("CUDA", f"{value}; {why}", mend, ("eager", "kernel", "inductor"), concerned)
    if device == "cuda":
        mend = "use --device=cpu, or a machine with an NVIDIA GPU and its driver"
        return Check("CUDA", CANNOT, f"{value}; {why}", mend)
    return Check("CUDA", OK, f"{value}; {why}: trains on the {'TPU' if device == 'tpu' else 'CPU'}")


def _driver(environment: dict[str, Any]) -> Any:
    return xla_plugin.gpus(environment).get("driver")


def _torch_xla(environment: dict[str, Any], device: str, asked: list[str]) -> Check:
    """The pair of torch and torch-xla, as the preflight judges it."""
    version = environment["torch_xla"]
    if environment["torchacc"] is not None:
        return Check("torch-xla", OK, f"{version or 'none'}; the vendor's torchacc has its own")
    value = version or f"none ({environment.get('errors', {}).get('torch_xla', 'not installed')})"
    torch = environment["torch"]
    if torch is None:
        return judged("torch-xla", f"{value}; there is no torch that it could go with", SET_UP, ("torchacc",), asked)
    if version is not None and preflight.version(version) == preflight.version(torch):
        return Check("torch-xla", OK, f"{version}, which goes with torch {torch}")
    why = preflight.runnable_arms(environment | {"torchvision": "0"}, device)["torchacc"] or ""
    mend = why.rpartition("; ")[2].partition(", or leave")[0] or SET_UP
    return judged("torch-xla", f"{value} beside torch {torch}", mend, ("torchacc",), asked)


def _plugin(environment: dict[str, Any], device: str, asked: list[str]) -> Check:
    told = xla_plugin.describe(environment)
    if not xla_plugin.gpus(environment)["count"]:
        return Check("XLA plugin", OK, f"not needed: there is no NVIDIA GPU ({told.partition(';')[0].rstrip('(')})")
    if environment["torchacc"] is not None:
        return Check("XLA plugin", OK, f"not used: the vendor's torchacc has its own ({told})")
    if environment["torch_xla"] is None:
        return judged("XLA plugin", f"{told}; there is no torch-xla", xla_plugin.INSTALL, ("torchacc",), asked)
    why = xla_plugin.why_not(environment)
    if why is not None:
        value, _, mend = why.partition("; ")
        on_gpu = asked if device == "cuda" else ()
        return judged("XLA plugin", value, mend or xla_plugin.INSTALL, ("torchacc",), on_gpu)
    said = [line for line in xla_plugin.warnings(environment) if "sees no GPU" not in line]
    if said:
        return Check("XLA plugin", WARN, told, said[0].rpartition("; ")[2])
    return Check("XLA plugin", OK, told)


def _vendor(environment: dict[str, Any]) -> Check:
    if environment["torchacc"] is not None:
        return Check("torchacc", OK, f"the vendor's, {environment['torchacc']}")
    why = str(environment.get("errors", {}).get("torchacc", "not installed"))
    if "not installed" in why or "probe" in environment.get("errors", {}):
        return Check("torchacc", OK, "not installed; the torchacc arm uses torch-xla")
    return Check("torchacc", WARN, why, "pip uninstall torchacc, or use an image of Alibaba PAI that brings theirs")


def _compilers(environment: dict[str, Any], device: str, asked: list[str]) -> list[Check]:
    """What the inductor arm compiles with, and on GPUs the torchacc arm's shim."""
    errors = environment.get("errors", {})
    needs = [
        ("C++ compiler", "cxx_compiler", ("inductor",) if device != "cuda" else ()),
        ("C compiler", "c_compiler", ("inductor", "torchacc") if device == "cuda" else ()),
        ("Python.h", "python_headers", ("inductor",)),
        ("triton", "triton", ("inductor",) if device == "cuda" else ()),
    ]
    mends = {"python_headers": "apt-get install python3-dev", "triton": "pip install triton"}
    checks = []
    for what, name, arms in needs:
        found = environment.get(name)
        if found:
            checks.append(Check(what, OK, "found" if found is True else str(found)))
        elif arms:
            value = f"none ({errors.get(name) or errors.get('probe') or 'not found'})"
            checks.append(judged(what, value, mends.get(name, "apt-get install g++ gcc"), arms, asked))
        else:
            checks.append(Check(what, OK, f"none, and not needed on {device}"))
    return checks


def _kernel(prefix: str = sys.prefix) -> Check:
    """The kernel "python3" that the notebooks ask for, and what it starts."""
    install = f"{sys.executable} -m ipykernel install --sys-prefix"
    if importlib.util.find_spec("ipykernel") is None:
        return Check("Jupyter kernel", WARN, "ipykernel is not installed, so no notebook runs", SET_UP)
    path = Path(prefix) / "share" / "jupyter" / "kernels" / "python3" / "kernel.json"
    try:
        program = json.loads(path.read_text(encoding="utf-8"))["argv"][0]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return Check("Jupyter kernel", WARN, f"no kernel python3 at {path}", install)
    if shutil.which(str(program)) is None:
        return Check("Jupyter kernel", WARN, f"kernel python3 starts {program}, which is not there", install)
    return Check("Jupyter kernel", OK, f"python3, which starts {program}")

"""What this environment has, and what it still needs, decided in one process and without pip.

prepare.sh runs this before anything is installed, so it needs the standard library and packaging alone (pip's own copy
where there is no other). A torch, torchvision, torch-xla or torchacc that is already there is never replaced.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
import urllib.parse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KEPT = ("torch", "torchvision", "torch-xla", "torchacc", "torchaudio", "triton", "pytorch-triton")
"""Packages of a vendor's image that pip must leave as they are."""
OLDEST_TORCH = (2, 3)
NVIDIA_XLA_VARIABLE = "RESNET_ACC_NVIDIA_XLA"
"""Set to 1, it has the plugin installed with which torch-xla trains on NVIDIA GPUs."""
OLDEST_DRIVER = {"nvidia-xla": 525, "nvidia-xla-cuda13": 580}
"""By extra, for CUDA 12 and 13 (see launch/xla_plugin.py, which cannot be imported before anything is installed)."""
TORCHVISION_OFFSET = 15  # torch 2.N goes with torchvision 0.(N+15): 2.3 with 0.18, 2.9 with 0.24


class CannotInstall(Exception):
    """The environment cannot be used as it is; the message says why and what to do. Nothing was changed."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to install, as pip requirements.

    `kept` are constraints on what pip must not change; `alone` is installed without dependencies, since those would
    name a torch; `notes` are lines for the user.
    """

    missing: list[str]
    alone: list[str]
    kept: list[str]
    notes: list[str]
    project: bool


def _first_of(*names: str) -> ModuleType:
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise CannotInstall(f"{sys.executable} has neither {' nor '.join(names)}; run: {sys.executable} -m ensurepip")


def canonical(name: str) -> str:
    """Package names compare without case, and with -, _ and . alike (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_versions() -> dict[str, str]:
    """Versions by canonical name; where a name is found twice, what Python would import stands."""
    found: dict[str, str] = {}
    for dist in importlib.metadata.distributions():
        name, version = dist.metadata["Name"], dist.metadata["Version"]
        if name and version:
            found.setdefault(canonical(name), version)
    return found


def version_without_metadata(package: str) -> str | None:
    """The version of an importable package that was built in place, without importing it; None where there is none."""
    folder = _package_folder(package)
    if folder is None or not (folder / "__init__.py").is_file():
        return None
    for name in ("version.py", "_version.py", "__init__.py"):
        path = folder / name
        if path.is_file():
            match = re.search(r"""^__version__[^=\n]*=\s*['"]([^'"]+)['"]""", path.read_text("utf-8", "replace"), re.M)
            if match:
                return match[1]
    return "unknown"


def _package_folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def has_vendor_torchacc() -> bool:
    """Whether the vendor's torchacc.torch_xla is there; the package of that name on the index has no such module."""
    folder = _package_folder("torchacc")
    return folder is not None and ((folder / "torch_xla").is_dir() or (folder / "torch_xla.py").is_file())


def read_pins(path: Path = ROOT / "constraints.txt") -> dict[str, str]:
    """Pinned versions by canonical name, of the lines that apply to this Python."""
    requirements = _first_of("packaging.requirements", "pip._vendor.packaging.requirements")
    pins = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if text:
            requirement = requirements.Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate():
                pins[canonical(requirement.name)] = str(requirement.specifier).removeprefix("==")
    return pins


def read_requirements(
    extras: Iterable[str], path: Path = ROOT / "pyproject.toml", *, dependencies: bool = True
) -> list[Any]:
    """pyproject.toml's requirements and those of the extras, or those alone, as packaging's Requirement objects."""
    toml = _first_of("tomllib", "tomli", "pip._vendor.tomli")
    requirements = _first_of("packaging.requirements", "pip._vendor.packaging.requirements")
    project = toml.loads(path.read_text(encoding="utf-8"))["project"]
    lines = list(project["dependencies"]) if dependencies else []
    for extra in extras:
        lines += project["optional-dependencies"][extra]
    return [requirements.Requirement(line) for line in lines]


def make_plan(extras: Sequence[str] = ()) -> Plan:
    """What this environment still needs for the project and the extras.

    Raises:
        CannotInstall: a package that must be kept does not fit.
    """
    installed = installed_versions()
    built_in_place = {
        name: version
        for name in ("torch", "torchvision")
        if name not in installed and (version := version_without_metadata(name))
    }
    kept = {name: installed[name] for name in KEPT if name in installed} | built_in_place
    _check_kept(kept)
    wanted = {canonical(item.name): item for item in read_requirements(extras)}
    missing = {name: item for name, item in wanted.items() if not _is_met(item, kept.get(name, installed.get(name)))}
    blocked = sorted(set(missing) & set(kept))
    if blocked:
        name = blocked[0]
        raise CannotInstall(
            f"{name} {kept[name]} is already in {sys.prefix} and would have to be replaced ({wanted[name]} is needed); "
            "nothing was changed: use another environment, or change it yourself"
        )
    if built_in_place and "torchmetrics" in missing:
        raise CannotInstall(
            f"torch {kept.get('torch')} in {sys.prefix} has no package metadata, so pip could not be kept from "
            "replacing it when it installs the tests' packages; nothing was changed: test in another environment"
        )
    pins = read_pins()
    torch_lines, alone = _torch_family(missing, kept, pins)
    lines = torch_lines + [str(item) for name, item in missing.items() if name not in ("torch", "torchvision")]
    notes = [f"{name} {version} is already there and is kept" for name, version in kept.items()]
    xla_lines, xla_note = _xla(kept, pins)
    if "torch-xla" in kept or xla_lines:
        plugin_lines, plugin_note = _nvidia_xla(kept, installed, pins)
        xla_lines, xla_note = xla_lines + plugin_lines, xla_note + plugin_note
    unchanged = [
        _constraint(name, version) for name, version in installed.items() if name not in {*missing, "resnet-acc"}
    ]
    return Plan(
        missing=lines + xla_lines,
        alone=alone,
        kept=[line for line in unchanged if line],
        notes=notes + xla_note,
        project=not is_project_installed(),
    )


def _is_met(requirement: Any, version: str | None) -> bool:
    if requirement.marker is not None and not requirement.marker.evaluate():
        return True
    if version is None:
        return False
    if version == "unknown":
        return True
    # A vendor numbers its own builds as pre-releases or with a suffix (2.6.0a0+nv25.1): the release is what counts.
    return bool(requirement.specifier.contains(_version(version).base_version, prereleases=True))


def _version(text: str) -> Any:
    return _first_of("packaging.version", "pip._vendor.packaging.version").Version(text)


def _constraint(name: str, version: str) -> str | None:
    try:
        _version(version)
    except ValueError:
        return None  # a version that pip itself would refuse to read
    return f"{name}=={version}"


def minor(version: str) -> tuple[int, int]:
    """The first two numbers of a version, which decide what fits a torch."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _check_kept(kept: dict[str, str]) -> None:
    torch = kept.get("torch")
    if torch is not None and torch != "unknown" and minor(torch) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise CannotInstall(
            f"torch {torch} in {sys.prefix} is older than {oldest}, and prepare.sh replaces no torch; nothing was "
            f"changed: use an environment with torch {oldest} or newer, or none, so that prepare.sh makes .venv"
        )


def _torch_family(missing: dict[str, Any], kept: dict[str, str], pins: dict[str, str]) -> tuple[list[str], list[str]]:
    """Requirements on torch and torchvision, and those of them to install without dependencies."""
    torch, vision = kept.get("torch"), kept.get("torchvision")
    if "torch" not in missing and "torchvision" not in missing:
        return [], []
    if torch is not None:
        number = minor(torch)[1] + TORCHVISION_OFFSET
        return [], [f"torchvision==0.{number}.*"]
    if vision is not None:
        return [f"torch==2.{minor(vision)[1] - TORCHVISION_OFFSET}.*"], []
    if "torch-xla" in kept:
        number = minor(kept["torch-xla"])[1]
        return [f"torch==2.{number}.*", f"torchvision==0.{number + TORCHVISION_OFFSET}.*"], []
    return [f"{name}=={pins[name]}" for name in ("torch", "torchvision")], []


def _xla(kept: dict[str, str], pins: dict[str, str]) -> tuple[list[str], list[str]]:
    """torch-xla where it fits: its own torch, Linux on x86-64, and no torchacc of a vendor."""
    if "torch-xla" in kept:
        return [], []
    if has_vendor_torchacc():
        return [], ["torch-xla is left out: the vendor's torchacc is there"]
    torch = kept.get("torch", pins["torch"])
    if minor(torch) != minor(pins["torch-xla"]):
        return [], [
            f"torch-xla is left out: {pins['torch-xla']} needs torch {pins['torch']}, and torch {torch} is there"
        ]
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return [], [f"torch-xla is left out: there is none for {sys.platform} on {platform.machine()}"]
    return [f"torch-xla=={pins['torch-xla']}"], []


def _nvidia_xla(kept: dict[str, str], installed: dict[str, str], pins: dict[str, str]) -> tuple[list[str], list[str]]:
    """The plugin for NVIDIA GPUs where there is one and torch-xla fits: to install where asked for, else to be offered.

    Which one, torch's CUDA decides: pip must not put the libraries of CUDA 13 over those of a torch for CUDA 12.
    """
    if not has_nvidia_gpu() or minor(kept.get("torch-xla", pins["torch-xla"])) < minor(pins["torch-xla"]):
        return [], []
    cuda = torch_cuda_major(kept.get("torch"))
    extra = "nvidia-xla" if cuda == 12 else "nvidia-xla-cuda13"
    driver = nvidia_driver()
    if driver is not None and int(driver.partition(".")[0]) < OLDEST_DRIVER[extra]:
        built = f"for CUDA {cuda}" if cuda else "without CUDA"
        return [], [
            f"the plugin for torch-xla on NVIDIA GPUs is left out: beside a torch {built} it is that of {extra}, which "
            f"needs driver {OLDEST_DRIVER[extra]} or newer, and this is {driver}"
        ]
    missing = [item for item in read_requirements([extra], dependencies=False) if canonical(item.name) != "torch-xla"]
    missing = [item for item in missing if not _is_met(item, installed.get(canonical(item.name)))]
    lines = [f"{item.name}=={pins[canonical(item.name)]}" for item in missing]
    if not lines or os.environ.get(NVIDIA_XLA_VARIABLE) == "1":
        return lines, []
    return [], [f"there is an NVIDIA GPU; for torchacc on it: {NVIDIA_XLA_VARIABLE}=1 bash prepare.sh (extra {extra})"]


def has_nvidia_gpu() -> bool:
    """Whether the driver has made a device file, or says its version (where device files are made on demand)."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or nvidia_driver() is not None


def nvidia_driver(path: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The driver's version; None where it does not say it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"\b(\d{3,}\.\d+(\.\d+)?)\b", text)
    return match[1] if match else None


def torch_cuda_major(version: str | None) -> int | None:
    """Major version of the CUDA that torch is built for; None for a build without, 12 for the pinned one to come."""
    if version is None:
        return 12
    if match := re.search(r"\+cu(\d\d)", version):
        return int(match[1])
    folder = _package_folder("torch")
    if "+cpu" in version or folder is None or not (folder / "version.py").is_file():
        return None
    match = re.search(r"^cuda\b[^=\n]*=\s*['\"](\d+)", (folder / "version.py").read_text("utf-8", "replace"), re.M)
    return int(match[1]) if match else None


def is_project_installed(root: Path = ROOT) -> bool:
    """Whether this checkout, in this version, is what `import resnet_acc` and the command resnet-acc give."""
    from resnet_acc import __version__

    for dist in importlib.metadata.distributions(name="resnet_acc"):
        text = dist.read_text("direct_url.json")
        if text is None or dist.metadata["Version"] != __version__:
            continue
        origin = json.loads(text)
        path = urllib.parse.unquote(urllib.parse.urlsplit(origin.get("url", "")).path)
        if origin.get("dir_info", {}).get("editable") and Path(path) == root:
            return {"resnet-acc", "nvgpu"} <= {point.name for point in dist.entry_points}
    return False

"""What this environment can do, as one JSON object: python -m resnet_acc.training.probe [--quick]

Starts no run and opens no device. Whatever is missing or broken becomes null, with the reason in `errors`. With --quick
nothing but torch is imported, and the other versions are those that the packages' metadata name.
"""

import importlib
import importlib.util
import json
import os
import platform
import shutil
import sys
import sysconfig
import warnings
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from resnet_acc.training.accelerators import pjrt
from resnet_acc.training.nvidia import nvidia_gpus

Errors = dict[str, str]


def main() -> None:
    """Print the report; whatever a library prints while it is imported goes to stderr instead."""
    stdout = os.dup(1)
    os.dup2(2, 1)
    report = probe(quick="--quick" in sys.argv[1:])
    with os.fdopen(stdout, "w", encoding="utf-8") as stream:
        stream.write(json.dumps(report) + "\n")
        stream.flush()
    os._exit(0)  # a library that crashes while it is torn down takes nothing back


def probe(quick: bool = False) -> dict[str, Any]:
    """The report, as plain values."""
    warnings.simplefilter("ignore")
    errors: Errors = {}
    if os.environ.get("PJRT_DEVICE") == pjrt.DEVICE:
        del os.environ["PJRT_DEVICE"]  # torch_xla would prepare for the device while it is imported, or fail to
    torch = _guarded("torch", errors, lambda: importlib.import_module("torch"))
    version = _metadata_version if quick else _imported_version
    report: dict[str, Any] = {"python": platform.python_version()}
    report["torch"] = str(torch.__version__) if torch is not None and hasattr(torch, "__version__") else None
    report["torch_folder"] = os.path.dirname(torch.__file__) if getattr(torch, "__file__", None) else None
    report["torchvision"] = _guarded("torchvision", errors, lambda: version("torchvision"))
    report["triton"] = _guarded("triton", errors, lambda: _metadata_version("triton"))
    report["cuda"] = _guarded("cuda", errors, lambda: _cuda(torch, errors)) or _no_cuda()
    report["cudnn"] = _guarded("cudnn", errors, lambda: torch.backends.cudnn.version()) if torch is not None else None
    report["nvidia"] = _guarded("nvidia", errors, _nvidia) or {"count": 0, "names": [], "driver": None}
    report["nvidia_xla"] = _guarded("nvidia_xla", errors, lambda: _nvidia_xla(quick))
    report["torchacc"] = _guarded("torchacc", errors, lambda: _vendor_torchacc(quick))
    report["torch_xla"] = _guarded("torch_xla", errors, lambda: version("torch_xla"))
    report["tpu"] = bool(_guarded("tpu", errors, _has_tpu))
    report["cxx_compiler"] = _guarded("cxx_compiler", errors, lambda: _compiler("CXX", ("g++",)))
    report["c_compiler"] = _guarded("c_compiler", errors, lambda: _compiler("CC", ("gcc", "cc", "clang")))
    report["python_headers"] = bool(_guarded("python_headers", errors, _python_headers))
    report["errors"] = errors
    return report


def _guarded(name: str, errors: Errors, read: Callable[[], Any]) -> Any:
    """A broken package may raise anything at import, SystemExit included; none of it may end the probe."""
    try:
        return read()
    except BaseException as error:
        lines = str(error).strip().splitlines()
        errors[name] = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        return None


def _metadata_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        raise ImportError(f"{package} is not installed") from None


def _imported_version(package: str) -> str:
    if importlib.util.find_spec(package) is None:
        raise ImportError(f"{package} is not installed")
    return str(importlib.import_module(package).__version__)


def _no_cuda() -> dict[str, Any]:
    return {"available": False, "count": 0, "names": [], "driver": None, "runtime": None}


def _cuda(torch: Any, errors: Errors) -> dict[str, Any]:
    if torch is None:
        return _no_cuda()
    found = _no_cuda() | {"runtime": torch.version.cuda, "driver": _driver_version()}
    if torch.version.cuda is None:
        errors["cuda"] = f"torch {torch.__version__} is built without CUDA"
        return found
    # device_count asks NVML where it can, so that no CUDA context is made on a card that others use.
    count = int(torch.cuda.device_count())
    if count == 0 or not torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = f"CUDA_VISIBLE_DEVICES is {visible!r}" if visible is not None else "no driver or no GPU was found"
        errors["cuda"] = f"no GPU is visible: {hidden}"
        return found
    return found | {"available": True, "count": count, "names": _gpu_names(torch, count)}


def _gpu_names(torch: Any, count: int) -> list[str]:
    return [str(torch.cuda.get_device_name(index)) for index in range(count)]


def _nvidia() -> dict[str, Any]:
    """What the driver says, whether or not torch can use it."""
    found = nvidia_gpus()
    return {"count": len(found.names), "names": found.names, "driver": found.driver}


def _nvidia_xla(quick: bool) -> dict[str, Any]:
    """The CUDA plugin for torch-xla; with `quick` it is not loaded, so its API and its cuDNN are not known.

    Raises:
        ImportError: there is none.
        RuntimeError: it cannot be loaded.
    """
    plugin = pjrt.find_plugin()
    found = {name: getattr(plugin, name) for name in ("package", "version", "cuda_major")} | {"path": str(plugin.path)}
    if quick:
        return found | dict.fromkeys(("api_version", "cudnn", "cudnn_cuda_major"))
    # cuDNN first, as torch left it: the plugin might load one itself.
    cudnn, cudnn_cuda_major = pjrt.cudnn(plugin) or (None, None)
    major, minor, _ = pjrt.api_version(plugin.path)
    return found | {"api_version": f"{major}.{minor}", "cudnn": cudnn, "cudnn_cuda_major": cudnn_cuda_major}


def _driver_version() -> str | None:
    """The kernel module's version, as it says itself."""
    try:
        first = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        return None
    return next((word for word in first.split() if word[0].isdigit() and word.count(".") >= 1), None)


def _vendor_torchacc(quick: bool) -> str:
    """Version of the vendor's torchacc, told by its torch_xla namespace.

    Raises:
        ImportError: it is not installed, or is the public index's package of the same name, which is another.
    """
    spec = importlib.util.find_spec("torchacc")
    if spec is None:
        raise ImportError("torchacc is not installed")
    folders = [Path(folder) for folder in spec.submodule_search_locations or []]
    if not any((folder / "torch_xla").is_dir() or (folder / "torch_xla.py").is_file() for folder in folders):
        raise ImportError(
            "this torchacc has no torchacc.torch_xla, as Alibaba's of the article has (the public index's package of "
            "that name is not Alibaba's); it is not used"
        )
    if not quick:
        importlib.import_module("torchacc.torch_xla.core.xla_model")
    try:
        return metadata.version("torchacc")
    except metadata.PackageNotFoundError:
        return "unknown"


def _has_tpu() -> bool:
    """Whether a TPU's device files are there; asking libtpu would take the chips."""
    if os.environ.get("PJRT_DEVICE", "").upper() == "TPU":
        return True
    return any(Path("/dev").glob("accel[0-9]*")) and not Path("/proc/driver/nvidia").exists()


def _compiler(variable: str, names: tuple[str, ...]) -> str:
    wanted = os.environ.get(variable, "").split()
    for name in wanted[:1] or names:
        found = shutil.which(name)
        if found:
            return found
    raise FileNotFoundError(f"{(wanted[:1] or names)[0]} is not on PATH; install it, or set {variable}")


def _python_headers() -> bool:
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        raise FileNotFoundError(f"{header} is missing; install the -dev package of this Python")
    return True


if __name__ == "__main__":
    main()

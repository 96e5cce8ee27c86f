"""OpenXLA's CUDA PJRT plugin: where it lies, which versions it has, and which cuDNN it would load."""

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

PLUGIN_VARIABLE = "RESNET_ACC_PJRT_PLUGIN"
"""A user's own plugin library, instead of a package's: for tests and odd installations."""
OLDEST = (0, 7, 1)
"""The release that torch-xla 2.9.0 was built beside."""
CUDA_MAJORS = (13, 12)
MEND = "pip install 'resnet-acc[nvidia-xla]' (nvidia-xla-cuda13 beside a torch for CUDA 13, or without CUDA)"
_FILE = "xla_cuda_plugin.so"


@dataclass(frozen=True)
class PluginLibrary:
    """A plugin's library, its package and that package's version, and the CUDA it is for (0 where not known)."""

    path: Path
    package: str
    version: str
    cuda_major: int

    @property
    def label(self) -> str:
        """A folder's name for what must not be shared between plugins, such as jax-cuda12-pjrt-0.7.2."""
        return f"{self.package}-{self.version}"


def find_plugin() -> PluginLibrary:
    """The plugin to use: RESNET_ACC_PJRT_PLUGIN, else what jax-cuda12-pjrt or jax-cuda13-pjrt installed. No jax is run.

    Where both are there, torch's CUDA decides: libcudnn.so.9 and libnccl.so.2 carry no CUDA version in their names, so
    the plugin gets those that torch has loaded already. Beside a torch without CUDA it is 13, the newer.

    Raises:
        ImportError: there is none, or one that is older than 0.7.1; the message names the mend.
    """
    own = os.environ.get(PLUGIN_VARIABLE)
    if own:
        return _own_plugin(Path(own).expanduser())
    found = [plugin for major in CUDA_MAJORS if (plugin := _installed_plugin(major)) is not None]
    if not found:
        raise ImportError(f"there is no CUDA PJRT plugin (jax-cuda12-pjrt or jax-cuda13-pjrt); {MEND}")
    wanted = _torch_cuda_major()
    chosen = next((plugin for plugin in found if plugin.cuda_major == wanted), found[0])
    if _numbers(chosen.version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ImportError(f"{chosen.package} {chosen.version} is older than {oldest}; {MEND}")
    return chosen


def _own_plugin(path: Path) -> PluginLibrary:
    if not path.is_file():
        raise ImportError(f"{PLUGIN_VARIABLE} is {str(path)!r}, which is no file; give a plugin's path, or unset it")
    stat = path.stat()
    # Caches are kept by version, and this file has none that could be read without loading it.
    version = hashlib.sha256(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:12]
    major = re.search(r"cuda(\d\d)", str(path))
    return PluginLibrary(path.absolute(), "own", version, int(major[1]) if major else 0)


def _installed_plugin(cuda_major: int) -> PluginLibrary | None:
    try:
        spec = importlib.util.find_spec(f"jax_plugins.xla_cuda{cuda_major}")
    except (ImportError, ValueError):
        return None  # there is no jax_plugins at all, or one that is no package
    package = f"jax-cuda{cuda_major}-pjrt"
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / _FILE
        if path.is_file():
            with contextlib.suppress(metadata.PackageNotFoundError):
                return PluginLibrary(path.absolute(), package, metadata.version(package), cuda_major)
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:4])


def _torch_cuda_major() -> int | None:
    """Major version of the CUDA that torch is built for; read from its version.py where torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is not None:
        cuda = getattr(getattr(torch, "version", None), "cuda", None)
    else:
        spec = importlib.util.find_spec("torch")
        folders = list(spec.submodule_search_locations or []) if spec is not None else []
        text = ""
        with contextlib.suppress(OSError, IndexError):
            text = (Path(folders[0]) / "version.py").read_text(encoding="utf-8")
        match = re.search(r"^cuda\b[^=\n]*=\s*['\"](\d+)", text, re.MULTILINE)
        cuda = match[1] if match else None
    return int(str(cuda).partition(".")[0]) if cuda else None


class _ApiHeader(ctypes.Structure):
    """The beginning of PJRT_Api (xla/pjrt/c/pjrt_c_api.h of openxla/xla), as in shim.c."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("version_struct_size", ctypes.c_size_t),
        ("version_extension_start", ctypes.c_void_p),
        ("major_version", ctypes.c_int),
        ("minor_version", ctypes.c_int),
    ]


def api_version(path: Path) -> tuple[int, int, int]:
    """Major and minor version of a plugin's PJRT API and the bytes of its PJRT_Api. Loads the plugin into this process.

    Raises:
        RuntimeError: it cannot be loaded, or has no GetPjrtApi that gives something.
    """
    try:
        get = ctypes.CDLL(str(path)).GetPjrtApi
    except (OSError, AttributeError) as error:
        raise RuntimeError(f"the PJRT plugin {path} cannot be used: {error}; {MEND}") from None
    get.restype = ctypes.POINTER(_ApiHeader)
    api = get()
    if not api:
        raise RuntimeError(f"GetPjrtApi of {path} gave nothing; {MEND}")
    header = api.contents
    return header.major_version, header.minor_version, header.struct_size


def cudnn(plugin: PluginLibrary) -> tuple[str, int] | None:
    """Version of the cuDNN that the plugin would load, such as 9.10.2, and the major CUDA version that it is built for.

    The plugin asks for libcudnn.so.9: what this process has loaded already (torch's) comes first, then the package's
    beside the plugin, to which its run path leads, then the system's. None where none of them can be loaded.
    """
    name = "libcudnn.so.9"
    beside = plugin.path.parents[2] / "nvidia" / "cudnn" / "lib" / name
    for place, mode in ((name, os.RTLD_NOLOAD | os.RTLD_NOW), (str(beside), os.RTLD_NOW), (name, os.RTLD_NOW)):
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL(place, mode=mode)
            library.cudnnGetVersion.restype = library.cudnnGetCudartVersion.restype = ctypes.c_size_t
            number, cuda = library.cudnnGetVersion(), library.cudnnGetCudartVersion()
            # cudnn_version.h: 10000 * major + 100 * minor + patch; CUDA's: 1000 * major + 10 * minor.
            return f"{number // 10000}.{number // 100 % 100}.{number % 100}", cuda // 1000
    return None

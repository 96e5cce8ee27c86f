"""The shim as a library: compiled once with the system's compiler, and kept in the user's cache."""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCES = tuple(Path(__file__).with_name(name) for name in ("shim.c", "compile_cache.c"))
_READ = (*SOURCES, Path(__file__).with_name("compile_cache.h"))
COMPILERS = ("gcc", "cc", "clang")
# -ldl and -pthread: part of the C library itself only from glibc 2.34 on.
FLAGS = ("-std=c11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall")
LIBRARIES = ("-ldl", "-pthread")
COMPILE_SECONDS = 120
_MEND = "install a C compiler (on Debian and Ubuntu: apt install gcc libc6-dev), or set CC to one"


def cache_folder() -> Path:
    """This package's folder in the user's cache, which may not be there yet (XDG Base Directory Specification)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification has relative paths ignored.
    return (Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~/.cache"))) / "resnet_acc"


def made(folder: Path) -> Path:
    """Make a folder of the cache, if it is not there.

    Raises:
        RuntimeError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RuntimeError(
            f"the cache {folder} cannot be made ({error.strerror or error}); set XDG_CACHE_HOME to a folder that can "
            "be written"
        ) from None
    return folder


def shim_library() -> Path:
    """The compiled shim; compiled now where this source, these flags and this machine have none in the cache yet.

    Raises:
        RuntimeError: there is no compiler, it fails, or the cache cannot be written; the message names the mend.
    """
    library = library_path()
    if not library.is_file():
        try:
            library.parent.mkdir(parents=True, exist_ok=True)
            _compile(library)
        except OSError as error:
            raise RuntimeError(
                f"the PJRT shim cannot be written to {library.parent} ({error.strerror or error}); set XDG_CACHE_HOME "
                "to a folder that can be written"
            ) from None
    return library


def library_path() -> Path:
    """Where the compiled shim lies or would lie."""
    return cache_folder() / "pjrt" / _key() / "libresnet_acc_pjrt_shim.so"


def _key() -> str:
    """Hash of all that the library depends on. A home folder may be shared by machines, hence theirs is in it."""
    machine = f"{platform.system()} {platform.machine()} {_c_library()}"
    recipe = "\0".join([*FLAGS, *LIBRARIES, machine]).encode()
    sources = b"\0".join(path.read_bytes() for path in _READ)
    return hashlib.sha256(sources + b"\0" + recipe).hexdigest()[:20]


def _c_library() -> str:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
    except (ValueError, OSError):
        return "unknown"  # a C library that is not GNU's


def _compiler() -> list[str]:
    """The compiler's command: CC, which may hold options of its own, or the first of COMPILERS on PATH."""
    wanted = shlex.split(os.environ.get("CC", ""))
    for name in wanted[:1] or COMPILERS:
        if found := shutil.which(name):
            return [found, *wanted[1:]]
    missing = f"CC is {wanted[0]!r}, which is not there" if wanted else f"there is none of {', '.join(COMPILERS)}"
    raise RuntimeError(f"the PJRT shim needs a C compiler, and {missing}; {_MEND}")


def _compile(library: Path) -> None:
    """Compile to another name and rename: whoever looks meanwhile sees no library or a whole one.

    Two processes may do this at once; both libraries are the same, so it does not matter whose stays.
    """
    compiler = _compiler()
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".building.") as folder:
        result = Path(folder) / library.name
        command = [*compiler, *FLAGS, "-o", str(result), *map(str, SOURCES), *LIBRARIES]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=COMPILE_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{compiler[0]} took over {COMPILE_SECONDS} s for {SOURCES[0]}; {_MEND}") from None
        except OSError as error:
            raise RuntimeError(f"{compiler[0]} cannot be run ({error.strerror or error}); {_MEND}") from None
        if done.returncode or not result.is_file():
            lines = done.stderr.strip().splitlines() or ["it printed nothing"]
            raise RuntimeError(
                f"{compiler[0]} could not compile {SOURCES[0]} (exit status {done.returncode}: {lines[0]}); {_MEND}"
            )
        os.replace(result, library)

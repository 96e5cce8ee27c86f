"""Shared by the tests of the PJRT shim: a fake plugin, compiled as asked for, and the C API's structs for ctypes."""

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FAKE_SOURCE = Path(__file__).with_name("fake_pjrt_plugin.c")
OLD = {"OPTIONS_SIZE": 80, "API_MINOR": 76}
"""About what plugin 0.7.2 has."""
NEW = {"OPTIONS_SIZE": 120, "API_MINOR": 115, "FUNCTIONS": 140}
"""About what plugin 0.11.2 has."""

needs_compiler = pytest.mark.skipif(
    not any(shutil.which(name) for name in ("gcc", "cc", "clang")), reason="there is no C compiler"
)


def fake_plugin(folder: Path, **macros: Any) -> Path:
    """Compile tests/fake_pjrt_plugin.c with -D macros."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "fake_plugin.so"
    compiler = next(found for name in ("gcc", "cc", "clang") if (found := shutil.which(name)))
    defines = [f"-D{name}={value}" for name, value in macros.items()]
    subprocess.run([compiler, "-shared", "-fPIC", *defines, "-o", str(path), str(FAKE_SOURCE)], check=True)
    return path


def run_python(code: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a piece of Python in a process of its own, since a library that is loaded stays loaded."""
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=300, check=False
    )


def answer(code: str, **variables: str) -> Any:
    """The JSON that a piece of Python prints on its last line."""
    done = run_python(code, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


class NameArgs(ctypes.Structure):
    """PJRT_Client_PlatformName_Args."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("client", ctypes.c_void_p),
        ("platform_name", ctypes.c_char_p),
        ("platform_name_size", ctypes.c_size_t),
    ]


class ExecuteArgs(ctypes.Structure):
    """PJRT_LoadedExecutable_Execute_Args."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("executable", ctypes.c_void_p),
        ("options", ctypes.c_void_p),
        ("rest", ctypes.c_void_p * 6),
    ]


class Program(ctypes.Structure):
    """PJRT_Program."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("code", ctypes.c_char_p),
        ("code_size", ctypes.c_size_t),
        ("format", ctypes.c_char_p),
        ("format_size", ctypes.c_size_t),
    ]


class CompileArgs(ctypes.Structure):
    """PJRT_Client_Compile_Args."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
        ("client", ctypes.c_void_p),
        ("program", ctypes.POINTER(Program)),
        ("options", ctypes.c_char_p),
        ("options_size", ctypes.c_size_t),
        ("executable", ctypes.c_char_p),
    ]


class Shimmed:
    """A shim with a fake plugin behind it, both in this process."""

    def __init__(self, shim: Path, plugin: Path) -> None:
        self.plugin = ctypes.CDLL(str(plugin))
        self.plugin.the_error.restype = self.plugin.seen_options.restype = ctypes.c_void_p
        for name in ("seen_options_size", "seen_calls"):
            getattr(self.plugin, name).restype = ctypes.c_size_t
        self.library = library = ctypes.CDLL(str(shim))
        library.GetPjrtApi.restype = self.plugin.GetPjrtApi.restype = ctypes.c_void_p
        self.original = self.plugin.GetPjrtApi()
        self.table = library.GetPjrtApi()

    def function(self, number: int, table: int | None = None) -> int:
        """Address of one of the table's functions."""
        return ctypes.c_void_p.from_address((table or self.table) + 40 + 8 * number).value or 0

    def platform_name(self, struct_size: int = 40, table: int | None = None) -> tuple[str | None, int | None]:
        """Name of the platform, and the error or None."""
        args = NameArgs(struct_size=struct_size)
        call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(self.function(12, table))
        error = call(ctypes.addressof(args))
        name = args.platform_name
        return (name[: args.platform_name_size].decode() if name else None), error

    def execute(self, options: bytes | None, executable: int = 1, struct_size: int = 80) -> tuple[int | None, bool]:
        """Run, and say the error or None, and whether the caller's own struct came back as it was."""
        buffer = ctypes.create_string_buffer(options, len(options)) if options is not None else None
        place = ctypes.addressof(buffer) if buffer is not None else None
        args = ExecuteArgs(struct_size=struct_size, executable=executable, options=place)
        call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(self.function(55))
        error = call(ctypes.addressof(args))
        same = args.options == place and (buffer is None or buffer.raw == options)
        return error, same

    def compile(self, code: bytes, options: bytes = b"", program_format: bytes = b"hlo") -> str | None:
        """What the fake plugin's program holds, or None where there was an error."""
        program = Program(48, None, code, len(code), program_format, len(program_format))
        args = CompileArgs(56, None, None, ctypes.pointer(program), options, len(options), None)
        call = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(self.function(20))
        error = call(ctypes.addressof(args))
        assert error in (None, self.plugin.the_error())
        return None if error else args.executable.decode()

    def counts(self) -> dict[str, int]:
        """What the fake plugin did so far, and what the shim says of its cache."""
        names = ("compiled", "loaded", "errors_freed", "executables_freed", "holders_freed")
        hits = {name: getattr(self.library, f"resnet_acc_pjrt_cache_{name}")() for name in ("hits", "kept")}
        return {name: getattr(self.plugin, f"count_{name}")() for name in names} | hits

    def seen(self) -> bytes:
        """The options that the plugin was given last."""
        return ctypes.string_at(self.plugin.seen_options(), self.plugin.seen_options_size())

"""The compiled shim, driven by ctypes, with a fake plugin behind it; and how it is compiled."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pjrt_tools import NEW, OLD, answer, fake_plugin, needs_compiler, run_python

from resnet_acc.training.accelerators.pjrt import build

pytestmark = needs_compiler


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return build.shim_library()


def drive(shim: Path, plugin: Path, body: str) -> object:
    code = f"import json; from pjrt_tools import Shimmed; s = Shimmed({str(shim)!r}, {str(plugin)!r})\n{body}"
    return answer(code, RESNET_ACC_PJRT_PLUGIN_PATH=str(plugin))


@pytest.mark.parametrize("sizes", [OLD, NEW], ids=["old", "new"])
def test_the_name_is_not_cuda_and_the_rest_is_the_plugins_own(shim: Path, tmp_path: Path, sizes: dict) -> None:
    body = (
        "others = [i for i in range(100) if i not in (10, 12, 20, 55)]\n"
        "print(json.dumps([s.platform_name(), s.platform_name(struct_size=32)[1] == s.plugin.the_error(),"
        "s.platform_name(table=s.original), all(s.function(i) == s.function(i, s.original) for i in others),"
        "s.table != s.original]))"
    )
    assert drive(shim, fake_plugin(tmp_path, **sizes), body) == [["nvgpu", None], True, ["cuda", None], True, True]


@pytest.mark.parametrize("sizes", [OLD, NEW], ids=["old", "new"])
@pytest.mark.parametrize("size", [80, 88, 112, 120, 256])
def test_options_are_enlarged_with_zeros(shim: Path, tmp_path: Path, sizes: dict, size: int) -> None:
    body = (
        f"options = ({size}).to_bytes(8, 'little') + bytes(i % 255 + 1 for i in range({size} - 8))\n"
        "error, same = s.execute(options)\n"
        "seen = s.seen()\n"
        f"print(json.dumps([error, same, int.from_bytes(seen[:8], 'little'), len(seen), seen[8:{size}] == options[8:],"
        f"any(seen[{size}:])]))"
    )
    assert drive(shim, fake_plugin(tmp_path, **sizes), body) == [None, True, 256, 256, True, False]


def test_without_the_shim_the_new_plugin_refuses_old_options(tmp_path: Path, shim: Path) -> None:
    body = (
        "s.table = s.original\n"
        "print(json.dumps(s.execute((80).to_bytes(8, 'little') + bytes(72))[0] == s.plugin.the_error()))"
    )
    assert drive(shim, fake_plugin(tmp_path, **NEW), body) is True


@pytest.mark.parametrize("size", [0, 7, 257, 4096, 2**63])
def test_options_that_do_not_fit_are_refused_and_not_cut_off(shim: Path, tmp_path: Path, size: int) -> None:
    plugin = fake_plugin(tmp_path, **NEW)
    body = (
        f"error, same = s.execute(({size}).to_bytes(8, 'little') + bytes(5000))\n"
        "print(json.dumps([error == s.plugin.the_error(), same, s.plugin.seen_options_size()]))"
    )
    assert drive(shim, plugin, body) == [True, True, 0]
    code = f"from pjrt_tools import Shimmed; s = Shimmed({str(shim)!r}, {str(plugin)!r})\n{body.partition(chr(10))[0]}"
    (line,) = run_python(code, RESNET_ACC_PJRT_PLUGIN_PATH=str(plugin)).stderr.splitlines()
    assert str(size) in line
    assert "256" in line


def test_flags_for_the_plugin_alone_are_there_while_it_reads_them(shim: Path, tmp_path: Path) -> None:
    body = (
        "import ctypes, os\n"
        "s.plugin.seen_flags.restype = ctypes.c_char_p\n"
        "libc = ctypes.CDLL(None); libc.getenv.restype = ctypes.c_char_p\n"
        "text = lambda b: b and b.decode()\n"
        "def call(i):\n"
        "    ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(s.function(i))(None)\n"
        "    return [text(s.plugin.seen_flags()), text(libc.getenv(b'XLA_FLAGS'))]\n"
        "print(json.dumps([call(10), call(20), call(20)]))"
    )
    code = f"import json; from pjrt_tools import Shimmed; s = Shimmed({str(shim)!r}, {{}})\n{body}"
    plugin = str(fake_plugin(tmp_path, **NEW))
    common = {"RESNET_ACC_PJRT_PLUGIN_PATH": plugin}
    more = {"RESNET_ACC_PJRT_PLUGIN_XLA_FLAGS": "--new=1"}
    code = code.replace("{}", repr(plugin))
    both = ["--old=2 --new=1", "--old=2"]
    assert answer(code, **common, **more, XLA_FLAGS="--old=2") == [both, both, ["--old=2", "--old=2"]]
    assert answer(code, **common, XLA_FLAGS="--old=2") == [["--old=2", "--old=2"]] * 3


def test_errors_of_the_plugin_come_through(shim: Path, tmp_path: Path) -> None:
    body = (
        "options = (80).to_bytes(8, 'little') + bytes(72)\n"
        "results = [s.execute(options, executable=0), s.execute(None), s.execute(options, struct_size=24)]\n"
        "print(json.dumps([[error == s.plugin.the_error(), same] for error, same in results]))"
    )
    assert drive(shim, fake_plugin(tmp_path, **NEW), body) == [[True, True]] * 3


def test_many_threads_get_one_table(shim: Path, tmp_path: Path) -> None:
    plugin = fake_plugin(tmp_path)
    code = (
        "import ctypes, json, threading\n"
        f"get = ctypes.CDLL({str(shim)!r}).GetPjrtApi; get.restype = ctypes.c_void_p\n"
        "found = []\n"
        "threads = [threading.Thread(target=lambda: found.append(get())) for _ in range(16)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "print(json.dumps([len(found), len(set(found)), None in found]))"
    )
    assert answer(code, RESNET_ACC_PJRT_PLUGIN_PATH=str(plugin)) == [16, 1, False]


@pytest.mark.parametrize(
    ("macros", "words"),
    [
        ({"API_MAJOR": 1, "API_MINOR": 0}, ["PJRT API 1.0", "0.57"]),
        ({"API_MINOR": 56}, ["PJRT API 0.56", "0.57"]),
        ({"FUNCTIONS": 56}, ["488 bytes", "496"]),
        ({"VERSION_SIZE": 16}, ["16", "24"]),
        ({"GIVE_NOTHING": 1}, ["gave nothing"]),
        ({"NO_SYMBOL": 1}, ["GetPjrtApi"]),
        ({"NO_EXECUTE": 1}, ["PJRT_LoadedExecutable_Execute"]),
    ],
)
def test_a_plugin_that_does_not_fit_is_refused_in_one_line(
    shim: Path, tmp_path: Path, macros: dict, words: list[str]
) -> None:
    assert_refused(shim, str(fake_plugin(tmp_path, **macros)), words)


@pytest.mark.parametrize(
    ("path", "words"),
    [("/no/such/plugin.so", ["/no/such/plugin.so"]), ("", ["RESNET_ACC_PJRT_PLUGIN_PATH", "prepare_environment"])],
)
def test_a_plugin_that_is_not_there_is_named(shim: Path, path: str, words: list[str]) -> None:
    assert_refused(shim, path, words)


def assert_refused(shim: Path, plugin: str, words: list[str]) -> None:
    code = (
        "import ctypes\n"
        f"library = ctypes.CDLL({str(shim)!r}); library.GetPjrtApi.restype = ctypes.c_void_p\n"
        "assert library.GetPjrtApi() is None and library.GetPjrtApi() is None\n"
        "from pathlib import Path; from resnet_acc.training.accelerators.pjrt.plugin import check_shim\n"
        f"try: check_shim(Path({str(shim)!r}))\n"
        "except RuntimeError as error: print(error)"
    )
    done = run_python(code, RESNET_ACC_PJRT_PLUGIN_PATH=plugin)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line == f"resnet_acc: {done.stdout.strip()}"
    for word in words:
        assert word in line


# --- how it is compiled ---


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CC", raising=False)
    return tmp_path / "cache" / "resnet_acc" / "pjrt"


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_it_is_compiled_once_and_then_needs_no_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = build.shim_library()
    assert library.is_relative_to(cache)
    assert [path.name for path in library.parent.iterdir()] == [library.name]
    written = library.stat().st_mtime_ns
    monkeypatch.setenv("PATH", "/nowhere")
    assert build.shim_library() == library
    assert library.stat().st_mtime_ns == written


def test_source_flags_and_machine_make_another_library(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [build.library_path()]
    monkeypatch.setattr(build, "FLAGS", (*build.FLAGS, "-g"))
    paths.append(build.library_path())
    source = tmp_path / "shim.c"
    source.write_text(build.SOURCES[0].read_text() + "\n")
    monkeypatch.setattr(build, "_READ", (source, *build._READ[1:]))
    paths.append(build.library_path())
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    paths.append(build.library_path())
    assert len(set(paths)) == 4


def test_without_a_compiler_the_mend_is_said(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RuntimeError, match=r"none of gcc, cc, clang; install a C compiler"):
        build.shim_library()
    monkeypatch.setenv("CC", "/no/compiler -m64")
    with pytest.raises(RuntimeError, match=r"CC is '/no/compiler', which is not there; install a C compiler"):
        build.shim_library()


def test_a_compiler_that_fails_leaves_nothing(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Writes half a library and then fails, as a full disk would have it.
    body = 'while [ "$1" != -o ]; do shift; done; printf half > "$2"; echo "no space left" >&2; exit 4'
    monkeypatch.setenv("CC", str(script(tmp_path / "mycc", body)))
    with pytest.raises(RuntimeError, match=r"mycc could not compile .*shim.c \(exit status 4: no space left\)"):
        build.shim_library()
    assert list(build.library_path().parent.iterdir()) == []
    monkeypatch.setenv("CC", str(script(tmp_path / "mycc", "exit 0")))
    with pytest.raises(RuntimeError, match="it printed nothing"):
        build.shim_library()
    monkeypatch.delenv("CC")
    assert build.shim_library().read_bytes()[:4] == b"\x7fELF"


def test_cc_may_hold_options(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    compiler = script(tmp_path / "mycc", f'echo "$1" > {log}; shift; exec gcc "$@"')
    monkeypatch.setenv("CC", f"{compiler} --first")
    assert build.shim_library().is_file()
    assert log.read_text() == "--first\n"


def test_what_an_interrupted_build_left_is_not_used(cache: Path) -> None:
    left = build.library_path().parent / ".building.abc" / build.library_path().name
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    assert build.shim_library().read_bytes()[:4] == b"\x7fELF"


def test_builds_at_once_give_one_whole_library(cache: Path) -> None:
    code = "from resnet_acc.training.accelerators.pjrt import build; print(build.shim_library())"
    runs = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = {run.communicate(timeout=120)[0].strip() for run in runs}
    assert outputs == {str(build.library_path())}
    assert [path.name for path in build.library_path().parent.iterdir()] == [build.library_path().name]


def test_threads_that_look_meanwhile_see_nothing_or_all(cache: Path) -> None:
    sizes: set[int] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            if build.library_path().is_file():
                sizes.add(build.library_path().stat().st_size)

    thread = threading.Thread(target=look)
    thread.start()
    library = build.shim_library()
    done.set()
    thread.join()
    assert sizes <= {library.stat().st_size}


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(RuntimeError, match=r"cannot be written to .*; set XDG_CACHE_HOME"):
        build.shim_library()


def test_a_relative_cache_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere")
    assert build.cache_folder() == Path(os.path.expanduser("~")) / ".cache" / "resnet_acc"

"""The shim's cache of compiled programs, with a fake plugin behind it; and the folder that it is given."""

import json
import os
import stat
import time
from pathlib import Path

import pytest
from pjrt_tools import NEW, OLD, answer, fake_plugin, needs_compiler

from resnet_acc.training.accelerators.pjrt import build, compile_cache
from resnet_acc.training.accelerators.pjrt.library import PluginLibrary
from resnet_acc.training.nvidia import Gpus

PLUGIN = PluginLibrary(Path("/x/plugin.so"), "jax-cuda13-pjrt", "0.11.2", 13)


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return build.shim_library()


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fake_plugin(tmp_path_factory.mktemp("plugin"), **NEW)


def drive(shim: Path, plugin: Path, folder: Path | str, body: str = "", programs: list | None = None) -> tuple:
    """Compile programs (code, options) in a process of its own: what came, and the plugin's and cache's counts."""
    calls = json.dumps(programs or [])
    code = (
        f"import json; from pjrt_tools import Shimmed; s = Shimmed({str(shim)!r}, {str(plugin)!r})\n{body}\n"
        f"results = [s.compile(*(part.encode() for part in program)) for program in json.loads({calls!r})]\n"
        "print(json.dumps([results, s.counts()]))"
    )
    variables = {"RESNET_ACC_PJRT_PLUGIN_PATH": str(plugin), compile_cache.FOLDER_VARIABLE: str(folder)}
    results, counts = answer(code, **variables)
    return results, counts


pytestmark = needs_compiler


@pytest.mark.parametrize("sizes", [OLD, NEW], ids=["old", "new"])
def test_a_second_process_loads_what_the_first_compiled(shim: Path, tmp_path: Path, sizes: dict) -> None:
    plugin = fake_plugin(tmp_path / "plugin", **sizes)
    folder = tmp_path / "programs"
    folder.mkdir()
    programs = [("add", "a"), ("add", "b"), ("multiply", "a"), ("add", "a", "mlir")]
    results, counts = drive(shim, plugin, folder, programs=[*programs, programs[0]])
    assert results == ["add", "add", "multiply", "add", "add"]
    assert (counts["compiled"], counts["loaded"], counts["hits"], counts["kept"]) == (4, 1, 1, 4)
    assert counts["holders_freed"] == counts["executables_freed"] == 4
    results, counts = drive(shim, plugin, folder, programs=programs)
    assert results == ["add", "add", "multiply", "add"]
    assert (counts["compiled"], counts["hits"], counts["kept"]) == (0, 4, 0)
    files = sorted(folder.iterdir())
    assert len(files) == 4
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)


def test_the_options_given_now_go_before_those_that_were_kept(shim: Path, plugin: Path, tmp_path: Path) -> None:
    code = (
        f"import ctypes, json; from pjrt_tools import Shimmed; s = Shimmed({str(shim)!r}, {str(plugin)!r})\n"
        "s.plugin.seen_load_options.restype = ctypes.c_char_p\n"
        "s.compile(b'add', b'devices 0'); s.compile(b'add', b'devices 0')\n"
        "print(json.dumps(s.plugin.seen_load_options().decode()))"
    )
    variables = {"RESNET_ACC_PJRT_PLUGIN_PATH": str(plugin), compile_cache.FOLDER_VARIABLE: str(tmp_path)}
    assert answer(code, **variables) == "devices 0"


def test_without_a_folder_nothing_is_kept(shim: Path, plugin: Path, tmp_path: Path) -> None:
    for folder in ("", tmp_path / "missing", "/dev/null"):
        results, counts = drive(shim, plugin, folder, programs=[("add", ""), ("add", "")])
        assert results == ["add", "add"]
        assert (counts["compiled"], counts["hits"], counts["kept"]) == (2, 0, 0)


def test_an_error_of_the_compiler_comes_through_and_is_not_kept(shim: Path, plugin: Path, tmp_path: Path) -> None:
    results, counts = drive(shim, plugin, tmp_path, programs=[("bad", ""), ("bad", "")])
    assert results == [None, None]
    assert (counts["compiled"], counts["errors_freed"]) == (2, 0)  # an error is its caller's to free
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("position", [0, 15, 16, 30, 50, 60, -1])
def test_a_changed_file_is_compiled_anew_and_mended(shim: Path, plugin: Path, tmp_path: Path, position: int) -> None:
    drive(shim, plugin, tmp_path, programs=[("add", "options")])
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[position] ^= 0x40
    path.write_bytes(changed)
    results, counts = drive(shim, plugin, tmp_path, programs=[("add", "options")])
    assert results == ["add"]
    assert (counts["compiled"], counts["loaded"], counts["kept"]) == (1, 0, 1)
    assert path.read_bytes() == whole


def test_a_file_cut_off_anywhere_is_compiled_anew(shim: Path, plugin: Path, tmp_path: Path) -> None:
    drive(shim, plugin, tmp_path, programs=[("add", "options")])
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        results, counts = drive(shim, plugin, tmp_path, programs=[("add", "options")])
        assert (results, counts["compiled"], counts["loaded"]) == (["add"], 1, 0)
    path.write_bytes(whole + b"more")
    assert drive(shim, plugin, tmp_path, programs=[("add", "options")])[1]["compiled"] == 1


def test_another_program_in_its_place_is_not_taken_for_it(shim: Path, plugin: Path, tmp_path: Path) -> None:
    """As with two programs of one hash: the file's own program is compared."""
    drive(shim, plugin, tmp_path, programs=[("add", "x")])
    (first,) = tmp_path.iterdir()
    drive(shim, plugin, tmp_path, programs=[("sub", "x")])
    (second,) = set(tmp_path.iterdir()) - {first}
    os.replace(first, second)
    results, counts = drive(shim, plugin, tmp_path, programs=[("sub", "x")])
    assert (results, counts["hits"], counts["compiled"]) == (["sub"], 0, 1)


@pytest.mark.parametrize("missing", ["NO_LOAD", "NO_SERIALIZE"])
def test_a_plugin_that_cannot_keep_or_load_compiles(shim: Path, tmp_path: Path, missing: str) -> None:
    plugin = fake_plugin(tmp_path / "plugin", **NEW, **{missing: 1})
    folder = tmp_path / "programs"
    folder.mkdir()
    results, counts = drive(shim, plugin, folder, programs=[("add", ""), ("add", "")])
    assert results == ["add", "add"]
    assert (counts["compiled"], counts["hits"]) == (2, 0)
    assert counts["errors_freed"] == {"NO_LOAD": 1, "NO_SERIALIZE": 2}[missing]
    assert len(list(folder.iterdir())) == {"NO_LOAD": 1, "NO_SERIALIZE": 0}[missing]


def test_a_full_disk_leaves_nothing_half_written(shim: Path, plugin: Path, tmp_path: Path) -> None:
    limit = (
        "import signal, resource; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (90, 90))"
    )
    results, counts = drive(shim, plugin, tmp_path, limit, programs=[("a" * 500, "")])
    assert (results, counts["kept"]) == (["a" * 500], 0)
    assert not list(tmp_path.iterdir())


# --- the folder ---


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What NVML says there is; a test may change it."""
    names = ["NVIDIA H200", "NVIDIA L4"]
    monkeypatch.setattr(compile_cache, "nvidia_gpus", lambda: Gpus(names, "580.1"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return names


def folder_for(plugin: PluginLibrary = PLUGIN, **environment: str) -> str:
    compile_cache.use_compile_cache(plugin, environment)
    return environment.get(compile_cache.FOLDER_VARIABLE, "")


def test_the_folder_names_what_a_compiled_program_depends_on(card: list[str], tmp_path: Path) -> None:
    first = folder_for(XLA_FLAGS="--xla_a=1 --xla_b=2")
    assert Path(first).is_dir()
    assert Path(first).parent == tmp_path / "cache" / "resnet_acc" / "xla_compile"
    assert Path(first).name.startswith("jax-cuda13-pjrt-0.11.2_nvidia-h200_")
    same = folder_for(XLA_FLAGS="--xla_b=2 --xla_cpu_enable_fast_math=false --xla_a=1")
    others = [
        folder_for(XLA_FLAGS="--xla_a=1"),
        folder_for(XLA_FLAGS="--xla_a=1 --xla_b=2", **{compile_cache.FLAGS_VARIABLE: "--new=1"}),
        folder_for(XLA_FLAGS="--xla_a=1 --xla_b=2", LOCAL_RANK="1"),
        folder_for(PluginLibrary(PLUGIN.path, PLUGIN.package, "0.12.0", 13), XLA_FLAGS="--xla_a=1 --xla_b=2"),
    ]
    assert same == first
    assert len({first, *others}) == 5


def test_a_folder_of_the_users_own_stands_and_nothing_means_none(card: list[str], tmp_path: Path) -> None:
    own = {compile_cache.FOLDER_VARIABLE: str(tmp_path / "own")}
    assert folder_for(**own) == str(tmp_path / "own")
    assert (tmp_path / "own").is_dir()
    assert folder_for(**{compile_cache.FOLDER_VARIABLE: ""}) == ""


def test_several_ranks_keep_nothing(card: list[str], tmp_path: Path) -> None:
    assert folder_for(WORLD_SIZE="2") == ""
    assert folder_for(WORLD_SIZE="2", **{compile_cache.FOLDER_VARIABLE: str(tmp_path)}) == ""
    assert folder_for(WORLD_SIZE="1") != ""


def test_a_folder_that_cannot_be_made_is_named(card: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeError, match=r"the cache .*/file/x cannot be made .*; set XDG_CACHE_HOME"):
        folder_for(**{compile_cache.FOLDER_VARIABLE: str(tmp_path / "file" / "x")})


def test_what_was_not_used_for_longest_goes_first_and_only_our_files_go(tmp_path: Path) -> None:
    now = time.time()
    for age, name in enumerate(["0" * 16, "1" * 16, "2" * 16, "3" * 16]):
        (tmp_path / name).write_bytes(b"x" * 100)
        os.utime(tmp_path / name, (now - age * 10, now - age * 10))
    for name in ("thesis.tex", "4" * 15, "5" * 17):
        (tmp_path / name).write_bytes(b"x" * 1000)
        os.utime(tmp_path / name, (0, 0))
    old, new = tmp_path / ("6" * 16 + ".aB3dEf"), tmp_path / ("7" * 16 + ".aB3dEf")
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    os.utime(old, (now - 7200, now - 7200))
    compile_cache.prune(tmp_path, 250)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"0" * 16, "1" * 16, "thesis.tex", "4" * 15, "5" * 17, new.name}

"""Which plugin is found, what XLA is told, and how torch-xla gets to know the device; no GPU is asked."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from pjrt_tools import NEW, answer, fake_plugin, needs_compiler, run_python

from resnet_acc.training import nvidia
from resnet_acc.training.accelerators.pjrt import library, settings
from resnet_acc.training.accelerators.pjrt.plugin import prepare_environment

torch_xla = pytest.importorskip("torch_xla")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that Python finds packages in before any other, without a user's own plugin."""
    monkeypatch.delenv(library.PLUGIN_VARIABLE, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in [name for name in sys.modules if name.partition(".")[0] == "jax_plugins"]:
        monkeypatch.delitem(sys.modules, name)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "jax_plugins"]:
        del sys.modules[name]


def install(site: Path, cuda_major: int, version: str | None = "0.11.2", binary: bool = True) -> Path:
    """What pip leaves of jax-cuda12-pjrt or jax-cuda13-pjrt."""
    folder = site / "jax_plugins" / f"xla_cuda{cuda_major}"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('this imports jax, and must not be imported')\n")
    if binary:
        (folder / "xla_cuda_plugin.so").write_bytes(b"\x7fELF")
    if version is not None:
        info = site / f"jax_cuda{cuda_major}_pjrt-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: jax-cuda{cuda_major}-pjrt\nVersion: {version}\n")
    return folder / "xla_cuda_plugin.so"


@pytest.mark.parametrize("major", [12, 13])
def test_the_installed_plugin_is_found_without_importing_it(site: Path, major: int) -> None:
    path = install(site, major)
    found = library.find_plugin()
    assert found == library.PluginLibrary(path, f"jax-cuda{major}-pjrt", "0.11.2", major)
    assert found.label == f"jax-cuda{major}-pjrt-0.11.2"


@pytest.mark.parametrize(("torch_cuda", "chosen"), [("12.8", 12), ("13.0", 13), (None, 13), ("11.8", 13)])
def test_of_two_plugins_torchs_cuda_decides(
    site: Path, monkeypatch: pytest.MonkeyPatch, torch_cuda: str | None, chosen: int
) -> None:
    install(site, 12)
    install(site, 13)
    import torch

    monkeypatch.setattr(torch.version, "cuda", torch_cuda)
    assert library.find_plugin().cuda_major == chosen


def test_torchs_cuda_is_read_where_torch_is_not_imported(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (site / "torch").mkdir()
    (site / "torch" / "__init__.py").write_text("raise SystemExit('not to be imported')\n")
    version = site / "torch" / "version.py"
    monkeypatch.delitem(sys.modules, "torch")
    for text, major in (
        ("__version__ = '2.9.1+cu130'\ncuda: Optional[str] = '13.0'\n", 13),
        ("cuda = '12.8'\n", 12),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n", None),
    ):
        version.write_text(text)
        assert library._torch_cuda_major() == major


def test_no_plugin_says_what_to_install(site: Path) -> None:
    with pytest.raises(ImportError, match=r"no CUDA PJRT plugin.*pip install 'resnet-acc\[nvidia-xla\]'"):
        library.find_plugin()
    install(site, 12, binary=False)
    install(site, 13, version=None)
    with pytest.raises(ImportError, match="no CUDA PJRT plugin"):
        library.find_plugin()


@pytest.mark.parametrize(("version", "fits"), [("0.7.0", False), ("0.6.2", False), ("0.7.1", True), ("0.12.0.1", True)])
def test_the_oldest_release(site: Path, version: str, fits: bool) -> None:
    install(site, 12, version=version)
    if fits:
        assert library.find_plugin().version == version
    else:
        with pytest.raises(ImportError, match=rf"jax-cuda12-pjrt {version} is older than 0\.7\.1; pip install"):
            library.find_plugin()


def test_a_users_own_plugin_goes_first(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(site, 13)
    own = site / "my_cuda12_plugin.so"
    own.write_bytes(b"one")
    monkeypatch.setenv(library.PLUGIN_VARIABLE, str(own))
    first = library.find_plugin()
    assert (first.path, first.cuda_major) == (own, 12)
    own.write_bytes(b"another")
    assert library.find_plugin().label != first.label
    monkeypatch.setenv(library.PLUGIN_VARIABLE, "/no/plugin.so")
    with pytest.raises(ImportError, match=r"RESNET_ACC_PJRT_PLUGIN is '/no/plugin.so', which is no file"):
        library.find_plugin()


@needs_compiler
def test_the_api_version_is_read_from_the_library(tmp_path: Path) -> None:
    assert library.api_version(fake_plugin(tmp_path / "a", **NEW)) == (0, 115, 1160)
    assert library.api_version(fake_plugin(tmp_path / "b", API_MAJOR=2))[0] == 2
    for macros, words in (({"NO_SYMBOL": 1}, "GetPjrtApi"), ({"GIVE_NOTHING": 1}, "gave nothing")):
        with pytest.raises(RuntimeError, match=words):
            library.api_version(fake_plugin(tmp_path / words, **macros))
    with pytest.raises(RuntimeError, match=r"/no/plugin\.so cannot be used"):
        library.api_version(Path("/no/plugin.so"))


# --- what XLA is told ---


def test_a_users_flag_stands_and_none_is_there_twice() -> None:
    flags = {"xla_one": "1", "xla_two": "b"}
    assert settings.merge_flags("", flags) == "--xla_one=1 --xla_two=b"
    assert settings.merge_flags(" --xla_two=mine  --other", flags) == "--xla_two=mine  --other --xla_one=1"
    assert settings.merge_flags("--xla_one", flags) == "--xla_one --xla_two=b"
    # A longer name that begins or ends alike is another flag.
    assert settings.merge_flags("--xla_one_more=1 --not_xla_two=2", flags).endswith("--xla_one=1 --xla_two=b")
    once = settings.merge_flags("--xla_one=5", flags)
    assert settings.merge_flags(once, flags) == once


def test_a_folder_with_white_space_is_quoted() -> None:
    assert settings.merge_flags("", {"xla_dir": "/my cache/a"}) == '--xla_dir="/my cache/a"'


def test_the_table_has_one_entry_a_name_of_a_known_kind() -> None:
    names = [(kind, name) for kind, name, _ in settings.DEFAULTS]
    assert len(set(names)) == len(names)
    assert {kind for kind, _ in names} <= {settings.FLAG, settings.VARIABLE, settings.OPTION}


def test_every_default_flag_is_one_that_torch_xla_knows() -> None:
    import _XLAC

    binary = Path(_XLAC.__file__).read_bytes()  # XLA ends the process over a flag that it does not know
    for name in settings.defaults(settings.FLAG):
        assert name.encode() in binary, name


def test_users_memory_settings_go_before_the_tables() -> None:
    options = settings.client_options({})
    assert (options["allocator"], options["preallocate"], options["memory_fraction"]) == ("default", True, 0.75)
    options = settings.client_options(
        {"PJRT_ALLOCATOR_CUDA_ASYNC": "1", "PJRT_ALLOCATOR_FRACTION": "0.5", "PJRT_ALLOCATOR_PREALLOCATE": "false"}
    )
    assert (options["allocator"], options["preallocate"], options["memory_fraction"]) == ("cuda_async", False, 0.5)
    for wrong in ("much", "0", "1.5", "nan"):
        with pytest.raises(ValueError, match=f"PJRT_ALLOCATOR_FRACTION is '{wrong}'"):
            settings.client_options({"PJRT_ALLOCATOR_FRACTION": wrong})


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache and a fake plugin of the test's own; whatever a test sets in the environment is taken back."""
    plugin = fake_plugin(tmp_path / "xla_cuda13", **NEW)
    names = ("PJRT_LOCAL_PROCESS_RANK", "MASTER_PORT", "WORLD_SIZE", "RANK", "XLA_COORDINATOR_PORT", "XLA_FLAGS")
    names += ("PJRT_DEVICE", "RESNET_ACC_PJRT_PLUGIN_PATH", "RESNET_ACC_PJRT_COMPILE_CACHE")
    names += ("TF_CPP_MIN_LOG_LEVEL", "CC")
    for name in names:
        monkeypatch.setenv(name, "")  # so that it is put back as it was
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(library.PLUGIN_VARIABLE, str(plugin))
    return plugin


@needs_compiler
def test_the_environment_is_prepared_once(prepared: Path, tmp_path: Path) -> None:
    os.environ["XLA_FLAGS"] = "--xla_cpu_enable_fast_math=false"
    prepare_environment(local_rank=3)
    first = dict(os.environ)
    prepare_environment(local_rank=3)
    assert dict(os.environ) == first
    autotune = tmp_path / "cache" / "resnet_acc" / "xla_autotune" / library.find_plugin().label
    assert autotune.is_dir()
    assert first["XLA_FLAGS"].startswith("--xla_cpu_enable_fast_math=false --xla_gpu_per_fusion_autotune_cache_dir=")
    assert str(autotune) in first["XLA_FLAGS"]
    assert (first["PJRT_DEVICE"], first["RESNET_ACC_PJRT_PLUGIN_PATH"]) == ("NVGPU", str(prepared))
    assert (first["PJRT_LOCAL_PROCESS_RANK"], first["TF_CPP_MIN_LOG_LEVEL"]) == ("3", "2")
    assert "XLA_COORDINATOR_PORT" not in first


@needs_compiler
def test_what_the_user_set_stands(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_per_fusion_autotune_cache_dir=/mine")
    prepare_environment()
    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "0"
    assert os.environ["XLA_FLAGS"].count("xla_gpu_per_fusion_autotune_cache_dir") == 1
    assert "PJRT_LOCAL_PROCESS_RANK" not in os.environ


@needs_compiler
def test_ranks_meet_beside_their_own_port(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for port, coordinator in (("29500", "29501"), ("65535", "65534")):
        monkeypatch.setenv("MASTER_PORT", port)
        os.environ.pop("XLA_COORDINATOR_PORT", None)
        prepare_environment()
        assert os.environ["XLA_COORDINATOR_PORT"] == coordinator
    os.environ["XLA_COORDINATOR_PORT"] = "8547"
    prepare_environment()
    assert os.environ["XLA_COORDINATOR_PORT"] == "8547"


def test_a_cache_that_cannot_be_made_is_named(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(RuntimeError, match="XDG_CACHE_HOME"):
        prepare_environment()
    assert "PJRT_DEVICE" not in os.environ


# --- how torch-xla gets to know the device ---

RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "PJRT_LOCAL_PROCESS_RANK", "PJRT_LOCAL_PROCESS_COUNT")


@pytest.mark.parametrize(
    ("variables", "visible", "node", "nodes"),
    [
        ({}, 0, 0, 1),
        ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}, 0, 0, 1),
        ({"RANK": "11", "LOCAL_RANK": "3", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, 3, 11, 16),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, 1, 1, 2),
        ({"PJRT_LOCAL_PROCESS_RANK": "2", "PJRT_LOCAL_PROCESS_COUNT": "4"}, 2, 2, 4),  # torch_xla.launch
    ],
)
def test_each_rank_opens_one_gpu(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], visible: int, node: int, nodes: int
) -> None:
    for name in RANKS:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    from resnet_acc.training.accelerators.pjrt import NvidiaPlugin

    plugin = NvidiaPlugin()
    options = plugin.client_create_options()
    assert (options["visible_devices"], options["node_id"], options["num_nodes"]) == ([visible], node, nodes)
    assert plugin.requires_xla_coordinator() is (nodes > 1)
    # The plugin refuses an option that it does not know (pjrt_c_api_gpu_internal.cc).
    known = {"platform_name", "allocator", "memory_fraction", "preallocate", "visible_devices", "node_id", "num_nodes"}
    assert set(options) == known


def test_gpus_are_counted_by_nvml_and_one_is_assumed_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from resnet_acc.training.accelerators.pjrt import NvidiaPlugin, device

    monkeypatch.setattr(device, "nvidia_gpus", lambda: nvidia.Gpus(["NVIDIA H200"] * 4, "580.1"))
    assert NvidiaPlugin().physical_chip_count() == 4

    def no_driver() -> Any:
        raise OSError("none")

    monkeypatch.setattr(device, "nvidia_gpus", no_driver)
    assert NvidiaPlugin().physical_chip_count() == 1


def test_importing_the_package_imports_neither_torch_nor_torch_xla() -> None:
    code = (
        "import json, sys, resnet_acc.training.accelerators.pjrt.plugin\n"
        "print(json.dumps([name for name in ('torch', 'torchvision', 'torch_xla') if name in sys.modules]))"
    )
    assert answer(code) == []


def test_the_entry_point_is_installed() -> None:
    from importlib import metadata

    points = metadata.entry_points(group="torch_xla.plugins", name="nvgpu")
    assert {point.value for point in points} == {"resnet_acc.training.accelerators.pjrt:entry_point"}


def test_torch_xla_on_a_cpu_is_as_it_was(tmp_path: Path) -> None:
    code = (
        "import json, os, sys, torch, torch_xla\n"
        "from torch_xla.experimental import plugins\n"
        "value = (torch.ones(2, device=torch_xla.device()) + 1).tolist()\n"
        "print(json.dumps([value, 'NVGPU' in plugins._plugin_registry, os.environ['PJRT_DEVICE'],"
        "'xla_gpu' in os.environ['XLA_FLAGS'], 'torchvision' in sys.modules, os.environ['TF_CPP_MIN_LOG_LEVEL']]))"
    )
    cache = {"XDG_CACHE_HOME": str(tmp_path), "PJRT_DEVICE": "CPU", "XLA_FLAGS": "", "CC": "/no/compiler"}
    assert answer(code, **cache, TF_CPP_MIN_LOG_LEVEL="1") == [[2.0, 2.0], True, "CPU", False, False, "1"]
    assert list(tmp_path.iterdir()) == []


REGISTERED = """
import json, os
from resnet_acc.training.accelerators.pjrt import prepare_environment, register
if BEFORE:
    prepare_environment()
import torch_xla
from torch_xla.experimental import plugins
if BEFORE:
    register(); register()
plugin = plugins._plugin_registry["NVGPU"]
assert plugin.library_path().endswith(".so")
print(json.dumps({name: os.environ.get(name) for name in ("PJRT_DEVICE", "PJRT_DYNAMIC_PLUGINS", "XLA_FLAGS",
    "RESNET_ACC_PJRT_COMPILE_CACHE", "XLA_PERSISTENT_CACHE_PATH", "RESNET_ACC_PJRT_PLUGIN_PATH")}))
"""


@needs_compiler
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_script_of_its_own_and_the_two_calls_come_to_the_same(prepared: Path, tmp_path: Path, rank: str) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "RANK": rank, library.PLUGIN_VARIABLE: str(prepared)}
    called = answer(REGISTERED.replace("BEFORE", "True"), **environment)
    alone = answer(REGISTERED.replace("BEFORE", "False"), **environment, PJRT_DEVICE="NVGPU")
    # torch-xla puts its own flag before or after.
    assert sorted(called.pop("XLA_FLAGS").split()) == sorted(alone.pop("XLA_FLAGS").split())
    assert called == alone
    assert called["PJRT_DEVICE"] == "NVGPU"
    folder = Path(called["RESNET_ACC_PJRT_COMPILE_CACHE"])
    assert folder.is_dir()
    assert folder.is_relative_to(tmp_path / "cache" / "resnet_acc" / "xla_compile")
    mine = answer(REGISTERED.replace("BEFORE", "True"), **environment, RESNET_ACC_PJRT_COMPILE_CACHE=str(tmp_path))
    assert mine["RESNET_ACC_PJRT_COMPILE_CACHE"] == str(tmp_path)


@needs_compiler
@pytest.mark.parametrize(
    ("macros", "words"), [({"API_MAJOR": 1, "API_MINOR": 2}, "PJRT API 1.2"), ({"GIVE_NOTHING": 1}, "gave nothing")]
)
def test_a_plugin_that_does_not_fit_is_an_error_in_python(tmp_path: Path, macros: dict, words: str) -> None:
    code = (
        "from resnet_acc.training.accelerators.pjrt import prepare_environment, register\n"
        "prepare_environment()\n"
        "import torch_xla\n"
        "try: register()\n"
        "except RuntimeError as error: print('refused:', error)"
    )
    plugin = fake_plugin(tmp_path, **macros)
    done = run_python(code, XDG_CACHE_HOME=str(tmp_path / "cache"), RESNET_ACC_PJRT_PLUGIN=str(plugin))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("refused: ")
    assert words in done.stdout
    # A script of its own does not come as far as torch-xla's own check either, which would end the process.
    code = "import torch, torch_xla\ntry: torch_xla.device()\nexcept RuntimeError as error: print('refused:', error)"
    variables = {"RESNET_ACC_PJRT_PLUGIN": str(plugin), "PJRT_DEVICE": "NVGPU"}
    done = run_python(code, XDG_CACHE_HOME=str(tmp_path / "cache"), **variables)
    assert done.returncode == 0, done.stderr
    assert words in done.stdout


def test_register_after_another_device_is_refused(prepared: Path) -> None:
    code = (
        "import json, torch_xla\n"
        "torch_xla.device()\n"
        "from resnet_acc.training.accelerators.pjrt import register\n"
        "try: register()\n"
        "except RuntimeError as error: print(json.dumps(str(error)))"
    )
    assert "torch-xla has opened 'CPU' already" in answer(code, PJRT_DEVICE="CPU")


def test_torch_xla_says_what_to_install_where_there_is_no_plugin(tmp_path: Path) -> None:
    variables = {"PJRT_DEVICE": "NVGPU", "RESNET_ACC_PJRT_PLUGIN": "/no/plugin.so", "XDG_CACHE_HOME": str(tmp_path)}
    done = run_python("import torch_xla", **variables)
    assert done.returncode == 1
    assert "ImportError: RESNET_ACC_PJRT_PLUGIN is '/no/plugin.so'" in done.stderr

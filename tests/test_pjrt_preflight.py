"""torch-xla on NVIDIA GPUs, as the probe reports it and as the launcher refuses or takes it."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from launch_tools import CPU_ENVIRONMENT, TESTS, XLA_PLUGIN, gpus, gpus_for_xla
from pjrt_tools import NEW, fake_plugin, needs_compiler

from resnet_acc import arms
from resnet_acc.config import RunConfig
from resnet_acc.launch import doctor, folder, preflight, supervisor, torchrun, xla_plugin
from resnet_acc.training import main, nvidia

CUDA13 = {"package": "jax-cuda13-pjrt", "version": "0.11.2", "cuda_major": 13, "api_version": "0.115"}
CUDA13 |= {"cudnn": "9.19.0", "cudnn_cuda_major": 13}


def check(environment: dict[str, Any], **options: Any) -> preflight.Preflight:
    return preflight.check(RunConfig(**{"data": "synthetic", "compiler_opt": True, **options}), environment)


def reason(environment: dict[str, Any]) -> str:
    text = preflight.runnable_arms(environment, "cuda")["torchacc"]
    assert text is not None
    assert "\n" not in text
    return text


@pytest.mark.parametrize("plugin", [{}, CUDA13])
def test_torchacc_runs_on_a_gpu_with_the_plugin(plugin: dict[str, Any]) -> None:
    assert preflight.runnable_arms(gpus_for_xla(1, plugin), "cuda")["torchacc"] is None
    with_cuda_torch = gpus(2, nvidia_xla=XLA_PLUGIN)
    assert set(preflight.runnable_arms(with_cuda_torch, "cuda").values()) == {None}
    found = check(with_cuda_torch, nproc_per_node=2)
    assert (found.device, found.device_name, found.num_devices, found.warnings) == ("cuda", "h200", 2, [])


@pytest.mark.parametrize(
    ("plugin", "changes", "words"),
    [
        (CUDA13, {"driver": "570.86.15"}, ["jax-cuda13-pjrt 0.11.2", "580", "570.86.15", "newer driver", "nvidia-xla"]),
        ({}, {"driver": "470.57"}, ["jax-cuda12-pjrt 0.10.2", "525", "470.57", "newer driver"]),
        ({"api_version": "1.0"}, {}, ["jax-cuda12-pjrt 0.10.2", "PJRT API 1.0", "0.57", "pip install"]),
        ({"api_version": "0.56"}, {}, ["PJRT API 0.56", "0.57"]),
        ({"cudnn": None}, {}, ["libcudnn.so.9", "pip install 'resnet-acc[nvidia-xla]'"]),
        ({"cudnn": "9.5.1"}, {}, ["jax-cuda12-pjrt 0.10.2", "9.8", "9.5.1"]),
        ({"version": "0.11.2", "cudnn": "9.8.0"}, {}, ["jax-cuda12-pjrt 0.11.2", "9.10", "9.8.0", "an older"]),
        (CUDA13 | {"cudnn": "9.10.2"}, {}, ["9.12", "9.10.2", "pip uninstall jax-cuda13-pjrt", "nvidia-xla"]),
        ({"cudnn": "10.0.0"}, {}, ["9.8", "10.0.0"]),
        ({}, {"c_compiler": None}, ["C compiler", "gcc", "CC"]),
        ({}, {"torch_xla": None}, ["torch_xla 2.9", "nvidia-xla"]),
        ({}, {"torch_xla": "2.8.1"}, ["2.9", "2.8.1"]),
        ({}, {"torch": "2.8.0", "torch_xla": "2.8.1"}, ["torch_xla 2.9 or newer", "2.8.1", "torch 2.9"]),
    ],
)
def test_a_pair_that_cannot_work_is_refused(plugin: dict[str, Any], changes: dict[str, Any], words: list[str]) -> None:
    environment = gpus_for_xla(1, plugin)
    if "driver" in changes:
        environment["nvidia"] |= {"driver": changes.pop("driver")}
    text = reason(environment | changes)
    for word in words:
        assert word in text


def test_without_a_plugin_the_probes_own_reason_is_given() -> None:
    errors = {
        "nvidia_xla": "ImportError: jax-cuda12-pjrt 0.6.2 is older than 0.7.1; pip install 'resnet-acc[nvidia-xla]'"
    }
    text = reason(gpus_for_xla(1) | {"nvidia_xla": None, "errors": errors})
    assert "0.6.2 is older than 0.7.1" in text
    assert text.count("pip install") == 1
    assert "pip install" in reason(gpus_for_xla(1) | {"nvidia_xla": None, "errors": {}})


def test_what_is_not_known_is_no_obstacle() -> None:
    quick = {"api_version": None, "cudnn": None, "cudnn_cuda_major": None}
    own = {"package": "own", "version": "0a1b2c", "cuda_major": 0}
    for plugin in (quick, own, {"cudnn_cuda_major": None}):
        assert preflight.runnable_arms(gpus_for_xla(1, plugin), "cuda")["torchacc"] is None
    environment = gpus_for_xla(1)
    environment["nvidia"] |= {"driver": None}
    assert preflight.runnable_arms(environment, "cuda")["torchacc"] is None


def test_a_vendors_torchacc_needs_no_plugin() -> None:
    vendor = gpus(1) | {"torchacc": "1.0", "torch_xla": None, "c_compiler": None}
    assert preflight.runnable_arms(vendor, "cuda")["torchacc"] is None
    assert check(vendor).warnings == []


def test_auto_is_the_gpu_for_the_arm_that_can_use_it() -> None:
    environment = gpus_for_xla(4)
    found = check(environment, nproc_per_node=4)
    assert (found.device, found.device_name, found.num_devices) == ("cuda", "h200", 4)
    (warning,) = found.warnings
    assert "sees no GPU" in warning
    assert check(environment, device="cpu").device == "cpu"
    eager = check(environment, compiler_opt=False)
    assert (eager.device, eager.device_name) == ("cpu", "cpu")
    with pytest.raises(ValueError, match="0 GPUs are available"):
        check(environment, compiler_opt=False, device="cuda")
    with pytest.raises(ValueError, match=r"4 GPUs are available.*--nproc_per_node=4"):
        check(environment, nproc_per_node=5)
    # Where torchacc cannot train there, auto stays the CPU, and --device=cuda says why.
    broken = environment | {"nvidia_xla": None}
    assert check(broken).device == "cpu"
    with pytest.raises(ValueError, match="CUDA plugin"):
        check(broken, device="cuda")


def test_cudnn_of_another_cuda_is_warned_of() -> None:
    environment = gpus(1, nvidia_xla=XLA_PLUGIN | {"cudnn": "9.13.0", "cudnn_cuda_major": 13})
    (warning,) = check(environment).warnings
    for word in ("CUDA 12", "CUDA 13", "9.13.0"):
        assert word in warning
    assert check(environment, compiler_opt=False).warnings == []


def test_versions_are_printed_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = gpus_for_xla(2, CUDA13)
    line = xla_plugin.describe(environment)
    assert line == "jax-cuda13-pjrt 0.11.2 (CUDA 13), PJRT API 0.115, driver 580.95.05, cuDNN 9.19.0"
    kept = folder.describe_environment(environment, preflight.Preflight("cuda", "h200", 2))
    assert (kept["driver"], kept["gpu_names"]) == ("580.95.05", ["NVIDIA H200"] * 2)
    assert kept["nvidia_xla"]["api_version"] == "0.115"
    monkeypatch.setattr(preflight, "probe", lambda: environment)
    report = doctor.examine(("torchacc",))
    page = " ".join(" ".join(doctor.page(report)).split())
    assert " ".join(line.split()) in page
    assert "2 x NVIDIA H200, for torchacc only" in page
    assert [(entry["device"], entry["can_run"]) for entry in report["arms"] if entry["arm"] == "torchacc"] == [
        ("cuda", True)
    ]
    assert arms.describe(environment)[-1] == "torchacc can run on the GPU"
    assert "none (" in xla_plugin.describe(CPU_ENVIRONMENT)


def test_a_run_on_the_gpu_says_its_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")])))
    monkeypatch.setenv("PJRT_LOCAL_PROCESS_RANK", "5")
    lines: list[str] = []
    config = RunConfig(data="synthetic", output=str(tmp_path), compiler_opt=True)
    run_dir = supervisor.launch(config, echo=lines.append, environment=gpus_for_xla(1), trainer="fake_trainer")
    assert (
        "torch_xla 2.9.0 on NVIDIA: jax-cuda12-pjrt 0.10.2 (CUDA 12), PJRT API 0.108, driver 580.95.05, cuDNN 9.10.2"
        in lines
    )
    assert any(line.startswith("warning: torch 2.9.1+cpu sees no GPU") for line in lines)
    assert run_dir.parents[1].name == "h200_O0_bs128_synthetic"
    told = torchrun.child_environment(config, preflight.Preflight("cuda", "h200", 1), "id")
    assert "PJRT_LOCAL_PROCESS_RANK" not in told


# --- what the probe reports ---

FAKE_NVML = r"""
#include <stdio.h>
#include <string.h>
int nvmlInit_v2(void) { return INIT_STATUS; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(size_t)(index + 1); return 0; }
int nvmlDeviceGetName(void *handle, char *name, unsigned size) {
  return snprintf(name, size, "NVIDIA %c100", "ABC"[(size_t)handle - 1]) < 0;
}
int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned size) {
  return snprintf(uuid, size, "GPU-%zu7-aaaa", (size_t)handle) < 0;
}
int nvmlSystemGetDriverVersion(char *version, unsigned size) { return snprintf(version, size, "580.95.05") < 0; }
"""


def fake_nvml(folder: Path, init_status: int = 0) -> Path:
    source, library = folder / "nvml.c", folder / "libnvidia-ml.so.1"
    source.write_text(FAKE_NVML)
    compiler = next(found for name in ("gcc", "cc", "clang") if (found := shutil.which(name)))
    command = [compiler, "-shared", "-fPIC", f"-DINIT_STATUS={init_status}", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    return library


@needs_compiler
def test_gpus_are_read_from_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "LIBRARY", str(fake_nvml(tmp_path)))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert nvidia.nvidia_gpus() == nvidia.Gpus(["NVIDIA A100", "NVIDIA B100", "NVIDIA C100"], "580.95.05")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    assert nvidia.nvidia_gpus().names == ["NVIDIA C100", "NVIDIA A100"]
    assert main.gpu_name(1) == "NVIDIA A100"


@needs_compiler
def test_a_driver_that_is_not_there_or_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "LIBRARY", str(fake_nvml(tmp_path, init_status=9)))
    with pytest.raises(OSError, match="nvmlInit gave status 9"):
        nvidia.nvidia_gpus()
    monkeypatch.setattr(nvidia, "LIBRARY", "libno-such-thing.so.1")
    with pytest.raises(OSError, match="no NVIDIA driver"):
        nvidia.nvidia_gpus()


@pytest.mark.parametrize(
    ("setting", "places"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("1", [1]),
        ("2, 0", [2, 0]),
        ("0,7,1", [0]),  # the first that is no GPU ends the list
        ("GPU-b", [1]),
        ("GPU-c0,0", [2, 0]),
        ("GPU-,0", []),  # begins all three
        ("1,1", []),
        ("MIG-x", []),
        ("none", []),
    ],
)
def test_cuda_visible_devices(setting: str | None, places: list[int]) -> None:
    assert nvidia.visible(["GPU-a0", "GPU-b0", "GPU-c0"], setting) == places


@needs_compiler
def test_the_probe_reads_driver_plugin_and_cudnn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = fake_plugin(tmp_path / "jax_plugins" / "xla_cuda12", **NEW)
    (tmp_path / "lib").mkdir()
    fake_nvml(tmp_path / "lib")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "lib"))
    monkeypatch.setenv("RESNET_ACC_PJRT_PLUGIN", str(plugin))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    # No torch: the one that is installed may have loaded its own cuDNN.
    (tmp_path / "torch.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    cudnn = tmp_path / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"
    cudnn.parent.mkdir(parents=True)
    source = tmp_path / "cudnn.c"
    source.write_text(
        "unsigned long cudnnGetVersion(void) { return 91002; }\n"
        "unsigned long cudnnGetCudartVersion(void) { return 12090; }\n"
    )
    compiler = next(found for name in ("gcc", "cc", "clang") if (found := shutil.which(name)))
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(cudnn), str(source)], check=True)
    report = preflight.probe()
    assert report["nvidia"] == {"count": 2, "names": ["NVIDIA A100", "NVIDIA B100"], "driver": "580.95.05"}
    found = report["nvidia_xla"]
    assert (found["path"], found["cuda_major"]) == (str(plugin), 12)
    assert (found["api_version"], found["cudnn"], found["cudnn_cuda_major"]) == ("0.115", "9.10.2", 12)
    quick = preflight.probe(quick=True)["nvidia_xla"]
    assert (quick["version"], quick["api_version"], quick["cudnn"]) == (found["version"], None, None)


@needs_compiler
def test_a_plugin_that_cannot_be_loaded_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESNET_ACC_PJRT_PLUGIN", str(fake_plugin(tmp_path, GIVE_NOTHING=1)))
    (tmp_path / "torch.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = preflight.probe()
    assert report["nvidia_xla"] is None
    assert "gave nothing" in report["errors"]["nvidia_xla"]

"""What is refused before anything starts, and in which words."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launch_tools import CPU_ENVIRONMENT, gpus, gpus_for_xla

from resnet_acc.config import RunConfig
from resnet_acc.launch import machine, preflight


def check(environment: dict[str, Any] = CPU_ENVIRONMENT, **options: Any) -> preflight.Preflight:
    return preflight.check(RunConfig(**{"data": "synthetic", **options}), environment)


def refusal(environment: dict[str, Any] = CPU_ENVIRONMENT, **options: Any) -> str:
    with pytest.raises(ValueError, match=r"\w") as caught:
        check(environment, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_more_processes_than_gpus_names_both_numbers() -> None:
    text = refusal(nproc_per_node=8, device="cuda")
    assert "8" in text
    assert "0 GPUs" in text
    assert "--device=cpu" in text
    text = refusal(gpus(2), nproc_per_node=8)
    assert "8" in text
    assert "2 GPUs" in text
    assert "--nproc_per_node=2" in text


def test_gpus_are_used_where_there_are_some() -> None:
    found = check(gpus(8), nproc_per_node=8)
    assert (found.device, found.device_name, found.num_devices, found.warnings) == ("cuda", "h200", 8, [])
    assert check(gpus(8), nproc_per_node=1, device="cpu").device == "cpu"


def test_more_processes_than_cores_are_allowed_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "num_cores", lambda: 2)
    found = check(nproc_per_node=4)
    assert (found.device, found.num_devices) == ("cpu", 2)
    assert "4 processes > 2 cores" in found.warnings[0]
    assert check(nproc_per_node=2).warnings == []
    assert "1000000000" in refusal(nproc_per_node=10**9)


@pytest.mark.parametrize(
    ("changes", "arm", "device", "words"),
    [
        ({"torch": "2.3.1"}, "kernel", "cpu", ["kernel needs torch >= 2.4", "2.3.1"]),
        ({"torch": "2.3.1"}, "inductor", "cpu", ["inductor needs torch >= 2.4", "2.3.1"]),
        ({"cxx_compiler": None}, "inductor", "cpu", ["cxx_compiler", "g++"]),
        ({"python_headers": False}, "inductor", "cpu", ["python_headers", "python3-dev"]),
        ({"triton": None}, "inductor", "cuda", ["triton"]),
        ({"torch_folder": "/my env/torch"}, "inductor", "cpu", ["/my env/torch", "white space"]),
        ({"torch_xla": None}, "torchacc", "cpu", ["torch_xla 2.9", "pip install"]),
        ({"torch_xla": "2.8.1"}, "torchacc", "cpu", ["2.9", "2.8.1"]),
        ({"torch_xla": None}, "torchacc", "cuda", ["torch_xla 2.9", "pip install 'resnet-acc[nvidia-xla]'"]),
        ({"torch": "2.11.0", "torch_xla": None}, "torchacc", "cuda", ["torch_xla 2.11", "environment with torch 2.9"]),
        ({}, "torchacc", "cuda", ["CUDA plugin", "2.9.0", "pip install 'resnet-acc[nvidia-xla]'"]),
        ({}, "eager", "tpu", ["TPU"]),
        ({"torchvision": None}, "eager", "cpu", ["torchvision", "prepare.sh"]),
        ({"torch": None}, "eager", "cpu", ["torch", "prepare.sh"]),
    ],
)
def test_an_arm_that_cannot_run_says_why(changes: dict, arm: str, device: str, words: list[str]) -> None:
    reason = preflight.runnable_arms(gpus(1) | changes, device)[arm]
    assert reason is not None
    for word in words:
        assert word in reason


def test_arms_that_can_run() -> None:
    assert set(preflight.runnable_arms(CPU_ENVIRONMENT, "cpu").values()) == {None}
    vendor = preflight.runnable_arms(gpus(1) | {"torchacc": "1.0"}, "cuda")
    assert set(vendor.values()) == {None}
    assert preflight.runnable_arms(CPU_ENVIRONMENT | {"torch": "2.3.1"}, "cpu")["eager"] is None


def test_the_refused_arm_stops_the_run() -> None:
    assert "torch_xla" in refusal(CPU_ENVIRONMENT | {"torch_xla": None}, compiler_opt=True)
    on_tpu = CPU_ENVIRONMENT | {"tpu": True}
    assert "bfloat16" in refusal(on_tpu, compiler_opt=True, amp_level="O1", amp_dtype="float16", device="tpu")
    assert check(compiler_opt=True, amp_level="O1", amp_dtype="float16").device == "cpu"
    on_gpu = gpus_for_xla(1)
    assert check(on_gpu, compiler_opt=True, amp_level="O1", amp_dtype="float16").device == "cuda"
    assert "TPU" in refusal(compiler_opt=True, device="tpu")


def test_the_public_torchacc_is_said_not_to_be_the_vendors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchacc").mkdir()
    (tmp_path / "torchacc" / "__init__.py").write_text("raise SystemExit('not to be imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    environment = preflight.probe(quick=True)
    assert environment["torchacc"] is None
    assert "not Alibaba's" in environment["errors"]["torchacc"]
    (warning,) = check(environment | {"torch_xla": environment["torch"]}, compiler_opt=True, device="cpu").warnings
    assert "Alibaba" in warning


def make_images(folder: Path, count: int) -> Path:
    for number in range(count):
        image = folder / "train" / f"class{number % 2}" / f"{number}.JPEG"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(b"not read here")
    return folder


def test_too_few_images_names_both_numbers(tmp_path: Path) -> None:
    data = str(make_images(tmp_path, 10))
    assert refusal(data=data).startswith("10 images < batch 128 x 1 processes: 0 steps; use --batch_size=10")
    assert refusal(data=data, batch_size=6, nproc_per_node=2).startswith("10 images < batch 6 x 2 processes: 0 steps")
    # 10 images are 3 a process: no process has a whole batch of 4, though 10 > 4.
    assert "x 3 processes" in refusal(data=data, batch_size=4, nproc_per_node=3)
    check(data=data, batch_size=5, nproc_per_node=2)


def test_warm_up_longer_than_the_run_is_said(tmp_path: Path) -> None:
    data = str(make_images(tmp_path, 10))
    found = check(data=data, batch_size=2, warmup_steps=5)
    assert any("0 steps after warm-up" in warning for warning in found.warnings)
    assert check(data=data, batch_size=2, warmup_steps=4).warnings == []


def test_missing_data_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "project_root", lambda: tmp_path)
    assert "resnet-acc data mock" in refusal(data="mock")
    assert "/no/such" in refusal(data="/no/such")
    (tmp_path / "empty").mkdir()
    assert str(tmp_path / "empty" / "train") in refusal(data=str(tmp_path / "empty"))


def test_a_class_without_images_is_named(tmp_path: Path) -> None:
    (make_images(tmp_path, 4) / "train" / "hollow").mkdir()
    assert "hollow" in refusal(data=str(tmp_path), batch_size=1)


@pytest.fixture(params=["127.0.0.1", "0.0.0.0", "::"])
def taken_port(request: pytest.FixtureRequest) -> Iterator[int]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.socket(family) as holder:
        holder.bind((request.param, 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_a_port_in_use_is_named(taken_port: int) -> None:
    text = refusal(master_port=taken_port)
    assert str(taken_port) in text
    assert "--master_port" in text
    assert str(taken_port) in refusal(master_port=taken_port, nnodes=2, master_addr="10.0.0.1")
    check(master_port=taken_port, nnodes=2, node_rank=1, master_addr="10.0.0.1")  # machine 0's port, not this one's


def test_an_output_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in refusal(output=str(tmp_path / "file" / "runs"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    text = refusal(output=str(tmp_path / "runs"))
    assert str(tmp_path) in text
    assert not (tmp_path / "runs").exists()


def test_quota_is_the_least_of_the_groups_above(tmp_path: Path) -> None:
    inner = tmp_path / "pod" / "box"
    inner.mkdir(parents=True)
    groups = tmp_path / "groups"
    groups.write_text("0::/pod/box\n")
    assert machine.cpu_quota(tmp_path, groups) is None
    (inner / "cpu.max").write_text("max 100000\n")
    (tmp_path / "pod" / "cpu.max").write_text("150000 100000\n")
    assert machine.cpu_quota(tmp_path, groups) == 1.5


@pytest.mark.parametrize(
    ("name", "slug"),
    [("NVIDIA H200", "h200"), ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb"), ("NVIDIA GeForce RTX 4090", "rtx-4090")],
)
def test_gpu_names_as_folders(name: str, slug: str) -> None:
    assert machine.gpu_slug(name) == slug


@pytest.mark.parametrize("body", ["import sys; sys.exit(3)", "raise ImportError('libcuda.so is gone')", "1/0"])
def test_the_probe_reports_a_broken_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    (tmp_path / "torch.py").write_text(body)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    environment = preflight.probe()
    assert environment["torch"] is None
    assert "torch" in environment["errors"]
    assert preflight.runnable_arms(environment, "cpu")["eager"] is not None


def test_a_probe_that_crashes_or_is_not_there_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("import os; os.kill(os.getpid(), 11)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "-11" in preflight.probe()["errors"]["probe"]
    assert "probe" in preflight.probe("/no/python")["errors"]

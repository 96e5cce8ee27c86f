"""What is decided to be missing, for environments that are only described."""

import sys

import pytest

from resnet_acc import arms, requirements
from resnet_acc.requirements import CannotInstall, canonical, make_plan, read_requirements


@pytest.fixture
def environment(monkeypatch):
    """Describe what is installed; everything but the torch family is, unless a test takes it away."""

    def describe(*, without=(), vendor=False, built_in_place=None, driver=None, **versions):
        names = [canonical(item.name) for item in read_requirements(["test"])]
        there = {name: "9999" for name in names if name not in ("torch", "torchvision", *without)}
        there |= {name.replace("_", "-"): version for name, version in versions.items()}
        monkeypatch.setattr(requirements, "installed_versions", lambda: there)
        monkeypatch.setattr(requirements, "version_without_metadata", lambda name: (built_in_place or {}).get(name))
        monkeypatch.setattr(requirements, "has_vendor_torchacc", lambda: vendor)
        monkeypatch.setattr(requirements, "is_project_installed", lambda: True)
        monkeypatch.setattr(requirements.platform, "machine", lambda: "x86_64")
        monkeypatch.setattr(requirements, "has_nvidia_gpu", lambda: driver is not None)
        monkeypatch.setattr(requirements, "nvidia_driver", lambda: driver)

    monkeypatch.delenv(requirements.NVIDIA_XLA_VARIABLE, raising=False)
    return describe


def test_an_empty_environment_gets_the_pins(environment):
    environment()
    plan = make_plan()
    assert plan.missing == ["torch==2.9.1", "torchvision==0.24.1", "torch-xla==2.9.0"]
    assert plan.alone == []


@pytest.mark.parametrize(
    ("torch", "torchvision"),
    [("2.3.1", "0.18.*"), ("2.9.1+cpu", "0.24.*"), ("2.14.1", "0.29.*"), ("2.6.0a0+ecf3bae40a.nv25.1", "0.21.*")],
)
def test_a_missing_torchvision_follows_torch_and_brings_none(environment, torch, torchvision):
    environment(torch=torch, torch_xla="2.0")
    plan = make_plan()
    assert (plan.missing, plan.alone) == ([], [f"torchvision=={torchvision}"])
    assert f"torch=={torch}" in plan.kept


def test_torch_xla_comes_with_its_own_torch_only(environment):
    environment(torch="2.9.0+cu126", torchvision="0.24.0")
    assert make_plan().missing == ["torch-xla==2.9.0"]
    environment(torch="2.14.1", torchvision="0.29.1")
    plan = make_plan()
    assert plan.missing == []
    assert "torch-xla is left out: 2.9.0 needs torch 2.9.1, and torch 2.14.1 is there" in plan.notes
    environment(torch="2.9.1", torchvision="0.24.1", vendor=True)
    assert make_plan().missing == []
    environment(torch="2.9.1", torchvision="0.24.1", torch_xla="2.9.0+vendor")
    plan = make_plan()
    assert (plan.missing, "torch-xla 2.9.0+vendor is already there and is kept" in plan.notes) == ([], True)


CUDA12 = ["jax-cuda12-pjrt==0.11.2", "nvidia-cuda-nvcc-cu12==12.9.86"]


@pytest.mark.parametrize(
    ("versions", "driver", "extra"),
    [
        ({}, "570.1", "nvidia-xla"),  # the pinned torch, which is for CUDA 12
        ({"torch": "2.9.1+cu126"}, "570.1", "nvidia-xla"),
        ({"torch": "2.9.1+cu130"}, "580.95.05", "nvidia-xla-cuda13"),
        ({"torch": "2.9.1+cpu"}, "580.95.05", "nvidia-xla-cuda13"),
    ],
)
def test_the_plugin_for_a_gpu_is_offered_and_installed_where_asked_for(
    environment, monkeypatch, versions, driver, extra
):
    versions |= {"torchvision": "0.24.1"} if versions else {}
    environment(driver=driver, **versions)
    plan = make_plan()
    assert not [line for line in plan.missing if "jax" in line or "nvidia" in line]
    (offer,) = [note for note in plan.notes if "RESNET_ACC_NVIDIA_XLA=1 bash prepare.sh" in note]
    assert offer.endswith(f"(extra {extra})")
    monkeypatch.setenv("RESNET_ACC_NVIDIA_XLA", "1")
    plan = make_plan()
    assert not [note for note in plan.notes if "NVIDIA" in note]
    lines = [line for line in plan.missing if not line.startswith("torch")]
    if extra == "nvidia-xla":
        assert lines == CUDA12
    else:
        assert lines[0] == "jax-cuda13-pjrt==0.11.2"
        assert not [line for line in lines if "cu12" in line]
        assert {"nvidia-cudnn-cu13==9.13.0.50", "nvidia-nvvm==13.0.48"} < set(lines)


def test_the_plugin_is_not_offered_where_it_could_not_be_used(environment, monkeypatch):
    monkeypatch.setenv("RESNET_ACC_NVIDIA_XLA", "1")
    for versions in (
        {"driver": None},
        {"driver": "580.1", "torch": "2.14.1", "torchvision": "0.29.1"},
        {"driver": "580.1", "torch": "2.9.1", "torchvision": "0.24.1", "vendor": True},
        {"driver": "580.1", "torch": "2.8.0", "torchvision": "0.23.0", "torch_xla": "2.8.1"},
    ):
        environment(**versions)
        plan = make_plan()
        assert not [line for line in plan.missing if "jax" in line], versions
        assert not [note for note in plan.notes if "NVIDIA" in note], versions
    for torch, driver, words in (
        ("2.9.1+cpu", "570.1", ["without CUDA", "580", "570.1"]),
        ("2.9.1+cu128", "470", "525"),
    ):
        environment(torch=torch, torchvision="0.24.1", driver=driver)
        plan = make_plan()
        assert not [line for line in plan.missing if "jax" in line]
        (note,) = [note for note in plan.notes if "left out" in note]
        assert all(word in note for word in words)


def test_what_the_plugin_needs_is_not_installed_twice(environment, monkeypatch):
    monkeypatch.setenv("RESNET_ACC_NVIDIA_XLA", "1")
    there = {"torch": "2.9.1+cu128", "torchvision": "0.24.1", "torch_xla": "2.9.0", "driver": "580.1"}
    environment(**there, jax_cuda12_pjrt="0.7.1")
    assert make_plan().missing == [CUDA12[1]]
    environment(**there, jax_cuda12_pjrt="0.12.0", nvidia_cuda_nvcc_cu12="12.8.93")
    plan = make_plan()
    assert plan.missing == []
    assert {"jax-cuda12-pjrt==0.12.0", "nvidia-cuda-nvcc-cu12==12.8.93"} <= set(plan.kept)
    monkeypatch.delenv("RESNET_ACC_NVIDIA_XLA")
    assert not [note for note in make_plan().notes if "NVIDIA" in note]


def test_the_driver_and_torchs_cuda_are_read(tmp_path, monkeypatch):
    path = tmp_path / "version"
    assert requirements.nvidia_driver(path) is None
    for text, version in (
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024", "550.54.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build", "580.95.05"),
        ("nothing", None),
    ):
        path.write_text(text)
        assert requirements.nvidia_driver(path) == version
    monkeypatch.setattr(requirements, "_package_folder", lambda name: tmp_path)
    (tmp_path / "version.py").write_text("cuda: Optional[str] = '13.0'\n")
    assert requirements.torch_cuda_major("2.9.1") == 13
    assert requirements.torch_cuda_major("2.9.1+cpu") is None
    (tmp_path / "version.py").write_text("cuda: Optional[str] = None\n")
    assert requirements.torch_cuda_major("2.9.1") is None


def test_what_is_there_is_not_changed_and_what_is_missing_is_named(environment):
    environment(without=("pandas", "typer"), torch="2.5.0", torchvision="0.20.0", numpy="1.24.4", torchacc="1.0")
    plan = make_plan()
    assert plan.missing == ["pandas>=2.0", "typer>=0.12"]
    assert {"numpy==1.24.4", "torch==2.5.0", "torchvision==0.20.0", "torchacc==1.0"} <= set(plan.kept)


def test_too_old_a_package_may_be_changed_but_not_a_kept_one(environment):
    environment(torch="2.9.1", torchvision="0.24.1", torch_xla="2.9.0", pandas="1.5.3")
    plan = make_plan()
    assert plan.missing == ["pandas>=2.0"]
    assert "pandas==1.5.3" not in plan.kept
    environment(torch="2.2.2", torchvision="0.17.2")
    with pytest.raises(CannotInstall, match=r"torch 2\.2\.2 .* older than 2\.3"):
        make_plan()
    environment(torch="2.9.1", torchvision="0.17.2")
    with pytest.raises(CannotInstall, match=r"torchvision 0\.17\.2 .* would have to be replaced"):
        make_plan()


def test_a_torch_built_in_place_is_seen(environment):
    environment(built_in_place={"torch": "2.4.0a0+git1", "torchvision": "0.19.0"})
    assert make_plan().missing == []
    environment(without=("torchmetrics",), built_in_place={"torch": "2.4.0a0+git1", "torchvision": "0.19.0"})
    with pytest.raises(CannotInstall, match="no package metadata"):
        make_plan(["test"])


def test_version_of_a_package_without_metadata(tmp_path, monkeypatch):
    folder = tmp_path / "builtinplace"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise SystemExit('must not be imported')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert requirements.version_without_metadata("builtinplace") == "unknown"
    (folder / "version.py").write_text("__version__: str = '2.4.0a0+git1'\n")
    assert requirements.version_without_metadata("builtinplace") == "2.4.0a0+git1"
    assert requirements.version_without_metadata("no_such_package") is None


def test_vendor_is_told_from_the_package_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "torchacc").mkdir()
    (tmp_path / "torchacc" / "__init__.py").write_text("raise SystemExit('must not be imported')\n")
    assert not requirements.has_vendor_torchacc()
    (tmp_path / "torchacc" / "torch_xla").mkdir()
    assert requirements.has_vendor_torchacc()


def test_arms_are_described_with_the_reason():
    environment = {
        "torch": "2.14.1",
        "torchvision": "0.29.1",
        "torch_xla": None,
        "torchacc": None,
        "cuda": {"count": 0},
        "tpu": False,
        "cxx_compiler": "/usr/bin/g++",
        "python_headers": True,
        "errors": {"torch_xla": "not installed"},
    }
    lines = arms.describe(environment)
    assert lines[0] == "arms that this environment can run on cpu: eager, kernel, inductor"
    assert lines[1].startswith("not torchacc: ")

"""The vendor's own namespace, torchacc.torch_xla, where it is installed: a stand-in of it with the old names only."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pjrt_tools import answer, run_python
from torchrun import torchrun
from torchrun import train as train_in_own_process
from xla_tools import PRECISIONS, batches, ready_arm, train

from resnet_acc.config import RunConfig

pytest.importorskip("torch_xla")

CALLS_VARIABLE = "STAND_IN_CALLS"
ROOT = '''
"""Stands for a fork of torch_xla from before sync() and runtime; hands each call on and writes it down."""

import os


class _XLAC:
    """Without what a captured step needs."""


def forward(name, function):
    def call(*args, **options):
        with open(os.environ["STAND_IN_CALLS"], "a") as stream:
            stream.write(name + "\\n")
        return function(*args, **options)

    return call
'''
XLA_MODEL = """
import torch_xla
import torch_xla.core.xla_model as upstream
import torch_xla.runtime
from torchacc.torch_xla import forward

xla_device = forward("xla_device", torch_xla.device)
mark_step = forward("mark_step", lambda: torch_xla.sync())
xrt_world_size = forward("xrt_world_size", torch_xla.runtime.world_size)
get_ordinal = forward("get_ordinal", torch_xla.runtime.global_ordinal)
get_memory_info = forward("get_memory_info", lambda device: {"kb_free": 1, "kb_total": 2})  # its old keys
set_replication = forward("set_replication", upstream.set_replication)
_fetch_gradients = forward("_fetch_gradients", upstream._fetch_gradients)
all_reduce = forward("all_reduce", upstream.all_reduce)
wait_device_ops = forward("wait_device_ops", upstream.wait_device_ops)
"""
AMP = '''
import torch

from torchacc.torch_xla import forward


class GradScaler(torch.amp.GradScaler):
    """As torch_xla had it until 2.8."""

    def __init__(
        self,
        init_scale=2.0**16,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=2000,
        enabled=True,
        use_zero_grad=False,
    ):
        super().__init__("xla", init_scale, growth_factor, backoff_factor, growth_interval, enabled)

    def _maybe_opt_step(self, optimizer, optimizer_state, *args, **kwargs):
        found_inf = sum(optimizer_state["found_inf_per_device"].values())
        return forward("GradScaler", optimizer.step)(*args, found_inf=found_inf, **kwargs)
'''
FILES = {
    "__init__": "",
    "torch_xla/__init__": ROOT,
    "torch_xla/amp/__init__": AMP,
    "torch_xla/amp/syncfree": "from torch_xla.amp.syncfree import SGD, Adam, AdamW\n",
    "torch_xla/core/__init__": "",
    "torch_xla/core/xla_model": XLA_MODEL,
    "torch_xla/debug/__init__": "",
    "torch_xla/debug/metrics": "from torch_xla.debug.metrics import counter_value, metric_data\n",
    "torch_xla/distributed/__init__": "",
    "torch_xla/distributed/parallel_loader": "from torch_xla.distributed.parallel_loader import MpDeviceLoader\n",
    "torch_xla/distributed/xla_backend": "import torch_xla.distributed.xla_backend\n",
}


class Vendor:
    """A folder with the package, first on the path of what the test starts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.package = folder / "site" / "torchacc"
        self._calls = folder / "calls"
        for name, code in FILES.items():
            path = self.package / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code)
        monkeypatch.setenv("PYTHONPATH", str(self.package.parent))
        monkeypatch.setenv(CALLS_VARIABLE, str(self._calls))
        monkeypatch.setenv("PJRT_DEVICE", "CPU")

    def calls(self) -> list[str]:
        """What was called, in order."""
        return self._calls.read_text().split() if self._calls.exists() else []


@pytest.fixture
def vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Vendor:
    return Vendor(tmp_path, monkeypatch)


def train_small_model(**settings: Any) -> dict[str, Any]:
    """Three steps in a process of its own: losses, how steps were compiled, and where torch_xla came from."""
    return answer(f"""
import json
from xla_tools import batches, ready_arm, train
from resnet_acc.training.accelerators import make_accelerator
accelerator = ready_arm(**json.loads({json.dumps(settings)!r}))
losses = train(accelerator, batches(3))
import resnet_acc.training.accelerators.torchacc as arm
print(json.dumps({{
    "losses": losses,
    "compile_mode": accelerator.compile_mode,
    "torch_xla": arm.torch_xla.__name__,
    "loss_scale": accelerator.loss_scale(),
    "compilations": accelerator.compilations(),
    "peak_memory_gib": accelerator.peak_memory_gib(),
}}))
""")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_arm_trains_through_the_vendors_namespace_as_through_torch_xla(
    vendor: Vendor, xla_device: torch.device, precision: dict[str, str]
) -> None:
    found = train_small_model(**precision)
    assert found["torch_xla"] == "torchacc.torch_xla"
    assert found["compile_mode"] == "traced"
    upstream = ready_arm(capture=False, **precision)
    assert found["losses"] == train(upstream, batches(3))
    assert found["loss_scale"] == upstream.loss_scale()
    assert found["compilations"] >= 1
    assert found["peak_memory_gib"] > 0


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_step_of_the_article_is_taken_in_the_vendors_namespace(vendor: Vendor, precision: dict[str, str]) -> None:
    train_small_model(**precision)
    calls = vendor.calls()
    assert calls[:2] == ["xla_device", "set_replication"]
    assert calls.count("_fetch_gradients") == calls.count("all_reduce") == calls.count("wait_device_ops") == 3
    assert calls.count("mark_step") >= 3
    assert calls.count("GradScaler") == (3 if precision.get("amp_dtype") == "float16" else 0)


@pytest.mark.slow
def test_a_run_through_the_vendors_namespace_has_the_records_of_any_other(vendor: Vendor, tmp_path: Path) -> None:
    config = RunConfig(
        model="resnet18", image_size=32, batch_size=4, data="synthetic", max_steps=4, warmup_steps=1,
        log_interval=1, lr=1e-4,
    ).with_arm("torchacc")  # fmt: skip
    events = train_in_own_process(config, tmp_path / "vendor")
    assert "_fetch_gradients" in vendor.calls()
    assert events["start"][0]["compile_mode"] == "traced"
    assert [record["compilations"] for record in events["interval"][1:]] == [0, 0, 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH")
        upstream = train_in_own_process(config, tmp_path / "upstream")
    assert upstream["start"][0]["compile_mode"] == "captured"
    losses = [[record["loss"] for record in run["interval"]] for run in (events, upstream)]
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == 4


def test_two_processes_reduce_gradients_through_the_vendors_namespace(vendor: Vendor, tmp_path: Path) -> None:
    script = str(Path(__file__).parent / "scripts" / "gradients.py")
    torchrun(2, [script, "torchacc", str(tmp_path / "two.pt")], "torchacc")
    assert "set_replication" in vendor.calls()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONPATH")
        torchrun(1, [script, "torchacc", str(tmp_path / "one.pt")], "torchacc")
    one, two = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("one", "two"))
    for left, right in zip(one, two, strict=True):
        assert left.abs().max() > 0
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "missing",
    ["torch_xla/__init__", "torch_xla/core/xla_model"],
)
def test_a_package_that_cannot_be_imported_is_passed_over_for_torch_xla(vendor: Vendor, missing: str) -> None:
    path = vendor.package / f"{missing}.py"
    path.write_text("raise ImportError('libvendor.so is not there')\n")
    found = train_small_model()
    assert (found["torch_xla"], found["compile_mode"]) == ("torch_xla", "captured")
    assert vendor.calls() == []


def test_a_package_of_that_name_that_is_another_is_passed_over(vendor: Vendor) -> None:
    (vendor.package / "torch_xla").rename(vendor.package / "other")
    found = train_small_model()
    assert (found["torch_xla"], found["compile_mode"]) == ("torch_xla", "captured")


@pytest.mark.parametrize(
    ("missing", "code"),
    [
        ("torch_xla/distributed/xla_backend", "raise ImportError('libvendor.so is not there')\n"),
        ("torch_xla/amp/__init__", ""),  # without GradScaler, as torch_xla itself is from 2.8 on
    ],
)
def test_a_package_with_a_part_missing_is_never_mixed_with_torch_xla(vendor: Vendor, missing: str, code: str) -> None:
    (vendor.package / f"{missing}.py").write_text(code)
    done = run_python("from xla_tools import ready_arm\nready_arm()", RESNET_ACC_COMPILER="torchacc")
    assert done.returncode != 0
    assert done.stderr.strip().splitlines()[-1].startswith("ImportError: ")
    assert vendor.calls() == []

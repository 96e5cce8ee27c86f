"""resnet-acc: the same launcher through typer, doctor, and reading back."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launch_tools import CPU_ENVIRONMENT
from typer.testing import CliRunner

from resnet_acc import cli, launch_single_task
from resnet_acc.config import RunConfig
from resnet_acc.launch import preflight
from resnet_acc.launch.doctor_machine import shared_memory

runner = CliRunner()


def invoke(*arguments: str) -> Any:
    return runner.invoke(cli.app, list(arguments))


def test_help_lists_all_commands() -> None:
    shown = invoke("--help").output
    for command in ("launch", "compare", "plot", "report", "data", "doctor"):
        assert command in shown


@pytest.mark.parametrize("command", ["launch", "compare"])
def test_help_of_a_run_shows_defaults_and_units(command: str) -> None:
    done = invoke(command, "--help")
    text = " ".join(done.output.split())
    assert done.exit_code == 0
    assert "images per process and step (default: 128)" in text
    assert "in pixels (default: 224)" in text
    assert ("--arms" in text) == (command == "compare")


def test_launch_forwards_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RunConfig] = []
    monkeypatch.setattr(launch_single_task, "launch", lambda config, **_: seen.append(config))
    done = invoke("launch", "--nproc_per_node=8", "--amp-level", "O1", "--compiler-opt", "--batch_size=128")
    assert done.exit_code == 0, done.output
    assert seen == [RunConfig(nproc_per_node=8, amp_level="O1", compiler_opt=True, batch_size=128)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["launch", "--nproc_per_node=0"], ["nproc_per_node is 0"]),
        (["launch", "--bacth_size=1"], ["--batch_size"]),
        (["compare", "--arms=eager,tochacc"], ["tochacc", "torchacc"]),
        (["compare", "--nproc=1,two"], ["'two'"]),
        (["compare", "--repeats=0"], ["repeats is 0"]),
        (["compare", "--repeats=1.5"], ["'1.5'"]),
        (["compare", "--compiler-opt"], ["--arms"]),
        (["compare", "--amr=1"], ["--amr"]),
        (["report", "/no/such"], ["/no/such"]),
        (["plot", "/no/such"], ["/no/such"]),
    ],
)
def test_refusals(arguments: list[str], words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    done = invoke(*arguments)
    assert done.exit_code == 2
    line = done.output.strip().splitlines()[-1]
    for word in words:
        assert word in line


@pytest.mark.parametrize("command", ["report", "plot"])
def test_a_folder_without_runs_is_said(tmp_path: Path, command: str) -> None:
    done = invoke(command, str(tmp_path))
    assert done.exit_code == 2
    assert "holds no runs" in done.output


def test_doctor_tells_each_arm_and_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = CPU_ENVIRONMENT | {"torch_xla": None, "cxx_compiler": None}
    monkeypatch.setattr(preflight, "probe", lambda: environment)
    done = invoke("doctor")
    assert done.exit_code == 0
    for word in ("Python", "torchvision", "/dev/shm", "disk", "cores", "memory", "ports", "pip install"):
        assert word in done.output
    assert re.search(r"^eager +ok +can run on cpu", done.output, re.MULTILINE)
    assert re.search(r"^inductor +warn +cannot run on cpu", done.output, re.MULTILINE)
    found = json.loads(invoke("doctor", "--json").output)
    arms = {entry["arm"]: entry for entry in found["arms"]}
    assert found["schema"] == 1
    assert (arms["eager"]["can_run"], arms["eager"]["why"]) == (True, None)
    assert (arms["inductor"]["can_run"], "g++" in arms["inductor"]["why"]) == (False, True)
    for check in found["checks"]:
        assert check["what"] in done.output


def test_doctor_fails_where_not_even_eager_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "probe", lambda: CPU_ENVIRONMENT | {"torch": None})
    assert invoke("doctor").exit_code == 1
    monkeypatch.setattr(
        preflight, "probe", lambda: preflight._unknown_environment("exit status -11: Segmentation fault")
    )
    done = invoke("doctor")
    assert done.exit_code == 1
    assert "Segmentation fault" in done.output


def test_small_shared_memory_is_said() -> None:
    assert "--shm-size" in shared_memory(0.06).mend
    assert shared_memory(0.06).state == "warn"
    assert not shared_memory(8.0).mend


def test_module_and_real_doctor() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "resnet_acc", "doctor", "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    environment = json.loads(done.stdout)["environment"]
    assert environment["torch"]
    assert isinstance(environment["cuda"]["count"], int)

"""Comparisons with fake ranks: order, what is skipped, failures and interrupts."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launch_tools import CPU_ENVIRONMENT, alive, fake_environment, gpus, pids_below

from resnet_acc.config import RunConfig
from resnet_acc.launch import compare as comparing
from resnet_acc.launch.compare import compare, interleaved
from resnet_acc.launch.supervisor import RunFailed, RunInterrupted


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return RunConfig(data="synthetic", output=str(tmp_path / "out"))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """Runs that a comparison starts, none of them for real."""
    seen: list[RunConfig] = []

    def launch(config: RunConfig, **_: Any) -> Path:
        seen.append(config)
        return Path(config.output) / config.model / "tag" / config.suffix / f"run-{len(seen)}"

    monkeypatch.setattr(comparing, "launch", launch)
    return seen


def read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "comparison.json").read_text())


def test_repeats_go_to_and_fro() -> None:
    assert "".join(cell for _, cell in interleaved("ABC", 3)) == "ABCCBAABC"
    assert [repeat for repeat, _ in interleaved("AB", 2)] == [0, 0, 1, 1]


def test_all_cells_run_and_are_noted(config: RunConfig, launched: list[RunConfig]) -> None:
    folder = compare(config, ["eager", "kernel"], [1, 2], 2, echo=lambda _: None, environment=CPU_ENVIRONMENT)
    order = ["eager_x1", "kernel_x1", "eager_x2", "kernel_x2"]
    assert [run.suffix for run in launched] == order + order[::-1]
    found = read(folder)
    assert folder.parent == Path(config.output) / "comparisons"
    assert found["id"] == folder.name
    assert (found["arms"], found["nproc"], found["repeats"]) == (["eager", "kernel"], [1, 2], 2)
    assert (found["status"], found["skipped"]) == ("finished", [])
    assert found["runs"][0] == {
        "arm": "eager",
        "nproc": 1,
        "repeat": 0,
        "run_dir": "resnet50/tag/eager_x1/run-1",
        "status": "finished",
    }
    assert [run["repeat"] for run in found["runs"]] == [0] * 4 + [1] * 4


def test_what_cannot_run_is_skipped_with_the_reason(config: RunConfig, launched: list[RunConfig]) -> None:
    lines: list[str] = []
    folder = compare(config, ["eager", "torchacc"], [1, 4], 1, echo=lines.append, environment=gpus(2))
    assert [run.suffix for run in launched] == ["eager_x1"]
    skipped = read(folder)["skipped"]
    assert [(entry["arm"], entry["nproc"]) for entry in skipped] == [("torchacc", 1), ("eager", 4), ("torchacc", 4)]
    assert "--device=cpu" in skipped[0]["reason"]
    assert "2 GPUs" in skipped[1]["reason"]
    assert sum(line.startswith("skipped:") for line in lines) == 3


@pytest.mark.parametrize(
    ("arms", "nprocs", "repeats", "word"),
    [
        (["egaer"], [1], 1, "egaer"),
        (["eager", "eager"], [1], 1, "eager,eager"),
        ([], [1], 1, "arm"),
        (["eager"], [], 1, "nproc"),
        (["eager"], [0], 1, "0"),
        (["eager"], [2, 2], 1, "2,2"),
        (["eager"], [1], 0, "repeats is 0"),
        (["torchacc"], [1], 1, "torch_xla"),
    ],
)
def test_nothing_is_made_where_nothing_can_run(
    config: RunConfig, launched: list[RunConfig], arms: list[str], nprocs: list[int], repeats: int, word: str
) -> None:
    with pytest.raises(ValueError, match=word):
        compare(config, arms, nprocs, repeats, echo=lambda _: None, environment=CPU_ENVIRONMENT | {"torch_xla": None})
    assert not launched
    assert not Path(config.output).exists()


def test_a_failed_run_does_not_stop_the_others(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(config: RunConfig, **_: Any) -> Path:
        run_dir = Path(config.output) / config.suffix
        if config.arm == "kernel":
            raise RunFailed({"reason": "rank 0 failed: boom"}, run_dir)
        return run_dir

    monkeypatch.setattr(comparing, "launch", launch)
    lines: list[str] = []
    folder = compare(config, ["eager", "kernel"], [1], 2, echo=lines.append, environment=CPU_ENVIRONMENT)
    found = read(folder)
    assert [run["status"] for run in found["runs"]] == ["finished", "failed", "failed", "finished"]
    assert found["status"] == "failed"
    assert any("boom" in line for line in lines)


def test_an_interrupt_ends_the_comparison_and_leaves_it_readable(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def launch(config: RunConfig, **_: Any) -> Path:
        (folder,) = (Path(config.output) / "comparisons").iterdir()
        seen.append(read(folder))
        if len(seen) == 3:
            raise RunInterrupted(signal.SIGTERM, Path(config.output) / config.suffix)
        return Path(config.output) / config.suffix

    monkeypatch.setattr(comparing, "launch", launch)
    with pytest.raises(RunInterrupted):
        compare(config, ["eager", "kernel"], [1], 2, echo=lambda _: None, environment=CPU_ENVIRONMENT)
    assert [len(comparison["runs"]) for comparison in seen] == [0, 1, 2]  # written after every run
    (folder,) = (Path(config.output) / "comparisons").iterdir()
    found = read(folder)
    assert found["status"] == "interrupted"
    assert [run["status"] for run in found["runs"]] == ["finished", "finished", "interrupted"]


def test_the_command_makes_it_again(config: RunConfig, launched: list[RunConfig]) -> None:
    from resnet_acc.cli import compare_parser
    from resnet_acc.launch.options import parse

    folder = compare(
        RunConfig(data="synthetic", output=config.output, seed=3, kernel_opt=True),
        ["eager"],
        [1, 2],
        1,
        echo=lambda _: None,
        environment=CPU_ENVIRONMENT,
    )
    words = shlex.split(read(folder)["command"])
    options = parse(compare_parser(), words[words.index("compare") + 1 :])
    assert options.config == RunConfig(data="synthetic", output=config.output, seed=3)
    assert options.extra == {"arms": "eager", "nproc": "1,2", "repeats": "1"}


def compare_command(tmp_path: Path, *arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "resnet_acc",
        "compare",
        "--data=synthetic",
        f"--output={tmp_path / 'out'}",
        *arguments,
    ]


def test_from_the_command_line_with_a_report(tmp_path: Path) -> None:
    command = compare_command(tmp_path, "--arms", "eager,kernel", "--nproc=1", "--repeats=1", "--batch-size=8")
    done = subprocess.run(command, env=fake_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "out" / "comparisons").iterdir()
    report = next(line for line in done.stdout.splitlines() if line.startswith("report: "))
    assert Path(report.removeprefix("report: ")).is_file()
    for run in read(folder)["runs"]:
        assert json.loads((tmp_path / "out" / run["run_dir"] / "config.json").read_text())["batch_size"] == 8


def test_an_interrupt_from_the_command_line(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    comparison = subprocess.Popen(
        compare_command(tmp_path, "--arms=eager,kernel", "--repeats=1"),
        env=fake_environment(FAKE_FAULT="0:deaf", FAKE_PIDS=str(pids)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ranks = pids_below(pids, 1)
    os.kill(comparison.pid, signal.SIGINT)
    comparison.communicate(timeout=60)
    assert comparison.returncode == 128 + signal.SIGINT
    assert not alive(ranks)
    (folder,) = (tmp_path / "out" / "comparisons").iterdir()
    assert read(folder)["status"] == "interrupted"
    assert [run["status"] for run in read(folder)["runs"]] == ["interrupted"]

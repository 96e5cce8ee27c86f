"""Runs that go on from a checkpoint: the same losses as one that never stopped, and nothing damaged is gone on from."""

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from launch_tools import processes_with, read_status, run_folders, start, wait_for
from test_training_arms import ARM_PARAMETERS, write_images
from torchrun import train

from resnet_acc import checkpoints
from resnet_acc.checkpoints import BadCheckpoint, checkpoint_folders, newest_whole, read_checkpoint
from resnet_acc.config import RunConfig
from resnet_acc.launch.resume import choose
from resnet_acc.logger import create_logger
from resnet_acc.training.accelerators.eager import EagerAccelerator
from resnet_acc.training.checkpoint import Checkpoints, Position
from resnet_acc.training.distributed import HostGroup, Place
from resnet_acc.training.model import build_model

ALONE = Place(rank=0, local_rank=0, world_size=1)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), classes=3, train_each=11, val_each=2)


def config_of(images: Path, **values) -> RunConfig:
    """Three epochs of eight steps, the last one cut short."""
    base = {"model": "resnet18", "image_size": 32, "batch_size": 4, "data": str(images), "device": "cpu", "seed": 5}
    ends = {"epochs": 3, "max_steps": 18, "warmup_steps": 2, "log_interval": 3, "checkpoint_interval": 5}
    return RunConfig(
        **{**base, **ends, "keep_checkpoints": 4, "lr": 1e-3, "lr_schedule": "cosine", "workers": 1, **values}
    )


def losses(events: list[dict]) -> dict[int, float]:
    """Mean loss of the interval that ended with each step."""
    return {record["step"]: record["loss"] for record in events if record["event"] == "interval"}


def of_run(run_dir: Path, rank: int = 0) -> list[dict]:
    return [json.loads(line) for line in (run_dir / str(rank) / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("arm", [parameter for parameter in ARM_PARAMETERS if parameter.values != ("eager",)])
def test_each_arm_goes_on_from_a_checkpoint_as_if_it_had_never_stopped(arm: str, images: Path, tmp_path: Path) -> None:
    config = config_of(images, max_steps=11, epochs=2, log_interval=1).with_arm(arm)
    train(config, tmp_path / "whole")
    middle = tmp_path / "whole" / "checkpoints" / "step_00000005"
    train(dataclasses.replace(config, resume=str(middle)), tmp_path / "resumed")
    whole, resumed = losses(of_run(tmp_path / "whole")), losses(of_run(tmp_path / "resumed"))
    assert list(resumed) == list(range(6, 12))
    expected = {step: whole[step] for step in resumed}
    # XLA and Inductor may choose another order of summation in another process on a busy machine; eager may not.
    assert resumed == (expected if arm == "kernel" else pytest.approx(expected, rel=1e-5))
    assert len(set(whole.values())) == len(whole)
    scores = [[r["loss"] for r in of_run(tmp_path / run) if r["event"] == "validation"] for run in ("whole", "resumed")]
    assert len(scores[0]) == 2
    assert scores[1] == pytest.approx(scores[0], rel=1e-5)


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_killed_run_goes_on_with_the_same_losses(nproc: int, images: Path, tmp_path: Path) -> None:
    config = config_of(images, batch_size=4 // nproc, workers=nproc - 1, log_interval=1).with_arm("eager", nproc)

    def launch(*more: str) -> "subprocess.Popen[str]":
        return start([*config.to_arguments(), f"--output={tmp_path / 'out'}", *more], RESNET_ACC_TRAINER="")

    def steps_of(run_dir: Path) -> int:
        return max(losses(of_run(run_dir)), default=0) if (run_dir / "0" / "metrics.jsonl").exists() else 0

    process = launch()
    assert process.communicate(timeout=200)[1] == ""
    (whole,) = run_folders(tmp_path / "out")
    process = launch()
    try:
        killed = wait_for(lambda: [folder for folder in run_folders(tmp_path / "out") if folder != whole])[0]
        wait_for(lambda: steps_of(killed) >= random.Random(nproc).randint(6, 12))
    finally:
        for pid in [process.pid, *processes_with(killed.name)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()
    wait_for(lambda: not processes_with(killed.name))
    assert steps_of(killed) < 18
    process = launch("--resume=auto")
    output, errors = process.communicate(timeout=200)
    assert process.returncode == 0, output + errors
    assert f"resuming from {killed}/checkpoints/step_" in output
    (resumed,) = [folder for folder in run_folders(tmp_path / "out") if folder not in (whole, killed)]
    assert read_status(resumed)["status"] == "finished"
    for rank in range(nproc):
        events = of_run(resumed, rank)
        (begin,) = [record["step"] for record in events if record["event"] == "resumed"]
        assert begin in (5, 10)
        expected = losses(of_run(whole, rank))
        assert losses(events) == {step: expected[step] for step in range(begin + 1, 19)}
        scores = [[r["loss"] for r in of_run(run, rank) if r["event"] == "validation"] for run in (whole, resumed)]
        assert scores[1] == scores[0][begin // 8 :]


def test_nothing_is_left_to_resume_of_a_finished_run(tmp_path: Path) -> None:
    run_dir, config = saved(tmp_path, steps=(5,))
    (run_dir / "status.json").write_text('{"status": "finished"}')
    (run_dir / "config.json").write_text(json.dumps(config.to_json()))
    again = dataclasses.replace(config, resume="auto")
    assert choose(again, "cpu")[0].resume == "no"
    longer = dataclasses.replace(again, epochs=9, lr_schedule="constant")
    assert choose(longer, "cpu")[0].resume == "no"  # saved under a schedule, which is another training


def saved(tmp_path: Path, steps: tuple[int, ...] = (5, 10, 15), **values) -> tuple[Path, RunConfig]:
    """A run's folder with checkpoints of an untrained model."""
    config = config_of(tmp_path, data="synthetic", output=str(tmp_path), **values)
    run_dir = tmp_path / config.model / config.tag("cpu") / config.suffix / "20261201-000000-aaaaaa"
    run_dir.mkdir(parents=True)
    written = writer(config, run_dir)
    for step in steps:
        written.save(Position(step, 0, step))
    return run_dir, config


def writer(config: RunConfig, run_dir: Path) -> Checkpoints:
    create_logger(run_dir, 0)
    arm = EagerAccelerator(config, ALONE, "cpu")
    arm.setup()
    arm.prepare(build_model(config.model, 3))
    return Checkpoints(config, ALONE, run_dir, arm, HostGroup())


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    run_dir, _ = saved(tmp_path, steps=(5, 10, 15), keep_checkpoints=2)
    assert [path.name for path in checkpoint_folders(run_dir)] == ["step_00000010", "step_00000015"]
    assert sorted(os.listdir(run_dir / "checkpoints")) == ["step_00000010", "step_00000015"]


@pytest.mark.parametrize("harm", ["half", "empty", "one bit", "missing", "no manifest", "half a manifest"])
@pytest.mark.parametrize("file", ["machine0.pt", "rank0.pt"])
def test_a_damaged_one_is_named_and_passed_over(harm: str, file: str, tmp_path: Path) -> None:
    run_dir, config = saved(tmp_path)
    newest = run_dir / "checkpoints" / "step_00000015"
    victim = newest / ("manifest.json" if "manifest" in harm else file)
    content = victim.read_bytes()
    if harm in ("missing", "no manifest"):
        victim.unlink()
    elif harm == "one bit":
        victim.write_bytes(content[:-20] + bytes([content[-20] ^ 1]) + content[-19:])
    else:
        victim.write_bytes(b"" if harm == "empty" else content[: len(content) // 2])
    with pytest.raises(BadCheckpoint, match=str(newest)):
        read_checkpoint(newest)
    chosen, lines = choose(dataclasses.replace(config, resume="auto"), "cpu")
    assert chosen.resume == str(run_dir / "checkpoints" / "step_00000010")
    assert [line for line in lines if line.startswith("passed over") and str(victim) in line]
    assert "step 10" in lines[-1]
    by_path, _ = choose(dataclasses.replace(config, resume=str(run_dir)), "cpu")
    assert by_path.resume == chosen.resume


CHANGES = ({"lr": 0.5}, {"seed": 6}, {"batch_size": 8}, {"max_steps": 19}, {"amp_level": "O1"})


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_another_trainings_checkpoint_is_never_gone_on_from(change: dict, tmp_path: Path) -> None:
    run_dir, config = saved(tmp_path, steps=(5,))
    other = dataclasses.replace(config, **change)
    assert newest_whole([run_dir], other) == (None, [])
    name, value = next(iter(change.items()))
    with pytest.raises(BadCheckpoint, match=rf"{name} .*{value}"):
        choose(dataclasses.replace(other, resume=str(run_dir)), "cpu")


def test_a_longer_run_may_go_on_without_a_schedule(tmp_path: Path) -> None:
    run_dir, config = saved(tmp_path, steps=(5,), lr_schedule="constant")
    longer = dataclasses.replace(config, max_steps=40, epochs=7, log_interval=1)
    found, _ = newest_whole([run_dir], longer)
    assert found is not None
    assert found.step == 5


@pytest.mark.parametrize(
    ("resume", "words"),
    [("/no/such/folder", "no folder"), ("", "cannot be empty"), ("EMPTY", "no checkpoint"), ("DAMAGED", "cut off")],
)
def test_what_cannot_be_resumed_is_refused_before_anything_starts(resume: str, words: str, tmp_path: Path) -> None:
    run_dir, config = saved(tmp_path, steps=(5,))
    (tmp_path / "EMPTY").mkdir()
    if resume == "DAMAGED":
        (run_dir / "checkpoints" / "step_00000005" / "rank0.pt").write_bytes(b"x")
    path = {"EMPTY": str(tmp_path / "EMPTY"), "DAMAGED": str(run_dir)}.get(resume, resume)
    with pytest.raises(ValueError, match=words):
        choose(dataclasses.replace(config, resume=path), "cpu")


def test_a_full_disk_leaves_the_earlier_ones_and_no_half_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, config = saved(tmp_path, steps=(5,))
    checkpoints_of_run = writer(config, run_dir)

    def full(state: dict, stream) -> None:
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match=r"cannot be written.*No space left on device"):
        checkpoints_of_run.save(Position(10, 1, 2))
    assert os.listdir(run_dir / "checkpoints") == ["step_00000005"]
    assert read_checkpoint(run_dir / "checkpoints" / "step_00000005").step == 5


def test_what_a_killed_writer_left_is_no_checkpoint(tmp_path: Path) -> None:
    run_dir, config = saved(tmp_path, steps=(5, 10))
    left = run_dir / "checkpoints" / "step_00000010"
    left.rename(left.with_name(".step_00000010.partial"))
    found, lines = newest_whole([run_dir], config)
    assert found is not None
    assert (found.step, lines) == (5, [])
    writer(config, run_dir).save(Position(10, 1, 2))  # over what was left
    assert [path.name for path in checkpoint_folders(run_dir)] == ["step_00000005", "step_00000010"]
    assert not list((run_dir / "checkpoints").glob(".*"))


def test_the_newest_is_the_one_written_last(tmp_path: Path) -> None:
    run_dir, config = saved(tmp_path, steps=(5, 10))
    second = run_dir.with_name("20261202-000000-bbbbbb")
    second.mkdir()
    time.sleep(0.01)
    writer(config, second).save(Position(7, 0, 7))
    found, _ = newest_whole([run_dir, second], config)
    assert found is not None
    assert found.path == second / "checkpoints" / "step_00000007"
    assert checkpoints.name_of(7) == found.path.name

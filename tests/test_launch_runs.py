"""Whole runs under the real torchrun with fake ranks: what they leave, and that nothing of them stays."""

import json
import os
import shlex
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from launch_tools import (
    CPU_ENVIRONMENT,
    TESTS,
    alive,
    fake_environment,
    pids_below,
    processes_with,
    read_status,
    records,
    run_folders,
    start,
    wait_for,
)

from resnet_acc.config import RunConfig
from resnet_acc.launch import supervisor
from resnet_acc.launch.supervisor import RunFailed, launch


@pytest.fixture(autouse=True)
def _ranks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")])))


def run(tmp_path: Path, lines: list[str] | None = None, **options: object) -> Path:
    config = RunConfig(data="synthetic", output=str(tmp_path / "out"), **options)
    echo = (lines if lines is not None else []).append
    return launch(config, echo=echo, environment=CPU_ENVIRONMENT, trainer="fake_trainer")


def failed(tmp_path: Path, **options: object) -> dict:
    with pytest.raises(RunFailed) as caught:
        run(tmp_path, **options)
    assert caught.value.run_dir is not None
    status = read_status(caught.value.run_dir)
    assert status == caught.value.status
    assert status["status"] == "failed"
    assert status["exit_code"] == 1
    assert not processes_with(status["run_id"])
    return status


def test_a_run_leaves_its_files_and_names_its_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "1")  # another job's: nothing on one machine may follow it
    monkeypatch.setenv("WORLD_SIZE", "64")
    monkeypatch.setenv("PET_NNODES", "4")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    lines: list[str] = []
    run_dir = run(tmp_path, lines, nproc_per_node=2, amp_level="O1", kernel_opt=True)
    assert run_dir.relative_to(tmp_path / "out").parts[:3] == ("resnet50", "cpu_O1_bs128_synthetic", "kernel_x2")
    assert sorted(path.name for path in run_dir.iterdir()) == [
        "0",
        "1",
        "command.txt",
        "config.json",
        "env.json",
        "launcher.log",
        "status.json",
    ]
    for rank in (0, 1):
        first, *_, last = records(run_dir, rank)
        assert (first["rank"], first["world_size"], first["run_id"]) == (rank, 2, run_dir.name)
        assert (first["kernel"], first["compiler"], first["device"]) == ("1", "", "cpu")
        assert first["master_port"] != "1"
        assert int(first["omp_num_threads"]) >= 1
        assert last["event"] == "end"
    status = read_status(run_dir)
    assert (status["status"], status["exit_code"], status["failed_rank"]) == ("finished", 0, None)
    assert status["ended_at"] > status["started_at"]
    # 8 timed steps of 256 images in 4 s; the mean of their rates would be 682.7.
    assert f"finished: {run_dir}: 512.0 images/s over 8 steps" in lines[-1]
    assert "start-up 3.5 s" in lines[-1]
    assert "peak memory 1.50 GiB" in lines[-1]
    assert json.loads((run_dir / "env.json").read_text())["torch_version"] == "2.9.1+cpu"


def test_command_txt_runs_again_from_another_folder(tmp_path: Path) -> None:
    output = tmp_path / "a folder"
    first = launch(
        RunConfig(data="synthetic", output=str(output), seed=7, validate=False, lr=1e-3),
        echo=lambda line: None,
        environment=CPU_ENVIRONMENT,
        trainer="fake_trainer",
    )
    command = shlex.split((first / "command.txt").read_text())
    done = subprocess.run(
        command, cwd="/", env=fake_environment(FAKE_WARMUP="99"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    again = next(folder for folder in run_folders(output) if folder != first)
    assert (again / "config.json").read_text() == (first / "config.json").read_text()
    assert "n/a (0 steps after warm-up)" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("fault", "rank", "reason"),
    [
        ("1:raise", 1, "rank 1 failed: FileNotFoundError: /data/train/cat/17.JPEG is gone"),
        ("0:import_error,1:wait", 0, "rank 0 failed: ImportError: libfake.so: cannot open shared object file"),
        # Rank 0 notices first that its peer is gone, and is not the cause.
        ("1:sigkill,0:peer_closed", 1, "rank 1 was killed by SIGKILL"),
        ("1:exit0,0:peer_closed", 1, "rank 1 ended before its training did"),
        ("1:exit0", 1, "rank 1 ended before its training did"),
    ],
)
def test_a_failing_rank_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, rank: int, reason: str
) -> None:
    monkeypatch.setenv("FAKE_FAULT", fault)
    status = failed(tmp_path, nproc_per_node=2)
    assert status["reason"].startswith(reason)
    assert status["failed_rank"] == rank
    assert status["last_lines"]


def test_ranks_that_wait_for_one_that_left_without_a_word_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "LOST_RANK_SECONDS", 1.0)
    monkeypatch.setenv("FAKE_FAULT", "1:exit0,0:deaf")
    status = failed(tmp_path, nproc_per_node=2)
    assert status["failed_rank"] == 1
    assert "step=2" in status["last_lines"][-1]


def test_a_rank_that_does_not_leave_after_its_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LEAVE_SECONDS", 1.0)
    monkeypatch.setenv("FAKE_FAULT", "0:hang_at_end")
    lines: list[str] = []
    run_dir = run(tmp_path, lines)
    assert read_status(run_dir)["status"] == "finished"
    assert any("had not left" in line for line in lines)


def test_what_a_finished_run_started_does_not_outlive_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    monkeypatch.setenv("FAKE_PIDS", str(pids))
    monkeypatch.setenv("FAKE_SPAWN", "orphan")
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        run(tmp_path)
        assert not alive(pids_below(pids, 2))
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize(
    ("signal_number", "times", "spawn"),
    [(signal.SIGINT, 2, "orphan"), (signal.SIGTERM, 1, "session"), (signal.SIGHUP, 1, "plain")],
)
def test_an_interrupted_run_ends_all_its_processes(tmp_path: Path, signal_number: int, times: int, spawn: str) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    launcher = start(
        [f"--output={tmp_path / 'out'}", "--nproc_per_node=2"],
        FAKE_FAULT="0:deaf,1:wait",
        FAKE_SPAWN=spawn,
        FAKE_PIDS=str(pids),
    )
    started = pids_below(pids, 4)
    for _ in range(times):
        launcher.send_signal(signal_number)
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 128 + signal_number
    (run_dir,) = run_folders(tmp_path / "out")
    status = read_status(run_dir)
    assert (status["status"], status["exit_code"]) == ("interrupted", 128 + signal_number)
    assert status["ended_at"] is not None
    assert not alive(started)
    assert not processes_with(run_dir.name)
    assert str(run_dir) in errors.splitlines()[-1]


def test_a_killed_launcher_takes_its_run_along(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    launcher = start([f"--output={tmp_path / 'out'}"], FAKE_FAULT="0:deaf", FAKE_SPAWN="session", FAKE_PIDS=str(pids))
    started = pids_below(pids, 2)
    launcher.kill()
    launcher.communicate(timeout=60)
    (run_dir,) = run_folders(tmp_path / "out")
    wait_for(lambda: not alive(started))
    wait_for(lambda: read_status(run_dir)["status"] == "interrupted")
    assert not processes_with(run_dir.name)


def test_a_killed_agent_is_no_finished_run(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    launcher = start([f"--output={tmp_path / 'out'}"], FAKE_FAULT="0:deaf", FAKE_PIDS=str(pids))
    (rank,) = pids_below(pids, 1)
    os.kill(int(Path(f"/proc/{rank}/stat").read_text().split()[3]), signal.SIGKILL)
    _, errors = launcher.communicate(timeout=60)
    assert launcher.returncode == 1
    assert "torchrun was killed by SIGKILL" in errors
    assert not alive([rank])


def test_two_runs_at_once_with_the_default_port_taken(tmp_path: Path) -> None:
    with socket.socket() as holder:
        try:
            holder.bind(("0.0.0.0", 29500))
            holder.listen()
        except OSError:
            pass  # somebody else holds it, which is as good
        arguments = [f"--output={tmp_path / 'out'}", "--nproc_per_node=2"]
        both = [start(arguments, FAKE_STEP_S="0.1") for _ in range(2)]
        ends = [launcher.communicate(timeout=120) for launcher in both]
    assert [launcher.returncode for launcher in both] == [0, 0], ends
    folders = run_folders(tmp_path / "out")
    assert len(folders) == 2
    for folder in folders:
        assert sorted(path.name for path in folder.iterdir() if path.name.isdigit()) == ["0", "1"]
        assert {records(folder, rank)[0]["run_id"] for rank in (0, 1)} == {folder.name}


def test_two_machines(tmp_path: Path) -> None:
    with socket.socket() as finder:
        finder.bind(("127.0.0.1", 0))
        port = finder.getsockname()[1]
    arguments = ["--nnodes=2", "--master_addr=127.0.0.2", f"--master_port={port}"]
    both = [start([*arguments, f"--node_rank={node}", f"--output={tmp_path / str(node)}"]) for node in (0, 1)]
    ends = [launcher.communicate(timeout=120) for launcher in both]
    assert [launcher.returncode for launcher in both] == [0, 0], ends
    for node in (0, 1):
        (folder,) = run_folders(tmp_path / str(node))
        assert folder.parent.name == "eager_x2"
        assert records(folder, node)[0]["world_size"] == 2
        assert read_status(folder)["status"] == "finished"

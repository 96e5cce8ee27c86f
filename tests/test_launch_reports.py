"""The launcher's readers: torchrun's report, records while they grow, status lines, a run's folder, its command."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from launch_tools import CPU_ENVIRONMENT

from resnet_acc.config import RunConfig
from resnet_acc.launch.failure import clean_lines, find_failure, parse_report
from resnet_acc.launch.folder import RunFolder, make_folder
from resnet_acc.launch.preflight import Preflight
from resnet_acc.launch.progress import Progress, duration
from resnet_acc.launch.torchrun import agent_command, child_environment

REPORT = """E1201 12:00:01.000000 77 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) pid: 80
[default0]:[9]:
[default0]:  rank      : 7 (local_rank: 7)
============================================================
resnet_acc.training.main FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-12-01_12:00:03
  host      : box
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 79)
  error_file: /tmp/x/attempt_0/0/error.json
  traceback : Traceback (most recent call last):
    File "a.py", line 1, in <module>
  RuntimeError: boom

[2]:
  time      : 2026-12-01_12:00:02
  host      : box
  rank      : 12 (local_rank: 4)
  exitcode  : 3 (pid: 84)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-12-01_12:00:09
  host      : box
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 80)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 80
============================================================
"""


def test_torchruns_report_names_the_root_cause_first() -> None:
    failures = parse_report(REPORT)
    assert [(failure.rank, failure.exit_code) for failure in failures] == [(1, -9), (12, 3), (0, 1)]
    assert failures[0].traceback == "Signal 9 (SIGKILL) received by PID 80"
    assert parse_report("nothing of the kind\n[0]:\n  time : x") == []


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    config = RunConfig(nproc_per_node=2, output=str(tmp_path), data="synthetic")
    return RunFolder(config, Preflight("cpu", "cpu", 2), CPU_ENVIRONMENT)


def write_end(run: RunFolder, rank: int) -> None:
    folder = run.path / str(rank)
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"event": "start"}\n{"event": "end", "peak_memory_gib": 1.0}\n')


def test_all_ends_and_exit_status_0_is_no_failure(run: RunFolder) -> None:
    for rank in run.ranks:
        write_end(run, rank)
    assert find_failure(run, {}, 0) is None
    failure = find_failure(run, {}, 1)
    assert failure is not None  # torchrun itself says that something went wrong


def test_a_rank_without_an_end_is_a_failure_whatever_torchrun_says(run: RunFolder) -> None:
    write_end(run, 0)
    failure = find_failure(run, {}, 0)
    assert failure is not None
    assert failure.rank == 1


def test_signals_are_told_by_name(run: RunFolder) -> None:
    (run.path / "launcher.log").write_text(REPORT)
    failure = find_failure(run, {}, 1)
    assert failure is not None
    assert (failure.rank, failure.reason.partition(" (")[0]) == (1, "rank 1 was killed by SIGKILL")


def block(rank: int, exit_code: int, second: int) -> str:
    lines = [f"[{rank}]:", f"  time      : 2026-12-01_12:00:0{second}", "  host      : box"]
    lines += [f"  rank      : {rank} (local_rank: {rank})", f"  exitcode  : {exit_code} (pid: 80)"]
    return "\n".join([*lines, "  error_file: <N/A>", "  traceback : To enable traceback see: ...", ""])


@pytest.mark.parametrize("exit_code", [3, -9, 1])
def test_a_rank_that_only_lost_its_peer_is_not_the_cause(run: RunFolder, exit_code: int) -> None:
    """The one that notices writes its error at once, and so comes first in torchrun's report."""
    root = "Root Cause (first observed failure):\n"
    (run.path / "launcher.log").write_text(f"Failures:\n{block(1, exit_code, 2)}{root}{block(0, 1, 1)}")
    (run.path / "0").mkdir()
    log = (
        "Traceback (most recent call last):\nRuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer\n"
    )
    (run.path / "0" / "log").write_text(log)
    failure = find_failure(run, {0: 1.0, 1: 1.0}, 1)
    assert failure is not None
    assert failure.rank == 1
    said = "was killed by SIGKILL" if exit_code == -9 else f"failed: exit status {exit_code}"
    assert failure.reason.startswith(f"rank 1 {said}")


def test_torchruns_own_failure_shows_its_last_line(run: RunFolder) -> None:
    (run.path / "launcher.log").write_text(
        "Traceback (most recent call last):\n\x1b[31mOSError: no space left\x1b[0m\n"
    )
    failure = find_failure(run, {}, 1)
    assert failure is not None
    assert failure.rank is None
    assert failure.reason == "torchrun ended with exit status 1: OSError: no space left"


def test_lines_for_the_screen_hold_no_control_characters() -> None:
    assert clean_lines("a\x07b\r\n\n  \n\x1b[2Kc\n" + "x" * 1000) == ["ab", "c", "x" * 500]


def write_records(path: Path, *records: dict[str, Any], tail: str = "") -> None:
    path.parent.mkdir(exist_ok=True)
    with open(path, "a") as stream:
        stream.write("".join(json.dumps(record) + "\n" for record in records) + tail)


def test_status_lines_from_the_start_to_the_summary(tmp_path: Path) -> None:
    path = tmp_path / "0" / "metrics.jsonl"
    progress = Progress(tmp_path, 0, "torchacc")

    def line() -> str:
        progress.update()
        return progress.line()

    assert line() == "starting processes"
    write_records(path, {"event": "start", "total_steps": 40})
    assert line() == "compiling, before the first step"
    write_records(path, {"event": "startup", "setup_s": 2.0, "first_step_s": 20.5})
    assert line() == "warming up"
    shared = {"event": "interval", "images": 640, "steps": 10}
    first = {**shared, "step": 10, "warmup": True, "step_time_s": 9.0, "images_per_s": 7.1, "loss": 7.0}
    write_records(path, first, {"event": "interval", "nonsense": True}, tail='{"event": "inter')
    assert "n/a images/s" in line()
    write_records(path, tail='val"}\nno json\n')
    timed = {**shared, "warmup": False, "loss": 6.5}
    write_records(path, {**timed, "step": 20, "step_time_s": 0.1, "images_per_s": 640.0})
    assert line() == "step 20/40, 640.0 images/s, loss 6.5000, 0:02 left"
    nan = {"loss": None, "nonfinite": {"loss": "nan"}}
    write_records(path, {**timed, "step": 30, "step_time_s": 0.3, "images_per_s": 213.3, **nan})
    assert "loss nan" in line()
    # 1280 images in 4 s; the mean of the two rates would be 426.7.
    assert progress.images_per_s == pytest.approx(320.0)
    assert progress.summary(5.6) == ("320.0 images/s over 20 steps, start-up 22.5 s, peak memory 5.60 GiB per process")


def test_a_run_without_a_timed_interval_has_no_rate(tmp_path: Path) -> None:
    progress = Progress(tmp_path, 0, "eager")
    progress.update()
    assert progress.summary(None).startswith("n/a (0 steps after warm-up)")


def test_durations() -> None:
    assert [duration(seconds) for seconds in (0, 59.9, 61, 3723)] == ["0:00", "0:59", "1:01", "1:02:03"]


def test_many_starts_at_once_get_folders_of_their_own(tmp_path: Path) -> None:
    with ThreadPoolExecutor(20) as pool:
        folders = list(pool.map(make_folder, [tmp_path / "fresh" / "deep"] * 20))
    assert len(set(folders)) == 20


def test_a_taken_id_is_not_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter(["a", "a", "b"])
    monkeypatch.setattr("resnet_acc.launch.folder.new_id", lambda: next(ids))
    assert [make_folder(tmp_path).name for _ in range(2)] == ["a", "b"]


def test_ranks_of_the_second_machine(tmp_path: Path) -> None:
    config = RunConfig(nproc_per_node=4, nnodes=2, node_rank=1, master_addr="10.0.0.1", output=str(tmp_path))
    run = RunFolder(config, Preflight("cpu", "cpu", 2), CPU_ENVIRONMENT)
    assert run.ranks == [4, 5, 6, 7]
    command = " ".join(agent_command(config, run.path))
    assert "--nnodes 2 --node-rank 1 --master-addr 10.0.0.1 --master-port 29500 --nproc-per-node 4" in command


def test_one_machine_meets_on_a_free_port_or_on_the_given_one(tmp_path: Path) -> None:
    assert "--standalone" in agent_command(RunConfig(), tmp_path)
    command = " ".join(agent_command(RunConfig(master_port=1234), tmp_path))
    assert "--standalone" not in command
    assert "--master-addr 127.0.0.1 --master-port 1234" in command


def test_what_a_rank_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "PET_NPROC_PER_NODE"):
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("resnet_acc.launch.machine.num_cores", lambda: 8)
    here = Preflight("cpu", "cpu", 8)
    config = RunConfig(nproc_per_node=3)
    told = child_environment(config.with_arm("inductor"), here, "id")
    assert (told["RESNET_ACC_COMPILER"], told["RESNET_ACC_KERNEL"], told["RESNET_ACC_DEVICE"]) == (
        "inductor",
        "0",
        "cpu",
    )
    assert told["RESNET_ACC_RUN_ID"] == "id"
    assert (told["OMP_NUM_THREADS"], told["PJRT_DEVICE"]) == ("2", "CPU")
    assert not {"MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "PET_NPROC_PER_NODE"} & set(
        told
    )
    assert child_environment(config.with_arm("kernel"), here, "id")["RESNET_ACC_KERNEL"] == "1"
    assert child_environment(config, here, "id")["RESNET_ACC_COMPILER"] == ""
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert child_environment(config, here, "id")["OMP_NUM_THREADS"] == "5"


def test_env_json_names_facts_and_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    run = RunFolder(RunConfig(output=str(tmp_path)), Preflight("cpu", "cpu", 2), CPU_ENVIRONMENT)
    for path in run.path.iterdir():
        assert "hunter2" not in path.read_text()
    found = json.loads((run.path / "env.json").read_text())
    assert {"python", "platform", "cpu_model", "num_cores", "memory_gib", "driver", "gpu_names", "num_devices"} <= set(
        found
    )

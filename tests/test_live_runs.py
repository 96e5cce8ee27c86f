"""Runs that go on without whoever started them: start, attach, stop, and what is read of them meanwhile."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from launch_tools import (
    CPU_ENVIRONMENT,
    TESTS,
    alive,
    fake_environment,
    pids_below,
    processes_with,
    read_status,
    run_folders,
    wait_for,
)
from synthetic_runs import write_run

from resnet_acc.config import RunConfig
from resnet_acc.files import write_json
from resnet_acc.launch import live_job, preflight, progress
from resnet_acc.launch.live import LiveRun, Snapshot, attach, find_running, start
from resnet_acc.launch.live_command import command_arguments
from resnet_acc.launch.live_find import list_runs
from resnet_acc.launch.live_ranks import MOST_POINTS, RunProgress
from resnet_acc.launch.live_stop import STOP_SECONDS
from resnet_acc.launch.progress import LineReader
from resnet_acc.results import status as status_module
from resnet_acc.results.status import read_status as status_of

LONG = {"FAKE_STEPS": "5000", "FAKE_STEP_S": "0.1"}
START = """
import sys
from resnet_acc.config import RunConfig
from resnet_acc.launch.live import start
run = start(RunConfig(data="synthetic", output=sys.argv[1]), sys.argv[2:])
print(run.already_running, flush=True)
"""


@pytest.fixture(autouse=True)
def _own_folder_and_fake_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Locks of its own for each test; whatever a test leaves running is ended."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")])))
    monkeypatch.setenv("RESNET_ACC_TRAINER", "fake_trainer")
    yield
    for run in find_running(tmp_path / "out"):
        run.stop()


@pytest.fixture
def pids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the ranks and what they start write their numbers."""
    folder = tmp_path / "pids"
    folder.mkdir()
    monkeypatch.setenv("FAKE_PIDS", str(folder))
    return folder


@pytest.fixture
def _long(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LONG.items():
        monkeypatch.setenv(name, value)


def config(tmp_path: Path, **options: object) -> RunConfig:
    return RunConfig(data="synthetic", output=str(tmp_path / "out"), **options)


def launcher_of(run_dir: Path) -> psutil.Process:
    return psutil.Process(read_status(run_dir)["pid"])


def running(run: LiveRun, steps: int = 2) -> Snapshot:
    """Its state, once every rank has done so many steps."""
    wait_for(lambda: (found := run.snapshot()).ranks and all(rank.step >= steps for rank in found.ranks))
    return run.snapshot()


def test_a_run_is_started_watched_to_its_end_and_found_again(tmp_path: Path) -> None:
    run = start(config(tmp_path, nproc_per_node=2), environment=CPU_ENVIRONMENT)
    assert not run.already_running
    assert run.snapshot().status in ("starting", "running")
    lines: list[str] = []
    ended = run.wait(echo=lines.append)
    assert (ended.status, ended.ended, ended.step, ended.total_steps) == ("finished", True, 10, 10)
    assert [run_dir.name for run_dir in run_folders(tmp_path / "out")] == [run.run_dir.name]
    assert lines[0] == f"run folder: {run.run_dir}"
    assert lines[-1].startswith("finished: ")
    assert (run.run_dir / "screen.log").read_text().splitlines() == lines
    # 256 images a step on two ranks, in 0.25 s and 0.75 s by turns: 512 images/s over the timed windows.
    assert [rank.rank for rank in ended.ranks] == [0, 1]
    for rank in ended.ranks:
        assert rank.steady_images_per_s == pytest.approx(512.0)
        assert rank.images_per_s == pytest.approx(256 / 0.75 / 2)
        assert rank.loss == pytest.approx(6.0)
        assert [point.step for point in rank.curve] == list(range(1, 11))
        assert rank.curve[2].images_per_s == pytest.approx(512.0)
    again = attach(run.run_dir.name, str(tmp_path / "out")).snapshot()
    assert (again.status, again.ranks) == ("finished", ended.ranks)
    # The same configuration may be run again as soon as this one has ended.
    second = start(config(tmp_path, nproc_per_node=2))
    assert not second.already_running
    second.wait()
    assert len(run_folders(tmp_path / "out")) == 2


@pytest.mark.usefixtures("_long")
def test_stop_ends_everything_that_the_ranks_started(
    tmp_path: Path, pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SPAWN", "orphan")
    run = start(config(tmp_path, nproc_per_node=2))
    there = pids_below(pids, 4)
    found = running(run)
    assert found.total_steps == 5000
    assert found.seconds_left is not None
    assert found.seconds_left > 100
    other = attach(run.run_dir.name[:-3], str(tmp_path / "out"))
    ended = other.stop()
    assert not alive(there)
    assert not processes_with(run.run_dir.name)
    assert (ended.status, ended.reason) == ("interrupted", "interrupted by SIGINT")
    assert run.snapshot().status == "interrupted"
    assert run.stop().status == "interrupted"  # a second stop finds nothing to do


@pytest.mark.usefixtures("_long")
@pytest.mark.parametrize("spawn", ["session", "orphan"])
def test_stop_where_the_launcher_does_not_answer(
    spawn: str, tmp_path: Path, pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SPAWN", spawn)
    run = start(config(tmp_path))
    there = pids_below(pids, 2)
    running(run)
    launcher = launcher_of(run.run_dir)
    tree = [process.pid for process in launcher.children(recursive=True)]
    launcher.send_signal(signal.SIGSTOP)
    ended = attach(run.run_dir).stop()
    assert not alive([*there, *tree, launcher.pid])
    assert ended.status == "interrupted"
    assert read_status(run.run_dir)["status"] == "interrupted"


def test_stop_where_the_launcher_ignores_the_interrupt_and_nobody_marks_the_run(tmp_path: Path) -> None:
    deaf = "import signal, sys, time; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    deaf += "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    created = psutil.Process(process.pid).create_time()
    values = {"pid": process.pid, "pid_create_time": created, "host": None}
    run_dir = write_run(tmp_path / "out", RunConfig(), [0.1] * 3, status="running", status_values=values)
    ended = attach(run_dir).stop()
    assert process.wait(STOP_SECONDS) == -signal.SIGKILL
    assert (ended.status, ended.ended) == ("interrupted", True)
    assert "did not answer" in read_status(run_dir)["reason"]


@pytest.mark.usefixtures("_long")
def test_stop_before_the_run_has_a_folder(tmp_path: Path) -> None:
    run = start(config(tmp_path))
    other = attach(None, str(tmp_path / "out"))  # as from another kernel: what has no folder yet is found all the same
    assert (run.run_dir, other.snapshot().status) == (None, "starting")
    assert find_running(tmp_path) == []
    ended = other.stop()
    assert (ended.status, ended.ended) == ("interrupted", True)
    assert run.snapshot().ended
    assert find_running(tmp_path / "out") == []
    assert not [listed for listed in list_runs(tmp_path / "out") if listed.is_running]
    assert not start(config(tmp_path)).already_running


@pytest.mark.usefixtures("_long")
def test_a_killed_launcher_leaves_an_interrupted_run(tmp_path: Path, pids: Path) -> None:
    run = start(config(tmp_path))
    there = pids_below(pids, 1)
    running(run)
    launcher_of(run.run_dir).kill()
    wait_for(lambda: run.snapshot().ended)
    assert run.snapshot().status == "interrupted"
    assert "launcher" in (run.snapshot().reason or "")
    assert attach(run.run_dir).snapshot().status == "interrupted"
    attach(run.run_dir).stop()
    assert not alive(there)


@pytest.mark.usefixtures("_long")
def test_starts_at_once_from_two_processes_and_a_thread_give_one_run(tmp_path: Path) -> None:
    command = [sys.executable, "-c", START, str(tmp_path / "out"), "eager"]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found: list[LiveRun] = []
    threads = [threading.Thread(target=lambda: found.append(start(config(tmp_path)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    said = [process.communicate()[0].strip() == "True" for process in others]
    assert sorted([*said, *(run.already_running for run in found)]) == [False, True, True, True, True]
    for run in found:
        running(run)
    assert len({run.run_dir for run in found}) == 1
    assert len(run_folders(tmp_path / "out")) == 1
    # A run whose launcher was not started by start() counts as well.
    later = start(config(tmp_path))
    assert (later.already_running, later.run_dir) == (True, found[0].run_dir)
    other = start(config(tmp_path, seed=1))
    assert not other.already_running
    other.stop()


def test_a_run_from_a_terminal_is_found_instead_of_started_again(tmp_path: Path) -> None:
    arguments = command_arguments(config(tmp_path))
    process = subprocess.Popen(
        [sys.executable, *arguments], env=fake_environment(**LONG), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for(lambda: run_folders(tmp_path / "out"))
    run = start(config(tmp_path))
    assert run.already_running
    assert running(run).status == "running"
    assert run.stop().status == "interrupted"
    assert process.wait(STOP_SECONDS) == 130


def test_several_arms_run_in_turn_and_go_on_after_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_STEP_S", "0.2")
    batch = start(config(tmp_path), ["eager", "kernel", "eager"])
    assert start(config(tmp_path), ["eager", "kernel"]).already_running
    running(batch)
    first = batch.run_dir
    assert (first.parent.name, batch.snapshot().part) == ("eager_x1", (1, 2))
    attached = attach(None, str(tmp_path / "out"))
    (rank,) = [process for process in psutil.process_iter() if _is_rank(process, first.name)]
    rank.kill()
    ended = batch.wait()
    assert (ended.status, ended.part) == ("failed", (2, 2))
    assert [(run.suffix, run.status.status) for run in list_runs(tmp_path / "out")] == [
        ("kernel_x1", "finished"),
        ("eager_x1", "failed"),
    ]
    assert attached.run_dir == batch.run_dir  # whoever attaches to the first sees the next one too
    (comparison,) = (tmp_path / "out" / "comparisons").glob("*/comparison.json")
    assert [run["arm"] for run in json.loads(comparison.read_text())["runs"]] == ["eager", "kernel"]


def _is_rank(process: psutil.Process, run_id: str) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.environ().get("RESNET_ACC_RUN_ID") == run_id and "RANK" in process.environ()
    return False


@pytest.mark.usefixtures("_long")
def test_stop_ends_all_of_several_arms(tmp_path: Path) -> None:
    batch = start(config(tmp_path), ["eager", "kernel"])
    running(batch)
    ended = batch.stop()
    assert (ended.status, ended.ended) == ("interrupted", True)
    assert [(run.suffix, run.status.status) for run in list_runs(tmp_path / "out")] == [("eager_x1", "interrupted")]


def test_a_failed_run_says_which_rank_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAULT", "1:raise")
    ended = start(config(tmp_path, nproc_per_node=2)).wait()
    assert ended.status == "failed"
    assert ended.reason.startswith("rank 1 failed: FileNotFoundError: /data/train/cat/17.JPEG is gone")
    assert any("17.JPEG" in line for line in ended.last_lines)
    assert "17.JPEG" in ended.line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"data": "/no/such/folder"}, "'/no/such/folder'.* is no folder"),
        ({"output": "{tmp}/file/out"}, "{tmp}/file is no folder; give another --output"),
        ({"nproc_per_node": 100_000}, "nproc_per_node is 100000"),
    ],
)
def test_what_cannot_start_is_refused_with_the_reason(options: dict, words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    values = {name: value.format(tmp=tmp_path) if isinstance(value, str) else value for name, value in options.items()}
    asked = RunConfig(**{"data": "synthetic", "output": str(tmp_path / "out"), **values})
    with pytest.raises(ValueError, match=words.format(tmp=tmp_path)):
        start(asked, environment=CPU_ENVIRONMENT)
    ended = start(asked).wait()  # without knowing the environment, the launcher itself has to say it
    assert (ended.status, ended.ended, ended.run_dir) == ("refused", True, None)
    with pytest.raises(ValueError, match=words.format(tmp=tmp_path)):
        raise ValueError(ended.reason)
    assert not (tmp_path / "out").exists()


def test_an_unknown_arm_is_refused(tmp_path: Path) -> None:
    for arms in (["fast"], ["eager", "fast"]):
        with pytest.raises(ValueError, match="arm is 'fast'; choose one of eager"):
            start(config(tmp_path), arms)
        with pytest.raises(ValueError, match="arm is 'fast'"):
            command_arguments(config(tmp_path), arms)


def test_a_launcher_that_cannot_be_started_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_job.sys, "executable", "/bin/false")
    with pytest.raises(OSError, match="cannot be started: exit status 1"):
        start(config(tmp_path))
    monkeypatch.undo()


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "tmp" / f"resnet_acc-{os.getuid()}").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="not a folder of yours; set TMPDIR"):
        start(config(tmp_path))


def test_runs_are_found_by_folder_id_and_beginning(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    with pytest.raises(ValueError, match="no run below .*out yet"):
        attach(None, out)
    with pytest.raises(ValueError, match="run '2026'.*there is none yet"):
        attach("2026", out)
    first = write_run(tmp_path / "out", RunConfig(), [0.1], run_id="20261201-115300-aaaaaa", started_at=100.0)
    second = write_run(
        tmp_path / "out", RunConfig(kernel_opt=True), [0.1], run_id="20261201-115300-bbbbbb", started_at=200.0
    )
    assert [run.run_dir for run in list_runs(out)] == [second, first]
    assert attach(None, out).run_dir == second
    for meant in (first, str(first), first.name, "20261201-115300-a", str(first.relative_to(tmp_path / "out"))):
        assert attach(meant, out).run_dir == first
    run = attach(first)
    assert attach(run) is run
    with pytest.raises(ValueError, match=r"'20261201' could be 2 runs.*kernel_x1/20261201-115300-bbbbbb.*give more"):
        attach("20261201", out)
    for wrong in ("", "x", str(tmp_path), "a\0b"):
        with pytest.raises(ValueError, match="the newest are 20261201-115300-bbbbbb"):
            attach(wrong, out)


def test_another_processs_number_is_not_taken_for_the_launcher(tmp_path: Path) -> None:
    mine = psutil.Process()
    values = {"pid": mine.pid, "pid_create_time": mine.create_time() - 1000, "host": None}
    run_dir = write_run(tmp_path / "out", RunConfig(), [0.1] * 3, status="running", status_values=values)
    run = attach(run_dir)
    assert run.snapshot().status == "interrupted"
    assert run.stop().status == "interrupted"  # and this process is still here
    elsewhere = {"pid": mine.pid, "pid_create_time": mine.create_time(), "host": "another-machine"}
    run_dir = write_run(tmp_path / "out", RunConfig(seed=1, kernel_opt=True), [0.1], status="running")
    write_json(run_dir / "status.json", {"status": "running", "run_id": run_dir.name, **elsewhere})
    there = attach(run_dir)
    assert (there.snapshot().status, there.snapshot().host) == ("running", "another-machine")
    with pytest.raises(ValueError, match="runs on another-machine"):
        there.stop()
    assert find_running(tmp_path / "out") == []
    # Its status may be a dead machine's: the same configuration is started here all the same.
    write_json(run_dir / "config.json", preflight.resolve(config(tmp_path)).to_json())
    mine_too = start(config(tmp_path))
    assert not mine_too.already_running
    mine_too.stop()


def test_an_end_written_between_two_looks_is_no_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = write_run(tmp_path / "out", RunConfig(), [0.1], status="running")

    def ends_meanwhile(values: dict) -> bool:
        write_json(run_dir / "status.json", values | {"status": "finished"})
        return False

    monkeypatch.setattr(status_module, "_is_alive", ends_meanwhile)
    assert status_of(run_dir).status == "finished"


def test_damaged_records_are_passed_over_and_a_half_line_waits(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "out", RunConfig(nproc_per_node=2), [0.5] * 20, status="running")
    path = run_dir / "1" / "metrics.jsonl"
    ranks = RunProgress(run_dir)
    before = ranks.update()
    good = {"schema": 1, "event": "interval", "step": 30, "steps": 10, "images": 2560, "step_time_s": 0.5}
    line = json.dumps({**good, "images_per_s": 512.0, "images_per_s_per_rank": 300.0, "loss": 1.5})
    with open(path, "ab") as stream:
        stream.write(
            b'\x00\xff{"event": "interval"\n[1]\n{"event": "interval", "step": ' + b"9" * 400 + b', "loss": {}}\n'
        )
        stream.write(b'{"event": "interval", "step": NaN, "images_per_s": Infinity, "step_time_s": -1e999}\n\n')
        stream.write(line[:40].encode())
    half = ranks.update()
    assert half[0] == before[0]
    assert half[1].curve == before[1].curve
    with open(path, "ab") as stream:
        stream.write(line[40:].encode() + b"\n")
    after = ranks.update()[1]
    assert (after.step, after.images_per_s, after.loss) == (30, 300.0, 1.5)
    with open(path, "ab") as stream:
        stream.write(json.dumps({**good, "step": 40, "loss": None, "nonfinite": {"loss": "nan"}}).encode() + b"\n")
    assert str(ranks.update()[1].loss) == "nan"


def test_a_look_reads_a_bounded_part_and_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "_LOOK_BYTES", 10)
    path = tmp_path / "file"
    lines = LineReader(path)
    assert lines.new_lines() == []
    path.write_text("one\ntwo\nthree\n" + "x" * 25 + "\nlast\nhal")
    found = []
    for _ in range(10):
        found += lines.new_lines()
    assert found[:3] == [b"one", b"two", b"three"]
    assert found[-1] == b"last"
    path.write_text("new\n")  # shorter: another file under the same name
    assert lines.new_lines() == [b"new"]
    path.write_text("new\nold\n")
    lines.skip()
    assert lines.new_lines() == []


def test_a_long_run_has_a_bounded_curve_up_to_its_last_step(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "out", RunConfig(log_interval=1), [0.5] * 2000, status="running")
    (rank,) = RunProgress(run_dir).update()
    assert MOST_POINTS / 2 < len(rank.curve) <= MOST_POINTS + 1
    assert rank.curve[-1].step == rank.step == 2000
    assert [point.step for point in rank.curve] == sorted({point.step for point in rank.curve})


@contextlib.contextmanager
def kernel() -> Iterator[tuple[Any, Callable[[str], str]]]:
    """A real kernel's manager, and a function that runs code in it and gives what it printed."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name="python3")

    def run(code: str) -> str:
        said: list[str] = []
        client.wait_for_ready(timeout=120)
        reply = client.execute_interactive(
            f"from resnet_acc.config import RunConfig\nfrom resnet_acc.launch.live import attach, start\n{code}",
            timeout=120,
            output_hook=lambda message: said.append(message["content"].get("text", "")),
        )
        assert reply["content"]["status"] == "ok", reply["content"]
        return "".join(said).strip()

    try:
        yield manager, run
    finally:
        client.stop_channels()
        manager.shutdown_kernel()  # it is asked to, and then ends whatever it takes for its own


@pytest.mark.usefixtures("_long")
def test_a_run_outlives_the_restart_and_the_end_of_its_kernel(tmp_path: Path, pids: Path) -> None:
    out = str(tmp_path / "out")
    with kernel() as (manager, run):
        run(f"run = start(RunConfig(data='synthetic', output={out!r}))")
        there = pids_below(pids, 1)
        manager.restart_kernel()
        (run_dir,) = run_folders(tmp_path / "out")
        assert run(f"print(attach({run_dir.name!r}, {out!r}).snapshot().status)") == "running"
        assert run(f"print(start(RunConfig(data='synthetic', output={out!r})).already_running)") == "True"
        manager.restart_kernel(now=True)
    before = attach(run_dir).snapshot().step
    wait_for(lambda: attach(run_dir).snapshot().step > before)
    assert alive(there) == there
    with kernel() as (_, run):
        assert run(f"print(attach({run_dir.name[:-1]!r}, {out!r}).stop().status)") == "interrupted"
    assert not alive(there)

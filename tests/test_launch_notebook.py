"""A run from a cell: the command shown is the command run, and an interrupt of the cell ends it."""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from launch_tools import TESTS, alive, pids_below, processes_with, read_status, run_folders, wait_for

from resnet_acc.config import RunConfig
from resnet_acc.launch.notebook import launch_cell
from resnet_acc.launch.supervisor import RunFailed


@pytest.fixture(autouse=True)
def _ranks_are_fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")])))
    monkeypatch.setenv("RESNET_ACC_TRAINER", "fake_trainer")


def config(tmp_path: Path, **options: object) -> RunConfig:
    return RunConfig(data="synthetic", output=str(tmp_path / "my runs"), **options)


def test_a_cell_shows_its_command_and_gives_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = launch_cell(config(tmp_path, nproc_per_node=2, validate=False))
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("$ ")
    words = shlex.split(first[2:])
    assert words[1:3] == ["-m", "resnet_acc.launch_single_task"]
    assert set(words[3:]) == {
        "--nproc_per_node=2",
        "--data=synthetic",
        "--no-validate",
        f"--output={tmp_path / 'my runs'}",
    }
    assert run_folders(tmp_path / "my runs") == [run_dir]
    assert rest[0] == f"run folder: {run_dir}"
    assert re.match(r"finished: .*512.0 images/s", rest[-1])


def test_a_failed_run_raises_with_its_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAULT", "0:raise")
    with pytest.raises(RunFailed, match=r"17\.JPEG") as caught:
        launch_cell(config(tmp_path))
    assert caught.value.run_dir is not None
    assert caught.value.status == read_status(caught.value.run_dir)


def test_a_refused_run_raises_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="9999") as caught:
        launch_cell(RunConfig(data="mock", batch_size=9999999, output=str(tmp_path / "none")))
    assert caught.value.run_dir is None
    assert not (tmp_path / "none").exists()


def test_an_interrupted_cell_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    monkeypatch.setenv("FAKE_PIDS", str(pids))
    monkeypatch.setenv("FAKE_FAULT", "0:deaf")

    def interrupt() -> None:
        pids_below(pids, 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        launch_cell(config(tmp_path))
    thread.join()
    (run_dir,) = run_folders(tmp_path / "my runs")
    assert read_status(run_dir)["status"] == "interrupted"
    assert not alive(pids_below(pids, 1))
    assert not processes_with(run_dir.name)


def test_a_killed_kernel_takes_its_run_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    monkeypatch.setenv("FAKE_PIDS", str(pids))
    monkeypatch.setenv("FAKE_FAULT", "0:deaf")
    code = "import sys; from resnet_acc.launch.notebook import launch_cell; from resnet_acc.config import RunConfig; "
    code += "launch_cell(RunConfig(data='synthetic', output=sys.argv[1]))"
    kernel = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "out")], stdout=subprocess.DEVNULL)
    ranks = pids_below(pids, 1)
    kernel.kill()
    kernel.wait()
    (run_dir,) = run_folders(tmp_path / "out")
    wait_for(lambda: read_status(run_dir)["status"] == "interrupted")
    wait_for(lambda: not alive(ranks))

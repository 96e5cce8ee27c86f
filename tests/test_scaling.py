"""Notebook 05's arithmetic and words: efficiency, Amdahl's law, communication; and jobs of several machines."""

import dataclasses
import json
import math
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from launch_tools import CPU_ENVIRONMENT, TESTS, processes_with, read_status, run_folders, wait_for
from synthetic_runs import write_run
from torchvision.models import resnet18

from resnet_acc.config import RunConfig
from resnet_acc.files import write_json
from resnet_acc.lessons import nodes, scaling
from resnet_acc.lessons.nodes import LOCAL_ADDRESS, NodesFailed, launch_nodes, node_commands, node_configs
from resnet_acc.lessons.scaling import Scaling
from resnet_acc.lessons.scaling_tables import amdahl_table, points_table
from resnet_acc.lessons.scaling_words import amdahl_words, communication_words, scaling_words
from resnet_acc.results.amdahl import amdahl_speedup, fit_amdahl
from resnet_acc.results.communication import communication_of, mean_estimate
from resnet_acc.results.measured import Run
from resnet_acc.results.runs import load_run
from resnet_acc.results.scaling import MACHINES, PROCESSES, Series, scaling_series
from resnet_acc.training.communication import bucket_sizes

STEP_S = 0.1
NOISE = (0.99, 1.0, 1.01)
"""Three repeats; their step times have the mean 1 and the variance 0.0001."""


def write_counts(
    output: Path,
    serial: float,
    counts: Sequence[int] = (1, 2, 4, 8),
    noise: Sequence[float] = NOISE,
    device: str = "cuda",
) -> list[Run]:
    """Runs whose images/s follow Amdahl's law: a step on n processes holds n times the images."""
    runs = []
    for count in counts:
        step_s = STEP_S * count / amdahl_speedup(count, serial)
        for number, factor in enumerate(noise):
            config = RunConfig(batch_size=8, nproc_per_node=count, data="synthetic", log_interval=5)
            folder = write_run(
                output,
                config,
                [step_s * factor] * 20,
                run_id=f"20261201-115300-{count:03}{number:03}",
                params={"device": device, "device_name": "NVIDIA H200"},
            )
            runs.append(load_run(folder))
    return runs


def only_series(runs: list[Run]) -> Series:
    (series,) = scaling_series(runs)
    return series


@pytest.mark.parametrize("serial", [0.0, 0.02, 0.3])
def test_amdahl_fit_recovers_a_known_serial_part(tmp_path: Path, serial: float) -> None:
    fit = fit_amdahl(only_series(write_counts(tmp_path, serial)))
    assert fit is not None
    assert not fit.meaningless
    assert fit.serial.value == pytest.approx(serial, abs=1e-5)
    assert fit.serial.low < serial < fit.serial.high
    first = 8 / STEP_S
    for count in (1, 8, 64):
        predicted = fit.predict(count)
        assert predicted.value == pytest.approx(first * amdahl_speedup(count, serial), rel=1e-3)
        assert predicted.low < predicted.value < predicted.high
    assert fit.limit[0] == pytest.approx(1 / serial, rel=1e-3) if serial else fit.limit[0] > 1000
    assert any("contains 0" in doubt for doubt in fit.doubts) == (serial == 0)


def test_amdahls_law_itself() -> None:
    assert amdahl_speedup(8, 0.0) == 8.0
    assert amdahl_speedup(8, 1.0) == 1.0
    assert amdahl_speedup(2, 0.5) == pytest.approx(4 / 3)
    assert amdahl_speedup(10**9, 0.05) == pytest.approx(20.0)


def test_the_interval_of_the_fit_holds_the_truth_as_often_as_it_says(tmp_path: Path) -> None:
    """Not too narrow: of 40 series with random noise the 95 % interval holds s in all but a few."""
    random, held = np.random.default_rng(1), 0
    series = only_series(write_counts(tmp_path, 0.05, (1, 2, 4)))
    for _ in range(40):
        noisy = []
        for point in series.points:
            spread = float(random.normal(0.0, 0.01 / math.sqrt(3)))
            deviation = 0.01 * math.sqrt(random.chisquare(2) / 2) / math.sqrt(3)
            value = (point.rate.value or 0.0) * math.exp(spread)
            half = 4.302652729911275 * deviation  # Student's t of 2 degrees of freedom, 97.5 %
            rate = dataclasses.replace(
                point.rate, value=value, low=value * math.exp(-half), high=value * math.exp(half), num_units=(3,)
            )
            noisy.append(dataclasses.replace(point, rate=rate))
        fit = fit_amdahl(dataclasses.replace(series, points=tuple(noisy)))
        assert fit is not None
        held += fit.serial.low <= 0.05 <= fit.serial.high
    assert held >= 36


def test_two_counts_and_a_law_that_does_not_hold_are_said(tmp_path: Path) -> None:
    two = fit_amdahl(only_series(write_counts(tmp_path / "two", 0.1, (1, 2))))
    assert "two counts always lie on" in amdahl_words(two)
    assert two.serial.value == pytest.approx(0.1, abs=1e-4)
    runs = write_counts(tmp_path / "off", 0.02, (1, 2, 4)) + write_counts(tmp_path / "more", 0.4, (8,))
    off = fit_amdahl(only_series(runs))
    assert off.farthest > 0.05
    assert "does not describe this machine" in amdahl_words(off)


def test_a_fit_that_says_nothing_predicts_nothing(tmp_path: Path) -> None:
    shared = only_series(write_counts(tmp_path / "cpu", 0.3, device="cpu"))
    fit = fit_amdahl(shared)
    assert "adds no hardware" in amdahl_words(fit)
    assert amdahl_table(fit, [shared]).empty
    falling = only_series(write_counts(tmp_path / "gpu", 1.2, (1, 2, 4)))
    assert "adding more is a loss" in amdahl_words(fit_amdahl(falling))
    beyond = only_series(write_counts(tmp_path / "beyond", -0.1, (1, 2)))
    assert "below 0" in amdahl_words(fit_amdahl(beyond))
    assert fit_amdahl(only_series(write_counts(tmp_path / "one", 0.1, (4,)))) is None
    assert "at least two counts" in amdahl_words(None)


@pytest.mark.parametrize(
    ("threads", "cores", "shared"), [("1", 8, False), ("2", 8, True), (None, 8, True), ("1", 4, True)]
)
def test_processes_with_cores_of_their_own_are_more_hardware(
    tmp_path: Path, threads: str | None, cores: int, shared: bool
) -> None:
    runs = write_counts(tmp_path, 0.05, device="cpu")  # on up to 8 processes
    for run in runs:
        write_json(run.run_dir / "env.json", {"omp_num_threads": threads, "num_cores": cores})
    series = only_series(runs)
    assert series.shared == shared
    fit = fit_amdahl(series)
    assert bool(fit.meaningless) == shared
    assert ("share memory and caches" in amdahl_words(fit)) != shared


def test_what_the_law_says_of_more_cards(tmp_path: Path) -> None:
    series = only_series(write_counts(tmp_path, 0.05))
    fit = fit_amdahl(series)
    words = amdahl_words(fit)
    assert "a limit of 20.0 times" in words
    assert "On 16 the law gives" in words  # 1 / (0.05 + 0.95 / 16) = 9.14 times one, 57 %
    assert "9.1 times one and an efficiency of 57 %" in words
    table = amdahl_table(fit, [series]).set_index("count")
    assert list(table.index) == [1, 2, 4, 8, 16, 32, 64]
    assert table.loc[64, "efficiency %"] == "24.1"  # 1 / (0.05 + 0.95 / 64) / 64
    assert (table.loc[[16, 32, 64], "measured images/s [CI]"] == "").all()


def test_efficiency_has_the_interval_that_a_hand_works_out(tmp_path: Path) -> None:
    """Three runs a count. log(rate) has the squared standard error s^2 / n = 0.0001 / 3 on both counts, so that the
    ratio's is twice that; Welch's degrees of freedom are 4, and t(0.975, 4) = 2.776: a half width of 0.02267."""
    one, two = only_series(write_counts(tmp_path, 0.25, (1, 2))).points
    assert one.efficiency.value == 1.0
    assert one.rate.value == pytest.approx(80.0)
    assert two.rate.value == pytest.approx(80.0 * 1.6)
    efficiency = two.efficiency
    assert efficiency.value == pytest.approx(0.8)
    assert efficiency.num_units == (3, 3)
    assert math.log(efficiency.high / 0.8) == pytest.approx(0.02267, rel=0.05)
    assert math.log(0.8 / efficiency.low) == pytest.approx(0.02267, rel=0.05)


def test_the_table_and_words_of_a_series(tmp_path: Path) -> None:
    runs = write_counts(tmp_path, 0.25, (1, 2))
    table = points_table(scaling_series(runs)).set_index("processes")
    assert table.loc[2, "efficiency % [CI]"].startswith("80.0 [78.")
    assert table.loc[2, "interval from"] == "3 and 3 runs"
    assert table.loc[2, "waiting for data"] == "1 %"  # 1 ms of 125
    words = scaling_words(scaling_series(runs), [], "cuda")
    assert "2 give 1.60 times the images/s of 1" in words
    assert "20 % is lost" in words
    cpu = scaling_words(scaling_series(write_counts(tmp_path / "cpu", 0.9, (1, 2), device="cpu")), [], "cpu")
    assert "all counts shared the same cores" in cpu
    assert "says nothing about GPUs" in cpu
    beyond = scaling_words(scaling_series(write_counts(tmp_path / "beyond", -0.3, (1, 2))), [], "cuda")
    assert "Nothing scales beyond 100 %" in beyond
    once = scaling_words(scaling_series(write_counts(tmp_path / "once", 0.1, (1, 2), noise=(1.0,))), [], "cuda")
    assert "fewer than 3 runs" in once


def result(step_s: list[float], without: list[float], alone: list[float], num: int = 4) -> dict:
    return {
        "arm": "eager",
        "backend": "nccl",
        "world_size": num,
        "num_bytes": 100_000_000,
        "all_reduce_s": alone,
        "step_s": step_s,
        "step_without_s": without,
    }


def test_what_averaging_costs_is_worked_out_from_pairs() -> None:
    """Differences of 9, 10 and 11 ms: mean 10, s = 1, t(0.975, 2) = 4.303: a half width of 4.303 / sqrt(3) = 2.484."""
    found = communication_of(result([0.109, 0.110, 0.111], [0.100, 0.100, 0.100], [0.020, 0.020, 0.020]))
    assert found.added.value == pytest.approx(0.010)
    assert found.added.high - found.added.value == pytest.approx(2.484e-3, rel=1e-3)
    assert found.share.value == pytest.approx(0.0909, abs=1e-4)
    assert found.hidden == pytest.approx(0.5)
    assert found.bus_bytes_per_s == pytest.approx(2 * 3 / 4 * 1e8 / 0.020)
    words = communication_words([found], "cuda")
    assert "100.0 MB" in words
    assert "50 % of the time that it takes alone is hidden" in words
    assert mean_estimate([3.0]).reason == "a single measurement"


def test_averaging_that_shows_no_cost_is_said_so() -> None:
    found = communication_of(result([0.100, 0.102, 0.098], [0.101, 0.100, 0.099], [0.02, 0.02, 0.02]))
    assert "do not show that it makes a step longer" in communication_words([found], "cuda")
    assert "measure 2 or more" in communication_words([], "cuda")


def test_buckets_are_those_that_ddp_makes(tmp_path: Path) -> None:
    model = resnet18()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        parallel = torch.nn.parallel.DistributedDataParallel(model)
        for _ in range(3):  # the first orders the buckets, the second uses them, the third has statistics of it
            parallel(torch.randn(2, 3, 32, 32)).sum().backward()
        text = parallel._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    finally:
        dist.destroy_process_group()
    sizes = bucket_sizes(list(model.parameters()))
    assert [4 * size for size in sizes] == [int(part) for part in str(text).split(",")]
    assert sum(sizes) == 11_689_512


@pytest.fixture
def fake_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH", "")])))


def nodes_config(output: Path) -> RunConfig:
    return RunConfig(model="resnet18", image_size=32, batch_size=4, data="synthetic", output=str(output), max_steps=20)


def test_machines_differ_in_their_number_alone(tmp_path: Path) -> None:
    zero, one = node_configs(nodes_config(tmp_path), 2, "10.0.0.1")
    assert dataclasses.replace(one, node_rank=0) == zero
    assert (zero.nnodes, zero.master_addr, one.node_rank) == (2, "10.0.0.1", 1)
    commands = node_commands(nodes_config(tmp_path), 2, "10.0.0.1")
    assert all("--nnodes=2" in command and "--master_addr=10.0.0.1" in command for command in commands)
    assert ["--node_rank=1" in command for command in commands] == [False, True]
    with pytest.raises(ValueError, match="2 or more"):
        node_configs(nodes_config(tmp_path), 1, "10.0.0.1")
    with pytest.raises(ValueError, match="give machine 0's address"):
        node_configs(nodes_config(tmp_path), 2, "localhost")


@pytest.mark.usefixtures("fake_ranks")
def test_several_machines_on_one_are_read_as_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = launch_nodes(nodes_config(tmp_path), 2, trainer="fake_trainer")
    assert [read_status(folder)["status"] for folder in folders] == ["finished", "finished"]
    assert [(folder / "0").is_dir() for folder in folders] == [True, False]
    assert json.loads((folders[1] / "config.json").read_text())["master_addr"] == LOCAL_ADDRESS
    output = capsys.readouterr().out
    assert "--node_rank=1" in output
    assert "[machine 1] run folder: " in output
    zero, one = map(load_run, folders)
    assert zero.world_size == 2
    (series,) = [series for series in scaling_series([zero, one]) if series.axis == MACHINES]
    assert [(point.count, point.processes, point.num_runs) for point in series.points] == [(2, 2, 1)]
    assert series.shared
    assert "one and the same" in amdahl_words(fit_amdahl(with_one_machine(series)))


def with_one_machine(series: Series) -> Series:
    """The same with a point of one machine, at half the rate."""
    (point,) = series.points
    rate = dataclasses.replace(point.rate, value=0.6 * (point.rate.value or 0.0))
    return dataclasses.replace(series, points=(dataclasses.replace(point, count=1, processes=1, rate=rate), point))


@pytest.mark.usefixtures("fake_ranks")
def test_a_machine_that_fails_ends_the_job_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAULT", "1:raise,0:wait")
    monkeypatch.setattr("resnet_acc.lessons.nodes.OTHERS_SECONDS", 1.0)
    with pytest.raises(NodesFailed, match=r"machine 1 of 2 failed: .*cat/17\.JPEG is gone"):
        launch_nodes(nodes_config(tmp_path), 2, trainer="fake_trainer")
    ends = nothing_left(tmp_path)
    assert ends[1] == "failed"
    assert ends[0] in ("failed", "interrupted")


@pytest.mark.usefixtures("fake_ranks")
def test_an_interrupt_ends_all_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_FAULT", "0:wait,1:wait")
    pids = tmp_path / "pids"
    pids.mkdir()
    monkeypatch.setenv("FAKE_PIDS", str(pids))
    real = nodes._wait

    def interrupted(started: list) -> None:
        wait_for(lambda: len(list(pids.iterdir())) == 2)
        signal.raise_signal(signal.SIGINT)
        real(started)

    monkeypatch.setattr("resnet_acc.lessons.nodes._wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        launch_nodes(nodes_config(tmp_path / "out"), 2, trainer="fake_trainer")
    assert nothing_left(tmp_path / "out") == {0: "interrupted", 1: "interrupted"}


def nothing_left(output: Path) -> dict[int, str]:
    """How the run on each machine ended; the test fails where a process of one is still there."""
    folders = run_folders(output)
    assert [processes_with(folder.name) for folder in folders] == [[], []]
    return {
        json.loads((folder / "config.json").read_text())["node_rank"]: read_status(folder)["status"]
        for folder in folders
    }


def parameters(output: Path, **changes: object) -> dict[str, object]:
    values = {"preset": "quick", "arm": "eager", "processes": None, "machines": "1,2", "address": "10.0.0.1"}
    more = {
        "repeats": 1,
        "communication_repeats": 2,
        "threads": 1,
        "earlier": False,
        "data": "synthetic",
        "output": str(output),
    }
    return {**values, **more, **changes}


@pytest.fixture
def cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resnet_acc.launch.preflight.probe", lambda **_: CPU_ENVIRONMENT)
    monkeypatch.setattr("resnet_acc.launch.machine.num_cores", lambda: 2)


@pytest.mark.usefixtures("cpu")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"processes": "1,two"}, "processes is '1,two'"),
        ({"processes": 0}, "give counts of at least 1"),
        ({"machines": "0,2"}, "machines is '0,2'"),
        ({"repeats": 0}, "repeats is 0"),
        ({"threads": -1}, "threads is -1"),
        ({"communication_repeats": 0}, "communication_repeats is 0"),
        ({"processes": 999_999}, "nproc_per_node is 999999"),
        ({"arm": "fast"}, "'fast'"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"data": "/nowhere/at/all"}, "is no folder"),
    ],
)
def test_bad_parameters_are_refused_before_anything_runs(tmp_path: Path, changes: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Scaling(parameters(tmp_path / "out", **changes))
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("cpu")
def test_runs_take_turns_and_earlier_ones_count_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def launch_cell(config: RunConfig) -> Path:
        started.append(config.nproc_per_node)
        assert os.environ["OMP_NUM_THREADS"] == "1"
        number = f"20261201-115300-{len(list(tmp_path.glob('*/*/*/*'))):06}"
        return write_run(Path(config.output), config, [0.1] * 12, run_id=number)

    monkeypatch.setattr(scaling, "launch_cell", launch_cell)
    first = Scaling(parameters(tmp_path, repeats=2))
    assert first.config.amp_level == "O0"
    assert "each computes with 1 of its 2 cores" in first.describe()
    shared = Scaling(parameters(tmp_path, threads=0)).describe()
    assert "one process alone computes with all 2 cores" in shared
    assert "are more than its 2 cores" in Scaling(parameters(tmp_path, threads=2)).describe()
    table = first.measure()
    assert started == [1, 2, 2, 1]
    assert table["runs"].tolist() == [2, 2]
    assert "--node_rank=1" in first.machine_commands()
    again = Scaling(parameters(tmp_path, repeats=1, earlier=True))
    assert again.measure()["runs"].tolist() == [3, 3]
    (series,) = again.series(PROCESSES)
    assert series.device == "cpu"
    other = Scaling(parameters(tmp_path, batch_size=4, earlier=True))
    assert other.measure()["runs"].tolist() == [1, 1]


def test_a_folder_of_another_machine_counts_no_second_time(tmp_path: Path) -> None:
    config = dataclasses.replace(nodes_config(tmp_path), nnodes=2, master_addr="10.0.0.1", log_interval=5)
    zero = write_run(tmp_path / "a", config, [0.1] * 20, ranks=[0])
    one = write_run(tmp_path / "b", dataclasses.replace(config, node_rank=1), [0.1] * 20, ranks=[1])
    for folder, host in ((zero, "left"), (one, "right")):
        write_json(folder / "env.json", {"host": host})
    (series,) = scaling_series([load_run(zero), load_run(one)])
    assert (series.axis, series.shared) == (MACHINES, False)
    assert series.points[0].rate.value == pytest.approx(8 / 0.1)

"""Runs read from their records: right values, ranks, status, tables."""

import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from synthetic_runs import read_lines, write_run
from test_parser import config_of, resumed_log

from resnet_acc.config import RunConfig
from resnet_acc.files import write_json
from resnet_acc.log_parser import parse_file
from resnet_acc.results.runs import find_runs, intervals_table, load_run, runs_table


def test_forty_images_in_steps_of_four_are_ten_steps_whatever_was_planned(tmp_path: Path) -> None:
    config = config_of(batch_size=4, max_steps=10000)
    run = load_run(write_run(tmp_path, config, [0.1] * 10, params={"total_steps": 10000}))
    assert (run.steady.steps, run.images_per_s) == (10, pytest.approx(40.0))


def test_a_first_step_of_60_s_stands_apart(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, config_of(batch_size=900, warmup_steps=1), [60.0] + [1.219] * 140, setup_s=3.0))
    assert run.images_per_s == pytest.approx(738.31, abs=0.01)
    assert (run.first_step_s, run.startup_s) == (60.0, pytest.approx(63.0))


def test_warm_up_longer_than_the_run_is_not_available(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, config_of(warmup_steps=20), [0.1] * 10))
    assert (run.images_per_s, run.step_time_s, str(run.steady)) == (None, None, "n/a (0 steps after warm-up)")


def test_two_ranks_have_one_rate_and_a_missing_rank_is_said(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, config_of(nproc_per_node=2, batch_size=128), [0.5] * 4)
    run = load_run(run_dir)
    assert (run.images_per_s, run.images_per_s_per_rank, run.warnings) == (512.0, 256.0, [])
    for name in ("log", "metrics.jsonl"):
        (run_dir / "1" / name).unlink()
    for again in (load_run(run_dir), parse_file(run_dir / "0" / "log")):
        assert any("1 of 2 ranks" in warning and "rank 1" in warning for warning in again.warnings)


def test_without_rank_0_another_rank_is_read_and_said(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, config_of(nproc_per_node=2, batch_size=128), [0.5] * 4, ranks=[1]))
    assert run.images_per_s == 512.0
    assert any("read from rank 1" in warning for warning in run.warnings)


@pytest.mark.parametrize("interval", [1, 10])
def test_a_resumed_run_counts_each_step_once(tmp_path: Path, interval: int) -> None:
    run = load_run(resumed_log(tmp_path, interval=interval))
    steps = [i.step for i in run.intervals]
    assert steps == sorted(set(steps))
    assert (run.num_steps, run.attempts, run.repeated_steps, run.unreadable_lines) == (100, 2, 10, 1)
    assert run.images_per_s == pytest.approx(640.0)


def test_only_the_second_attempt_is_on_record(tmp_path: Path) -> None:
    run = load_run(resumed_log(tmp_path, first_attempt=False))
    assert (run.intervals[0].step, run.num_steps, run.attempts) == (50, 50, 1)
    assert run.images_per_s == pytest.approx(640.0)


def test_losses_that_are_not_finite_are_strict_json_and_come_back(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, config_of(), [0.1] * 5, [2.0, 1.0, math.inf, math.nan, math.nan])
    read_lines(run_dir / "0" / "metrics.jsonl")
    run = load_run(run_dir)
    assert [i.loss for i in run.intervals[:3]] == [2.0, 1.0, math.inf]
    assert all(math.isnan(i.loss) for i in run.intervals[3:])
    assert (len(run.finite_losses), run.num_nonfinite_losses, run.mean_finite_loss) == (2, 3, 1.5)
    assert run.images_per_s == pytest.approx(640.0)


def test_a_foreign_file_with_bare_nan_is_read(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, config_of(), [0.1] * 3)
    path = run_dir / "0" / "metrics.jsonl"
    lines = path.read_text().splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        if record["event"] == "interval":
            record["loss"] = math.nan if record["step"] == 2 else -math.inf
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert "NaN" in path.read_text()
    run = load_run(run_dir)
    assert (len(run.intervals), run.unreadable_lines, run.num_nonfinite_losses) == (3, 0, 3)


def test_numbers_of_the_wrong_kind_are_counted_and_not_believed(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, config_of(), [0.1] * 3)
    bad = [{"step": "7"}, {"step": True}, {"step": 4, "steps": 0}, {"step": 5, "loss": "low"}, {"step": 10**400}, {}]
    with open(run_dir / "0" / "metrics.jsonl", "a") as stream:
        for values in bad:
            stream.write(json.dumps({"schema": 1, "event": "interval", **values}) + "\n")
    run = load_run(run_dir)
    assert (len(run.intervals), run.unreadable_lines) == (3, len(bad))


def test_an_interval_that_compiled_after_warm_up_is_flagged_and_not_in_the_rate(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, config_of(), [0.1] * 5 + [9.0] + [0.1] * 4, compilations={6: 1}))
    assert (run.steady.steps, len(run.compiled), run.compiled[0].step) == (9, 1, 6)
    assert run.images_per_s == pytest.approx(640.0)
    assert run.startup_s == pytest.approx(2.0 + 0.1 + 8.9)


def test_a_second_compilation_in_warm_up_is_part_of_the_start_up(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, config_of(warmup_steps=4), [10.0, 8.1, 0.1, 0.1] + [0.1] * 8, setup_s=1.0))
    assert run.startup_s == pytest.approx(1.0 + 10.0 + 8.0)


def test_memory_is_that_of_the_largest_rank(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, config_of(nproc_per_node=2), [0.1] * 2)
    path = run_dir / "1" / "metrics.jsonl"
    path.write_text(path.read_text().replace('"peak_memory_gib": 1.5', '"peak_memory_gib": 2.5'))
    assert load_run(run_dir).peak_memory_gib == 2.5


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_running_status_whose_process_is_gone_is_interrupted(tmp_path: Path) -> None:
    values = {"pid": dead_pid(), "host": socket.gethostname()}
    run_dir = write_run(tmp_path, config_of(), [0.1] * 3, status="running", status_values=values)
    for run in (load_run(run_dir), parse_file(run_dir / "0" / "log")):
        assert (run.status.status, run.is_result) == ("interrupted", False)
        assert str(values["pid"]) in run.why_not


@pytest.mark.parametrize(("offset", "expected"), [(0.0, "running"), (-5000.0, "interrupted")])
def test_a_process_number_used_again_is_not_the_launcher(tmp_path: Path, offset: float, expected: str) -> None:
    created = psutil.Process().create_time() + offset
    values = {"pid": os.getpid(), "host": socket.gethostname(), "pid_create_time": created}
    run = load_run(write_run(tmp_path, config_of(), [0.1] * 3, status="running", status_values=values))
    assert (run.status.status, run.is_result) == (expected, False)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"status": "splendid"}'])
def test_a_status_that_cannot_be_read_is_no_result(tmp_path: Path, content: str) -> None:
    run_dir = write_run(tmp_path, config_of(), [0.1] * 3)
    (run_dir / "status.json").write_text(content)
    run = load_run(run_dir)
    assert not run.is_result
    assert "status.json cannot be read" in run.why_not


def test_a_run_that_failed_before_its_first_record_is_listed(tmp_path: Path) -> None:
    run_dir = tmp_path / "resnet50" / "cpu_O0_bs64" / "eager_x1" / "r"
    run_dir.mkdir(parents=True)
    write_json(run_dir / "config.json", RunConfig(batch_size=64).to_json())
    write_json(run_dir / "status.json", {"status": "failed", "failed_rank": 1, "reason": "no such folder"})
    assert find_runs(tmp_path) == [run_dir]
    run = load_run(run_dir)
    assert (run.arm, run.batch_size, run.why_not) == ("eager", 64, "failed: rank 1: no such folder")


def test_without_records_the_text_log_is_read_and_said(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, config_of(), [0.1] * 5)
    (run_dir / "0" / "metrics.jsonl").unlink()
    run = load_run(run_dir)
    assert run.images_per_s == pytest.approx(640.0)
    assert any("text log" in warning for warning in run.warnings)


def test_tables_have_a_row_per_interval_and_per_run(tmp_path: Path) -> None:
    first = load_run(write_run(tmp_path, config_of(warmup_steps=1), [0.4] + [0.1] * 4, [2.0, math.nan, 1.0, 1.0, 1.0]))
    second = load_run(write_run(tmp_path, config_of(nproc_per_node=2), [0.2] * 3))
    table = intervals_table([first, second])
    assert len(table) == 8
    assert list(table[table.suffix == "eager_x1"].timed) == [False, True, True, True, True]
    assert table.loss.isna().sum() == 1
    assert table[table.suffix == "eager_x2"].images_per_s.tolist() == pytest.approx([640.0] * 3)
    assert table[table.suffix == "eager_x2"].images_per_s_per_rank.tolist() == pytest.approx([320.0] * 3)
    runs = runs_table([first, second])
    assert runs.images_per_s.tolist() == pytest.approx([640.0, 640.0])
    assert runs.num_nonfinite_losses.tolist() == [1, 0]
    assert len(intervals_table([])) == len(runs_table([])) == 0


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="gone"):
        load_run(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match="gone"):
        find_runs(tmp_path / "gone")


def test_reading_back_imports_no_torch() -> None:
    code = (
        "import sys, resnet_acc.plot, resnet_acc.log_parser, resnet_acc.results.report, resnet_acc.results.verdict; "
        "assert not {'torch', 'resnet_acc.training', 'seaborn', 'pandas', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_folder_that_never_came_to_a_run_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    run = load_run(tmp_path)
    assert not run.is_result
    assert "never started" in run.why_not

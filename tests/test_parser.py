"""parse_file on logs as runs leave them: resumed, cut, torn, damaged."""

import math
import string
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_runs import close_logger, log_interval, start_values, write_run

from resnet_acc import logger
from resnet_acc.config import RunConfig
from resnet_acc.log_parser import parse_file
from resnet_acc.results.lines import MAX_LINE
from resnet_acc.results.records import read_records


def config_of(**values: object) -> RunConfig:
    return RunConfig.from_json({"batch_size": 64, "log_interval": 1, "warmup_steps": 0, **values})


def write_log(folder: Path, text: str | bytes) -> Path:
    path = folder / "0" / "log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def metrics_line(step: int, loss: float = 1.5, time_s: float = 0.1, rate: float = 640.0, batch: int = 64) -> str:
    return (
        f"2026-12-01 12:00:00,123 INFO metrics epoch=0 step={step} batch_size={batch} loss={loss:.6f} "
        f"batch_time_s={time_s:.6f} samples_per_s={rate:.3f} peak_mem_gib=5.600\n"
    )


def test_a_first_step_of_60_s_is_shown_apart_and_not_in_the_steady_rate(tmp_path: Path) -> None:
    config = config_of(batch_size=900, warmup_steps=1)
    log = parse_file(write_run(tmp_path, config, [60.0] + [1.219] * 140) / "0" / "log")
    assert log.images_per_s == pytest.approx(900 / 1.219)
    assert (log.steady.steps, log.num_steps, log.first_step_s) == (140, 141, 60.0)


def test_without_a_params_line_the_first_interval_is_warm_up(tmp_path: Path) -> None:
    lines = [metrics_line(1, time_s=60.0, rate=15.0, batch=900)]
    lines += [metrics_line(step, time_s=1.219, rate=900 / 1.219, batch=900) for step in range(2, 142)]
    log = parse_file(write_log(tmp_path, "".join(lines)))
    assert log.images_per_s == pytest.approx(738.31, abs=0.01)
    assert (log.steady.steps, log.num_steps, log.first_step_s, log.attempts) == (140, 141, 60.0, 1)


@pytest.mark.parametrize(("warmup", "timed"), [(20, 0), (9, 1), (0, 10)])
def test_steps_after_warm_up_are_counted_and_none_is_no_rate(tmp_path: Path, warmup: int, timed: int) -> None:
    log = parse_file(write_run(tmp_path, config_of(warmup_steps=warmup), [0.1] * 10) / "0" / "log")
    assert log.steady.steps == timed
    assert log.images_per_s == (pytest.approx(640.0) if timed else None)
    if not timed:
        assert str(log.steady) == "n/a (0 steps after warm-up)"


def test_warm_up_one_step_shorter_than_the_run_leaves_that_step_also_with_long_intervals(tmp_path: Path) -> None:
    log = parse_file(write_run(tmp_path, config_of(warmup_steps=9, log_interval=10), [0.3] * 9 + [0.1]) / "0" / "log")
    assert log.steady.steps == 1
    assert log.images_per_s == pytest.approx(640.0)


def test_a_short_last_interval_weighs_by_its_steps(tmp_path: Path) -> None:
    log = parse_file(write_run(tmp_path, config_of(log_interval=10), [0.1] * 21 + [0.4] * 3) / "0" / "log")
    assert log.images_per_s == pytest.approx(24 * 64 / (21 * 0.1 + 3 * 0.4))


def resumed_log(tmp_path: Path, first_attempt: bool = True, with_params: bool = True, interval: int = 1) -> Path:
    """Steps 0-59, then from a checkpoint at 50 steps 50-99, validation rows between; the last line is cut."""
    config = config_of(log_interval=interval)
    run_dir = tmp_path / "resnet50" / "cpu_O0_bs64" / "eager_x1" / "20261201-115300-000001"
    for attempt, steps in enumerate([range(0, 60), range(50, 100)]):
        if attempt == 0 and not first_attempt:
            continue
        logger.create_logger(run_dir, 0)
        start = start_values(config, attempt=attempt)
        logger.log_record("start", **start)
        if with_params:
            logger.log_params(start)
        for step in steps:
            if interval == 1:
                log_interval(config, step, 1, 0.1, 1.0 + attempt, warmup=False)
            elif (step + 1 - steps[0]) % interval == 0:
                log_interval(config, step + 1, interval, 0.1, 1.0 + attempt, warmup=False)
            if step % 25 == 0:
                values = {"epoch": 0, "step": step // 25, "images": 10, "loss": 9.0, "acc1": 1.0, "acc5": 2.0}
                logger.log_record("validation", **values)
                logger.log_text("validation", values)
        close_logger()
    with open(run_dir / "0" / "log", "a") as stream:
        stream.write(metrics_line(100)[:-9])
    with open(run_dir / "0" / "metrics.jsonl", "a") as stream:
        stream.write('{"schema": 1, "event": "interval", "step": 10')
    return run_dir


@pytest.mark.parametrize("with_params", [True, False])
def test_a_resumed_log_counts_each_step_once_and_no_pause(tmp_path: Path, with_params: bool) -> None:
    log = parse_file(resumed_log(tmp_path, with_params=with_params) / "0" / "log")
    steps = [interval.step for interval in log.intervals]
    assert steps == list(range(100))
    assert [interval.loss for interval in log.intervals] == [1.0] * 50 + [2.0] * 50
    assert (log.attempts, log.repeated_steps, log.unreadable_lines) == (2, 10, 1)
    assert log.images_per_s == pytest.approx(640.0)
    assert {v["loss"] for v in log.validations} == {9.0}


@pytest.mark.parametrize("with_params", [True, False])
def test_only_the_attempt_after_the_restart_is_on_record(tmp_path: Path, with_params: bool) -> None:
    log = parse_file(resumed_log(tmp_path, first_attempt=False, with_params=with_params) / "0" / "log")
    assert [interval.step for interval in log.intervals] == list(range(50, 100))
    assert (log.attempts, log.repeated_steps, log.num_steps) == (1, 0, 50)
    assert log.images_per_s == pytest.approx(640.0)


def test_a_resumed_log_with_ten_steps_a_record(tmp_path: Path) -> None:
    log = parse_file(resumed_log(tmp_path, interval=10) / "0" / "log")
    assert [interval.step for interval in log.intervals] == list(range(10, 101, 10))
    assert (log.num_steps, log.attempts, log.repeated_steps) == (100, 2, 10)
    assert log.images_per_s == pytest.approx(640.0)


def test_an_interval_that_a_later_attempt_repeats_in_part_keeps_its_other_steps(tmp_path: Path) -> None:
    params = "2026-12-01 12:00:00,123 INFO params log_interval=20 batch_size=64 warmup_steps=0\n"
    first = "".join(metrics_line(step) for step in (20, 40, 60))
    log = parse_file(write_log(tmp_path, params + first + params + "".join(metrics_line(s) for s in (70, 90))))
    assert [(i.first, i.step) for i in log.intervals] == [(1, 20), (21, 40), (41, 50), (51, 70), (71, 90)]
    assert log.repeated_steps == 10
    assert log.intervals[2].images == 640


def test_a_half_line_that_a_later_attempt_writes_on_behind_is_counted_and_not_believed(tmp_path: Path) -> None:
    half = metrics_line(2, loss=2.25)[:-4]
    params = "2026-12-01 12:09:00,123 INFO params arm=kernel attempt=1 batch_size=64\n"
    log = parse_file(write_log(tmp_path, metrics_line(1) + half + params + metrics_line(2, loss=3.0)))
    assert [i.loss for i in log.intervals] == [1.5, 3.0]
    assert (log.unreadable_lines, log.arm, log.attempts) == (1, "kernel", 2)


def test_the_same_line_twice_is_one_step(tmp_path: Path) -> None:
    text = "".join(metrics_line(step) * 2 for step in range(1, 6))
    log = parse_file(write_log(tmp_path, text))
    assert (log.num_steps, log.repeated_steps, log.attempts) == (5, 5, 1)


def test_lost_lines_do_not_stretch_the_next_interval(tmp_path: Path) -> None:
    log = parse_file(write_log(tmp_path, "".join(metrics_line(step) for step in (10, 20, 30, 60, 70))))
    assert [i.steps for i in log.intervals] == [10] * 5


def test_processes_follow_from_rate_and_batch_where_nothing_says(tmp_path: Path) -> None:
    text = "".join(metrics_line(step, time_s=0.5, rate=512.0, batch=128) for step in (1, 2, 3))
    log = parse_file(write_log(tmp_path, text))
    assert (log.world_size, log.images_per_s, log.images_per_s_per_rank) == (2, 512.0, 256.0)
    assert any("1 of 2 ranks" in warning for warning in log.warnings)


def test_a_params_value_keeps_its_text(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    logger.create_logger(run_dir, 0)
    given = {"data": "007", "device_name": 'Card "X" = 9', "lr": 1e-3, "torch_xla_version": None, "attempt": 0}
    logger.log_params(given)
    close_logger()
    assert parse_file(run_dir / "0" / "log").params == given


def test_nan_and_inf_come_back(tmp_path: Path) -> None:
    losses = [2.0, 1.0, math.inf, math.nan, math.nan]
    log = parse_file(write_run(tmp_path, config_of(), [0.1] * 5, losses) / "0" / "log")
    assert log.intervals[2].loss == math.inf
    assert math.isnan(log.intervals[4].loss)
    assert (log.finite_losses, log.num_nonfinite_losses, log.mean_finite_loss) == ([2.0, 1.0], 3, 1.5)
    assert log.images_per_s == pytest.approx(640.0)


def test_a_step_that_compiled_after_warm_up_is_not_in_the_rate(tmp_path: Path) -> None:
    note = "2026-12-01 12:00:00,123 INFO compilation step=3 compilations=1\n"
    text = "".join(metrics_line(s, time_s=5.0 if s == 3 else 0.1, rate=12.8 if s == 3 else 640.0) for s in range(1, 6))
    log = parse_file(write_log(tmp_path, text + note))
    assert (log.steady.steps, len(log.compiled)) == (3, 1)
    assert log.images_per_s == pytest.approx(640.0)


def test_a_traceback_is_the_reason_and_its_lines_are_no_damage(tmp_path: Path) -> None:
    error = "2026-12-01 12:00:00,123 ERROR rank 0 failed: out of memory\nTraceback:\n  File x\n\nE: x\n"
    log = parse_file(write_log(tmp_path, metrics_line(1) + error))
    assert (log.status.status, log.status.reason) == ("failed", "rank 0 failed: out of memory")
    assert not log.is_result
    assert log.unreadable_lines == 0


def test_lines_of_another_kind_are_counted(tmp_path: Path) -> None:
    bad = [
        "\0\0\0\0",
        "hello",
        metrics_line(3).replace("loss=1.500000", "loss=1_5").strip(),
        metrics_line(4).replace(" peak_mem_gib=5.600", "").strip(),
        metrics_line(5).replace("step=5", "step=-5").strip(),
        metrics_line(6).replace("step=6", "step=1.5").strip(),
        metrics_line(7).replace("step=7", "step=" + "9" * 500).strip(),
        "x" * (MAX_LINE + 5),
    ]
    log = parse_file(write_log(tmp_path, metrics_line(1) + "\n".join(bad) + "\n" + metrics_line(2)))
    assert [i.step for i in log.intervals] == [1, 2]
    assert log.unreadable_lines == len(bad)


def test_a_log_knows_its_place(tmp_path: Path) -> None:
    path = write_run(tmp_path, config_of(nproc_per_node=2), [0.1] * 3) / "0" / "log"
    log = parse_file(str(path))
    assert (log.path, log.suffix, log.arm, log.world_size, log.model) == (path, "eager_x2", "eager", 2, "resnet50")
    assert (log.tag, log.run_id, log.output) == ("cpu_O0_bs64", "20261201-115300-000001", tmp_path)


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no log at .*nothing"):
        parse_file(tmp_path / "nothing")


_LINES = [metrics_line(1), metrics_line(2, loss=math.nan)]
_WORDS = [*_LINES, "\n", "metrics ", "step=", "params ", '"', "\\", "=", "nan", " INFO "]
_BYTES = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.sampled_from([word.encode() for word in _WORDS]),
        st.text(string.printable, max_size=20).map(str.encode),
    ),
    max_size=20,
).map(b"".join)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bytes")


@settings(max_examples=300, deadline=None)
@given(content=_BYTES)
def test_any_bytes_give_intervals_and_a_count(scratch: Path, content: bytes) -> None:
    log = parse_file(write_log(scratch, content))
    steps = [interval.step for interval in log.intervals]
    assert steps == sorted(set(steps))
    assert log.unreadable_lines >= 0
    _ = (str(log.steady), log.first_step_s, log.startup_s, log.peak_memory_gib, log.images_per_s_per_rank)


_JSON = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.sampled_from(
            [
                b'{"schema": 1, "event": "interval", "loss": null, "nonfinite": {"loss": "nan"}}',
                b"\n",
                b"[" * 3000,
                b"{",
                b"}",
                b'"event":',
                b"NaN",
                b"1" * 5000,
                b"\xef\xbb\xbf",
            ]
        ),
    ),
    max_size=20,
).map(b"".join)


@settings(max_examples=300, deadline=None)
@given(content=_JSON)
def test_any_bytes_give_records_and_a_count(scratch: Path, content: bytes) -> None:
    path = scratch / "metrics.jsonl"
    path.write_bytes(content)
    found = read_records(path)
    assert len(found.records) + found.unreadable_lines <= 2 * (content.count(b"\n") + 1)
    assert all(isinstance(record["event"], str) for record in found.records)


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_file_cut_at_any_byte_gives_a_prefix(scratch: Path, data: st.DataObject) -> None:
    source = scratch / "whole"
    if not source.exists():
        run_dir = write_run(source, config_of(), [0.1] * 12, [2.0, math.nan, *[1.0] * 10])
        (source / "log").write_bytes((run_dir / "0" / "log").read_bytes())
        (source / "metrics.jsonl").write_bytes((run_dir / "0" / "metrics.jsonl").read_bytes())
    text, records = (source / "log").read_bytes(), (source / "metrics.jsonl").read_bytes()
    whole, part = parse_file(source / "log"), write_log(scratch, text[: data.draw(st.integers(0, len(text)))])
    cut = parse_file(part).intervals
    assert repr(cut) == repr(whole.intervals[: len(cut)])
    (scratch / "cut.jsonl").write_bytes(records[: data.draw(st.integers(0, len(records)))])
    found = read_records(scratch / "cut.jsonl")
    assert repr(found.records) == repr(read_records(source / "metrics.jsonl").records[: len(found.records)])
    assert found.unreadable_lines <= 1

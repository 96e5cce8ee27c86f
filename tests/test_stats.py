"""Statistics on numbers that can be checked by hand."""

import math
import random
from pathlib import Path

import pytest
from synthetic_runs import write_run
from test_parser import config_of

from resnet_acc.results import stats
from resnet_acc.results.measured import Interval, Run
from resnet_acc.results.mfu import dense_peak_flops, model_flops_utilisation
from resnet_acc.results.runs import load_run


def run_of(times: list[float], images: float = 64.0, steps: int = 1, **values: object) -> Run:
    """A run of one window per time, `steps` steps and `images` images a step."""
    intervals = [
        Interval(step=(n + 1) * steps, steps=steps, images=images * steps, step_time_s=time, loss=1.0)
        for n, time in enumerate(times)
    ]
    return Run(intervals=intervals, batch_size=int(images), world_size=1, **values)  # type: ignore[arg-type]


def test_a_rate_is_total_over_total_and_never_a_mean_of_rates() -> None:
    run = Run(intervals=[Interval(10, 10, images=640, step_time_s=0.1), Interval(11, 1, images=64, step_time_s=1.0)])
    assert stats.rate_estimate([run]).value == pytest.approx(704 / 2.0)


def test_repeats_are_pooled() -> None:
    assert stats.pooled_rate([run_of([0.1] * 4), run_of([0.3] * 4)]) == pytest.approx(8 * 64 / 1.6)


def test_equal_windows_give_the_exact_ratio_and_an_interval_of_no_width() -> None:
    ratio = stats.ratio_estimate([run_of([0.1] * 10)], [run_of([0.2] * 10)])
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2.0, 2.0, 2.0))
    assert ratio.basis == "10 and 10 intervals"


def test_the_unit_is_the_run_where_both_arms_have_three_repeats_and_the_interval_otherwise() -> None:
    three = [run_of([time] * 5) for time in (0.1, 0.11, 0.12)]
    two = [run_of([time] * 5) for time in (0.2, 0.21)]
    assert stats.ratio_estimate(three, three).basis == "3 and 3 runs"
    assert stats.ratio_estimate(three, two).basis == "15 and 10 intervals"
    assert stats.rate_estimate(three).basis == "3 runs"
    runs, intervals = stats.ratio_estimate(three, three), stats.ratio_estimate(three, two)
    assert runs.low is not None
    assert runs.high is not None
    assert runs.low < 1.0 < runs.high
    assert intervals.low is not None
    assert intervals.low > 1.0


def test_fewer_than_two_intervals_give_no_interval() -> None:
    ratio = stats.ratio_estimate([run_of([0.1])], [run_of([0.2] * 5)])
    assert (ratio.value, ratio.has_interval, ratio.reason) == (pytest.approx(2.0), False, "fewer than 2 intervals")
    nothing = stats.ratio_estimate([run_of([])], [run_of([0.2] * 5)])
    assert (nothing.value, nothing.reason) == (None, "0 steps after warm-up")
    assert stats.rate_estimate([run_of([0.1])]).has_interval is False


def test_the_interval_agrees_with_students_t_on_a_small_sample() -> None:
    times = [0.100, 0.103, 0.098, 0.101, 0.099]
    rate = stats.rate_estimate([run_of(times)])
    mean = sum(times) / 5
    error = math.sqrt(sum((t - mean) ** 2 for t in times) / 4 / 5)
    half = 2.776 * error / mean
    assert rate.low == pytest.approx(64 / mean * math.exp(-half), rel=2e-3)
    assert rate.high == pytest.approx(64 / mean * math.exp(half), rel=2e-3)


@pytest.mark.parametrize(("repeats", "intervals"), [(1, 12), (3, 2)])
def test_nineteen_of_twenty_intervals_hold_the_true_ratio(
    repeats: int, intervals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "NUM_RESAMPLES", 300)
    generator = random.Random(7)
    trials = held = 0
    for _ in range(250):
        arms = [
            [run_of([mean * math.exp(generator.gauss(0, 0.05)) for _ in range(intervals)]) for _ in range(repeats)]
            for mean in (0.1, 0.13)
        ]
        ratio = stats.ratio_estimate(*arms)
        assert ratio.low is not None
        assert ratio.high is not None
        trials += 1
        held += ratio.low <= 1.3 <= ratio.high
    assert 0.91 <= held / trials <= 0.99


def test_break_even() -> None:
    assert stats.break_even_steps(60.0, 0.2, 0.1) == 600
    assert stats.break_even_steps(60.05, 0.2, 0.1) == 601
    assert stats.break_even_steps(60.0, 0.1, 0.1) == math.inf
    assert stats.break_even_steps(60.0, 0.1, 0.2) == math.inf
    assert stats.break_even_steps(-5.0, 0.2, 0.1) == 0


def test_break_even_of_two_arms(tmp_path: Path) -> None:
    config = config_of(warmup_steps=1)
    eager = [load_run(write_run(tmp_path, config, [1.0] + [0.2] * 9, setup_s=4.0))]
    fast = [load_run(write_run(tmp_path, config.with_arm("inductor"), [61.0] + [0.1] * 9, setup_s=4.0))]
    slow = [load_run(write_run(tmp_path, config.with_arm("torchacc"), [61.0] + [0.3] * 9, setup_s=4.0))]
    larger = [load_run(write_run(tmp_path, config_of(batch_size=128, warmup_steps=1), [1.0] + [0.3] * 9))]
    assert stats.arm_break_even(fast, eager) == 600
    assert stats.arm_break_even(slow, eager) == math.inf
    assert stats.arm_break_even(fast, larger) is None
    assert stats.arm_break_even([run_of([0.1] * 5)], [run_of([0.2] * 5)]) is None


def test_scaling_efficiency_is_against_the_smallest_count() -> None:
    assert stats.scaling_efficiency({1: 100.0, 2: 150.0, 8: 800.0}) == pytest.approx({1: 1.0, 2: 0.75, 8: 1.0})
    assert stats.scaling_efficiency({2: 100.0, 4: 100.0}) == pytest.approx({2: 1.0, 4: 0.5})
    assert stats.scaling_efficiency({}) == {}


def losses(values: list[float], **params: object) -> Run:
    intervals = [Interval(n + 1, 1, loss=value, images=64, step_time_s=0.1) for n, value in enumerate(values)]
    return Run(intervals=intervals, batch_size=64, world_size=1, params={"seed": 0, "amp_dtype": "float32", **params})


def test_parity_finds_the_largest_difference_and_where_losses_part() -> None:
    parity = stats.loss_parity(losses([2.0, 1.001, 1.5, 1.0]), losses([2.0, 1.0, 1.0, 1.0, 7.0]))
    assert (parity.num_common, parity.largest, parity.largest_step, parity.parts_at) == (4, 0.5, 3, 3)
    together = stats.loss_parity(losses([2.0, 1.0005]), losses([2.0, 1.0]))
    assert (together.parts_at, together.largest_step) == (None, 2)
    assert together.largest == pytest.approx(5e-4)


def test_parity_is_wider_in_half_precision_and_counts_nan_on_one_side_as_parting() -> None:
    ours, theirs = losses([2.01], amp_dtype="bfloat16"), losses([2.0], amp_dtype="bfloat16")
    assert stats.loss_parity(ours, theirs).parts_at is None
    assert stats.loss_parity(losses([2.01]), losses([2.0])).parts_at == 1
    assert stats.loss_parity(losses([2.0, math.nan]), losses([2.0, 1.0])).parts_at == 2
    assert stats.loss_parity(losses([2.0, math.nan]), losses([2.0, math.nan])).parts_at is None


def test_losses_of_other_settings_are_not_compared() -> None:
    assert "seed" in stats.loss_parity(losses([2.0], seed=1), losses([2.0])).reason
    other = losses([2.0])
    other.world_size = 2
    assert "batches" in stats.loss_parity(other, losses([2.0])).reason
    assert stats.loss_parity(losses([]), losses([2.0])).reason == "no common steps"


def test_mfu_is_against_the_dense_peak_of_a_known_card() -> None:
    assert model_flops_utilisation(24.3e9, 6000.0, "NVIDIA H200", "bfloat16") == pytest.approx(24.3e9 * 6000 / 989e12)
    assert model_flops_utilisation(24.3e9, 6000.0, "Intel(R) Xeon(R)", "bfloat16") is None
    assert model_flops_utilisation(None, 6000.0, "NVIDIA H200", "bfloat16") is None
    assert model_flops_utilisation(24.3e9, None, "NVIDIA H200", "bfloat16") is None
    assert dense_peak_flops("Tesla V100-SXM2-16GB", "float16") == 125e12
    assert dense_peak_flops("Tesla V100-SXM2-16GB", "bfloat16") is None
    assert dense_peak_flops("NVIDIA A100-SXM4-80GB", "bfloat16") == 312e12
    for unknown in ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "NVIDIA A10G", "NVIDIA L40", "NVIDIA H200 NVL", "", "None"):
        assert dense_peak_flops(unknown, "float16") is None

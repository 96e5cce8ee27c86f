"""What notebook 01 says of break-even and MFU, in tables and in plain words, from runs with chosen numbers."""

from pathlib import Path

import pytest
from synthetic_runs import write_run

from resnet_acc.config import RunConfig
from resnet_acc.results.break_even import IMAGENET_IMAGES, base_row, break_even, duration_words
from resnet_acc.results.measured import Run
from resnet_acc.results.mfu import why_no_peak
from resnet_acc.results.runs import load_run
from resnet_acc.results.summary import group_runs, summarise
from resnet_acc.results.tables import break_even_table, mfu_table
from resnet_acc.results.verdict import busy_words, verdict

H200 = {"device": "cuda", "device_name": "NVIDIA H200", "amp_dtype": "float16", "flops_per_image": 24e9}
CONFIG = RunConfig(batch_size=128, log_interval=5, data="synthetic", amp_level="O1")


def write_arm(
    output: Path, arm: str, step_s: float, startup_s: float, repeats: int = 3, params: dict = H200
) -> list[Run]:
    """Repeats whose steps all take step_s (within a thousandth) and whose first step ends startup_s after the start."""
    runs = []
    for number in range(repeats):
        times = [step_s * (1 + 0.001 * (number - 1))] * 20
        name = f"20261201-115300-{number:06}"
        setup_s = startup_s - times[0]
        folder = write_run(output, CONFIG.with_arm(arm), times, run_id=name, setup_s=setup_s, params=params)
        runs.append(load_run(folder))
    return runs


def test_break_even_is_what_a_hand_works_out(tmp_path: Path) -> None:
    """40 s more start-up, 40 ms less a step: 1,000 steps, 45 s + 1,000 x 0.16 s after the start."""
    runs = write_arm(tmp_path, "eager", 0.200, 5.0) + write_arm(tmp_path, "torchacc", 0.160, 45.0)
    eager, torchacc = summarise(group_runs(runs))
    point = break_even(torchacc, eager)
    assert point is not None
    assert point.extra_s == pytest.approx(40.0, abs=1e-6)
    assert point.steps == pytest.approx(1000, abs=1)
    assert point.low_steps < point.steps < point.high_steps
    assert point.seconds == pytest.approx(205.0, abs=0.2)
    assert point.imagenet_epochs == pytest.approx(1000 * 128 / IMAGENET_IMAGES, rel=2e-3)
    table = break_even_table(group_runs(runs)).set_index("arm")
    assert table.loc["torchacc", "break-even steps"].replace(",", "") in ("999", "1000", "1001")
    assert table.loc["torchacc", "against"] == "eager"
    assert (table.loc["torchacc", "step ms"], table.loc["torchacc", "its step ms"]) == ("160.00", "200.00")
    text = verdict(runs)
    assert "1.25 times as many" in text
    assert "It starts 40 s later (it has to compile first) and has caught up after" in text
    assert "paid back after" in text


def test_a_slower_arm_never_pays_and_one_that_starts_sooner_always_does(tmp_path: Path) -> None:
    runs = write_arm(tmp_path, "eager", 0.100, 5.0)
    runs += write_arm(tmp_path, "torchacc", 0.200, 45.0) + write_arm(tmp_path, "kernel", 0.080, 4.0)
    table = break_even_table(group_runs(runs)).set_index(["arm", "against"])
    assert table.loc[("torchacc", "eager"), "break-even steps"] == "never"
    assert table.loc[("kernel", "eager"), "break-even steps"] == "0"
    text = verdict(runs)
    assert "The XLA compiler (torchacc) is slower here, at 0.50 times its speed." in text
    assert "It starts no later than plain PyTorch" in text
    assert "which is never paid back" in text
    rows = summarise(group_runs(runs))
    assert base_row(rows[0], rows, "eager") is None


def test_a_gain_that_is_not_shown_is_marked_and_not_claimed(tmp_path: Path) -> None:
    runs = write_arm(tmp_path, "eager", 0.1000, 5.0) + write_arm(tmp_path, "inductor", 0.0999, 25.0)
    table = break_even_table(group_runs(runs))
    assert table["break-even steps"].tolist()[0].startswith("~")
    text = verdict(runs)
    assert "These runs show no gain over it by any other way to train: stay with plain PyTorch." in text
    assert "these runs show no difference from plain PyTorch" in text
    assert "no gain is shown that could pay it back" in text


def test_mfu_is_worked_out_from_the_peak_or_the_reason_is_given(tmp_path: Path) -> None:
    """128 images in 0.1 s, 24 GFLOP each: 30.72 TFLOP/s of 989, which is 3.1 %."""
    row = mfu_table(group_runs(write_arm(tmp_path / "gpu", "eager", 0.1, 5.0))).iloc[0]
    assert (row["reached TFLOP/s"], row["peak TFLOP/s"], row["MFU"], row["why not"]) == ("30.72", "989", "3.1 %", "")
    cpu = H200 | {"device": "cpu", "device_name": "AMD EPYC", "amp_dtype": "bfloat16"}
    runs = write_arm(tmp_path / "cpu", "eager", 0.1, 5.0, params=cpu)
    row = mfu_table(group_runs(runs)).iloc[0]
    assert row["MFU"] == "n/a"
    assert "no data sheet gives a peak" in row["why not"]
    assert "(MFU) cannot be said: it was measured on a CPU" in verdict(runs)
    assert "slice of a card" in why_no_peak("cuda", "NVIDIA A100-SXM4-80GB MIG 1g.10gb", "float16")
    assert "only for float32 and float16" in why_no_peak("cuda", "Tesla V100-SXM2-16GB", "bfloat16")
    assert "not in this package's table" in why_no_peak("cuda", "NVIDIA B999", "float16")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(2.5, "2.5 s"), (99.0, "99 s"), (192.0, "3.2 minutes"), (5040.0, "84 minutes"), (36_000.0, "10 hours")],
)
def test_durations_are_words(seconds: float, words: str) -> None:
    assert duration_words(seconds) == words


def test_long_durations_are_days() -> None:
    assert duration_words(12.5 * 86400) == "12.5 days"


def test_a_busy_machine_is_named() -> None:
    assert busy_words({"cores": 0.2, "of_cores": 2, "gpu_percent": []}, 2) == ""
    assert busy_words({"cores": 1.5, "of_cores": 2, "gpu_percent": []}, 2).startswith("1.5 of its 2 cores")
    assert busy_words({"cores": 100.0, "of_cores": 128, "gpu_percent": [0, 3]}, 16) == ""
    assert busy_words({"cores": 0.0, "of_cores": 2, "gpu_percent": [0, 80]}, 2) == "a GPU was in use 80 % of the time"
    assert busy_words({}, None) == ""

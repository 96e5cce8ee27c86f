"""The report, the comparison and the verdict of chosen runs."""

import csv
import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import write_run
from test_parser import config_of
from typer.testing import CliRunner

from resnet_acc import cli
from resnet_acc.config import ARMS
from resnet_acc.files import write_json
from resnet_acc.results.report import write_comparison, write_report
from resnet_acc.results.runs import find_runs, load_run
from resnet_acc.results.verdict import NO_DIFFERENCE, verdict


class Page(HTMLParser):
    """Tags, their targets and the text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.sources: list[str] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def write_four(output: Path, **values: object) -> None:
    """Three interleaved repeats of each arm: kernel twice as fast as eager, inductor as kernel, torchacc slower."""
    times = {"eager": 0.2, "kernel": 0.1, "inductor": 0.1, "torchacc": 0.4}
    first = {"eager": 1.0, "kernel": 1.0, "inductor": 31.0, "torchacc": 11.0}
    begin = 0
    for repeat in range(3):
        for arm in ARMS if repeat % 2 == 0 else reversed(ARMS):
            begin += 100
            config = config_of(warmup_steps=1, **values).with_arm(arm)
            factor = 1.0 + 0.01 * (repeat - 1) * (-1 if arm == "inductor" else 1)
            write_run(
                output,
                config,
                [first[arm]] + [times[arm] * factor] * 9,
                run_id=f"r{repeat}",
                started_at=1.79e9 + begin,
                validation={"images": 100, "loss": 1.0, "acc1": 41.0, "acc5": 88.0},
            )


def test_a_report_says_every_number_and_embeds_its_figures(tmp_path: Path) -> None:
    write_four(tmp_path / "output")
    report = write_report(find_runs(tmp_path / "output"), tmp_path / "report", "Four arms")
    page = Page(report.html)
    assert report.html.stat().st_size < 3_000_000
    assert page.sources
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    for text in (
        "Four arms",
        "320.0 [",
        "2.000 [",
        "0.500 [",
        "3 and 3 runs",
        "41.00",
        "300 / ~never",
        "never / never",
        "interleaved",
        "--compiler-opt",
        "torch_version",
        "n/a",
        "64 images per process, 64 in all",
    ):
        assert text in page.text, text
    assert {path.name for path in report.figures} >= {"throughput.png", "throughput.svg", "loss.png", "memory.svg"}
    with open(report.table, encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["arm"] for row in rows] == list(ARMS)
    assert float(rows[2]["ratio_to_eager"]) == pytest.approx(2.0, rel=1e-3)
    assert rows[2]["break_even_steps_eager"] == "300"
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert [row["runs"] for row in summary["rows"]] == [3, 3, 3, 3]
    assert summary["interleaved"] is True


def test_names_stay_text(tmp_path: Path) -> None:
    run_dir = write_run(
        tmp_path,
        config_of(),
        [0.1] * 5,
        status_values={"warnings": ["<img src=x onerror=alert(1)>"]},
        params={"arm": "<script>a()</script>", "model": "<script>b()</script>", "device_name": "<b>"},
    )
    report = write_report([run_dir], tmp_path / "report", "<script>c()</script>")
    page = Page(report.html)
    assert "script" not in page.tags
    assert "b" not in page.tags
    assert "<script>a()</script>" in page.text
    words = verdict([load_run(run_dir)])
    assert "<script>" not in words
    assert "<img" not in words


def test_runs_that_did_not_finish_stand_apart_with_the_reason(tmp_path: Path) -> None:
    good = write_run(tmp_path, config_of(), [0.1] * 5)
    bad = write_run(
        tmp_path,
        config_of().with_arm("kernel"),
        [0.1] * 5,
        status="failed",
        status_values={"reason": "out of memory", "failed_rank": 0, "last_lines": ["E: cannot allocate"]},
    )
    report = write_report([good, bad], tmp_path / "report", "t")
    summary = json.loads((tmp_path / "report" / "summary.json").read_text())
    assert [row["arm"] for row in summary["rows"]] == ["eager"]
    assert summary["left_out"][0]["reason"] == "rank 0: out of memory"
    assert "cannot allocate" in Page(report.html).text


def test_runs_without_finite_losses_or_rate_make_a_report(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path, config_of(), [0.1] * 5, [math.nan] * 5),
        write_run(tmp_path, config_of(warmup_steps=9).with_arm("kernel"), [0.1] * 5),
    ]
    page = Page(write_report(runs, tmp_path / "report", "t").html)
    assert "n/a (0 steps after warm-up)" in page.text
    assert "loss not finite in 5 of 5 records" in page.text
    empty = Page(write_report([], tmp_path / "empty", "t").html)
    assert "no run finished" in empty.text


def test_absurd_numbers_of_a_damaged_record_are_not_believed(tmp_path: Path) -> None:
    damaged = {"images": 1e300, "step_time_s": 1e-320, "peak_memory_gib": 1e300, "loss": 1e300}
    run_dirs = []
    for name, value in damaged.items():
        run_dirs.append(write_run(tmp_path, config_of(), [0.1] * 5, run_id=name))
        with open(run_dirs[-1] / "0" / "metrics.jsonl", "a", encoding="utf-8") as stream:
            record = {"event": "interval", "step": 6, "steps": 1, "images": 64, "step_time_s": 0.1, "warmup": False}
            stream.write(json.dumps({**record, name: value}) + "\n")
        run = load_run(run_dirs[-1])
        assert run.images_per_s == pytest.approx(640.0)
        assert run.peak_memory_gib == 1.5
    assert "640.0 [640.0, 640.0]" in Page(write_report(run_dirs, tmp_path / "report", "t").html).text


def test_a_comparison_lists_what_was_skipped_and_lost(tmp_path: Path) -> None:
    output = tmp_path / "output"
    run_dir = write_run(output, config_of(), [0.1] * 5)
    folder = output / "comparisons" / "c1"
    folder.mkdir(parents=True)
    entry = {"run_dir": str(run_dir.relative_to(output)), "arm": "eager", "nproc": 1, "repeat": 0, "status": "finished"}
    lost = {"run_dir": "resnet50/x/kernel_x1/gone", "arm": "kernel", "nproc": 1, "repeat": 0, "status": "finished"}
    write_json(
        folder / "comparison.json",
        {
            "schema": 1,
            "id": "c1",
            "command": "resnet-acc compare --arms eager,kernel",
            "arms": ["eager", "kernel"],
            "runs": [entry, lost],
            "skipped": [{"arm": "torchacc", "nproc": 2, "reason": "no torch_xla; install it"}],
        },
    )
    report = write_comparison(folder)
    assert report.html == folder / "report.html"
    page = Page(report.html)
    for text in (
        "Comparison c1",
        "torchacc, 2 processes",
        "no torch_xla; install it",
        "its folder is missing",
        "resnet-acc compare --arms eager,kernel",
        "640.0",
    ):
        assert text in page.text, text


def test_a_folder_without_a_comparison_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="comparison.json"):
        write_comparison(tmp_path)
    (tmp_path / "comparison.json").write_text("[]")
    with pytest.raises(ValueError, match="holds no comparison"):
        write_comparison(tmp_path)


def test_the_verdict_names_slower_faster_and_no_difference(tmp_path: Path) -> None:
    write_four(tmp_path)
    lines = verdict([load_run(run) for run in find_runs(tmp_path)]).splitlines()

    def line(begin: str) -> str:
        return next(text for text in lines if text.startswith(f"- {begin}"))

    assert line("kernel against eager").startswith("- kernel against eager: faster (2.000 times")
    assert line("torchacc against eager").startswith("- torchacc against eager: slower (0.500 times")
    assert line("torchacc against kernel").startswith("- torchacc against kernel: slower (0.250 times")
    assert NO_DIFFERENCE in line("inductor against kernel")
    assert "paid back after 300 steps" in line("inductor against eager: start-up")
    assert "no gain is shown" in line("inductor against kernel: start-up")
    assert "never paid back" in line("torchacc against eager: start-up")
    assert any("losses lie together" in text for text in lines)
    assert any("Measured on a CPU" in text for text in lines)
    assert not any("single run" in text or "take turns" in text for text in lines)


def test_the_verdict_warns_of_single_runs_in_a_row_and_missing_baselines(tmp_path: Path) -> None:
    for number, (arm, repeat) in enumerate([("kernel", 0), ("kernel", 1), ("torchacc", 0), ("torchacc", 1)]):
        write_run(tmp_path, config_of().with_arm(arm), [0.1] * 5, run_id=f"r{repeat}", started_at=1e9 + number)
    words = verdict([load_run(run) for run in find_runs(tmp_path)])
    assert "did not take turns" in words
    assert "No eager run" in words
    single = verdict([load_run(find_runs(tmp_path)[0])])
    assert "single run each of kernel, 1 process" in single


def test_without_an_interval_nothing_is_claimed(tmp_path: Path) -> None:
    times = {"eager": 0.2, "kernel": 0.1}
    runs = [load_run(write_run(tmp_path, config_of().with_arm(arm), [time])) for arm, time in times.items()]
    words = verdict(runs)
    assert "without a confidence interval (fewer than 2 intervals), so nothing is claimed" in words
    assert "faster" not in words


def test_losses_that_part_are_said_with_their_step(tmp_path: Path) -> None:
    runs = [
        load_run(write_run(tmp_path, config_of(), [0.1] * 4, [2.0, 1.5, 1.2, 1.0])),
        load_run(write_run(tmp_path, config_of().with_arm("kernel"), [0.1] * 4, [2.0, 1.5, 1.3, 1.1])),
    ]
    assert "the losses part at step 3" in verdict(runs)


def test_no_finished_run_is_said() -> None:
    assert "Nothing was measured" in verdict([])


def invoke(*arguments: str | Path) -> Any:
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments])


def test_report_takes_any_set_of_runs_once_each(tmp_path: Path) -> None:
    output = tmp_path / "output"
    write_four(output)
    bad = {"reason": "out of memory", "failed_rank": 0}
    run_dir = write_run(output, config_of(), [0.1] * 5, run_id="bad", status="failed", status_values=bad)
    half = run_dir.parent / "half"
    half.mkdir()
    done = invoke("report", output / "*" / "*" / "eager_x1", run_dir, "r1", "--output", output, "--to", tmp_path / "to")
    assert done.exit_code == 2
    assert "'r1' could be 4 runs" in done.output
    given = (output / "*" / "*" / "eager_x1", run_dir, output / "*" / "*" / "kernel_x1" / "r1")
    done = invoke("report", *given, "--to", tmp_path / "to")
    assert done.exit_code == 0, done.output
    assert "not in the results: eager, 1 process, run bad (failed): rank 0: out of memory" in done.output
    summary = json.loads((tmp_path / "to" / "summary.json").read_text())
    assert [(row["arm"], row["runs"]) for row in summary["rows"]] == [("eager", 3), ("kernel", 1)]
    assert "out of memory" in Page(tmp_path / "to" / "report.html").text
    done = invoke("report", "--output", output)
    assert done.exit_code == 0, done.output
    assert f"report: {output / 'reports' / 'report.html'}" in done.output
    assert f"{half} (left out): it holds no config.json" in done.output


def test_a_comparison_and_runs_make_one_report_or_each_its_own(tmp_path: Path) -> None:
    output = tmp_path / "output"
    write_four(output)
    first = find_runs(output)[0]
    folder = output / "comparisons" / "c1"
    folder.mkdir(parents=True)
    entry = {"run_dir": str(first.relative_to(output)), "arm": "eager", "nproc": 1, "status": "finished"}
    skipped = [{"arm": "torchacc", "nproc": 2, "reason": "no torch_xla; install it"}]
    write_json(folder / "comparison.json", {"schema": 1, "id": "c1", "runs": [entry], "skipped": skipped})
    done = invoke("report", "c1", first.parent, "--output", output, "--to", tmp_path / "to")
    assert done.exit_code == 0, done.output
    assert "torchacc, 2 processes (skipped): no torch_xla" in done.output
    summary = json.loads((tmp_path / "to" / "summary.json").read_text())
    assert [(row["arm"], row["runs"]) for row in summary["rows"]] == [("eager", 3)]
    assert not (folder / "report.html").exists()
    done = invoke("report", "c1", first, "--output", output)
    assert done.output.count("report: ") == 2
    assert (folder / "report.html").is_file()
    assert (output / "reports" / "report.html").is_file()


def test_a_page_of_very_many_runs_stays_small_and_says_what_it_left_out(tmp_path: Path) -> None:
    good = write_run(tmp_path / "output", config_of(), [0.1] * 5)
    told = {"reason": "r" * 4_000, "last_lines": ["<&>" * 1_000] * 3, "failed_rank": 0}
    bad = write_run(tmp_path / "output", config_of(), [], run_id="bad", status="failed", status_values=told)
    report = write_report([good] + [bad] * 400, tmp_path / "report", "Many")
    page = Page(report.html)
    assert report.html.stat().st_size < 3_000_000
    assert "Left out, so that this page stays small" in page.text
    assert "left out: 100 of 400 entries" in page.text or "left out: 340 of 400 entries" in page.text
    assert "640.0 [" in page.text
    assert len(json.loads((tmp_path / "report" / "summary.json").read_text())["left_out"]) == 400
    small = Page(write_report([good], tmp_path / "small", "One").html)
    assert "Left out" not in small.text

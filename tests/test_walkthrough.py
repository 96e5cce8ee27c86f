"""What notebook 01 calls: which runs are made, and that one which fails costs the others nothing."""

import json
from pathlib import Path

import pytest
from synthetic_runs import write_run

from resnet_acc import walkthrough
from resnet_acc.config import RunConfig
from resnet_acc.launch.supervisor import RunFailed
from resnet_acc.walkthrough import Walkthrough

ENVIRONMENT = {
    "torch": "2.9.1",
    "torchvision": "0.24.1",
    "torch_xla": "2.9.0",
    "torchacc": None,
    "cxx_compiler": None,
    "python_headers": True,
    "cuda": {"available": False, "count": 0, "names": []},
    "errors": {},
}


@pytest.fixture
def walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Walkthrough:
    """A walkthrough on a CPU without a C++ compiler, whose kernel arm fails."""

    def launch_cell(config: RunConfig) -> Path:
        if config.arm == "kernel":
            raise RunFailed({"status": "failed", "reason": "rank 0 failed: a reason"}, None)
        return write_run(Path(config.output), config, [0.1] * 12)

    monkeypatch.setattr(walkthrough, "launch_cell", launch_cell)
    monkeypatch.setattr(walkthrough.preflight, "probe", lambda: ENVIRONMENT)
    monkeypatch.setattr(walkthrough.preflight, "check", check)
    return Walkthrough(
        {"preset": "quick", "arms": "eager,kernel,inductor", "processes": None, "repeats": 1, "output": str(tmp_path)}
    )


def check(config: RunConfig, environment: dict) -> None:
    reason = walkthrough.preflight.runnable_arms(environment, "cpu")[config.arm]
    if reason is not None:
        raise ValueError(reason)


def test_a_failed_run_costs_the_others_nothing_and_fails_the_report(
    walk: Walkthrough, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arm in ("eager", "kernel", "inductor", "torchacc"):
        walk.launch(arm, 1)
    assert "torchacc x 1 was not asked for" in capsys.readouterr().out
    with pytest.raises(RuntimeError, match="1 of 2 runs failed: kernel x 1"):
        walk.report()
    (path,) = (tmp_path / "comparisons").glob("*/comparison.json")
    comparison = json.loads(path.read_text())
    assert [(run["arm"], run["status"]) for run in comparison["runs"]] == [("eager", "finished"), ("kernel", "failed")]
    assert [skipped["arm"] for skipped in comparison["skipped"]] == ["inductor"]
    page = (path.parent / "report.html").read_text()
    assert "cxx_compiler" in page
    assert "eager: 160.0" in walk.verdict()


def test_break_even_use_of_the_card_and_verdict_come_from_the_runs(walk: Walkthrough) -> None:
    assert walk.break_even().empty
    assert "Nothing was measured" in walk.verdict()
    walk.arms = ("eager", "torchacc")
    for arm in ("eager", "torchacc"):
        walk.launch(arm, 1)
    table = walk.break_even()
    assert list(zip(table["arm"], table["against"], strict=True)) == [("torchacc", "eager")]
    assert table.loc[0, "break-even steps"] == "~never"  # both take 0.1 s a step: no gain, and none shown
    used = walk.mfu()
    assert used["arm"].tolist() == ["eager", "torchacc"]
    assert used["GFLOP per image"].tolist() == ["24.00", "24.00"]
    assert all("CPU" in reason for reason in used["why not"])
    text = walk.verdict()
    assert "In short: resnet18" in text
    assert "show no gain over it" in text
    assert "Measured on a CPU" in text


def test_process_counts_follow_the_devices_or_the_reader(walk: Walkthrough, tmp_path: Path) -> None:
    assert walk.process_counts == [1, 2]
    values = {"preset": "quick", "arms": "eager", "repeats": 1, "output": str(tmp_path)}
    assert Walkthrough({**values, "processes": 3}).process_counts == [3]
    assert Walkthrough({**values, "processes": "4,1"}).process_counts == [1, 4]


def test_one_process_is_not_run_twice(walk: Walkthrough, capsys: pytest.CaptureFixture[str]) -> None:
    walk.process_counts = [1]
    walk.launch("eager", 1)
    walk.launch_several("eager")
    assert "see above" in capsys.readouterr().out
    assert len(walk._entries) == 1

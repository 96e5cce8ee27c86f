"""The loop: when it waits for the device, what it counts, and what it writes."""

import json
import math
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from resnet_acc.config import RunConfig
from resnet_acc.logger import create_logger
from resnet_acc.training.accelerators.base import Accelerator
from resnet_acc.training.accelerators.eager import EagerAccelerator, KeptSteps, KernelAccelerator
from resnet_acc.training.data import TrainingData
from resnet_acc.training.distributed import HostGroup, Place
from resnet_acc.training.loop import NONFINITE_LIMIT, Loop, NonFiniteLoss
from resnet_acc.training.model import TOTALS, add_to_totals

ALONE = Place(rank=0, local_rank=0, world_size=1)
PAID_AT_SYNC_S = 0.02


class QueuedDevice(Accelerator):
    """A device that returns from each step at once and pays for all of them when it is waited for."""

    losses: list[float] | None = None

    def setup(self) -> None:
        self.device = torch.device("cpu")
        self.queued, self.waits = 0, []

    def prepare(self, model: nn.Module) -> None:
        self.model = model

    def train_step(self, images: torch.Tensor, target: torch.Tensor) -> None:
        loss = 2.0 if self.losses is None else self.losses.pop(0)
        output = nn.functional.one_hot(target, 1000).float()  # every image is right
        self.add_totals(output, target, torch.tensor(loss))
        self.queued += 1

    def finish(self) -> None:
        time.sleep(self.queued * PAID_AT_SYNC_S)
        self.waits.append(self.queued)
        self.queued = 0

    def peak_memory_gib(self) -> float:
        return 1.5


def records(folder: Path, event: str) -> list[dict]:
    lines = (folder / "0" / "metrics.jsonl").read_text().splitlines()

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is no JSON")

    return [r for r in (json.loads(line, parse_constant=refuse) for line in lines) if r["event"] == event]


def run_queued(tmp_path: Path, losses: list[float] | None = None, **values) -> QueuedDevice:
    config = RunConfig(**{"data": "synthetic", "image_size": 32, "batch_size": 4, **values})
    accelerator = QueuedDevice(config, ALONE, "cpu")
    accelerator.losses = losses
    accelerator.setup()
    accelerator.prepare(nn.Identity())
    create_logger(tmp_path, 0)
    Loop(config, accelerator, TrainingData(config, ALONE, "cpu"), time.time(), Path("unused")).run()
    return accelerator


def test_waits_only_at_the_edges_and_counts_what_is_paid_there(tmp_path: Path) -> None:
    accelerator = run_queued(tmp_path, max_steps=13, warmup_steps=3, log_interval=4)
    # Before step 1; after it; at the end of warm-up; then every four steps; and the last two.
    assert [queued for queued in accelerator.waits if queued] == [1, 2, 4, 4, 2]
    intervals = records(tmp_path, "interval")
    assert [(r["step"], r["steps"], r["warmup"]) for r in intervals] == [
        (1, 1, True), (3, 2, True), (7, 4, False), (11, 4, False), (13, 2, False)
    ]  # fmt: skip
    for record in intervals:
        assert record["step_time_s"] >= PAID_AT_SYNC_S
        assert record["images_per_s"] <= 4 / PAID_AT_SYNC_S
        assert record["images_per_s"] == pytest.approx(record["images"] / (record["step_time_s"] * record["steps"]))
        assert record["images"] == 4 * record["steps"]
        assert (record["acc1"], record["acc5"], record["loss"]) == (100.0, 100.0, 2.0)
    (end,) = records(tmp_path, "end")
    assert (end["step"], end["images"]) == (13, 40)
    assert end["seconds"] == pytest.approx(sum(r["step_time_s"] * r["steps"] for r in intervals if not r["warmup"]))


def test_reads_back_once_an_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = {"item": 0, "tolist": 0}
    for name in reads:
        original = getattr(torch.Tensor, name)

        def counted(tensor, *args, _name=name, _original=original):
            reads[_name] += 1
            return _original(tensor, *args)

        monkeypatch.setattr(torch.Tensor, name, counted)
    run_queued(tmp_path, max_steps=40, warmup_steps=10, log_interval=10)
    assert len(records(tmp_path, "interval")) == 5
    assert reads == {"item": 0, "tolist": 5}


def test_the_cap_on_steps_counts_executed_steps(tmp_path: Path) -> None:
    run_queued(tmp_path, max_steps=10, warmup_steps=9, log_interval=100)
    intervals = records(tmp_path, "interval")
    assert sum(r["steps"] for r in intervals if not r["warmup"]) == 1
    assert sum(r["steps"] for r in intervals) == 10


def test_nonfinite_losses_are_written_and_a_lasting_one_stops(tmp_path: Path) -> None:
    losses = [2.0, 1.0, math.inf, 3.0] + [math.nan] * 100
    with pytest.raises(NonFiniteLoss, match="since step 5 "):
        run_queued(tmp_path, losses, max_steps=100, warmup_steps=1, log_interval=1)
    intervals = records(tmp_path, "interval")
    assert len(intervals) == 4 + NONFINITE_LIMIT
    assert [r["loss"] for r in intervals[:5]] == [2.0, 1.0, None, 3.0, None]
    assert [r.get("nonfinite", {}).get("loss") for r in intervals[:5]] == [None, None, "inf", None, "nan"]
    assert [r["nonfinite_steps"] for r in intervals[:5]] == [0, 0, 1, 0, 1]


def test_a_short_run_that_ends_on_nan_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLoss, match="since step 3 "):
        run_queued(tmp_path, [2.0, 1.0] + [math.nan] * 6, max_steps=8, warmup_steps=1, log_interval=4)
    assert records(tmp_path, "end") == []


@pytest.mark.parametrize("arm", [EagerAccelerator, KernelAccelerator])
def test_an_overflow_is_skipped_counted_and_scaled_down(tmp_path: Path, arm: type[EagerAccelerator]) -> None:
    config = RunConfig(
        data="synthetic", model="resnet18", image_size=32, batch_size=2, amp_level="O1", amp_dtype="float16",
        max_steps=3, warmup_steps=1, log_interval=1, lr=1e-3, kernel_opt=arm is KernelAccelerator,
    )  # fmt: skip
    accelerator = arm(config, ALONE, "cpu")
    accelerator.setup()
    torch.manual_seed(0)
    # Plain layers: BatchNorm would keep the inf of step 0 in its running statistics.
    accelerator.prepare(nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 1000)))
    weights, steps = [accelerator.inner_model()[2].weight.detach().clone()], []
    original = accelerator.train_step

    def train_step(images: torch.Tensor, target: torch.Tensor) -> None:
        original(torch.full_like(images, math.inf) if not steps else images, target)
        steps.append(1)
        weights.append(accelerator.inner_model()[2].weight.detach().clone())

    accelerator.train_step = train_step  # type: ignore[method-assign]
    create_logger(tmp_path, 0)
    Loop(config, accelerator, TrainingData(config, ALONE, "cpu"), time.time(), Path("unused")).run()
    intervals = records(tmp_path, "interval")
    assert [r["loss_scale"] for r in intervals] == [32768.0, 32768.0, 32768.0]
    assert [r["skipped_steps"] for r in intervals] == [1, 0, 0]
    assert intervals[0]["loss"] is None
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    assert not torch.equal(weights[2], weights[3])
    assert records(tmp_path, "end")[0]["skipped_steps"] == 1


@pytest.mark.parametrize("steps", [3, KeptSteps.LONGEST, 2 * KeptSteps.LONGEST + 5])
def test_totals_counted_together_are_those_counted_step_by_step(steps: int) -> None:
    torch.manual_seed(0)
    kept, totals = KeptSteps(2.0), torch.tensor([0.0] * 5 + [2.0])
    for step in range(steps):
        output, target = torch.randn(4, 7), torch.randint(0, 7, (4,))
        loss = torch.tensor(math.nan if step in (0, 1, steps - 1) else float(step))
        skipped = torch.tensor(float(step % 2))
        kept.add(output, target, loss, skipped)
        totals = add_to_totals(totals, output, target, loss, skipped)
    read = kept.read()
    assert list(read) == list(TOTALS)
    assert list(read.values()) == pytest.approx(totals.tolist(), nan_ok=True)
    assert read["nonfinite_streak"] == (5.0 if steps == 3 else 1.0)
    assert read["skipped_steps"] == steps // 2


def test_eager_reads_back_once_an_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig(data="synthetic", image_size=32, batch_size=2, max_steps=12, warmup_steps=4, log_interval=4)
    accelerator = EagerAccelerator(config, ALONE, "cpu")
    accelerator.setup()
    accelerator.prepare(nn.Sequential(nn.Flatten(), nn.Linear(3072, 1000)))
    monkeypatch.setattr(accelerator.optimizer, "step", lambda: None)  # AdamW's own, on a CPU, reads its step count
    reads = []
    for name in ("item", "tolist", "__float__", "__bool__"):
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda t, _o=original, _n=name: (reads.append(_n), _o(t))[1])
    create_logger(tmp_path, 0)
    Loop(config, accelerator, TrainingData(config, ALONE, "cpu"), time.time(), Path("unused")).run()
    assert len(records(tmp_path, "interval")) == 4
    assert reads == ["tolist"] * 4


def test_buffers_are_exchanged_in_their_own_order(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ranks that exchange dtypes in different orders receive one another's numbers as something else, or end.
    sent: list[tuple[torch.dtype, int]] = []
    monkeypatch.setattr(dist, "broadcast", lambda flat, src, group: sent.append((flat.dtype, flat.numel())))
    group = HostGroup()
    group.world_size = 2
    group.broadcast_(
        [torch.zeros(3, dtype=dtype) for dtype in (torch.int64, torch.float32, torch.float64, torch.int64)]
    )
    assert sent == [(torch.int64, 6), (torch.float32, 3), (torch.float64, 3)]

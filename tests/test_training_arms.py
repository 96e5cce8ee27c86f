"""The arms against each other: the same losses, the same gradients on any number of processes, the same scores."""

import shutil
from pathlib import Path

import pytest
import torch
from PIL import Image
from torchrun import torchrun, train

from resnet_acc.config import ARMS, RunConfig

no_cxx_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
ARM_PARAMETERS = [pytest.param(arm, marks=[no_cxx_compiler] if arm == "inductor" else []) for arm in ARMS]


def write_images(root: Path, classes: int, train_each: int, val_each: int) -> Path:
    """A folder of small JPEGs, each class of one colour with one stripe that differs between images."""
    for split, count in (("train", train_each), ("val", val_each)):
        for number in range(classes):
            folder = root / split / f"n{number:08d}"
            folder.mkdir(parents=True)
            for index in range(count):
                image = Image.new("RGB", (40, 36), (25 * number, 255 - 25 * number, 90))
                image.paste((255, 255, 255), (index % 30, 0, index % 30 + 4, 36))
                image.save(folder / f"{index}.JPEG", quality=95)
    return root


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), classes=4, train_each=10, val_each=3)


def five_steps(arm: str, images: Path, nproc: int = 1, **values) -> RunConfig:
    base = RunConfig(
        model="resnet18",
        image_size=64,
        batch_size=8 // nproc,
        data=str(images),
        max_steps=5,
        warmup_steps=1,
        log_interval=1,
        workers=1,
        seed=3,
        # AdamW's first updates are nearly lr * sign(gradient): where a gradient is all but zero, its last bit decides
        # the sign. At 1e-4 that alone parts two memory formats by 2e-2 within five steps, at 1e-5 by a few 1e-4.
        **{"lr": 1e-5, **values},
    )
    return base.with_arm(arm, nproc)


@pytest.fixture(scope="module")
def eager(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict]]:
    return train(five_steps("eager", images), tmp_path_factory.mktemp("eager") / "run")


def losses(events: dict[str, list[dict]]) -> list[float]:
    return [record["loss"] for record in events["interval"]]


@pytest.mark.parametrize("arm", [parameter for parameter in ARM_PARAMETERS if parameter.values != ("eager",)])
def test_losses_and_scores_agree_with_eager(arm: str, images: Path, eager: dict, tmp_path: Path) -> None:
    events = train(five_steps(arm, images), tmp_path / "run")
    assert len(losses(events)) == 5
    assert losses(events) == pytest.approx(losses(eager), rel=1e-3)
    assert len(set(losses(eager))) == 5  # five different batches, so equal losses are no accident
    assert events["validation"][0]["loss"] == pytest.approx(eager["validation"][0]["loss"], rel=1e-2)
    assert events["start"][0]["amp_dtype"] == "float32"
    compiled = events["startup"][0]["compilations"]
    assert compiled >= 1 if arm in ("inductor", "torchacc") else compiled == 0
    # One graph serves every step: what is compiled after the first step is a fault of ours.
    assert [record["compilations"] for record in events["interval"][1:]] == [0, 0, 0, 0]


def test_five_steps_change_the_loss_by_more_than_the_tolerance(images: Path, eager: dict, tmp_path: Path) -> None:
    idle = train(five_steps("eager", images, lr=0.0, validate=False), tmp_path / "run")
    parted = [abs(a - b) / b for a, b in zip(losses(idle), losses(eager), strict=True)]
    assert parted[0] == 0.0
    assert parted[-1] > 1e-2


@pytest.mark.parametrize("arm", ["eager", "kernel", "torchacc"])
def test_two_processes_have_the_gradients_of_one_with_the_doubled_batch(arm: str, tmp_path: Path) -> None:
    script = str(Path(__file__).parent / "scripts" / "gradients.py")
    for nproc in (1, 2):
        torchrun(nproc, [script, arm, str(tmp_path / f"{nproc}.pt")], arm)
    one, two = (torch.load(tmp_path / f"{nproc}.pt", weights_only=True) for nproc in (1, 2))
    assert len(one) == len(two) == 6
    for left, right in zip(one, two, strict=True):
        assert left.abs().max() > 0
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-6)


def test_each_validation_image_counts_once_on_any_number_of_processes(
    images: Path, eager: dict, tmp_path: Path
) -> None:
    events = train(five_steps("eager", images, nproc=2), tmp_path / "run")
    # 12 images in batches of 4 on two ranks: six each, the second batch of a rank half full.
    assert events["validation"][0]["images"] == eager["validation"][0]["images"] == 12
    two_ranks = [(tmp_path / "run" / str(rank) / "metrics.jsonl").read_text() for rank in (0, 1)]
    assert all('"event": "end"' in text for text in two_ranks)


@pytest.mark.parametrize("arm", ["eager", "torchacc"])
def test_amp_o1_on_a_cpu_is_bfloat16_and_says_so(arm: str, images: Path, tmp_path: Path) -> None:
    events = train(five_steps(arm, images, amp_level="O1", validate=False), tmp_path / "run")
    start = events["start"][0]
    assert (start["amp_level"], start["amp_dtype"], start["num_val_images"]) == ("O1", "bfloat16", 0)
    assert "validation" not in events
    assert events["interval"][0]["loss_scale"] is None
    log = (tmp_path / "run" / "0" / "log").read_text()
    assert "amp_dtype=bfloat16" in log
    assert log.count(" metrics ") == 5

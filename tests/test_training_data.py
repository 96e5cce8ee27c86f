"""What is read of a folder, how it is shared out among ranks, and what is refused."""

import itertools
from pathlib import Path

import pytest
import torch
from test_training_arms import write_images
from torch.utils.flop_counter import FlopCounterMode
from torchmetrics.functional.classification import multiclass_accuracy
from torchvision import transforms

from resnet_acc.config import RunConfig
from resnet_acc.training.accelerators.eager import EagerAccelerator
from resnet_acc.training.data import (
    NUM_SYNTHETIC_BATCHES,
    ImageTree,
    SyntheticBatches,
    TrainingData,
    draw_synthetic_images,
    pad_batch,
)
from resnet_acc.training.distributed import HostGroup, Place
from resnet_acc.training.model import build_model, correct_counts, training_flops_per_image

ALONE = Place(rank=0, local_rank=0, world_size=1)


def config(root: Path, **values) -> RunConfig:
    return RunConfig(**{"data": str(root), "image_size": 32, "batch_size": 4, "workers": 0, **values})


def test_hidden_folders_and_files_are_no_data(tmp_path: Path) -> None:
    write_images(tmp_path, classes=2, train_each=1, val_each=1)
    hidden = tmp_path / "train" / ".ipynb_checkpoints"
    hidden.mkdir()
    (tmp_path / "train" / "n00000000" / "0.JPEG").with_name(".0-copy.JPEG").write_bytes(b"")
    tree = ImageTree(tmp_path / "train", transforms.Compose([]))
    assert tree.classes == ["n00000000", "n00000001"]
    assert len(tree) == 2


def test_fewer_images_than_a_batch_is_an_error_that_names_both(tmp_path: Path) -> None:
    write_images(tmp_path, classes=2, train_each=5, val_each=1)
    with pytest.raises(ValueError, match="10 images < batch 128 x 1 processes: 0 steps"):
        TrainingData(config(tmp_path, batch_size=128), ALONE, "cpu")


def test_steps_and_dropped_images_are_known_before_training(tmp_path: Path) -> None:
    write_images(tmp_path, classes=3, train_each=11, val_each=2)
    plan = TrainingData(
        config(tmp_path, epochs=3, nproc_per_node=2), Place(rank=1, local_rank=1, world_size=2), "cpu"
    ).plan
    assert (plan.num_train_images, plan.steps_per_epoch, plan.total_steps, plan.dropped_images) == (33, 4, 12, 1)
    assert (plan.num_classes, plan.num_val_images, plan.warmup_steps) == (3, 6, 3)
    # 33 images in batches of 32 leave one, on which BatchNorm has no statistics: it is dropped.
    plan = TrainingData(config(tmp_path, batch_size=32), ALONE, "cpu").plan
    assert (plan.steps_per_epoch, plan.dropped_images, plan.warmup_steps) == (1, 1, 1)
    # A cap above the epoch's end adds no steps.
    assert TrainingData(config(tmp_path, max_steps=10_000), ALONE, "cpu").plan.total_steps == 8


def test_ranks_share_training_and_validation_images_without_overlap(tmp_path: Path) -> None:
    write_images(tmp_path, classes=3, train_each=4, val_each=3)
    seen: dict[str, list[int]] = {"train": [], "val": []}
    for rank in range(2):
        data = TrainingData(
            config(tmp_path, nproc_per_node=2, batch_size=3), Place(rank=rank, local_rank=rank, world_size=2), "cpu"
        )
        seen["train"] += [draw.index for draw in data.train_loader().sampler]
        seen["val"] += list(data.val_loader().dataset.indices)
    assert sorted(seen["train"]) == list(range(12))
    assert sorted(seen["val"]) == list(range(9))


def test_validation_class_that_training_lacks_is_refused(tmp_path: Path) -> None:
    write_images(tmp_path, classes=2, train_each=4, val_each=1)
    (tmp_path / "val" / "n00000001").rename(tmp_path / "val" / "stranger")
    with pytest.raises(ValueError, match="'stranger'"):
        TrainingData(config(tmp_path), ALONE, "cpu")


def test_validation_keeps_the_training_sets_class_numbers(tmp_path: Path) -> None:
    write_images(tmp_path, classes=3, train_each=4, val_each=2)
    for image in (tmp_path / "val" / "n00000000").iterdir():
        image.unlink()
    (tmp_path / "val" / "n00000000").rmdir()
    data = TrainingData(config(tmp_path), ALONE, "cpu")
    assert data.val is not None
    assert sorted({label for _, label in data.val.samples}) == [1, 2]


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        TrainingData(config(tmp_path / "nowhere"), ALONE, "cpu")


class FixedScores(torch.nn.Module):
    """Scores that are read off the image: channel 0 holds the class that the model is to guess."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(images[:, 0, 0, 0].long(), 10).float()


@pytest.mark.parametrize(("guesses", "top1"), [([0, 9, 9, 9, 9], 20.0), ([9, 9] + [0] * 8, 80.0), ([0] * 7, 100.0)])
@pytest.mark.parametrize("batch_size", [2, 4, 16])
def test_accuracy_counts_padding_never(guesses: list[int], top1: float, batch_size: int) -> None:
    accelerator = EagerAccelerator(RunConfig(batch_size=batch_size, image_size=32), ALONE, "cpu")
    accelerator.setup()
    accelerator.model = accelerator._inner = FixedScores()
    images = torch.tensor(guesses).float().reshape(-1, 1, 1, 1).expand(-1, 3, 2, 2)
    target = torch.zeros(len(guesses), dtype=torch.long)
    batches = zip(images.split(batch_size), target.split(batch_size), strict=True)
    loss, correct1, _, count = accelerator.evaluate(batches, HostGroup())
    assert count == len(guesses)
    assert 100.0 * correct1 / count == top1
    expected = torch.nn.functional.cross_entropy(FixedScores()(images), target, reduction="sum")
    assert loss == pytest.approx(expected.item(), rel=1e-6)


def test_correct_counts_agree_with_torchmetrics() -> None:
    torch.manual_seed(0)
    output, target = torch.randn(500, 20), torch.randint(0, 20, (500,))
    for column, k in enumerate((1, 5)):
        expected = multiclass_accuracy(output, target, num_classes=20, top_k=k, average="micro")
        assert correct_counts(output, target)[column] / 500 == pytest.approx(expected.item())
    assert correct_counts(output[:, :3], target % 3)[1] == 500  # three classes: five guesses name them all


def test_padding_repeats_and_counts() -> None:
    images, target, count = pad_batch(torch.arange(6.0).reshape(2, 3, 1, 1), torch.tensor([4, 5]), 4)
    assert (images.shape, target.tolist(), count) == ((4, 3, 1, 1), [4, 5, 5, 5], 2)


def test_flops_of_resnet50_are_those_of_the_literature() -> None:
    # 4.09 G multiply-adds forward at 224 px; training has three such passes less the first layer's input gradient.
    assert training_flops_per_image("resnet50", 1000, 224) == pytest.approx(3 * 2 * 4.09e9, rel=0.02)


@pytest.mark.parametrize("name", ["resnet18", "wide_resnet50_2"])
def test_flops_are_those_that_both_passes_count(name: str) -> None:
    with torch.device("meta"):
        model = build_model(name, 10)
        images = torch.empty(1, 3, 64, 64)
    with FlopCounterMode(display=False) as counter:
        model(images).sum().backward()
    assert training_flops_per_image(name, 10, 64) == counter.get_total_flops()


def test_synthetic_batches_differ_and_are_the_same_each_time() -> None:
    synthetic = RunConfig(batch_size=2, image_size=32, data="synthetic")

    def batches(rank: int, drawn=()) -> list[tuple[torch.Tensor, torch.Tensor]]:
        place = Place(rank=rank, local_rank=rank, world_size=2)
        source = SyntheticBatches(synthetic, place, torch.device("cpu"), torch.contiguous_format, drawn)
        return list(itertools.islice(source, NUM_SYNTHETIC_BATCHES + 1))

    first = batches(0, draw_synthetic_images(synthetic, Place(rank=0, local_rank=0, world_size=2)))
    again, other = batches(0), batches(1)
    for number, (images, labels) in enumerate(first[:-1]):
        assert images.shape == (2, 3, 32, 32)
        assert torch.equal(images, again[number][0])
        assert torch.equal(labels, again[number][1])
    assert torch.equal(first[-1][0], first[0][0])  # taken in turn
    drawn = [images for images, _ in first[:-1] + other[:-1]]
    assert not any(torch.equal(left, right) for left, right in itertools.combinations(drawn, 2))

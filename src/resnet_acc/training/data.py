"""Batches for training and validation: the same images in the same order for every arm."""

import itertools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset
from torchvision import datasets, transforms

from resnet_acc.config import SYNTHETIC_EPOCH_STEPS, RunConfig
from resnet_acc.files import project_root
from resnet_acc.training.distributed import Place

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NUM_SYNTHETIC_BATCHES = 8
SYNTHETIC_CLASSES = 1000


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run will do, known once the data is: counts of images, classes and steps."""

    num_classes: int
    num_train_images: int
    num_val_images: int
    steps_per_epoch: int
    total_steps: int
    warmup_steps: int
    dropped_images: int


@dataclass(frozen=True)
class Draw:
    """An image to be read, and the seed of its augmentation."""

    index: int
    seed: int


class ShuffledDraws(DistributedSampler):
    """DistributedSampler whose epoch can begin anywhere, with the same images and augmentation as the whole epoch."""

    def begin(self, epoch: int, skip: int = 0) -> None:
        """Choose the epoch, and how many of this rank's images to leave out at its beginning."""
        self.set_epoch(epoch)
        self._skip = skip

    def __iter__(self) -> Iterator[Draw]:  # type: ignore[override]
        for index in itertools.islice(super().__iter__(), getattr(self, "_skip", 0), None):
            # One 64-bit number for each seed, epoch and image, far apart for near ones (splitmix64's multiplier).
            mixed = ((self.seed * 1_000_003 + self.epoch) * 1_000_003 + index) * 0x9E3779B97F4A7C15
            yield Draw(index, mixed % 2**63)


class ImageTree(datasets.ImageFolder):
    """torchvision's ImageFolder without hidden folders and files, which editors leave behind."""

    def __init__(self, root: Path, transform: transforms.Compose, classes: list[str] | None = None) -> None:
        self._expected = classes
        super().__init__(
            str(root), transform, is_valid_file=lambda path: _is_visible_image(os.path.relpath(path, root))
        )

    def __getitem__(self, index: "int | Draw") -> Any:
        """Image and class; of a Draw with random numbers of its own, so that augmentation has no history."""
        if not isinstance(index, Draw):
            return super().__getitem__(index)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(index.seed)
            return super().__getitem__(index.index)

    def find_classes(self, directory: str | Path) -> tuple[list[str], dict[str, int]]:
        """Folder names that do not begin with a dot, in order; a validation set takes the training set's numbers.

        Raises:
            ValueError: there is no class, or a class that training does not have.
        """
        found = sorted(
            entry.name for entry in os.scandir(directory) if entry.is_dir() and not entry.name.startswith(".")
        )
        if not found:
            raise ValueError(f"{directory} has no class folders; it needs {directory}/<class>/<image>.JPEG")
        extra = sorted(set(found) - set(self._expected or found))
        if extra:
            raise ValueError(f"{directory} has class {extra[0]!r}, which train/ does not have; remove or add it there")
        numbers = {name: number for number, name in enumerate(self._expected or found)}
        return found, {name: numbers[name] for name in found}


def data_folder(config: RunConfig) -> Path:
    """Where the images of --data lie."""
    return project_root() / "data" / "mock_imagenet" if config.data == "mock" else Path(config.data).expanduser()


class TrainingData:
    """The images of one run as this rank sees them.

    Raises:
        FileNotFoundError: the folder, its train/ or a class's images are missing.
        ValueError: an epoch would have no step, or classes do not fit.
    """

    def __init__(self, config: RunConfig, place: Place, device_type: str) -> None:
        self._config, self._place = config, place
        # torch-xla stages copies itself; for pinning alone torch would open a CUDA context in every rank, on GPU 0.
        self._pin = device_type == "cuda" and config.arm != "torchacc"
        self._workers = default_workers(config, device_type) if config.workers is None else config.workers
        self.train: ImageTree | None = None
        self.val: ImageTree | None = None
        self.synthetic: Sequence[Future[torch.Tensor]] = ()
        if config.data != "synthetic":
            self._open(data_folder(config))
        else:
            self.synthetic = draw_synthetic_images(config, place)
        self.plan = self._make_plan()

    @property
    def num_workers(self) -> int:
        """Loader processes of this rank."""
        return self._workers if self.train else 0

    def _open(self, root: Path) -> None:
        if not (root / "train").is_dir():
            make = "; make it with: resnet-acc data mock" if self._config.data == "mock" else ""
            raise FileNotFoundError(f"{root / 'train'} is no folder{make}")
        size = self._config.image_size
        normalise = [transforms.ToTensor(), transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD)]
        augment = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()]
        self.train = ImageTree(root / "train", transforms.Compose(augment + normalise))
        if self._config.validate and (root / "val").is_dir():
            whole = [transforms.Resize(size * 256 // 224), transforms.CenterCrop(size)]
            self.val = ImageTree(root / "val", transforms.Compose(whole + normalise), self.train.classes)

    def _make_plan(self) -> Plan:
        config = self._config
        if self.train is None:
            per_epoch, images = config.max_steps or SYNTHETIC_EPOCH_STEPS, 0
        else:
            images = len(self.train)
            per_epoch = images // config.world_size // config.batch_size
            if per_epoch == 0:
                raise ValueError(
                    f"{images} images < batch {config.batch_size} x {config.world_size} processes: 0 steps; "
                    f"use a batch_size of at most {images // config.world_size}, or more images"
                )
        total = min(per_epoch * config.epochs, config.max_steps or per_epoch * config.epochs)
        return Plan(
            num_classes=len(self.train.classes) if self.train else SYNTHETIC_CLASSES,
            num_train_images=images,
            num_val_images=len(self.val) if self.val else 0,
            steps_per_epoch=per_epoch,
            total_steps=total,
            warmup_steps=max(1, min(10, total // 4)) if config.warmup_steps is None else config.warmup_steps,
            dropped_images=max(0, images - per_epoch * config.global_batch_size) if self.train else 0,
        )

    def train_loader(self) -> DataLoader:
        """Shuffled batches of this rank's part, each of batch_size images; begin() on its sampler before each epoch.

        Every rank gets as many batches: what does not fill one on all ranks is left out (Plan.dropped_images).
        """
        assert self.train is not None
        sampler = ShuffledDraws(
            self.train, self._place.world_size, self._place.rank, seed=self._config.seed, drop_last=True
        )
        return DataLoader(
            self.train,
            self._config.batch_size,
            sampler=sampler,
            num_workers=self._workers,
            drop_last=True,
            pin_memory=self._pin,
            persistent_workers=self._workers > 0,
            generator=torch.Generator().manual_seed(self._config.seed * 1009 + self._place.rank),
        )

    def val_loader(self) -> DataLoader:
        """This rank's part of the validation images, each image in exactly one rank's part, none twice."""
        assert self.val is not None
        own: Dataset = Subset(self.val, range(self._place.rank, len(self.val), self._place.world_size))
        return DataLoader(own, self._config.batch_size, num_workers=self._workers, pin_memory=self._pin)


def draw_synthetic_images(config: RunConfig, place: Place) -> list[Future[torch.Tensor]]:
    """Begin to draw the images of every synthetic batch, normal numbers of shape [N, 3, H, W], in threads.

    154 million numbers at batch 128, over a second on one core: ready when the arm has imported its compiler and opened
    its device. Each batch has a generator of its own, so they are the same in whatever order the threads draw.
    """
    shape = (config.batch_size, 3, config.image_size, config.image_size)

    def draw(number: int) -> torch.Tensor:
        return torch.randn(shape, generator=_generator(config, place, number))

    threads = ThreadPoolExecutor(min(NUM_SYNTHETIC_BATCHES, len(os.sched_getaffinity(0))), "synthetic")
    drawn = [threads.submit(draw, number) for number in range(NUM_SYNTHETIC_BATCHES)]
    threads.shutdown(wait=False)
    return drawn


def _generator(config: RunConfig, place: Place, number: int) -> torch.Generator:
    return torch.Generator().manual_seed((config.seed * 1009 + place.rank) * 31 + number)


class SyntheticBatches:
    """Batches that lie on the device, taken in turn: timing without a loader.

    Eight different ones with random labels: a single batch is learnt by heart within 40 steps, its gradients are then
    near zero, and a GPU runs faster on such numbers than on real ones.
    """

    def __init__(
        self,
        config: RunConfig,
        place: Place,
        device: torch.device,
        memory_format: torch.memory_format,
        drawn: Sequence[Future[torch.Tensor]] = (),
    ) -> None:
        """Args: drawn: what draw_synthetic_images began; it is begun here where nobody did before."""
        labels = _generator(config, place, NUM_SYNTHETIC_BATCHES)
        self._batches = [
            (
                images.result().to(memory_format=memory_format).to(device),
                torch.randint(0, SYNTHETIC_CLASSES, (config.batch_size,), generator=labels).to(device),
            )
            for images in drawn or draw_synthetic_images(config, place)
        ]

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Batches without end, images [N, 3, H, W] and classes [N]; the caller counts steps."""
        while True:
            yield from self._batches


def default_workers(config: RunConfig, device_type: str) -> int:
    """Loader processes of a rank: its share of the cores, at most 16; one where the cores also train."""
    if device_type == "cpu":
        return 1
    return max(1, min(16, len(os.sched_getaffinity(0)) // config.nproc_per_node))


def pad_batch(images: torch.Tensor, target: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Repeat the last image until a validation batch is whole, so that compilers see one shape.

    Returns:
        Images [size, 3, H, W], classes [size], and how many of them count.
    """
    missing = size - images.shape[0]
    if missing:
        images = torch.cat([images, images[-1:].expand(missing, -1, -1, -1)])
        target = torch.cat([target, target[-1:].expand(missing)])
    return images, target, size - missing


def _is_visible_image(path: str) -> bool:
    hidden = any(part.startswith(".") for part in path.split(os.sep))
    return not hidden and path.lower().endswith(datasets.folder.IMG_EXTENSIONS)

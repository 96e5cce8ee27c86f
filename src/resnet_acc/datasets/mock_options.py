"""What mock ImageNet is made with: its options, presets, and the file that keeps them beside the images."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from resnet_acc.datasets.textures import GENERATOR

MANIFEST = "mock.json"
"""File in the folder that says which options its images were made with."""


MAX_IMAGES = 5_000_000
"""Four times ImageNet; the list of those still to make has to fit into memory."""


def check_number(name: str, value: object, low: int, high: int) -> None:
    """Raise ValueError where the value is no whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} is {value!r}; give a whole number from {low} to {high}")
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; give a number from {low} to {high}")


@dataclass(frozen=True, kw_only=True)
class MockOptions:
    """What decides the bytes of the images. `size` is the average longer edge in pixels.

    Raises:
        ValueError: a value is no whole number or out of range.
    """

    classes: int
    images_per_class: int
    val_images_per_class: int
    size: int
    seed: int = 0

    def __post_init__(self) -> None:
        check_number("classes", self.classes, 1, 20_000)
        check_number("images_per_class", self.images_per_class, 1, 100_000)
        check_number("val_images_per_class", self.val_images_per_class, 0, 100_000)
        check_number("size", self.size, 16, 4096)
        check_number("seed", self.seed, 0, 2**63 - 1)
        total = self.classes * (self.images_per_class + self.val_images_per_class)
        if total > MAX_IMAGES:
            raise ValueError(
                f"classes={self.classes} of images_per_class={self.images_per_class} are {total:,} images; "
                f"give at most {MAX_IMAGES:,} in all"
            )

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in dataclasses.asdict(self).items())


PRESETS = {
    # 30 steps of 16 an epoch; small files, since the walkthrough trains at 64 pixels.
    "quick": MockOptions(classes=10, images_per_class=48, val_images_per_class=10, size=112),
    # ImageNet's classes and image size with 10 of its 1300 images a class: 0.9 GB instead of 140.
    "imagenet-like": MockOptions(classes=1000, images_per_class=10, val_images_per_class=2, size=500),
}


def mock_options(
    preset: str = "quick",
    *,
    classes: int | None = None,
    images_per_class: int | None = None,
    val_images_per_class: int | None = None,
    size: int | None = None,
    seed: int = 0,
) -> MockOptions:
    """A preset's options with the given ones on top.

    Raises:
        ValueError: no such preset, or a value out of range.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset is {preset!r}; choose one of {', '.join(PRESETS)}")
    given = {
        "classes": classes,
        "images_per_class": images_per_class,
        "val_images_per_class": val_images_per_class,
        "size": size,
        "seed": seed,
    }
    return dataclasses.replace(PRESETS[preset], **{name: value for name, value in given.items() if value is not None})


def read_options(folder: Path) -> MockOptions | None:
    """The options that the folder's images were made with; None where it holds no mock data.

    Raises:
        ValueError: the folder's mock.json is damaged, or another version of this program wrote it.
    """
    path = Path(folder).expanduser() / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["generator"] != GENERATOR:
            raise ValueError(f"it is of generator {manifest['generator']}, this is {GENERATOR}")
        return MockOptions(**manifest["options"])
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} cannot be used ({error}); remove {path.parent} or choose another folder") from None


def manifest(options: MockOptions) -> dict[str, object]:
    """What the folder's mock.json holds."""
    return {"generator": GENERATOR, "options": dataclasses.asdict(options)}

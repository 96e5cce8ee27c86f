"""One mock image: a texture and a colour that belong to its class, and everything else left to chance.

A class fixes hue, kind of texture, its orientation and its frequency. Phase, scale, background, light, small shifts of
the hue and grain differ from image to image, so that a network has to learn the class rather than a picture of it.
"""

import colorsys
import io
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

GENERATOR = 1
"""Raised when the same options no longer give the same bytes; a folder of another generator is not completed."""

Plane = NDArray[np.float32]

# Fractions of low discrepancy (powers of the plastic number and the golden ratio): neighbouring class numbers lie far
# apart in hue, orientation and frequency, and no two of the first thousands coincide.
_GOLDEN, _PLASTIC, _PLASTIC_SQUARED = 0.6180339887, 0.7548776662, 0.5698402910


@dataclass(frozen=True, kw_only=True)
class ClassLook:
    """What all images of a class share: hue in turns, kind of texture, angle in radians, cycles per longer edge."""

    hue: float
    kind: int
    angle: float
    cycles: float


def class_look(number: int) -> ClassLook:
    """The look of class `number`, the same for every seed."""
    return ClassLook(
        hue=(0.02 + number * _GOLDEN) % 1.0,
        kind=number % len(_KINDS),
        angle=math.pi * ((0.5 + number * _PLASTIC) % 1.0),
        cycles=6.0 * 4.0 ** ((0.5 + number * _PLASTIC_SQUARED) % 1.0),
    )


def jpeg(number: int, seed: tuple[int, int, int, int], size: int) -> bytes:
    """One image of class `number` as JPEG, the same bytes for the same arguments.

    Args:
        number: the class.
        seed: what the image's own random numbers come from; different for every image.
        size: average of the longer edge in pixels; single images have 0.7 to 1.3 of it, the shorter edge 0.6 to 1 of
            the longer, as ImageNet's 500 x 400 pixels on average.
    """
    random = np.random.default_rng(seed)
    long_edge = max(8, round(size * random.uniform(0.7, 1.3)))
    short_edge = max(8, round(long_edge * random.uniform(0.6, 1.0)))
    width, height = (long_edge, short_edge) if random.random() < 0.7 else (short_edge, long_edge)
    look = class_look(number)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32) / np.float32(long_edge)
    texture = _KINDS[look.kind](
        random, x, y, look.angle + random.normal(0, 0.12), look.cycles * random.uniform(0.7, 1.4)
    )
    image = _coloured(random, texture, x, y, look.hue)
    grain = random.integers(-12, 13, size=(height, width, 1), dtype=np.int16)
    pixels = np.clip(image * 255.0 + grain, 0, 255).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=int(random.integers(85, 94)))
    return stream.getvalue()


def _coloured(random: np.random.Generator, texture: Plane, x: Plane, y: Plane, hue: float) -> Plane:
    """Mix the class's colour over a background of any hue by `texture` (0 to 1), under uneven light: [H, W, 3]."""
    front = colorsys.hsv_to_rgb(
        (hue + random.normal(0, 0.03)) % 1.0, random.uniform(0.5, 0.95), random.uniform(0.55, 1.0)
    )
    back = colorsys.hsv_to_rgb(random.random(), random.uniform(0.0, 0.4), random.uniform(0.1, 0.9))
    slope = random.uniform(-0.35, 0.35, size=2)
    light = 1.0 + (x - 0.5) * np.float32(slope[0]) + (y - 0.5) * np.float32(slope[1])
    front_plane, back_plane = np.array(front, np.float32), np.array(back, np.float32)
    mixed: Plane = (back_plane + texture[..., None] * (front_plane - back_plane)) * light[..., None]
    return mixed


def _wave(phase: Plane | Any) -> Plane:
    return (0.5 + 0.5 * np.sin(np.float32(2 * math.pi) * phase)).astype(np.float32)


def _turned(x: Plane, y: Plane, angle: float) -> tuple[Plane, Plane]:
    cos, sin = np.float32(math.cos(angle)), np.float32(math.sin(angle))
    return x * cos + y * sin, y * cos - x * sin


def _grating(random: np.random.Generator, x: Plane, y: Plane, angle: float, cycles: float) -> Plane:
    along, _ = _turned(x, y, angle)
    return _wave(along * np.float32(cycles) + np.float32(random.random()))


def _checks(random: np.random.Generator, x: Plane, y: Plane, angle: float, cycles: float) -> Plane:
    along, across = _turned(x, y, angle)
    first = _wave(along * np.float32(cycles / 2) + np.float32(random.random())) > 0.5
    second = _wave(across * np.float32(cycles / 2) + np.float32(random.random())) > 0.5
    return (first ^ second).astype(np.float32)


def _rings(random: np.random.Generator, x: Plane, y: Plane, angle: float, cycles: float) -> Plane:
    middle = random.uniform(0.1, 0.9, size=2)
    radius = np.hypot(x - np.float32(middle[0]), y - np.float32(middle[1]))
    return _wave(radius * np.float32(cycles) + np.float32(random.random()))


def _ripples(random: np.random.Generator, x: Plane, y: Plane, angle: float, cycles: float) -> Plane:
    along, across = _turned(x, y, angle)
    bend = _wave(across * np.float32(cycles / 3) + np.float32(random.random())) * np.float32(1.5)
    return _wave(along * np.float32(cycles / 1.5) + bend + np.float32(random.random()))


def _blobs(random: np.random.Generator, x: Plane, y: Plane, angle: float, cycles: float) -> Plane:
    field = _random_field(random, x.shape, cycles, Image.Resampling.BICUBIC)
    return np.clip((field - 0.5) * 4.0 + 0.5, 0.0, 1.0).astype(np.float32)


def _tiles(random: np.random.Generator, x: Plane, y: Plane, angle: float, cycles: float) -> Plane:
    return _random_field(random, x.shape, cycles, Image.Resampling.NEAREST)


def _random_field(
    random: np.random.Generator, shape: tuple[int, ...], cycles: float, filling: Image.Resampling
) -> Plane:
    """Random values 0 to 1 with `cycles` cells along the longer edge, enlarged to [H, W]."""
    height, width = shape
    cell = max(shape) / cycles
    cells = random.random((max(2, round(height / cell)), max(2, round(width / cell))), dtype=np.float32)
    return np.asarray(Image.fromarray(cells).resize((width, height), filling), dtype=np.float32)


_KINDS = (_grating, _blobs, _checks, _rings, _tiles, _ripples)

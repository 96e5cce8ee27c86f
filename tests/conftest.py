"""Fixtures that several test files share."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from resnet_acc.datasets.mock import make_mock_imagenet

if TYPE_CHECKING:
    import torch

# Two cores and many small runs: threads that wait for each other cost more than they give. Before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Started in the background (nohup, or & in a script) a process ignores these, and what it starts does too: a test that
# interrupts itself or a run would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def mock_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 4 classes with 12 training and 4 validation images each, about 48 pixels; tests only read it."""
    folder = tmp_path_factory.mktemp("data") / "mock"
    make_mock_imagenet(
        folder, classes=4, images_per_class=12, val_images_per_class=4, size=48, workers=1, progress=False
    )
    return folder


@pytest.fixture(scope="session")
def python() -> str:
    """The interpreter that has the package, for what has to be a process of its own."""
    return sys.executable


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of this checkout."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def xla_device() -> "Iterator[torch.device]":
    """XLA's CPU device in the tests' own process; no other test file sees what it needs in the environment."""
    torch_xla = pytest.importorskip("torch_xla")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PJRT_DEVICE", "CPU")
        yield torch_xla.device()

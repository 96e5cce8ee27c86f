"""What the ranks of a run have written so far, read on as they write, and curves of it that do not grow for ever."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resnet_acc.config import RunConfig
from resnet_acc.launch.progress import Progress, finite_number
from resnet_acc.results.attempts import rank_folders
from resnet_acc.results.status import read_json

MOST_POINTS = 400
"""Points of a curve; of a longer run every second one is dropped, again and again."""
MOST_RANKS = 1024


@dataclass(frozen=True)
class Point:
    """One interval: images/s of the rank alone, and the loss, which is the mean over all ranks."""

    step: int
    images_per_s: float | None
    loss: float | None


@dataclass(frozen=True)
class RankState:
    """A rank as its last interval says; None is not known yet.

    `images_per_s` is the rank's own in that interval, `steady_images_per_s` that of all ranks over the timed windows.
    """

    rank: int
    step: int
    total_steps: int | None
    images_per_s: float | None
    steady_images_per_s: float | None
    loss: float | None
    seconds_left: float | None
    line: str
    curve: tuple[Point, ...] = field(repr=False)


class RankProgress(Progress):
    """One rank: its state and its curve."""

    def __init__(self, run_dir: Path, rank: int, config: RunConfig) -> None:
        super().__init__(run_dir, rank, config.arm)
        self.rank, self._world_size = rank, config.world_size
        self._points: list[Point] = []
        self._last: Point | None = None
        self._every, self._since = 1, 0

    def catch_up(self) -> None:
        """Take in all there is; update() takes in a bounded part of it."""
        self.update()
        while self._reader.behind:
            self.update()

    def take(self, record: dict[str, Any]) -> None:
        super().take(record)
        if record.get("event") != "interval" or finite_number(record.get("step")) is None:
            return
        self._last = Point(self.step, self.own_images_per_s, self.loss)
        self._since += 1
        if self._since >= self._every:
            self._since = 0
            self._points.append(self._last)
        if len(self._points) > MOST_POINTS:
            self._points = self._points[1::2]
            self._every *= 2

    @property
    def own_images_per_s(self) -> float | None:
        """This rank's part of the images of the last interval, over its own seconds."""
        own = finite_number(self._interval.get("images_per_s_per_rank"))
        if own is None and self.last_images_per_s is not None:
            own = self.last_images_per_s / self._world_size
        return own

    def state(self) -> RankState:
        """As it stands after the last update."""
        points = self._points
        if self._last is not None and (not points or points[-1] is not self._last):
            points = [*points, self._last]
        return RankState(
            rank=self.rank,
            step=self.step,
            total_steps=self.total_steps,
            images_per_s=self.own_images_per_s,
            steady_images_per_s=self.images_per_s,
            loss=self.loss,
            seconds_left=self.seconds_left,
            line=self.line(),
            curve=tuple(points),
        )


class RunProgress:
    """All ranks of one run on this machine."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.config = read_config(run_dir)
        self._ranks: dict[int, RankProgress] = {}

    def update(self) -> list[RankState]:
        """Read what was added; a rank that is seen for the first time is read from its beginning."""
        for rank in self._numbers():
            if rank not in self._ranks:
                self._ranks[rank] = RankProgress(self.run_dir, rank, self.config)
                self._ranks[rank].catch_up()
            else:
                self._ranks[rank].update()
        return [self._ranks[rank].state() for rank in sorted(self._ranks)]

    def _numbers(self) -> list[int]:
        """Those that the configuration names for this machine, and, of a folder of another making, those present."""
        first = self.config.node_rank * self.config.nproc_per_node
        expected = range(first, first + min(self.config.nproc_per_node, MOST_RANKS))
        return sorted({*expected, *rank_folders(self.run_dir)})


def read_config(run_dir: Path) -> RunConfig:
    """A run's config.json; the default one where there is none that can be read."""
    try:
        return RunConfig.from_json(read_json(run_dir / "config.json") or {})
    except (ValueError, TypeError):
        return RunConfig()

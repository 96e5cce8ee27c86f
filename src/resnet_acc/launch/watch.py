"""Keeps an eye on a run's ranks: which are gone, and which had got to their end."""

import contextlib
import time

import psutil

from resnet_acc.launch.folder import RunFolder
from resnet_acc.launch.progress import read_end

_END_SECONDS = 1.0
"""How often the records are looked at."""
_UNSEEN_SECONDS = 3.0
"""A rank that is still not seen so long after another one was gone before anybody looked."""


class RankWatch:
    """The processes of the ranks, which are children of torchrun.

    They are looked for until all are known, and then only looked at: the machine is busy training.
    """

    def __init__(self, agent_pid: int, run: RunFolder) -> None:
        self._agent_pid, self._run = agent_pid, run
        self._known: dict[int, psutil.Process] = {}
        self._first_seen_at: float | None = None
        self._next_look = 0.0
        self.gone_at: dict[int, float] = {}
        self._lost_at: float | None = None
        self._ended_at: float | None = None

    def poll(self) -> None:
        """Look once."""
        now = time.monotonic()
        if len(self._known) < len(self._run.ranks):
            self._scan(now)
        for rank in self._run.ranks:
            if rank not in self.gone_at and self._is_gone(rank, now):
                self.gone_at[rank] = now
                if read_end(self._run.path, rank) is None and self._lost_at is None:
                    self._lost_at = now
        if self._ended_at is None and now >= self._next_look:
            self._next_look = now + _END_SECONDS
            if all(read_end(self._run.path, rank) is not None for rank in self._run.ranks):
                self._ended_at = now

    def seconds_since_loss(self) -> float:
        """Seconds since a rank was gone without an end record; 0 where none is."""
        return 0.0 if self._lost_at is None else time.monotonic() - self._lost_at

    def seconds_since_end(self) -> float:
        """Seconds since all ranks had written their end record; 0 where they have not."""
        return 0.0 if self._ended_at is None else time.monotonic() - self._ended_at

    def _scan(self, now: float) -> None:
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self._agent_pid).children():
                with contextlib.suppress(psutil.Error, ValueError):
                    rank = int(child.environ().get("RANK", ""))
                    if rank in self._run.ranks:
                        self._known.setdefault(rank, child)
                        self._first_seen_at = self._first_seen_at or now

    def _is_gone(self, rank: int, now: float) -> bool:
        process = self._known.get(rank)
        if process is None:
            return self._first_seen_at is not None and now - self._first_seen_at > _UNSEEN_SECONDS
        try:
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        except psutil.Error:
            return True

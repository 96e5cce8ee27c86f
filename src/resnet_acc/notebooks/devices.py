"""Which sets may run at once, and on which GPUs: those that each asks for, which no other set uses meanwhile."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from resnet_acc.launch import xla_plugin

PROCESS_PARAMETERS = ("processes", "nproc", "nproc_per_node", "num_processes", "devices")
"""Names under which a notebook asks for processes; a text such as "1,8" asks for the largest."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


def num_asked(values: Mapping[str, Any], num_gpus: int) -> int:
    """GPUs that a set needs: its largest number of processes, at most all; all where it does not say (None)."""
    counts = []
    for name in PROCESS_PARAMETERS:
        value = values.get(name)
        if isinstance(value, bool) or value is None:
            continue
        counts += [int(part) for part in re.findall(r"\d{1,6}", str(value))]
    return min(max(counts, default=num_gpus), num_gpus) or num_gpus


def visible_gpus(environment: Mapping[str, Any]) -> list[str]:
    """The GPUs as CUDA_VISIBLE_DEVICES names them: its own entries where it is set, else numbers; [] on a CPU."""
    count = int(xla_plugin.gpus(dict(environment)).get("count") or 0)
    entries = [entry.strip() for entry in os.environ.get(VISIBLE, "").split(",") if entry.strip()]
    return entries[:count] if len(entries) >= count else [str(number) for number in range(count)]


@dataclass
class Devices:
    """Hands GPUs to sets. Without any, sets run one after another unless `jobs` says how many at once."""

    gpus: list[str]
    jobs: int | None = None
    _free: list[str] = field(init=False)
    _running: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._free = list(self.gpus)

    def take(self, asked: int) -> list[str] | None:
        """GPUs for one set ([] on a CPU), or None where it has to wait."""
        limit = self.jobs or (len(self.gpus) if self.gpus else 1)
        if self._running >= limit or (self.gpus and asked > len(self._free)):
            return None
        taken, self._free = self._free[:asked], self._free[asked:]
        self._running += 1
        return taken

    def give_back(self, gpus: list[str]) -> None:
        """A set has ended."""
        self._running -= 1
        self._free = [gpu for gpu in self.gpus if gpu in self._free or gpu in gpus]

    @property
    def most_at_once(self) -> int:
        """How many sets of one GPU each could run at once."""
        most = len(self.gpus) or (self.jobs or 1)
        return min(most, self.jobs) if self.jobs else most

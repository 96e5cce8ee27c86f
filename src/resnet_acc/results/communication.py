"""What averaging the gradients costs a step, from the measurements of resnet_acc.training.communication."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from resnet_acc.results.stats import CONFIDENCE, Estimate


@dataclass(frozen=True)
class Communication:
    """One number of processes. Times are seconds of the slowest process.

    `alone` is the all-reduce with nothing else to do, `step` a step with it, `step_without` one without, `added` their
    difference, `share` the part of a step that `added` is.
    """

    world_size: int
    arm: str
    backend: str
    num_bytes: int
    alone: Estimate
    step: Estimate
    step_without: Estimate
    added: Estimate
    share: Estimate

    @property
    def bus_bytes_per_s(self) -> float | None:
        """2 (n - 1) / n * bytes / seconds of the all-reduce alone: what each process's link carried.

        Source: NVIDIA's nccl-tests, doc/PERFORMANCE.md, "AllReduce".
        """
        if not self.alone.value:
            return None
        return 2 * (self.world_size - 1) / self.world_size * self.num_bytes / self.alone.value

    @property
    def hidden(self) -> float | None:
        """Part of the all-reduce that runs beside the backward pass and costs nothing, from 0 to 1."""
        if not self.alone.value or self.added.value is None:
            return None
        return min(1.0, max(0.0, 1.0 - self.added.value / self.alone.value))


def communication_of(result: Mapping[str, Any]) -> Communication:
    """Work out one result of the script; its repeats with and without the all-reduce took turns, so they are paired."""
    steps, without = result["step_s"], result["step_without_s"]
    differences = [a - b for a, b in zip(steps, without, strict=True)]
    return Communication(
        world_size=result["world_size"],
        arm=result["arm"],
        backend=result["backend"],
        num_bytes=result["num_bytes"],
        alone=mean_estimate(result["all_reduce_s"]),
        step=mean_estimate(steps),
        step_without=mean_estimate(without),
        added=mean_estimate(differences),
        share=mean_estimate([added / step for added, step in zip(differences, steps, strict=True)]),
    )


def mean_estimate(values: Sequence[float]) -> Estimate:
    """The mean with its 95 % confidence interval by Student's t: mean +- t(n - 1) * s / sqrt(n)."""
    from scipy.stats import t

    num = len(values)
    mean = sum(values) / num
    if num < 2:
        return Estimate(mean, reason="a single measurement")
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (num - 1))
    half = float(t.ppf(0.5 + CONFIDENCE / 2, num - 1)) * deviation / math.sqrt(num)
    return Estimate(mean, mean - half, mean + half, "measurement", (num,))

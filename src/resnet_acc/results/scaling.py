"""How images/s grow with processes and with machines: series of runs and their efficiency (amdahl.py fits a law).

The batch per process is held equal, so that a step's work grows with the count ("weak scaling", Gustafson 1988).
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from resnet_acc.results.attempts import arm_order
from resnet_acc.results.measured import Run
from resnet_acc.results.stats import Estimate, rate_estimate, ratio_estimate
from resnet_acc.results.status import read_json

PROCESSES, MACHINES = "processes", "machines"
SAME_START_S = 300.0
"""Runs of one job on several machines start within so many seconds of each other."""


@dataclass(frozen=True)
class Layout:
    """On how many machines a run ran, which of them wrote this folder, and the processes of each."""

    nnodes: int
    node_rank: int
    nproc_per_node: int


def layout_of(run: Run) -> Layout:
    """What the run's config.json says; one machine where there is none."""
    values = (read_json(run.run_dir / "config.json") if run.run_dir is not None else None) or {}
    counts = [values.get(name) for name in ("nnodes", "node_rank", "nproc_per_node")]
    if all(type(count) is int and count >= low for count, low in zip(counts, (1, 0, 1), strict=True)):
        return Layout(*counts)  # type: ignore[arg-type]
    return Layout(1, 0, run.world_size or 1)


@dataclass(frozen=True)
class Point:
    """One count of processes or machines. `efficiency` is against the series' smallest count."""

    count: int
    processes: int
    rate: Estimate
    efficiency: Estimate
    waiting: float | None
    num_runs: int


@dataclass(frozen=True)
class Series:
    """The same arm, model and settings on several counts of processes of one machine, or of machines.

    `device` is the runs' device; `shared` says that all counts shared the same cores or devices.
    """

    model: str
    tag: str
    arm: str
    axis: str
    per_machine: int
    device: str
    shared: bool
    points: tuple[Point, ...]

    @property
    def name(self) -> str:
        """Arm and axis in words."""
        each = f" of {self.per_machine} processes each" if self.axis == MACHINES and self.per_machine > 1 else ""
        return f"{self.arm}, {self.axis}{each}"


def scaling_series(runs: Sequence[Run]) -> list[Series]:
    """Every series that the runs hold: by processes on one machine, and by machines where a run spans several.

    Runs of several machines leave a folder on each; that of machine 0 holds the records of all, and it alone counts.
    """
    cells: dict[tuple[str, str, str], dict[tuple[int, int], list[Run]]] = {}
    for run in runs:
        layout = layout_of(run)
        if run.is_result and run.steady.steps and layout.node_rank == 0:
            arms = cells.setdefault((run.model, run.tag, run.arm), {})
            arms.setdefault((layout.nnodes, layout.nproc_per_node), []).append(run)
    found: list[Series] = []
    for key in sorted(cells, key=lambda key: (key[0], key[1], arm_order(key[2]))):
        by_layout = cells[key]
        local = {nproc: group for (nnodes, nproc), group in by_layout.items() if nnodes == 1}
        if local:
            found.append(_series(key, PROCESSES, 0, local, runs))
        for per_machine in sorted({nproc for nnodes, nproc in by_layout if nnodes > 1}):
            spans = {nnodes: group for (nnodes, nproc), group in by_layout.items() if nproc == per_machine}
            found.append(_series(key, MACHINES, per_machine, spans, runs))
    return found


def _series(
    key: tuple[str, str, str], axis: str, per_machine: int, groups: dict[int, list[Run]], runs: Sequence[Run]
) -> Series:
    smallest = min(groups)
    device = str(groups[smallest][0].params.get("device") or "")
    spanning = [run for count, group in groups.items() if count > 1 for run in group]
    if axis == PROCESSES:
        shared = device == "cpu" and not _cores_of_their_own(itertools.chain.from_iterable(groups.values()))
    else:
        shared = any(on_one_machine(run, runs) for run in spanning)
    points = [
        Point(
            count=count,
            processes=count if axis == PROCESSES else count * per_machine,
            rate=rate_estimate(groups[count]),
            efficiency=efficiency_estimate(groups[count], count, groups[smallest], smallest),
            waiting=waiting_share(groups[count]),
            num_runs=len(groups[count]),
        )
        for count in sorted(groups)
    ]
    return Series(*key, axis, per_machine, device, shared, tuple(points))


def _cores_of_their_own(runs: Iterable[Run]) -> bool:
    """Whether each process of each run had as many cores as in the others, and no two the same (OMP_NUM_THREADS)."""
    given = set()
    for run in runs:
        values = (read_json(run.run_dir / "env.json") if run.run_dir is not None else None) or {}
        threads, cores = str(values.get("omp_num_threads")), values.get("num_cores")
        if not threads.isdecimal() or not isinstance(cores, int):
            return False
        if int(threads) * layout_of(run).nproc_per_node > cores:
            return False
        given.add(int(threads))
    return len(given) == 1


def efficiency_estimate(runs: Sequence[Run], count: int, baseline: Sequence[Run], base_count: int) -> Estimate:
    """(r(n) / n) / (r(m) / m) for counts n and m, with its 95 % confidence interval (see stats.ratio_estimate)."""
    if count == base_count:
        return Estimate(1.0, reason="the smallest count itself")
    ratio, factor = ratio_estimate(runs, baseline), base_count / count
    if ratio.value is None or ratio.low is None or ratio.high is None:
        return replace(ratio, value=None if ratio.value is None else ratio.value * factor)
    return replace(ratio, value=ratio.value * factor, low=ratio.low * factor, high=ratio.high * factor)


def above_hundred(series: Sequence[Series]) -> list[str]:
    """A line for every efficiency that lies above 100 % by more than its interval explains."""
    lines = []
    for one in series:
        for point in one.points[1:]:
            value, low = point.efficiency.value, point.efficiency.low
            if value is not None and value > 1.0 and (low is None or low > 1.0):
                lines.append(
                    f"{one.name}: an efficiency of {100 * value:.0f} % on {point.count} {one.axis}. Nothing scales "
                    f"beyond 100 %, so the run on {one.points[0].count} was disturbed (by another program, or a "
                    "card that was still cold or already hot): measure again on an idle machine before believing any"
                )
    return lines


def waiting_share(runs: Iterable[Run]) -> float | None:
    """Part of the timed windows that rank 0 waited for its next batch; None where it is not on record."""
    timed = [interval for run in runs for interval in run.timed if math.isfinite(interval.data_time_s)]
    seconds = sum(interval.seconds for interval in timed)
    return sum(i.data_time_s * i.steps for i in timed) / seconds if seconds > 0 else None


def other_machines(run: Run, runs: Iterable[Run]) -> dict[int, Run]:
    """By its number each other machine's folder of the same job, as far as it lies among these runs."""
    layout, found = layout_of(run), {}
    for other in runs:
        theirs = layout_of(other)
        same = (other.model, other.tag, other.arm) == (run.model, run.tag, run.arm)
        same = same and (theirs.nnodes, theirs.nproc_per_node) == (layout.nnodes, layout.nproc_per_node)
        begun = run.status.started_at, other.status.started_at
        near = None not in begun and abs(begun[0] - begun[1]) < SAME_START_S  # type: ignore[operator]
        if same and near and theirs.node_rank != layout.node_rank:
            found[theirs.node_rank] = other
    return dict(sorted(found.items()))


def host_of(run: Run) -> str | None:
    """Name of the machine that wrote the run's folder."""
    values = read_json(run.run_dir / "env.json") if run.run_dir is not None else None
    host = (values or {}).get("host")
    return host if isinstance(host, str) else None


def on_one_machine(run: Run, runs: Iterable[Run]) -> bool:
    """Whether several "machines" of a run were one and the same."""
    hosts = [host_of(run), *(host_of(other) for other in other_machines(run, runs).values())]
    known = [host for host in hosts if host is not None]
    return len(set(known)) < len(known)


def doubling(most: int) -> list[int]:
    """1, 2, 4, ... and `most` itself."""
    powers = list(itertools.takewhile(lambda count: count < most, (2**n for n in itertools.count())))
    return [*powers, most]

"""What notebook 05 calls: the same training on more processes and more machines, and where the time goes."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resnet_acc.launch import machine, preflight, xla_plugin
from resnet_acc.launch.compare import interleaved
from resnet_acc.launch.notebook import anywhere, launch_cell
from resnet_acc.lessons import scaling_tables
from resnet_acc.lessons.drawing import panels
from resnet_acc.lessons.nodes import launch_nodes, node_commands
from resnet_acc.lessons.scaling_figure import draw_communication, draw_efficiency, draw_rates
from resnet_acc.lessons.scaling_words import amdahl_words, communication_words, scaling_words
from resnet_acc.lessons.script import run_script
from resnet_acc.lessons.settings import read_counts, resolve_settings
from resnet_acc.results.amdahl import AmdahlFit, fit_amdahl
from resnet_acc.results.communication import Communication, communication_of
from resnet_acc.results.measured import Run
from resnet_acc.results.runs import find_runs, load_run
from resnet_acc.results.scaling import MACHINES, PROCESSES, Series, doubling, scaling_series

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

EAGER_ARMS = ("eager", "kernel")
"""The arms whose all-reduce training.communication measures."""


class Scaling:
    """One arm on several numbers of processes and machines.

    Args:
        parameters: values of the notebook's parameter cell: preset, arm, processes, machines, address, repeats,
            threads, communication_repeats, earlier, and fields of RunConfig. None stands for the preset's own value,
            but for amp_level on a CPU (O0).

    Raises:
        ValueError: a value is no good; the message names it and the mend.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        values = {name: value for name, value in parameters.items() if value is not None}
        processes, machines = values.pop("processes", None), values.pop("machines")
        self.address, self.earlier = values.pop("address"), values.pop("earlier")
        self.repeats, self.communication_repeats = values.pop("repeats"), values.pop("communication_repeats")
        self.threads = values.pop("threads")
        for name, least in (("repeats", 1), ("communication_repeats", 1), ("threads", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; give at least {least}")
        settings = resolve_settings(values, values.pop("preset"), values.pop("arm"), 1)
        self.config, self.environment, self.device = settings.config, settings.environment, settings.device
        gpus = xla_plugin.gpus(self.environment)["count"] if self.device == "cuda" else 0
        self.num_devices = gpus or machine.num_cores()
        if processes is None:
            processes = ",".join(map(str, doubling(gpus if self.device == "cuda" else max(2, machine.num_cores()))))
        self.process_counts = read_counts("processes", processes)
        self.machine_counts = read_counts("machines", machines)
        for count in self.process_counts:
            preflight.check(self.config.with_arm(self.config.arm, count), self.environment)
        self._own: list[Path] = []
        self._fits: tuple[int, AmdahlFit | None] | None = None
        self.communications: list[Communication] = []

    def describe(self) -> str:
        """What will be done, as Markdown."""
        config = self.config
        what = f"{self.num_devices} GPUs" if self.device == "cuda" else f"{self.device}, {self.num_devices} cores"
        lines = [
            f"- {config.model} at {config.image_size} px, {config.batch_size} images per process and step, AMP "
            f"{config.amp_level}, data: {config.data}, arm `{config.arm}`",
            f"- processes: {', '.join(map(str, self.process_counts))}; machines: "
            f"{', '.join(map(str, self.machine_counts))}; each measured {self.repeats} times, by turns",
            f"- device: {what}",
            f"- output: `{config.output}`",
        ]
        if self.device == "cpu":
            lines.append(f"- **all processes share this machine**: {self._sharing()}")
        return "\n".join(lines)

    def _sharing(self) -> str:
        cores, most = self.num_devices, self.process_counts[-1]
        if self.threads and self.threads * most <= cores:
            return (
                f"each computes with {self.threads} of its {cores} cores, so that more processes are more cores, as "
                "long as there are any; memory and caches they share, which real machines do not"
            )
        if self.threads:
            return (
                f"{most} processes of {self.threads} threads each are more than its {cores} cores, so that they wait "
                "for each other; give fewer processes, or read the efficiency as the cost of sharing"
            )
        return (
            f"one process alone computes with all {cores} cores, and n processes with a part each. More processes are "
            "not more hardware here, so that images/s in all can hardly grow"
        )

    @contextlib.contextmanager
    def _own_threads(self) -> Iterator[None]:
        """On a CPU each process started meanwhile gets that many threads; the line printed does the same in a shell."""
        if self.device != "cpu" or not self.threads:
            yield
            return
        before = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = str(self.threads)
        print(f"$ export OMP_NUM_THREADS={self.threads}", flush=True)
        try:
            yield
        finally:
            os.environ.pop("OMP_NUM_THREADS")
            if before is not None:
                os.environ["OMP_NUM_THREADS"] = before

    def measure(self) -> "pd.DataFrame":
        """Train on each number of processes, by turns (1 2 4, 4 2 1, ...), and give the table."""
        with self._own_threads():
            for _, count in interleaved(self.process_counts, self.repeats):
                self._own.append(launch_cell(self.config.with_arm(self.config.arm, count)))
        return self.table(PROCESSES)

    def machine_commands(self) -> str:
        """The command for each machine of the largest number asked for, as Markdown."""
        count = max(2, self.machine_counts[-1])
        per_machine = self.num_devices if self.device == "cuda" else 1
        config = self.config.with_arm(self.config.arm, per_machine)
        lines = []
        for number, command in enumerate(node_commands(anywhere(config), count, self.address)):
            lines += [f"On machine {number}:", "", "```bash", command, "```", ""]
        return "\n".join(lines)

    def measure_machines(self) -> "pd.DataFrame":
        """Run the job as on several machines, all of which are this one, with one process each; and give the table.

        One machine with one process is what measure() ran, where that was one of its counts.
        """
        counts = [count for count in self.machine_counts if count > 1 or 1 not in self.process_counts]
        if self.device == "cuda" and counts and counts[-1] > self.num_devices:
            print(f"passed over: {counts[-1]} machines need a GPU each, and there are {self.num_devices} here")
            counts = [count for count in counts if count <= self.num_devices]
        config = dataclasses.replace(self.config, nproc_per_node=1)
        with self._own_threads():
            for _, count in interleaved(counts, self.repeats):
                gpus = [[number] for number in range(count)] if self.device == "cuda" else []
                self._own += launch_nodes(config, count, gpus=gpus) if count > 1 else [launch_cell(config)]
        return self.table(MACHINES)

    def runs(self) -> list[Run]:
        """This notebook's runs; with `earlier` those of the same model, settings and arm under output as well."""
        own = [load_run(folder) for folder in self._own]
        if not self.earlier or not Path(self.config.output).is_dir():
            return own
        known = {run.run_dir for run in own}
        others = [load_run(folder) for folder in find_runs(self.config.output) if folder not in known]
        # The tag has the device's name, which a run knows.
        tags = {run.tag for run in own} or {run.tag for run in others if self._is_like(run)}
        return own + [run for run in others if self._is_like(run) and run.tag in tags]

    def _is_like(self, run: Run) -> bool:
        return (run.model, run.arm) == (self.config.model, self.config.arm)

    def series(self, axis: str) -> list[Series]:
        """The series by processes or by machines."""
        return [one for one in scaling_series(self.runs()) if one.axis == axis]

    def table(self, axis: str) -> "pd.DataFrame":
        """images/s and efficiency of each count, with their 95 % confidence intervals."""
        return scaling_tables.points_table(self.series(axis))

    def measure_communication(self) -> "pd.DataFrame":
        """Time the averaging of gradients for each number of processes from 2 on."""
        config = self.config
        arm = config.arm if config.arm in EAGER_ARMS else "eager"
        if arm != config.arm:
            print(f"arm {config.arm} sends its gradients in a way of its own, which is not timed here: {arm} instead")
        arguments = [
            f"--arm={arm}",
            f"--model={config.model}",
            f"--batch_size={config.batch_size}",
            f"--image_size={config.image_size}",
            f"--amp_level={config.amp_level}",
            f"--device={self.device}",
            f"--repeats={self.communication_repeats}",
        ]
        self.communications = []
        with self._own_threads():
            for count in [count for count in self.process_counts if count > 1]:
                result = run_script("resnet_acc.training.communication", arguments, nproc=count, timeout_s=900)
                self.communications.append(communication_of(result))
        return scaling_tables.communication_table(self.communications)

    def communication(self) -> str:
        """What averaging the gradients costs, in words, as Markdown."""
        return communication_words(self.communications, self.device)

    def fit(self) -> AmdahlFit | None:
        """Amdahl's law through the series by processes."""
        if self._fits is None or self._fits[0] != len(self._own):
            series = self.series(PROCESSES)
            self._fits = len(self._own), fit_amdahl(series[0]) if series else None
        return self._fits[1]

    def amdahl_table(self) -> "pd.DataFrame":
        """What the fit says of counts that were measured and of counts that were not."""
        return scaling_tables.amdahl_table(self.fit(), self.series(PROCESSES))

    def amdahl(self) -> str:
        """What the fit says about more cards, and what it cannot say; Markdown."""
        return amdahl_words(self.fit())

    def verdict(self) -> str:
        """What was measured, in words, as Markdown."""
        return scaling_words([*self.series(PROCESSES), *self.series(MACHINES)], self.communications, self.device)

    def figure(self) -> "Figure":
        """images/s with the fit, efficiency, and the parts of a step."""
        series = [*self.series(PROCESSES), *self.series(MACHINES)]
        with panels(3) as (figure, (left, middle, right)):
            draw_rates(left, series, self.fit())
            draw_efficiency(middle, series)
            draw_communication(right, self.communications)
        return figure

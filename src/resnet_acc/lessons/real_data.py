"""What notebook 04 calls: an image folder checked, its loader timed against training, and trained on."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resnet_acc.datasets import mock
from resnet_acc.datasets.arrays import write_image_folder
from resnet_acc.datasets.check import check_folder
from resnet_acc.datasets.report import FolderReport, shown
from resnet_acc.files import project_root
from resnet_acc.launch import machine, preflight
from resnet_acc.launch.notebook import launch_cell
from resnet_acc.lessons.drawing import panels
from resnet_acc.lessons.real_data_figure import draw_accuracy, draw_rates
from resnet_acc.lessons.real_data_words import accuracy_estimate, accuracy_words, bound_words
from resnet_acc.lessons.script import run_script
from resnet_acc.lessons.settings import read_counts, resolve_settings
from resnet_acc.results.measured import Run
from resnet_acc.results.runs import load_run
from resnet_acc.results.scaling import doubling, waiting_share
from resnet_acc.results.stats import rate_estimate
from resnet_acc.results.summary import number, with_interval

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

SYNTHETIC_STEPS = 40
"""Steps of the run without a loader; a rate needs no more."""


class RealData:
    """One folder of images on its way into training.

    Args:
        parameters: values of the notebook's parameter cell: preset, arm, processes, worker_counts, loader_seconds,
            loader_repeats, stop_at_problems, and fields of RunConfig. None stands for the preset's own value, but for
            max_steps (no cap, for here whole epochs count) and for amp_level on a CPU (O0).

    Raises:
        ValueError: a value is no good; the message names it and the mend.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        values = {name: value for name, value in parameters.items() if value is not None}
        values.setdefault("max_steps", None)
        arm, processes = values.pop("arm"), values.pop("processes")
        self._stop_at_problems = values.pop("stop_at_problems")
        self._seconds, self._repeats = values.pop("loader_seconds"), values.pop("loader_repeats")
        counts = values.pop("worker_counts", None)
        self.from_arrays = values.get("data") == "digits"
        if self.from_arrays:
            values["data"] = str(project_root() / "data" / "digits")
        if values.get("data") == "synthetic":
            raise ValueError("data is 'synthetic', which is no folder; give mock, digits or the path of a folder")
        if not self._seconds > 0 or self._repeats < 1:
            raise ValueError(
                f"loader_seconds is {self._seconds} and loader_repeats {self._repeats}; give above 0 and at least 1"
            )
        settings = resolve_settings(values, values.pop("preset"), arm, processes)
        self.config, self.environment, self.device = settings.config, settings.environment, settings.device
        self.worker_counts = self._checked_counts(counts)
        self.folder = mock.default_folder() if self.config.data == "mock" else Path(self.config.data)
        self.report: FolderReport | None = None
        self.loader: dict[str, Any] | None = None
        self.run: Run | None = None
        self.synthetic: Run | None = None

    def _checked_counts(self, counts: str | int | None) -> list[int]:
        """The counts asked for; None is 0, 1, 2, 4, ... up to this process's share of the cores."""
        if counts is None:
            share = max(1, machine.num_cores() // self.config.nproc_per_node)
            return [0, *doubling(min(share, 16))]
        return read_counts("worker_counts", counts, least=0)

    def describe(self) -> str:
        """What will be done, as Markdown."""
        config = self.config
        workers = "its default" if config.workers is None else config.workers
        return "\n".join(
            [
                f"- folder: `{shown(str(self.folder))}`",
                f"- {config.model} at {config.image_size} px, {config.batch_size} images per process and step, AMP "
                f"{config.amp_level}, {config.epochs} epochs, arm `{config.arm}`, processes: {config.nproc_per_node}",
                f"- loader alone with {', '.join(map(str, self.worker_counts))} processes, {self._repeats} times "
                f"{self._seconds:g} s each; training uses {workers}",
                f"- device: {self.device}, {machine.num_cores()} CPU cores",
                f"- output: `{config.output}`",
            ]
        )

    def write(self, images: Any, labels: Any) -> None:
        """Write arrays out as this lesson's folder (see datasets.arrays.write_image_folder)."""
        counts = write_image_folder(images, labels, self.folder)
        print(f"{self.folder}: {len(counts.classes)} classes, {counts.train_images} + {counts.val_images} images")

    def make_mock(self) -> None:
        """Make mock ImageNet where that is what was asked for; nothing else is ever written into."""
        if self.config.data == "mock":
            made = mock.make_mock_imagenet(self.folder, progress=False)
            print(f"{made.folder}: {made.train_images} training and {made.val_images} validation images")

    def check(self) -> "pd.DataFrame":
        """Look at every image and give a table of both parts; what is wrong is printed with its full path.

        Raises:
            ValueError: something is wrong and stop_at_problems is on, or training could not start on this folder.
        """
        print(f"$ resnet-acc data check {self.folder}")
        self.report = check_folder(self.folder, progress=False)
        print(self.report.text())
        if not self.report.ok and self._stop_at_problems:
            first = self.report.problems[0]
            raise ValueError(
                f"{shown(str(self.folder))} has {self.report.verdict}, the first: {shown(first.path)}: {first.reason}; "
                "mend them, or set stop_at_problems = False to train all the same"
            )
        preflight.check(self.config, self.environment)
        return self.report.table()

    def measure_loader(self) -> "pd.DataFrame":
        """Time the loader alone for each number of loader processes, by the command that is printed."""
        config = self.config
        arguments = [
            f"--data={config.data}",
            f"--image_size={config.image_size}",
            f"--batch_size={config.batch_size}",
            f"--workers={','.join(map(str, self.worker_counts))}",
            f"--seconds={self._seconds:g}",
            f"--repeats={self._repeats}",
            f"--device={self.device if config.arm != 'torchacc' else 'cpu'}",  # torch-xla takes no pinned memory
            f"--seed={config.seed}",
        ]
        longest = 60 + len(self.worker_counts) * self._repeats * (self._seconds + 60)
        self.loader = run_script(
            "resnet_acc.training.loader_rate", arguments, nproc=config.nproc_per_node, timeout_s=longest
        )
        return self.loader_table()

    def loader_table(self) -> "pd.DataFrame":
        """One row per number of loader processes: median, lowest and highest images/s of all ranks."""
        import pandas as pd

        rows = [
            {
                "loader processes per rank": entry["workers"],
                "images/s": number(entry["images_per_s"]),
                "lowest": number(min(entry["repeats"])),
                "highest": number(max(entry["repeats"])),
                "measurements": len(entry["repeats"]),
            }
            for entry in (self.loader or {"rates": []})["rates"]
        ]
        return pd.DataFrame(rows)

    def train_without_loader(self) -> None:
        """Train on batches that lie on the device: what training could take if data cost nothing."""
        steps = min(SYNTHETIC_STEPS, self.config.max_steps or SYNTHETIC_STEPS)
        warmup = self.config.warmup_steps
        config = dataclasses.replace(
            self.config,
            data="synthetic",
            epochs=1,
            max_steps=steps,
            warmup_steps=None if warmup is None else min(warmup, steps // 4),
            workers=None,
        )
        self.synthetic = load_run(launch_cell(config))

    def train(self) -> None:
        """Train on the folder, measuring the accuracy after each epoch."""
        self.run = load_run(launch_cell(self.config))

    def rates(self) -> "pd.DataFrame":
        """The loader alone, training alone, and both together, in images/s of all processes."""
        import pandas as pd

        rows = []
        for entry in (self.loader or {"rates": []})["rates"]:
            spread = (
                f"{number(entry['images_per_s'])} ({number(min(entry['repeats']))} to {number(max(entry['repeats']))})"
            )
            rows.append({"what": f"the loader alone, {entry['workers']} processes", "images/s": spread, "waiting": ""})
        for name, run in (("training without a loader", self.synthetic), ("training on the folder", self.run)):
            if run is not None:
                share = waiting_share([run])
                loaders = f", {run.params.get('workers')} loader processes" if run is self.run else ""
                waits = "n/a" if share is None else f"{100 * share:.0f} % of a step"
                rows.append({"what": name + loaders, "images/s": with_interval(rate_estimate([run])), "waiting": waits})
        return pd.DataFrame(rows)

    def bound(self) -> str:
        """Whether the loader or the device bounds training here, in words, as Markdown."""
        return bound_words(self.loader, self.synthetic, self.run, self.device)

    def accuracy(self) -> "pd.DataFrame":
        """Accuracy on val/ after each epoch with its 95 % confidence interval."""
        import pandas as pd

        rows = [
            {
                "epoch": record["epoch"] + 1,
                "validation images": record["images"],
                "top-1 % [CI]": with_interval(accuracy_estimate(record["acc1"], record["images"])),
                "top-5 %": number(record["acc5"]),
                "loss": number(record["loss"], 3),
            }
            for record in self._validations()
        ]
        return pd.DataFrame(rows)

    def _validations(self) -> list[dict[str, Any]]:
        return self.run.validations if self.run is not None else []

    def chance(self) -> float | None:
        """Percent right by always guessing the class that val/ has most images of."""
        part = self.report.parts.get("val") if self.report is not None else None
        return 100.0 * max(part.classes.values()) / part.num_images if part is not None and part.num_images else None

    def learned(self) -> str:
        """What the accuracy says, as Markdown."""
        return accuracy_words(self._validations(), self.chance())

    def figure(self) -> "Figure":
        """Accuracy over the epochs, and the three rates beside it."""
        with panels(2) as (figure, (left, right)):
            draw_accuracy(left, self._validations(), self.chance())
            draw_rates(right, self.loader, self.synthetic, self.run)
        return figure

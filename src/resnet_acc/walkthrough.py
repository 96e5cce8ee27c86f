"""What notebook 01 calls: one run a cell, in the article's order, and one comparison of all of them at the end."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resnet_acc.config import ARMS, RunConfig, preset_config
from resnet_acc.files import write_json
from resnet_acc.launch import busy, machine, preflight, xla_plugin
from resnet_acc.launch.compare import interleaved
from resnet_acc.launch.folder import make_folder
from resnet_acc.launch.notebook import launch_cell
from resnet_acc.launch.supervisor import RunFailed
from resnet_acc.results.measured import Run
from resnet_acc.results.report import Report, write_comparison
from resnet_acc.results.runs import load_run
from resnet_acc.results.status import read_json
from resnet_acc.results.summary import group_runs
from resnet_acc.results.tables import break_even_table, mfu_table
from resnet_acc.results.verdict import busy_words, verdict

if TYPE_CHECKING:
    import pandas as pd


class Walkthrough:
    """The runs of one notebook: which were asked for, which this machine can do, and what they left.

    Args:
        parameters: values of the notebook's parameter cell: arms, processes, repeats, preset, and fields of RunConfig.
            None stands for the preset's own value.
        notebook: its file, for the record of what was run.

    Raises:
        ValueError: a value is no good; the message names it and the mend.
    """

    def __init__(self, parameters: Mapping[str, Any], notebook: str = "notebooks/01_resnet50.ipynb") -> None:
        self._notebook = notebook
        values = {name: value for name, value in parameters.items() if value is not None}
        self.arms = _checked_arms(values.pop("arms"))
        processes, self.repeats = values.pop("processes", None), values.pop("repeats")
        if self.repeats < 1:
            raise ValueError(f"repeats is {self.repeats}; give at least 1")
        self.base = preflight.resolve(preset_config(values.pop("preset"), **values))
        self.environment = preflight.probe()
        self.device = preflight.resolve_device(self.base, self.environment)
        self.process_counts = self._process_counts(processes)
        self.output = Path(self.base.output)
        self._folder: Path | None = None
        self._entries: list[dict[str, Any]] = []
        self._skipped: list[dict[str, Any]] = []

    def _process_counts(self, asked: str | int | None) -> list[int]:
        """The counts asked for; None is one and all GPUs, or one and two on a CPU."""
        if asked is None:
            return sorted({1, xla_plugin.gpus(self.environment)["count"] if self.device == "cuda" else 2})
        try:
            counts = sorted({int(part) for part in str(asked).split(",")})
        except ValueError:
            raise ValueError(f'processes is {asked!r}; give counts such as "1,2"') from None
        for count in counts:
            self.base.with_arm("eager", count)  # refuses a count below 1
        return counts

    @property
    def several(self) -> int:
        """The largest number of processes."""
        return self.process_counts[-1]

    def describe(self) -> str:
        """What will be run, and what this machine can do, as Markdown."""
        config = self.base
        device = ", ".join(xla_plugin.gpus(self.environment)["names"]) if self.device == "cuda" else self.device
        versions = f"torch {self.environment['torch']}, torch-xla {self.environment['torch_xla'] or 'none'}"
        lines = [
            f"- {config.model} at {config.image_size} px, {config.batch_size} images per process and step, "
            f"AMP {config.amp_level}, data: {config.data}",
            f"- processes: {', '.join(map(str, self.process_counts))}; repeats: {self.repeats}",
            f"- device: {device}; {versions}",
            f"- output: `{self.output}`",
        ]
        now = busy_words(busy.sample(), machine.num_cores())
        lines.append(
            f"- **the machine is busy**: {now}; what runs now is measured too slow" if now else "- idle enough"
        )
        for arm, reason in preflight.runnable_arms(self.environment, self.device).items():
            chosen = "" if arm in self.arms else " (not asked for)"
            lines.append(f"- `{arm}`{chosen}: {'can run' if reason is None else 'cannot run: ' + reason}")
        return "\n".join(lines)

    def configuration(self) -> dict[str, Any]:
        """The resolved RunConfig that every run shares but for arm and processes."""
        return self.base.to_json()

    def launch(self, arm: str, nproc: int) -> None:
        """Run one arm, by the shell command that is printed, and note it for the comparison.

        An arm that was not asked for or cannot run here is passed over with the reason; it never runs as another. A
        run that fails is noted, and report() fails for it in the end: what the others measured is not lost.
        """
        if arm not in self.arms or nproc not in self.process_counts:
            print(f"{arm} x {nproc} was not asked for: arms {','.join(self.arms)}, processes {self.process_counts}")
            return
        self._run(arm, nproc, repeat=0)

    def launch_several(self, arm: str) -> None:
        """Run one arm on the largest number of processes, where that is more than one."""
        if self.several == 1:
            print("one process is all that was asked for or that there are devices for: see above")
        else:
            self.launch(arm, self.several)

    def repeat(self) -> None:
        """The repeats after the first, in turn (A B C, C B A, ...): a drift of the machine falls on all alike."""
        cells = [(entry["arm"], entry["nproc"]) for entry in self._entries if entry["repeat"] == 0]
        if self.repeats == 1:
            print(
                "repeats is 1: each arm ran once. With -p repeats 3 the intervals below also hold how much runs differ."
            )
        for repeat, (arm, nproc) in interleaved(cells, self.repeats)[len(cells) :]:
            self._run(arm, nproc, repeat)

    def _run(self, arm: str, nproc: int, repeat: int) -> None:
        config = self.base.with_arm(arm, nproc)
        try:
            preflight.check(config, self.environment)
        except ValueError as error:
            if preflight.runnable_arms(self.environment, self.device)[arm] is None:
                raise  # the arm can run; something else that was asked for is wrong
            print(f"passed over: {error}")
            self._skipped.append({"arm": arm, "nproc": nproc, "reason": str(error)})
            self._save("running")
            return
        entry: dict[str, Any] = {"run_dir": None, "arm": arm, "nproc": nproc, "repeat": repeat, "status": "interrupted"}
        self._entries = [old for old in self._entries if not _same_place(old, entry)] + [entry]
        before = busy.sample()
        try:
            run_dir = launch_cell(config)
        except RunFailed as error:
            self._note(entry, error.run_dir, "failed")
            print(f"{config.suffix} failed: {error}")
            return
        _add_busy(run_dir, before)
        self._note(entry, run_dir, "finished")

    def _note(self, entry: dict[str, Any], run_dir: Path | None, status: str) -> None:
        entry["status"] = status
        entry["run_dir"] = str(run_dir.relative_to(self.output)) if run_dir else None
        self._save("running")

    def _save(self, status: str) -> None:
        if self._folder is None:
            self._folder = make_folder(self.output / "comparisons")
            self._created_at = time.time()
        write_json(
            self._folder / "comparison.json",
            {
                "schema": 1,
                "id": self._folder.name,
                "created_at": self._created_at,
                "command": f"{self._notebook} {json.dumps(self.base.to_json())}",
                "arms": list(self.arms),
                "nproc": self.process_counts,
                "repeats": self.repeats,
                "status": status,
                "runs": self._entries,
                "skipped": self._skipped,
            },
        )

    def report(self) -> Report:
        """Write the report of this notebook's runs and print where it lies.

        Raises:
            ValueError: nothing has been run yet.
            RuntimeError: a run failed; the report of the others is written all the same.
        """
        if self._folder is None:
            raise ValueError("nothing has been run yet; run the cells above first")
        self._save("finished")
        report = write_comparison(self._folder)
        print(f"report: {report.html}")
        print(f"table:  {report.table}")
        for figure in report.figures:
            print(f"figure: {figure}")
        failed = [f"{entry['arm']} x {entry['nproc']}" for entry in self._entries if entry["status"] == "failed"]
        if failed:
            raise RuntimeError(f"{len(failed)} of {len(self._entries)} runs failed: {', '.join(failed)}; see above")
        return report

    def runs(self) -> list[Run]:
        """This notebook's runs as they lie on disk, in the order in which they were made."""
        return [load_run(self.output / entry["run_dir"]) for entry in self._entries if entry["run_dir"]]

    def break_even(self) -> "pd.DataFrame":
        """Start-up and step time of each arm, and when it has caught up with each baseline."""
        return break_even_table(group_runs(self.runs()))

    def mfu(self) -> "pd.DataFrame":
        """The share of the card's dense peak that each arm uses, or why it is not known."""
        return mfu_table(group_runs(self.runs()))

    def verdict(self) -> str:
        """What this notebook's runs show, in words, as Markdown."""
        return verdict(self.runs())


def _add_busy(run_dir: Path, before: dict[str, Any]) -> None:
    """Add to the run's env.json what else the machine was doing when it started; the verdict warns of it."""
    path = run_dir / "env.json"
    values = read_json(path)
    if values is not None:
        write_json(path, {"busy": before} | values)


def _same_place(left: dict[str, Any], right: dict[str, Any]) -> bool:
    """A cell that is run again replaces its earlier run in the comparison."""
    return all(left[name] == right[name] for name in ("arm", "nproc", "repeat"))


def _checked_arms(arms: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in arms.split(",") if name.strip()))
    if not names:
        raise ValueError(f"arms is {arms!r}; give some of {','.join(ARMS)}")
    for name in names:
        RunConfig().with_arm(name)  # refuses an unknown arm
    return names

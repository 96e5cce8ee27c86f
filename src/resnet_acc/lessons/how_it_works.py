"""What notebook 02 calls: each of the article's code changes, run by a script of the training side and shown."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from resnet_acc.config import RunConfig
from resnet_acc.launch import machine, preflight, xla_plugin
from resnet_acc.lessons import how_it_works_figure as figures
from resnet_acc.lessons import how_it_works_tables as tables
from resnet_acc.lessons import how_it_works_words as words
from resnet_acc.lessons.drawing import panels
from resnet_acc.lessons.how_it_works_summary import summary
from resnet_acc.lessons.script import run_script

if TYPE_CHECKING:
    from IPython.display import Markdown

SCRIPTS = "resnet_acc.training.lessons"
SMALL = "small"
"""The scripts' own network of two convolutions; every other model is torchvision's."""
SHORTEST = 4
"""Steps that the sections need at least: the first ones compile."""

LONGEST_S = 1800.0
"""A ResNet-50 at 224 px takes minutes to compile on a CPU, and some scripts compile several graphs of it."""

Shown = list[Any]
"""Tables, figures and words of a section, for display(*...)."""


class HowItWorks:
    """Each change run on this machine, with it and without it.

    Args:
        parameters: values of the notebook's parameter cell: arm, processes, steps, last_batch, and fields of
            RunConfig. None stands for each section's own value.

    Raises:
        ValueError: a value is no good, or the arm that was asked for cannot run here; the message names the mend.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        values = {name: value for name, value in parameters.items() if value is not None}
        asked, self.steps = values.pop("arm", None), values.pop("steps")
        processes, last_batch = values.pop("processes"), values.pop("last_batch", None)
        self.model = values.pop("model")
        if asked not in (None, "torchacc", "eager"):
            raise ValueError(f"arm is {asked!r}; give torchacc or eager, or None for the first of them that can run")
        if self.steps < SHORTEST:
            raise ValueError(f"steps is {self.steps}; give at least {SHORTEST}: the first ones compile")
        known = {} if self.model == SMALL else {"model": self.model}
        config = RunConfig.from_json({"data": "synthetic", "amp_level": "O1", **known, **values})
        self.last_batch = _checked_last_batch(last_batch, config.batch_size)
        self.config = dataclasses.replace(config, nproc_per_node=processes)
        self.environment = preflight.probe()
        self.arm, self.no_xla = self._choose_arm(asked)
        self.device = self._device(self.arm)
        self.spread = {arm: self._device(arm, processes) for arm in self.arms}
        self._warnings = [
            warning
            for arm, device in self.spread.items()
            for warning in preflight.check(
                dataclasses.replace(self.config, device=device).with_arm(arm, processes), self.environment
            ).warnings
        ]
        self.results: dict[str, dict[str, Any]] = {}

    def _choose_arm(self, asked: str | None) -> tuple[str, str | None]:
        """The arm of the sections that show one, and why the XLA sections are passed over (None: they are not)."""
        reasons = preflight.runnable_arms(self.environment, self._device("torchacc"))
        if reasons["eager"] is not None or (asked == "torchacc" and reasons["torchacc"] is not None):
            raise ValueError(reasons[asked or "eager"] or reasons["eager"])
        if asked == "eager":
            return "eager", "arm is 'eager'"
        return ("eager" if reasons["torchacc"] else "torchacc"), reasons["torchacc"]

    @property
    def arms(self) -> list[str]:
        """The arms of the sections that show both."""
        return ["eager", *(["torchacc"] if self.no_xla is None else [])]

    def _device(self, arm: str, processes: int = 1) -> str:
        """The device for so many processes: the CPU where there are fewer GPUs than that.

        Raises:
            ValueError: the device that was asked for cannot take one process of the arm.
        """
        config = dataclasses.replace(self.config, nproc_per_node=1).with_arm(arm, 1)
        device = preflight.resolve_device(config, self.environment)
        if device == "cuda":
            found = xla_plugin.gpus(self.environment) if arm == "torchacc" else self.environment["cuda"]
            if found["count"] < 1:
                raise ValueError(f"device is 'cuda', but {arm} sees no GPU here; use device = 'cpu' or 'auto'")
            return "cuda" if processes <= found["count"] else "cpu"
        return device

    def describe(self) -> str:
        """What will be run, as Markdown."""
        config = self.config
        several = ", ".join(f"{arm} on {device}" for arm, device in self.spread.items())
        lines = [
            f"- torch {self.environment['torch']}, torch-xla {self.environment['torch_xla'] or 'not installed'}, "
            f"{machine.num_cores()} CPU cores, GPUs: {self.environment['cuda']['count']}",
            f"- arm `{self.arm}` on {self.device}; sections with {config.nproc_per_node} processes: {several}",
            f"- {self.model} for graphs and dtypes, {config.batch_size} images of {config.image_size} px per process "
            f"and step, {self.steps} steps",
        ]
        lines += [f"- {words.plain(warning)}" for warning in dict.fromkeys(self._warnings)]
        if self.no_xla is not None:
            lines.append(f"- **The sections on XLA's graphs are passed over:** {words.plain(self.no_xla)}.")
        return "\n".join(lines)

    def _run(
        self, key: str, script: str, *arguments: str, arm: str | None = None, nproc: int = 1
    ) -> dict[str, Any] | None:
        """Run a script of the training side and keep its result; None, with the reason printed, where it cannot."""
        device = self.spread.get(arm or self.arm, self.device) if nproc > 1 else self._device(arm or self.arm)
        config = self.config
        common = [f"--batch_size={config.batch_size}", f"--image_size={config.image_size}", f"--seed={config.seed}"]
        result = run_script(
            f"{SCRIPTS}.{script}",
            [*arguments, *common],
            nproc=nproc,
            environment={"RESNET_ACC_DEVICE": device},
            timeout_s=LONGEST_S,
        )
        if "skipped" in result:
            return None
        self.results[key] = result
        return result

    def _xla(self, key: str, script: str, *arguments: str) -> dict[str, Any] | None:
        """The same for a script that needs XLA."""
        if self.no_xla is not None:
            print(f"passed over: {self.no_xla}")
            return None
        return self._run(key, script, *arguments, arm="torchacc")

    def names(self) -> Shown:
        """Which of the names that the article imports are there today."""
        if self.no_xla is not None:
            print(f"passed over: {self.no_xla}")
            return []
        result = run_script(f"{SCRIPTS}.article_names", environment={"RESNET_ACC_DEVICE": self.device})
        if "skipped" in result:
            return []
        self.results["names"] = result
        return [tables.names(result), _markdown(words.names(result))]

    def process_group(self) -> Shown:
        """Who is who with init_process_group, and what the backend's own sum gives."""
        nproc = self.config.nproc_per_node
        found = [self._run(f"group {arm}", "process_group", f"--arm={arm}", arm=arm, nproc=nproc) for arm in self.arms]
        results = [result for result in found if result is not None]
        return [tables.process_group(results), _markdown(words.process_group(results))]

    def set_replication(self) -> Shown:
        """torch-xla's state and an all-reduce's graph without the call and with it."""
        result = self._xla("replication", "replication")
        return [] if result is None else [tables.replication(result), _markdown(words.replication(result))]

    def loader(self) -> Shown:
        """Batches copied in the loop against the wrapped loader, and a loader that fails."""
        result = self._xla("loader", "loader", f"--steps={self.steps}")
        return [] if result is None else [*tables.loader(result), _markdown(words.loader(result))]

    def step_graph(self) -> Shown:
        """One step's operations as traced and as compiled."""
        batch, last = self.config.batch_size, self.last_batch
        sizes = f"{batch},{batch},{batch},{last},{batch},{last}"
        result = self._xla("graph", "step_graph", f"--model={self.model}", f"--sizes={sizes}")
        if result is None:
            return []
        with panels(2, 4.8) as (figure, (left, right)):
            figures.draw_kinds(left, result["before"]["kinds"], "Traced")
            figures.draw_kinds(right, result["after"]["kinds"], "Launched after fusion")
        return [tables.step_graph(result), figure, _markdown(words.step_graph(result))]

    def shapes(self) -> Shown:
        """What a batch of another size costs: the steps of the section before, one by one."""
        result = self.results.get("graph")
        if result is None:
            print(f"passed over: {self.no_xla or 'the section on the graph has not run'}")
            return []
        with panels(1) as (figure, (ax,)):
            figures.draw_steps(ax, result["steps"])
        return [tables.shapes(result), figure, _markdown(words.shapes(result))]

    def mark_step(self) -> Shown:
        """One graph for several steps: what comes without mark_step."""
        numbers = sorted({1, 2, self.steps // 2})
        result = self._xla("boundary", "step_boundary", "--steps_each", *map(str, numbers))
        return [] if result is None else [tables.boundary(result), _markdown(words.boundary(result))]

    def read_back(self) -> Shown:
        """A value read in the loop: step times and graphs per step."""
        found = [
            self._run(f"read {arm}", "read_back", f"--arm={arm}", f"--steps={self.steps}", arm=arm)
            for arm in dict.fromkeys((self.arm, "eager"))
        ]
        results = [result for result in found if result is not None]
        return [tables.read_back(results), _markdown(words.read_back(results))]

    def optimizer(self) -> Shown:
        """syncfree.AdamW against PyTorch's own on XLA."""
        result = self._xla("optimizer", "optimizer_state", f"--steps={self.steps}")
        return [] if result is None else [tables.optimizer(result), _markdown(words.optimizer(result))]

    def autocast(self) -> Shown:
        """The dtype of each kind of layer without and with autocast."""
        dtype = f"--amp_dtype={self.config.amp_dtype}"
        result = self._run("autocast", "autocast_dtypes", f"--arm={self.arm}", f"--model={self.model}", dtype)
        return [] if result is None else [tables.autocast(result), _markdown(words.autocast(result))]

    def loss_scaling(self) -> Shown:
        """Gradients lost at each scale, and an overflow that is provoked."""
        steps, spike = max(self.steps, 2 * SHORTEST), SHORTEST + 1
        arguments = [f"--arm={self.arm}", f"--steps={steps}", f"--spike_step={spike}", "--growth_interval=3"]
        result = self._run("scaling", "loss_scaling", *arguments)
        if result is None:
            return []
        with panels(2) as (figure, (left, right)):
            figures.draw_sweep(left, result["sweep"])
            figures.draw_scale(right, result["with"]["steps"])
        return [figure, tables.loss_scaling(result), _markdown(words.loss_scaling(result))]

    def all_reduce(self) -> Shown:
        """Each rank's gradients, their sum and mean, and ranks that train without the all-reduce."""
        results = []
        for arm in self.arms:
            # Two processes that compile on a CPU take long, and drift apart there as eager does.
            steps = 0 if arm == "torchacc" and self.spread[arm] == "cpu" else self.steps
            nproc = self.config.nproc_per_node
            arguments = [f"--arm={arm}", f"--steps={steps}"]
            result = self._run(f"reduce {arm}", "all_reduce", *arguments, arm=arm, nproc=nproc)
            results += [] if result is None else [result]
        drifts = [result for result in results if result["with"] and result["world_size"] > 1]
        with panels(max(1, len(drifts))) as (figure, axes):
            for ax, result in zip(axes, drifts, strict=False):
                figures.draw_drift(ax, result)
        return [tables.all_reduce(results), *([figure] if drifts else []), _markdown(words.all_reduce(results))]

    def summary(self) -> Shown:
        """Every change that was run in one table: what was seen with it, and without it."""
        return [summary(self.results)]


def _checked_last_batch(asked: int | None, batch_size: int) -> int:
    """Images of the short last batch.

    Raises:
        ValueError: it is not shorter than the others, or BatchNorm could not compute its statistics from it.
    """
    if batch_size < 3:
        raise ValueError(f"batch_size is {batch_size}; give at least 3: a last batch of 2 or more has to be shorter")
    last = max(2, batch_size * 5 // 8) if asked is None else asked
    if not 2 <= last < batch_size:
        raise ValueError(f"last_batch is {last}; give 2 to {batch_size - 1}, fewer than batch_size has")
    return last


def _markdown(text: str) -> "Markdown":
    from IPython.display import Markdown

    return Markdown(text)

"""What can be chosen on this machine, and the reason for what cannot; all of it as preflight says."""

import dataclasses
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from resnet_acc.config import ARMS, RunConfig, preset_config
from resnet_acc.launch import preflight, xla_plugin

FOLDER = "folder"
"""Stands among the choices of data for an image folder of the reader's."""
_MOST_PROCESSES = 64


@dataclass(frozen=True)
class Option:
    """One thing to choose; `reason` says why it cannot be, or is None."""

    label: str
    value: Any
    reason: str | None = None


@dataclass(frozen=True)
class Precision:
    """--amp_level with --amp_dtype."""

    amp_level: str
    amp_dtype: str

    @property
    def label(self) -> str:
        """What takes effect, in the field's words."""
        if self.amp_level == "O0":
            return "O0 float32"
        return "O1 mixed" if self.amp_dtype == "auto" else f"O1 {self.amp_dtype}"


PRECISIONS = (
    Precision("O0", "auto"),
    Precision("O1", "auto"),
    Precision("O1", "bfloat16"),
    Precision("O1", "float16"),
)


def checked_arms(arms: str | Iterable[str]) -> tuple[str, ...]:
    """Names of arms, each once, from a list or from one text with commas.

    Raises:
        ValueError: none, or an unknown one.
    """
    parts = arms.split(",") if isinstance(arms, str) else list(arms)
    names = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not names:
        raise ValueError(f"arms is {arms!r}; give some of {','.join(ARMS)}")
    for name in names:
        RunConfig().with_arm(name)  # refuses an unknown arm
    return names


class Choices:
    """A configuration to start from, and what may be changed in it here.

    Args:
        parameters: arms, processes, preset, and fields of RunConfig; None stands for the preset's own value.
        environment: what preflight.probe said, where it was asked already.

    Raises:
        ValueError: a value is no good; the message names it and the mend.
    """

    def __init__(self, parameters: Mapping[str, Any], environment: dict[str, Any] | None = None) -> None:
        values = {name: value for name, value in parameters.items() if value is not None}
        self.asked_arms = checked_arms(values.pop("arms", "eager"))
        processes = values.pop("processes", 1)
        base = preset_config(values.pop("preset", "quick"), **values)
        self.base = base.with_arm(self.asked_arms[0], processes)
        self.output = Path(preflight.resolve(self.base).output)
        self.environment = preflight.probe() if environment is None else environment

    @cached_property
    def machine(self) -> str:
        """Device and versions, in one line."""
        device = preflight.resolve_device(self.base, self.environment)
        name = ", ".join(xla_plugin.gpus(self.environment)["names"]) if device == "cuda" else device
        return f"{name}; torch {self.environment['torch']}, torch-xla {self.environment['torch_xla'] or 'none'}"

    def arms(self) -> list[Option]:
        """All arms; what they need beyond a machine is not looked at."""
        plain = dataclasses.replace(self.base, amp_level="O0", amp_dtype="auto")
        return [Option(arm, arm, self._why_not(plain.with_arm(arm, 1))) for arm in ARMS]

    def processes(self, arms: Sequence[str]) -> list[Option]:
        """Counts of processes that every one of the arms can run on: powers of two, all devices, and what was asked."""
        plain = dataclasses.replace(self.base, amp_level="O0", amp_dtype="auto")
        most = max(2, min(self._num_devices(arms), _MOST_PROCESSES))
        counts = {2**power for power in range(most.bit_length()) if 2**power <= most}
        counts |= {most, self.base.nproc_per_node}
        return [
            Option(str(count), count, self._why_none([plain.with_arm(arm, count) for arm in arms]))
            for count in sorted(counts)
        ]

    def precisions(self, arms: Sequence[str]) -> list[Option]:
        """Precisions that every one of the arms can run at."""
        return [
            Option(
                precision.label,
                precision,
                self._why_none(
                    [
                        dataclasses.replace(
                            self.base.with_arm(arm, 1),
                            amp_level=precision.amp_level,
                            amp_dtype=precision.amp_dtype,
                        )
                        for arm in arms
                    ]
                ),
            )
            for precision in PRECISIONS
        ]

    def data(self) -> list[Option]:
        """Mock images where they have been made, synthetic data, and a folder, which is checked when it is named."""
        mock = dataclasses.replace(self.base.with_arm("eager", 1), data="mock", batch_size=1, output=_any_folder())
        return [
            Option("mock", "mock", self._refusal(mock)),
            Option("synthetic", "synthetic"),
            Option("a folder", FOLDER),
        ]

    def problem(self, config: RunConfig, arms: Sequence[str]) -> str | None:
        """Why a run cannot be started, but for its data; None where nothing is in the way."""
        if not arms:
            return "arms: choose at least one"
        each = [dataclasses.replace(config.with_arm(arm), data="synthetic") for arm in arms]
        return next((reason for one in each if (reason := self._refusal(one)) is not None), None)

    def data_problem(self, config: RunConfig) -> str | None:
        """Why the data will not do, which takes as long as counting its images."""
        return self._refusal(config)

    def warnings(self, config: RunConfig, arms: Sequence[str]) -> list[str]:
        """What a run should know of, though it can be started; each line once."""
        found: dict[str, None] = {}
        for arm in arms:
            try:
                checked = preflight.check(dataclasses.replace(config.with_arm(arm), data="synthetic"), self.environment)
            except ValueError:
                continue
            found |= dict.fromkeys(checked.warnings)
        return list(found)

    def _num_devices(self, arms: Sequence[str]) -> int:
        for arm in arms:
            try:
                return preflight.check(_on_any_data(self.base.with_arm(arm, 1)), self.environment).num_devices
            except ValueError:
                continue
        return 1

    def _why_none(self, configs: Sequence[RunConfig]) -> str | None:
        return next((reason for config in configs if (reason := self._why_not(config)) is not None), None)

    def _why_not(self, config: RunConfig) -> str | None:
        """Why this machine cannot, whatever the data and the output."""
        return self._refusal(_on_any_data(config))

    def _refusal(self, config: RunConfig) -> str | None:
        try:
            preflight.check(config, self.environment)
        except (ValueError, OSError) as error:
            return str(error)
        return None


def _on_any_data(config: RunConfig) -> RunConfig:
    return dataclasses.replace(config, data="synthetic", output=_any_folder(), master_port=None)


def _any_folder() -> str:
    """One that can be written: what is asked is not about the output."""
    return os.path.abspath(tempfile.gettempdir())

"""The run that a lesson's parameters ask for, and what this machine is."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from resnet_acc.config import RunConfig, preset_config
from resnet_acc.launch import preflight


@dataclasses.dataclass(frozen=True)
class Settings:
    """A resolved run, what preflight.probe said, and the device that the run will use."""

    config: RunConfig
    environment: dict[str, Any]
    device: str


def resolve_settings(values: Mapping[str, Any], preset: str, arm: str, processes: int) -> Settings:
    """The preset's run with a notebook's values on top.

    Where amp_level is not given a CPU gets O0: few have units for bfloat16, and without them a step takes many times
    as long as in float32.

    Raises:
        ValueError: a value is no good, or the arm cannot run here; the message names it and the mend.
    """
    config = preflight.resolve(preset_config(preset, **values).with_arm(arm, processes))
    environment = preflight.probe(quick=arm != "torchacc")
    device = preflight.resolve_device(config, environment)
    if device == "cpu" and "amp_level" not in values and config.amp_dtype == "auto":
        config = dataclasses.replace(config, amp_level="O0")
    reason = preflight.runnable_arms(environment, device)[arm]
    if reason is not None:
        raise ValueError(f"arm {arm!r} cannot run here: {reason}")
    return Settings(config, environment, device)


def read_counts(name: str, counts: str | int, least: int = 1) -> list[int]:
    """ "1,2,4" as numbers in ascending order.

    Raises:
        ValueError: it is no list of numbers, or one is below `least`; the message begins with the parameter's name.
    """
    try:
        found = sorted({int(part) for part in str(counts).split(",")})
    except ValueError:
        raise ValueError(f'{name} is {counts!r}; give counts such as "1,2"') from None
    if found[0] < least:
        raise ValueError(f"{name} is {counts!r}; give counts of at least {least}")
    return found

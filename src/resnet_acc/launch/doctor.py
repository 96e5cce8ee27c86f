"""One page about this machine and environment: what is there, which arms can run, and how to mend what cannot.

Exit status: 0 the arms that were asked for can run; 1 one of them cannot, or something that every run needs is missing;
2 bad usage, or the doctor itself failed.
"""

import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resnet_acc.config import ARMS, DEVICES, RunConfig
from resnet_acc.launch import preflight, xla_plugin
from resnet_acc.launch.doctor_checks import CANNOT, OK, WARN, software_checks
from resnet_acc.launch.doctor_machine import machine_checks

SCHEMA = 1
DEFAULT_ARMS = ("eager",)
MAX_WIDTH = 110
_LABEL, _STATE = 15, 7


def examine(asked: Sequence[str] = DEFAULT_ARMS, device: str = "auto", output: str = "output") -> dict[str, Any]:
    """Everything doctor says, as plain values.

    Args:
        asked: arms that are to run.
        device: "auto", "cpu", "cuda" or "tpu".
        output: folder that runs are to be written to.

    Returns:
        schema, state (ok, warn or cannot, the worst of all), asked, device, checks (what, state, value, mend of each),
        arms (arm, device, can_run, why of each), environment (what the probe said).

    Raises:
        ValueError: there is no such arm or device.
    """
    for arm in asked:
        if arm not in ARMS:
            raise ValueError(f"arm is {arm!r}; choose among {', '.join(ARMS)}")
    if device not in DEVICES:
        raise ValueError(f"device is {device!r}; choose one of {', '.join(DEVICES)}")
    environment = preflight.probe()
    folder = Path(preflight.resolve(RunConfig(output=output)).output)
    chosen = preflight.resolve_device(RunConfig(device=device), environment)
    arms = _arms(environment, chosen, given=device != "auto")
    checks = [
        *software_checks(environment, chosen, list(asked)),
        *machine_checks(environment, chosen, folder),
    ]
    cannot = any(not entry["can_run"] for entry in arms if entry["arm"] in asked)
    states = {check.state for check in checks} | ({CANNOT} if cannot else set())
    return {
        "schema": SCHEMA,
        "state": next(state for state in (CANNOT, WARN, OK) if state in states | {OK}),
        "asked": list(asked),
        "device": chosen,
        "checks": [check.to_json() for check in checks],
        "arms": arms,
        "environment": environment,
    }


def _arms(environment: dict[str, Any], device: str, *, given: bool) -> list[dict[str, Any]]:
    """Each arm on the device; torchacc on the GPUs where only it can use them."""
    found = []
    for arm, why in preflight.runnable_arms(environment, device).items():
        on = device
        if arm == "torchacc" and device == "cpu" and not given and xla_plugin.only_for_xla(environment):
            on, why = "cuda", preflight.runnable_arms(environment, "cuda")[arm]
        if on == "tpu" and not environment["tpu"]:
            why = why or "no TPU is visible here; use --device=cpu"
        if on == "cuda" and not (xla_plugin.gpus(environment) if arm == "torchacc" else environment["cuda"])["count"]:
            why = why or "no GPU is visible to it here; use --device=cpu"
        found.append({"arm": arm, "device": on, "can_run": why is None, "why": why})
    return found


def page(report: dict[str, Any], width: int | None = None) -> list[str]:
    """The lines of the page: a line for each check, its mend below it where it needs one, and the arms."""
    columns = min(shutil.get_terminal_size((MAX_WIDTH, 24)).columns if width is None else width, MAX_WIDTH)
    lines = []
    for check in report["checks"]:
        lines += _wrapped(f"{check['what']:<{_LABEL}}{check['state']:<{_STATE}}", check["value"], columns)
        if check["mend"]:
            lines += _wrapped(" " * _LABEL + f"{'':<{_STATE}}", f"mend: {check['mend']}", columns)
    lines.append("")
    for entry in report["arms"]:
        state = OK if entry["can_run"] else CANNOT if entry["arm"] in report["asked"] else WARN
        told = (
            f"can run on {entry['device']}" if entry["can_run"] else f"cannot run on {entry['device']}: {entry['why']}"
        )
        lines += _wrapped(f"{entry['arm']:<{_LABEL}}{state:<{_STATE}}", told, columns)
    asked = ", ".join(report["asked"])
    ending = "can run here" if exit_status(report) == 0 else "cannot run here as things are: see the lines with cannot"
    return [*lines, "", f"asked for: {asked}; {ending}"]


def _wrapped(label: str, text: str, columns: int) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        max(columns, _LABEL + _STATE + 20),
        initial_indent=label,
        subsequent_indent=" " * (_LABEL + _STATE),
        break_on_hyphens=False,
    ) or [label.rstrip()]


def exit_status(report: dict[str, Any]) -> int:
    """1 where something that was asked for cannot run."""
    return 1 if report["state"] == CANNOT else 0

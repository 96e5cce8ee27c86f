"""The command that starts a run, or several arms in turn: what is shown is what is run."""

import shlex
from collections.abc import Sequence

from resnet_acc.config import RunConfig
from resnet_acc.launch.compare import comparison_command
from resnet_acc.launch.notebook import anywhere, python_command, run_arguments


def command_arguments(config: RunConfig, arms: Sequence[str] = ()) -> list[str]:
    """What follows python in the command of a run, or of several arms in turn.

    Raises:
        ValueError: an unknown arm.
    """
    names = list(dict.fromkeys(arms)) or [config.arm]
    if len(names) == 1:
        return run_arguments(config.with_arm(names[0]))
    for name in names:
        config.with_arm(name)  # refuses an unknown one
    return comparison_command(anywhere(config), names, [config.nproc_per_node], 1)[1:]


def shell_command(config: RunConfig, arms: Sequence[str] = ()) -> str:
    """The command that start() runs, as it can be pasted into a shell.

    Raises:
        ValueError: an unknown arm.
    """
    return shlex.join([python_command(), *command_arguments(config, arms)])

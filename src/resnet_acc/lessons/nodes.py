"""Runs over several machines: the command for each, and all of them started on this one machine for a look."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from resnet_acc.config import RunConfig
from resnet_acc.launch import machine, notebook
from resnet_acc.launch.options import shell_line
from resnet_acc.launch.supervisor import RUN_FOLDER_LINE

LOCAL_ADDRESS = "127.0.0.2"
"""An address of this machine alone that is not the one RunConfig refuses for several machines; Linux has all of
127.0.0.0/8 on its loopback interface."""
STOP_SECONDS = 20.0
OTHERS_SECONDS = 15.0
"""How long the others may go on once a machine's launcher has failed."""


class NodesFailed(RuntimeError):
    """A launcher of one of the machines failed; the message names it and its last line."""


@dataclass
class _Node:
    """One machine's launcher."""

    rank: int
    process: "subprocess.Popen[str]"
    folder: Path | None = None
    last: str = ""
    reader: threading.Thread = field(default_factory=threading.Thread)

"""Runs over several machines: the command for each, and all of them started on this one machine for a look."""

import contextlib
import dataclasses
import os
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from resnet_acc.config import RunConfig
from resnet_acc.launch import notebook
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

    def relay(self) -> None:
        """Print the launcher's lines as they come, marked with the machine's number."""
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError), self.process.stdout as stream:
            for line in stream:
                text = line.rstrip("\n")
                if self.folder is None and text.startswith(RUN_FOLDER_LINE):
                    self.folder = Path(text.removeprefix(RUN_FOLDER_LINE))
                self.last = text or self.last
                print(f"[machine {self.rank}] {text}", flush=True)


def node_configs(config: RunConfig, nnodes: int, address: str, port: int | None = None) -> list[RunConfig]:
    """One configuration for each machine; they differ in node_rank alone.

    Raises:
        ValueError: nnodes is below 2, or the address is no machine 0 that the others could reach.
    """
    if nnodes < 2:
        raise ValueError(f"nnodes is {nnodes}; several machines are 2 or more")
    shared = dataclasses.replace(config, nnodes=nnodes, node_rank=0, master_addr=address, master_port=port)
    return [dataclasses.replace(shared, node_rank=rank) for rank in range(nnodes)]


def node_commands(config: RunConfig, nnodes: int, address: str) -> list[str]:
    """The shell command for each machine, as it is typed there in the repository's folder."""
    lines = []
    for each in node_configs(config, nnodes, address):
        words = each.to_arguments()
        lines.append(shlex.join(["python", "-m", "resnet_acc.launch_single_task", *words]))
    return lines


def launch_nodes(
    config: RunConfig, nnodes: int, *, gpus: Sequence[Sequence[int]] = (), trainer: str | None = None
) -> list[Path]:
    """Run one job whose machines are all this one, each a launcher of its own, and return each machine's run folder.

    Machine 0's comes first, and its records hold the images of all. The commands printed are the commands run.

    Args:
        gpus: for each machine the GPUs that it may use, by their numbers; none on a CPU.
        trainer: module to run as a rank in place of the training; for tests.

    Raises:
        NodesFailed: a launcher ended with an exit status other than 0; the others have ended too.
        KeyboardInterrupt: the cell was interrupted; every launcher and its ranks have ended.
    """
    nodes: list[_Node] = []
    try:
        for each in node_configs(config, nnodes, LOCAL_ADDRESS, _free_port()):
            nodes.append(_start(each, gpus, trainer))
        _wait(nodes)
    except BaseException:
        _stop(nodes)
        raise
    failed = [node for node in nodes if node.process.returncode != 0]
    if failed:
        # The first that failed by itself: one that was told to stop for it ends with 128 and a signal's number.
        first = next((node for node in failed if 0 < node.process.returncode < 128), failed[0])
        raise NodesFailed(f"machine {first.rank} of {nnodes} failed: {first.last.removeprefix('error: ')}")
    return [node.folder for node in nodes if node.folder is not None]


def _start(config: RunConfig, gpus: Sequence[Sequence[int]], trainer: str | None) -> _Node:
    arguments = notebook.run_arguments(config)
    environment = dict(os.environ) | ({"RESNET_ACC_TRAINER": trainer} if trainer else {})
    shown = [notebook.python_command(), *arguments]
    prefix = ""
    if gpus:
        visible = ",".join(map(str, gpus[config.node_rank]))
        environment["CUDA_VISIBLE_DEVICES"] = visible
        prefix = f"CUDA_VISIBLE_DEVICES={visible} "
    print(f"$ {prefix}{shlex.join(shown)}", flush=True)
    node = _Node(config.node_rank, notebook.start(arguments, environment))
    node.reader = threading.Thread(target=node.relay, daemon=True)
    node.reader.start()
    return node


def _wait(nodes: Sequence[_Node]) -> None:
    """Return when all launchers have ended; once one has failed, the others are told to."""
    failed_at: float | None = None
    while any(node.process.poll() is None for node in nodes):
        if failed_at is None and any(node.process.poll() for node in nodes):
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() > failed_at + OTHERS_SECONDS:
            _stop(nodes)
        time.sleep(0.1)
    for node in nodes:
        node.reader.join(5.0)


def _stop(nodes: Sequence[_Node]) -> None:
    """Tell every launcher to end its run, and kill one that does not; a second interrupt does not cut that short."""
    until = time.monotonic() + STOP_SECONDS
    for node in nodes:
        if node.process.poll() is None:
            node.process.send_signal(signal.SIGINT)
    for node in nodes:
        while node.process.poll() is None:
            try:
                node.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                node.process.kill()
            except KeyboardInterrupt:
                continue
        with contextlib.suppress(KeyboardInterrupt):
            node.reader.join(5.0)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])

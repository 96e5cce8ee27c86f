"""What `resnet-acc doctor` says of the machine: devices, cores, memory, shared memory, ports, disk, caches, data."""

import os
import socket
import tempfile
from pathlib import Path
from typing import Any

from resnet_acc.files import project_root
from resnet_acc.launch import machine, preflight, xla_plugin
from resnet_acc.launch.doctor_checks import CANNOT, OK, WARN, Check

SMALL_SHM_GIB = 1.0
SMALL_MEMORY_GIB = 4.0
SMALL_DISK_GIB = 2.0
LEAST_DISK_GIB = 0.1
DEFAULT_PORT = 29500
"""torchrun's own, which runs on several machines meet at unless --master_port says another."""


def machine_checks(environment: dict[str, Any], device: str, output: Path) -> list[Check]:
    """Everything about the machine.

    Args:
        environment: what preflight.probe said.
        device: "cpu", "cuda" or "tpu".
        output: folder that runs are to be written to; it need not be there yet.
    """
    return [
        _devices(environment, device),
        cores(machine.bound_cores(), machine.cpu_quota()),
        _memory(machine.memory_gib(), machine.available_gib()),
        shared_memory(machine.free_gib(Path("/dev/shm"))),
        ports(),
        folder_check("output", output, "give another --output"),
        folder_check("temporary", Path(tempfile.gettempdir()), "set TMPDIR to a folder with room"),
        folder_check("cache", cache_folder(), "set XDG_CACHE_HOME to a folder that can be written"),
        _mock_data(),
    ]


def _devices(environment: dict[str, Any], device: str) -> Check:
    if device == "tpu":
        if environment["tpu"]:
            return Check("devices", OK, "TPU")
        return Check("devices", CANNOT, "no TPU is visible", "use --device=cpu")
    gpus = xla_plugin.gpus(environment)
    if not gpus["count"]:
        if device == "cuda":
            return Check("devices", CANNOT, "no GPU is visible", "use --device=cpu, or a machine with an NVIDIA GPU")
        return Check("devices", OK, f"no GPU; CPU {machine.cpu_model()}")
    names = ", ".join(f"{gpus['names'].count(name)} x {name}" for name in dict.fromkeys(gpus["names"]))
    if xla_plugin.only_for_xla(environment):
        why = environment.get("errors", {}).get("cuda", "torch sees none of them")
        return Check("devices", WARN, f"{names}, for torchacc only ({why})", "install a torch for CUDA")
    return Check("devices", OK, names)


def cores(bound: int, quota: float | None) -> Check:
    """Cores by affinity, and the control group's quota where there is one."""
    usable = machine.num_cores()
    value = f"{usable} usable: {bound} of {os.cpu_count() or bound} by affinity, "
    value += "no quota" if quota is None else f"a quota of {quota:g} by the control group"
    if quota is not None and quota < bound:
        mend = f"processes that compute at once are slowed down beyond {quota:g}; raise the container's --cpus"
        return Check("cores", WARN, value, mend)
    if usable < 2:
        return Check("cores", WARN, value, "two or more, so that loading and training do not wait for each other")
    return Check("cores", OK, value)


def _memory(total_gib: float, available_gib: float | None) -> Check:
    limit = machine.memory_limit_gib()
    value = f"{total_gib:.1f} GiB"
    if limit is not None and limit <= total_gib + 0.01:
        value += " by the control group's limit"
    if available_gib is not None:
        value += f", {min(available_gib, total_gib):.1f} GiB free"
    if total_gib < SMALL_MEMORY_GIB or (available_gib is not None and available_gib < preflight.RANK_GIB * 2):
        return Check("memory", WARN, value, "use small batches and few processes, or raise the container's --memory")
    return Check("memory", OK, value)


def shared_memory(free: float | None) -> Check:
    """/dev/shm, through which loader processes hand over their batches."""
    if free is None:
        return Check("/dev/shm", WARN, "there is none", "use --workers=0, or give the container --shm-size=8g")
    value = f"{free:.2f} GiB free"
    if free < SMALL_SHM_GIB:
        mend = "small for loader processes: --shm-size=8g for the container, or --workers=0"
        return Check("/dev/shm", WARN, value, mend)
    return Check("/dev/shm", OK, value)


def ports() -> Check:
    """Whether the processes of a run can meet: on a port of their own on one machine, on 29500 on several."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(1)
            port = listener.getsockname()[1]
            with socket.create_connection(("127.0.0.1", port), timeout=5):
                pass
    except OSError as error:
        value = f"no process can listen on and reach 127.0.0.1 ({error.strerror or error})"
        return Check("ports", CANNOT, value, "allow TCP on the loopback interface (ip link set lo up)")
    try:
        free = machine.port_is_free(DEFAULT_PORT)
    except PermissionError:
        free = False
    if not free:
        value = f"127.0.0.1 can be used; {DEFAULT_PORT}, for runs on several machines, is taken"
        return Check("ports", WARN, value, "one machine takes a free port by itself; else give --master_port")
    return Check("ports", OK, f"127.0.0.1 can be used, and {DEFAULT_PORT} is free")


def folder_check(what: str, folder: Path, mend: str) -> Check:
    """Whether a folder, or where it is not there yet the nearest above it, takes a file, and how much room it has."""
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        return Check(what, CANNOT, f"{folder}: {place} is no folder", mend)
    try:
        with tempfile.TemporaryFile(dir=place) as stream:
            stream.write(b"x" * 4096)
            stream.flush()
    except OSError as error:
        return Check(what, CANNOT, f"{folder} cannot be written ({error.strerror or error})", mend)
    free = machine.free_gib(place)
    value = f"{folder}: {'unknown' if free is None else f'{free:.2f} GiB'} of disk free"
    if free is not None and free < SMALL_DISK_GIB:
        state = CANNOT if free < LEAST_DISK_GIB else WARN
        return Check(what, state, value, f"make room, or {mend}")
    return Check(what, OK, value)


def cache_folder() -> Path:
    """Where the shim and XLA's compiled programs are kept, as training.accelerators.pjrt.build chooses it."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~/.cache"))) / "resnet_acc"


def _mock_data() -> Check:
    folder = project_root() / "data" / "mock_imagenet"
    if (folder / "train").is_dir():
        return Check("mock data", OK, str(folder))
    return Check("mock data", WARN, f"none at {folder}", "resnet-acc data mock (the notebooks make it by themselves)")

"""What this machine has, without torch: cores, memory, disk."""

import contextlib
import math
import os
import platform
import re
import shutil
import socket
from pathlib import Path

from resnet_acc.config_values import slug

_CGROUP_ROOT = Path("/sys/fs/cgroup")


def num_cores() -> int:
    """Cores that this process may use: those it is bound to, or the control group's quota where that is less."""
    bound, quota = bound_cores(), cpu_quota()
    return bound if quota is None else max(1, min(bound, math.ceil(quota)))


def bound_cores() -> int:
    """Cores that this process is bound to."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_quota(root: Path = _CGROUP_ROOT, groups: Path = Path("/proc/self/cgroup")) -> float | None:
    """The least quota, in cores, of this process's control group and those above it; None without one."""
    quotas = []
    for folder in _group_folders(root, groups):
        with contextlib.suppress(OSError, ValueError, IndexError):
            limit, period = (folder / "cpu.max").read_text(encoding="utf-8").split()[:2]
            if limit != "max":
                quotas.append(int(limit) / int(period))
    for folder in (root / "cpu", root / "cpu,cpuacct"):
        with contextlib.suppress(OSError, ValueError):
            limit_us = int((folder / "cpu.cfs_quota_us").read_text(encoding="utf-8"))
            period_us = int((folder / "cpu.cfs_period_us").read_text(encoding="utf-8"))
            if limit_us > 0 and period_us > 0:
                quotas.append(limit_us / period_us)
    return min((quota for quota in quotas if quota > 0), default=None)


def _group_folders(root: Path, groups: Path) -> list[Path]:
    folders = [root]
    with contextlib.suppress(OSError):
        for line in groups.read_text(encoding="utf-8").splitlines():
            number, _, path = line.split(":", 2)
            if number == "0":
                inner = root
                for part in Path(path.lstrip("/")).parts:
                    inner = inner / part
                    folders.append(inner)
    return folders


def memory_gib() -> float:
    """Memory of the machine, or of the control group where that is less, in GiB."""
    total: float = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    limit = memory_limit_gib()
    return total if limit is None else min(total, limit)


def memory_limit_gib() -> float | None:
    """The control group's limit of memory, in GiB; None where it has none."""
    for path in (_CGROUP_ROOT / "memory.max", _CGROUP_ROOT / "memory" / "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            return int(path.read_text(encoding="utf-8")) / 2**30  # "max" is no number
    return None


def available_gib() -> float | None:
    """Memory that new processes can have without swapping (MemAvailable of /proc/meminfo), in GiB."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) / 2**20
    return None


def cpu_model() -> str:
    """The processor's name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def free_gib(folder: Path) -> float | None:
    """Free space of the file system that a folder lies in, in GiB; None where there is no such folder."""
    try:
        return shutil.disk_usage(folder).free / 2**30
    except OSError:
        return None


def port_is_free(port: int) -> bool:
    """Whether this machine can listen on a TCP port, on every address.

    Raises:
        PermissionError: the port is one that only root may use.
    """
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind((address, port))
                listener.listen(1)
        except PermissionError:
            raise
        except OSError:
            if family == socket.AF_INET or _has_ipv6():
                return False
    return True


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as listener:
            listener.bind(("::", 0))
    except OSError:
        return False
    return True


def gpu_slug(name: str) -> str:
    """A GPU's name as a part of a folder's name: "NVIDIA H200" gives h200."""
    return slug(re.sub(r"\b(nvidia|tesla|geforce|graphics)\b", " ", name, flags=re.IGNORECASE).strip())

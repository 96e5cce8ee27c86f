"""The environment of a notebook's kernel: "python3" is this environment's Python, whatever kernels the user has."""

import json
import os
import sys
from pathlib import Path

KERNEL = "python3"
BATCH_VARIABLE = "RESNET_ACC_BATCH"
"""Environment variable that every process of a set inherits: it is found by this when its parents are gone."""


def kernel_environment(scratch: Path, **variables: str) -> dict[str, str]:
    """Environment variables of a process that runs notebooks, with a kernel and settings that only it sees.

    Args:
        scratch: folder for the kernel's description and what Jupyter writes while it runs; it must outlive the process.
        variables: what else to set.
    """
    folder = scratch / "kernels" / KERNEL
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    description = {"argv": command, "display_name": "Python 3", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(description), encoding="utf-8")
    # The processes have a current folder of their own, so what is relative to this one's would be lost.
    python_path = [os.path.abspath(part) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return {
        **os.environ,
        **({"PYTHONPATH": os.pathsep.join(python_path)} if python_path else {}),
        # Before everything else that Jupyter looks through, the user's own kernels among it.
        "JUPYTER_PATH": os.pathsep.join(filter(None, [str(scratch), os.environ.get("JUPYTER_PATH", "")])),
        "JUPYTER_RUNTIME_DIR": str(scratch / "runtime"),
        "IPYTHONDIR": str(scratch / "ipython"),  # no start-up files of the user's
        "PYTHONUNBUFFERED": "1",
        **variables,
    }

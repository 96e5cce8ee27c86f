"""torchrun's command line and environment for one run."""

import os
import sys
from pathlib import Path

from resnet_acc.config import COMPILERS, RunConfig
from resnet_acc.launch import machine, processes
from resnet_acc.launch.folder import ELASTIC_FOLDER
from resnet_acc.launch.preflight import Preflight
from resnet_acc.logger import COMPILER_VARIABLE, KERNEL_VARIABLE

TRAINER = "resnet_acc.training.main"
TRAINER_VARIABLE = "RESNET_ACC_TRAINER"
"""Environment variable that names another module to run as a rank; for tests."""

_SCRUBBED = {
    *("MASTER_ADDR", "MASTER_PORT", "ROLE_NAME", "NODE_RANK"),
    *("PJRT_LOCAL_PROCESS_RANK", "PJRT_LOCAL_PROCESS_COUNT"),  # torch-xla's own, which go before torchrun's
    *(f"{kind}{name}" for kind in ("", "LOCAL_", "GROUP_", "ROLE_") for name in ("RANK", "WORLD_SIZE")),
}
_SCRUBBED_PREFIXES = ("TORCHELASTIC_", "PET_")  # PET_NNODES: torchrun's own default


def agent_command(config: RunConfig, run_dir: Path, trainer: str = TRAINER) -> list[str]:
    """The torchrun command of a run."""
    own_port = config.nnodes == 1 and config.master_port is None
    if own_port:
        meeting = ["--standalone", "--local-addr", "127.0.0.1"]
    else:
        port = 29500 if config.master_port is None else config.master_port
        meeting = ["--nnodes", str(config.nnodes), "--node-rank", str(config.node_rank)]
        meeting += ["--master-addr", config.master_addr, "--master-port", str(port)]
    return [
        *(sys.executable, "-m", "torch.distributed.run"),
        *meeting,
        *("--nproc-per-node", str(config.nproc_per_node), "--monitor-interval", "1"),
        # Each rank's own output in a file beside launcher.log, where the ranks' lines are mixed but marked.
        *("--log-dir", str(run_dir / ELASTIC_FOLDER), "--tee", "3"),
        *("-m", trainer, str(run_dir)),
    ]


def clean_environment() -> dict[str, str]:
    """This process's environment without what another job's rendezvous left in it."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in _SCRUBBED and not name.startswith(_SCRUBBED_PREFIXES)
    }


def child_environment(config: RunConfig, checked: Preflight, run_id: str) -> dict[str, str]:
    """This process's environment without another job's rendezvous, and with what a rank needs to know."""
    environment = clean_environment()
    environment[COMPILER_VARIABLE] = config.arm if config.arm in COMPILERS else ""
    environment[KERNEL_VARIABLE] = "1" if config.arm == "kernel" else "0"
    environment["RESNET_ACC_DEVICE"] = checked.device
    environment[processes.RUN_ID_VARIABLE] = run_id
    if checked.device == "cpu":
        environment["PJRT_DEVICE"] = "CPU"  # torch-xla would take a TPU, or what this process was started for
    if checked.device == "cpu" and not environment.get("OMP_NUM_THREADS"):
        environment["OMP_NUM_THREADS"] = str(max(1, machine.num_cores() // config.nproc_per_node))
    return environment

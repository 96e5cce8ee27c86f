"""Stands in for a rank in tests of the launcher: python -m fake_trainer RUN_DIR, started by the real torchrun.

Writes what a rank writes, without torch. FAKE_FAULT is RANK:KIND,..., the faults of ranks at step FAKE_AT (default 3):
    raise | exit3 | exit0 | sigkill | peer_closed | deaf (waits, deaf to SIGTERM) | wait | hang_at_end | import_error
FAKE_STEPS is the number of steps (10), FAKE_STEP_S the seconds of each (0.01), FAKE_SPAWN what each rank starts at its
first step: "plain" (a child), "session" (one in a session of its own), "orphan" (one whose parent ends at once, with an
empty environment). All of these are deaf to SIGTERM. With FAKE_PIDS, each process writes its pid into a file below it.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

from resnet_acc.config import RunConfig
from resnet_acc.logger import create_logger, log_metrics, log_params, log_record

SLEEPER = """
import os, signal, sys, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(sys.argv[1]).write_text(str(os.getpid()))
time.sleep(600)
"""
ORPHAN = f"import os; os.fork() and os._exit(0); os.setsid(){SLEEPER}"


def main() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    run_dir, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    config = RunConfig.from_json(json.loads((run_dir / "config.json").read_text(encoding="utf-8")))
    faults = dict(item.split(":") for item in os.environ.get("FAKE_FAULT", "").split(",") if item)
    fault = faults.get(str(rank), "")
    if fault == "import_error":
        raise ImportError("libfake.so: cannot open shared object file")
    logger = create_logger(run_dir, rank)
    try:
        train(config, run_dir.name, rank, fault)
    except BaseException as error:
        logger.exception("rank %d failed: %s", rank, error)
        if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
            extra = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
            message = {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}}
            if not isinstance(error, SystemExit):
                Path(path).write_text(json.dumps(message), encoding="utf-8")
        raise


def train(config: RunConfig, run_id: str, rank: int, fault: str) -> None:
    num_steps = int(os.environ.get("FAKE_STEPS", "10"))
    step_s = float(os.environ.get("FAKE_STEP_S", "0.01"))
    start = {
        "attempt": 0,
        "run_id": run_id,
        "arm": config.arm,
        "rank": rank,
        "world_size": int(os.environ["WORLD_SIZE"]),
        "total_steps": num_steps,
        "batch_size": config.batch_size,
        "global_batch_size": config.global_batch_size,
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        "master_port": os.environ.get("MASTER_PORT"),
        "compiler": os.environ.get("RESNET_ACC_COMPILER"),
        "kernel": os.environ.get("RESNET_ACC_KERNEL"),
        "device": os.environ.get("RESNET_ACC_DEVICE"),
    }
    log_record("start", **start)
    log_params(start)
    spawn(os.environ.get("FAKE_SPAWN", ""), rank)
    if os.environ.get("FAKE_PIDS"):
        Path(os.environ["FAKE_PIDS"], f"rank-{rank}").write_text(str(os.getpid()), encoding="utf-8")
    log_record("startup", setup_s=1.5, first_step_s=2.0, compile_s=0.0, compilations=0)
    images = config.global_batch_size
    for step in range(1, num_steps + 1):
        time.sleep(step_s)
        if step == int(os.environ.get("FAKE_AT", "3")):
            fail(fault)
        # The windows are made up: 1.0 s the warm-up, then 0.25 s and 0.75 s by turns, whose rates have another mean.
        seconds = 1.0 if step <= 2 else 0.25 if step % 2 else 0.75
        log_record(
            "interval",
            epoch=0,
            step=step,
            steps=1,
            warmup=step <= int(os.environ.get("FAKE_WARMUP", "2")),
            images=images,
            loss=7.0 - step / 10,
            step_time_s=seconds,
            images_per_s=images / seconds,
        )
        log_metrics(0, step, config.batch_size, 7.0 - step / 10, seconds, images / seconds, 0.5 + rank)
    log_record("end", step=num_steps, images=images * num_steps, seconds=1.0, peak_memory_gib=0.5 + rank)
    if fault == "hang_at_end":
        time.sleep(600)


def fail(fault: str) -> None:
    if fault == "raise":
        raise FileNotFoundError("/data/train/cat/17.JPEG is gone")
    if fault == "exit3":
        sys.exit(3)
    if fault == "exit0":
        os._exit(0)
    if fault == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "peer_closed":
        time.sleep(4)  # a peer is gone before its connection is: on a busy machine it needs a while to go
        raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:41234")
    if fault == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if fault in ("deaf", "wait"):
        time.sleep(600)


def spawn(kind: str, rank: int) -> None:
    if not kind:
        return
    pid_file = Path(os.environ["FAKE_PIDS"], f"spawned-{rank}")
    if kind == "orphan":
        subprocess.run([sys.executable, "-c", ORPHAN, str(pid_file)], env={}, check=True)
    else:
        subprocess.Popen([sys.executable, "-c", SLEEPER, str(pid_file)], start_new_session=kind == "session")
    while not pid_file.exists() or not pid_file.read_text():
        time.sleep(0.01)


if __name__ == "__main__":
    main()

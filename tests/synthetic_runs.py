"""Whole run folders with chosen numbers, written through the product's own logger."""

import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resnet_acc import logger
from resnet_acc.config import RunConfig
from resnet_acc.files import write_json


def start_values(config: RunConfig, **changes: Any) -> dict[str, Any]:
    """A start record as a rank writes it."""
    return {
        "attempt": 0,
        "run_id": "",
        "arm": config.arm,
        "rank": 0,
        "world_size": config.world_size,
        "model": config.model,
        "device": "cpu",
        "device_name": "Test CPU 3000",
        "amp_level": config.amp_level,
        "amp_dtype": "float32" if config.amp_level == "O0" else "bfloat16",
        "batch_size": config.batch_size,
        "global_batch_size": config.global_batch_size,
        "image_size": config.image_size,
        "data": config.data,
        "num_classes": 10,
        "num_train_images": 1000,
        "num_val_images": 100,
        "steps_per_epoch": 100,
        "total_steps": 100,
        "warmup_steps": 0 if config.warmup_steps is None else config.warmup_steps,
        "log_interval": config.log_interval,
        "lr": 1e-3,
        "weight_decay": 0.01,
        "seed": config.seed,
        "workers": 1,
        "dropped_images": 0,
        "torch_version": "2.9.1",
        "torchvision_version": "0.24.1",
        "torch_xla_version": None,
        "flops_per_image": 2.4e10,
        **changes,
    }


def log_interval(config: RunConfig, step: int, steps: int, step_time_s: float, loss: float, **changes: Any) -> None:
    """One interval, in both files, as the training loop writes it."""
    images = steps * config.global_batch_size
    rate = images / (steps * step_time_s)
    warmup_steps = config.warmup_steps or 0
    record: dict[str, Any] = {
        "epoch": 0,
        "step": step,
        "steps": steps,
        "warmup": step <= warmup_steps,
        "images": images,
        "loss": loss,
        "acc1": 10.0,
        "acc5": 50.0,
        "step_time_s": step_time_s,
        "data_time_s": 0.001,
        "host_time_s": 0.002,
        "images_per_s": rate,
        "images_per_s_per_rank": rate / config.world_size,
        "peak_memory_gib": 1.5,
        "lr": 1e-3,
        "loss_scale": None,
        "skipped_steps": 0,
        "nonfinite_steps": 0 if math.isfinite(loss) else steps,
        "compilations": 0,
        **changes,
    }
    logger.log_record("interval", **record)
    logger.log_metrics(
        record["epoch"], step, config.batch_size, loss, step_time_s, record["images_per_s"], record["peak_memory_gib"]
    )


def close_logger() -> None:
    """Let go of the log file, so that a test may change it."""
    for handler in list(logging.getLogger("resnet_acc").handlers):
        logging.getLogger("resnet_acc").removeHandler(handler)
        handler.close()


def edges(num_steps: int, warmup_steps: int, every: int) -> list[tuple[int, int]]:
    """(step, steps) of the records that the training loop writes."""
    found, steps = [], 0
    for step in range(1, num_steps + 1):
        steps += 1
        if step in (1, warmup_steps, num_steps) or steps == every:
            found.append((step, steps))
            steps = 0
    return found


def write_run(
    output: Path,
    config: RunConfig,
    step_times: Sequence[float],
    losses: Sequence[float] | None = None,
    *,
    run_id: str = "20261201-115300-000001",
    device: str = "cpu",
    status: str | None = "finished",
    ranks: Sequence[int] | None = None,
    setup_s: float = 2.0,
    compile_s: float = 0.0,
    started_at: float = 1_796_000_000.0,
    validation: dict[str, float] | None = None,
    compilations: dict[int, int] | None = None,
    params: dict[str, Any] | None = None,
    interval: dict[str, Any] | None = None,
    status_values: dict[str, Any] | None = None,
) -> Path:
    """One run of len(step_times) steps; times and losses are those of single steps, averaged over each interval."""
    losses = [2.3 * 0.99**n for n in range(len(step_times))] if losses is None else losses
    run_dir = output / config.model / config.tag(device) / config.suffix / run_id
    run_dir.mkdir(parents=True)
    write_json(run_dir / "config.json", config.to_json())
    (run_dir / "command.txt").write_text(
        " ".join(["python", "-m", "resnet_acc.launch_single_task", *config.to_arguments()]) + "\n", encoding="utf-8"
    )
    write_json(run_dir / "env.json", {"python": "3.11.0", "torch": "2.9.1", "cpu": "Test CPU 3000"})
    for rank in range(config.world_size) if ranks is None else ranks:
        logger.create_logger(run_dir, rank)
        start = start_values(
            config, **{"run_id": run_id, "rank": rank, "total_steps": len(step_times), **(params or {})}
        )
        logger.log_record("start", **start)
        logger.log_params(start)
        if step_times:
            startup = {"setup_s": setup_s, "first_step_s": step_times[0], "compile_s": compile_s, "compilations": 0}
            logger.log_record("startup", **startup)
            logger.log_text("startup", startup)
        for step, steps in edges(len(step_times), config.warmup_steps or 0, config.log_interval):
            window = slice(step - steps, step)
            time_s, loss = sum(step_times[window]) / steps, sum(losses[window]) / steps
            compiled = sum(n for s, n in (compilations or {}).items() if step - steps < s <= step)
            log_interval(config, step, steps, time_s, loss, compilations=compiled, **(interval or {}))
        if validation is not None:
            logger.log_record("validation", epoch=0, step=len(step_times), **validation)
            logger.log_text("validation", {"epoch": 0, "step": len(step_times), **validation})
        logger.log_record("end", step=len(step_times), images=0, seconds=0.0, peak_memory_gib=1.5)
        close_logger()
    if status is not None:
        values = {"schema": 1, "status": status, "run_id": run_id, "pid": 1, "started_at": started_at}
        write_json(run_dir / "status.json", {**values, **(status_values or {})})
    return run_dir


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Records by a strict reader, which takes no bare NaN."""

    def refuse(token: str) -> float:
        raise ValueError(f"{token} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").splitlines()]

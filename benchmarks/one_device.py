"""Each arm through the launcher, and beside it a bare loop of the same step, in turn on one device (A B B A).

Writes a report and every number to a folder; the ratios count, since all of them come from one machine in one hour.

    python benchmarks/one_device.py --out benchmarks/reports/<date>_<card>            # one GPU
    python benchmarks/one_device.py --out /tmp/try --device cpu --model resnet18 --image_size 32 --batch_size 8
"""

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BOUND = 0.03
"""How far the product's loop may lie below a bare one."""


def main() -> None:
    options = read_options()
    options.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {
        "command": shlex.join([sys.executable, *sys.argv]),
        "machine": machine(),
        "loops": {},
        "mock": {},
    }
    arms = options.arms.split(",")
    failed = []
    for measure, wanted in ((measure_loops, options.repeats), (measure_mock, options.mock)):
        for arm in arms if wanted else []:
            try:
                measure(options, arm, results)
            except subprocess.CalledProcessError as error:
                failed.append(arm)
                print(f"{arm}: {shlex.join(error.cmd)} ended with {error.returncode}:\n{error.stdout}\n{error.stderr}")
            save(options.out, results)
    print(report(results))
    sys.exit(1 if failed else 0)


def measure_loops(options: argparse.Namespace, arm: str, results: dict[str, Any]) -> None:
    """The launcher's loop and the bare one in turn."""
    rates: dict[str, list[float]] = {"product": [], "bare": []}
    for kind in ("product", "bare", "bare", "product") * options.repeats:
        rate = run_product(options, arm, "synthetic") if kind == "product" else run_bare(options, arm)
        rates[kind].append(rate["images_per_s"])
        print(f"{arm:9} {kind:8} {rate['images_per_s']:9.1f} images/s", flush=True)
    results["loops"][arm] = rates


def measure_mock(options: argparse.Namespace, arm: str, results: dict[str, Any]) -> None:
    """The launcher's loop on JPEG files."""
    results["mock"][arm] = run_product(options, arm, options.mock)


def run_product(options: argparse.Namespace, arm: str, data: str) -> dict[str, Any]:
    """Train through the launcher; rate over its timed steps, and what else its records say."""
    arm_options = {"eager": [], "kernel": ["--kernel-opt"], "inductor": ["--compiler-opt", "--compiler=inductor"]}[arm]
    output = options.out / "runs"
    command = [
        *(sys.executable, "-m", "resnet_acc.launch_single_task", "--nproc_per_node=1", "--amp_level=O1", *arm_options),
        *(
            f"--{name}={getattr(options, name)}"
            for name in ("batch_size", "model", "image_size", "device", "warmup_steps")
        ),
        *(f"--amp_dtype={options.amp_dtype}", f"--max_steps={options.steps}", "--log_interval=20"),
        *(f"--data={data}", "--epochs=1000", f"--output={output}", "--no-validate"),
    ]
    before = set(output.glob("*/*/*/*/status.json"))
    execute(command)
    (status,) = set(output.glob("*/*/*/*/status.json")) - before
    records = [json.loads(line) for line in (status.parent / "0" / "metrics.jsonl").read_text().splitlines()]
    event = {record["event"]: record for record in records}
    timed = [record for record in records if record["event"] == "interval" and not record["warmup"]]
    return {
        "command": shlex.join(command[1:]),
        "images_per_s": event["end"]["images"] / event["end"]["seconds"],
        "first_loss": next(record["loss"] for record in records if record["event"] == "interval"),
        "last_loss": timed[-1]["loss"],
        "data_share": sum(r["data_time_s"] * r["steps"] for r in timed) / event["end"]["seconds"],
        "host_time_ms": 1e3 * statistics.median(record["host_time_s"] for record in timed),
        "first_step_s": event["startup"]["first_step_s"],
        "setup_s": event["startup"]["setup_s"],
        "peak_memory_gib": event["end"]["peak_memory_gib"],
        "amp_dtype": event["start"]["amp_dtype"],
        "workers": event["start"]["workers"],
    }


def run_bare(options: argparse.Namespace, arm: str) -> dict[str, Any]:
    """Run bare_loop.py with the same settings."""
    names = ("batch_size", "model", "image_size", "device", "amp_dtype", "steps", "warmup_steps")
    values = [f"--{name}={getattr(options, name)}" for name in names]
    if arm == "inductor" and options.device == "cuda":
        values.append("--compile_mode=reduce-overhead")  # as the launcher's arm does on one GPU
    output = execute([sys.executable, str(ROOT / "benchmarks" / "bare_loop.py"), f"--arm={arm}", *values])
    return json.loads(output.splitlines()[-1])


def execute(command: list[str]) -> str:
    """Run a command with this checkout's package and give its output.

    Raises:
        subprocess.CalledProcessError: it failed; the error holds its output.
    """
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def machine() -> dict[str, str]:
    """Card, driver and versions, from a process of its own so that this one holds no device memory."""
    code = (
        "import json, torch, torchvision; cuda = torch.cuda.is_available(); print(json.dumps({'device':"
        " torch.cuda.get_device_name() if cuda else 'cpu', 'torch': torch.__version__, 'torchvision':"
        " torchvision.__version__, 'cudnn': str(torch.backends.cudnn.version())}))"
    )
    return {
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
        **json.loads(execute([sys.executable, "-c", code])),
    }


def report(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = ["# One device: every arm through the launcher", ""]
    lines += [f"`{results['command']}`", "", ", ".join(f"{k} {v}" for k, v in results["machine"].items()), ""]
    if results["loops"]:
        lines += ["## Synthetic data: the launcher's loop against a bare loop of the same step, in turn (A B B A)", ""]
        lines += loops_table(results["loops"])
    if results["mock"]:
        lines += ["## JPEG files: mock ImageNet", "", *mock_table(results["mock"])]
        lines += ["", *(f"- {arm}: `python {run['command']}`" for arm, run in results["mock"].items())]
    return "\n".join(lines) + "\n"


def table(*rows: tuple[str, ...]) -> list[str]:
    """A Markdown table; the first row is its head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], "|---" * len(rows[0]) + "|", *lines[1:], ""]


def loops_table(loops: dict[str, dict[str, list[float]]]) -> list[str]:
    """Rates of each run, and the ratio of the means."""
    rows = [("arm", "launcher, images/s", "bare loop, images/s", "launcher / bare", "within 3 %", "launcher / eager")]
    eager = statistics.mean(loops["eager"]["product"]) if "eager" in loops else None
    for arm, rates in loops.items():
        product, bare = statistics.mean(rates["product"]), statistics.mean(rates["bare"])
        each = [" ".join(f"{rate:,.0f}" for rate in rates[kind]) for kind in ("product", "bare")]
        within = "yes" if product >= bare * (1 - BOUND) else "no"
        rows.append((arm, *each, f"{product / bare:.3f}", within, f"{product / eager:.2f}" if eager else "n/a"))
    return table(*rows)


def mock_table(runs: dict[str, dict[str, Any]]) -> list[str]:
    """What each run on JPEG files measured, the loader among it."""
    head = (
        "arm",
        "images/s",
        "waiting for data",
        "loss, first to last",
        "first step, s",
        "peak GiB",
        "dtype",
        "workers",
    )
    rows = [
        (
            arm,
            f"{run['images_per_s']:,.0f}",
            f"{100 * run['data_share']:.0f} %",
            f"{run['first_loss']:.3f} to {run['last_loss']:.3f}",
            f"{run['first_step_s']:.1f}",
            f"{run['peak_memory_gib']:.1f}",
            run["amp_dtype"],
            str(run["workers"]),
        )
        for arm, run in runs.items()
    ]
    return table(head, *rows)


def save(out: Path, results: dict[str, Any]) -> None:
    """Write what has been measured so far."""
    (out / "results.json").write_text(json.dumps(results, indent=2) + "\n")
    (out / "README.md").write_text(report(results))


def read_options() -> argparse.Namespace:
    """Options of the command line, with the article's settings as defaults."""
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the report")
    parser.add_argument("--arms", default="eager,kernel,inductor")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--amp_dtype", default="float16", choices=("float16", "bfloat16"))
    parser.add_argument("--batch_size", type=int, default=128, help="images per step")
    parser.add_argument("--image_size", type=int, default=224, help="pixels")
    parser.add_argument("--steps", type=int, default=220, help="steps of a run, warm-up included")
    parser.add_argument("--warmup_steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=1, help="times A B B A; 0: only --mock")
    parser.add_argument("--mock", default="", help="folder of mock ImageNet (or 'mock'), for the table on JPEG files")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Arms against each other on one GPU, window by window in turn (A B B A), for each batch size and dtype.

One worker (window_worker.py) for each arm stays ready while the others are asked, so that what is compared lies seconds
apart. Writes results.json after each configuration and README.md, the tables; `--render` makes the tables again.

    python benchmarks/compare_steps.py --out benchmarks/reports/<date>_<card>_torchacc
    python benchmarks/compare_steps.py --out /tmp/try --device cpu --model resnet18 --image_size 32 --batch_sizes 8 \\
        --amp_dtypes bfloat16 --arms eager,torchacc --repeats 1 --window_s 0.5
"""

import argparse
import json
import math
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ARMS: dict[str, dict[str, Any]] = {
    "eager": {},
    "kernel": {"kernel_opt": True},
    "inductor": {"compiler_opt": True, "compiler": "inductor"},
    "torchacc_traced": {"compiler_opt": True, "capture": False},
    "torchacc": {"compiler_opt": True},
}
WARMUP_STEPS = 10
"""After the first step: allocator, clocks, and CUDA graphs that are recorded at their second use."""
MOST_BESIDE = 256
"""Batch size up to which two configurations fit on a card together, which has the second one ready sooner."""


def main() -> None:
    options = read_options()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "results.json"
    if options.render:
        results = json.loads(path.read_text())
    else:
        results = {
            "command": shlex.join([sys.executable, *sys.argv]),
            "machine": machine(options),
            "configurations": [],
        }
        begin = time.monotonic()
        sizes = [int(size) for size in options.batch_sizes.split(",")]
        plan = [(dtype, size) for size in sizes for dtype in options.amp_dtypes.split(",")]
        following: list[Worker] = []
        for number, (dtype, size) in enumerate(plan):
            workers = first_steps(following or start_workers(options, dtype, size))
            # The next ones import and set up while these are timed by nobody: their windows begin after this line.
            further = plan[number + 1 : number + 2]
            beside = further and max(size, further[0][1]) <= MOST_BESIDE
            following = start_workers(options, *further[0]) if beside else []
            await_prepared(following)
            results["configurations"].append(measure(options, workers, dtype, size))
            path.write_text(json.dumps(results, indent=1) + "\n")
            if options.budget_s and time.monotonic() - begin > options.budget_s:
                print(f"{options.budget_s} s are over; {len(plan) - number - 1} configurations were not measured")
                for worker in following:
                    worker.end()
                break
    text = report(results)
    (options.out / "README.md").write_text(text)
    print(text)


class Worker:
    """One arm's process and what it has said."""

    def __init__(self, options: argparse.Namespace, arm: str, dtype: str, batch_size: int) -> None:
        self.arm, self.windows, self.alone, self.first, self.error = arm, [], [], {}, ""
        config = {"model": options.model, "image_size": options.image_size, "data": options.data, "amp_level": "O1"}
        config |= {"amp_dtype": dtype, "batch_size": batch_size, **ARMS[arm]}
        command = [sys.executable, str(ROOT / "benchmarks" / "window_worker.py"), f"--device={options.device}"]
        command.append(f"--config={json.dumps(config)}")
        path = f"{ROOT / 'src'}{os.pathsep}"
        setup = f". {shlex.quote(options.xla_setup)}; " if options.xla_setup and arm.startswith("torchacc") else ""
        shell = f'{setup}PYTHONPATH={shlex.quote(path)}"$PYTHONPATH" exec {shlex.join(command)}'
        self.log = options.out / f"{arm}_{dtype}_{batch_size}.log"
        self._process = subprocess.Popen(
            ["bash", "-c", shell],
            env=self._environment(options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            text=True,
        )
        self.prepared: dict[str, Any] | None = None

    def _environment(self, options: argparse.Namespace) -> dict[str, str]:
        environment = {**os.environ, "RESNET_ACC_DEVICE": options.device}
        compiler = ARMS[self.arm].get("compiler", "torchacc") if "compiler_opt" in ARMS[self.arm] else ""
        environment |= {"RESNET_ACC_COMPILER": compiler, "RESNET_ACC_KERNEL": "1" if self.arm == "kernel" else "0"}
        # Several arms share the card, so XLA takes what it needs instead of three quarters of the memory at once.
        environment.setdefault("PJRT_ALLOCATOR_PREALLOCATE", "false")
        if options.device == "cpu":
            environment["PJRT_DEVICE"] = "CPU"
        return environment

    def hear(self) -> dict[str, Any]:
        """The next JSON line; an empty answer, and `error`, where the worker has ended."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        self._process.wait()
        lines = self.log.read_text(errors="replace").strip().splitlines()
        self.error = self.error or (lines[-1] if lines else "it ended without a word")
        return {}

    def ask(self, steps: int) -> dict[str, Any]:
        """Time a window of so many steps."""
        if self.error:
            return {}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"run {steps}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        return self.hear()

    def end(self) -> None:
        """Let it go; its log stays only where something went wrong."""
        self._process.communicate("quit\n", timeout=60) if self._process.poll() is None else None
        if not self.error:
            self.log.unlink(missing_ok=True)


def start_workers(options: argparse.Namespace, dtype: str, batch_size: int) -> list[Worker]:
    """All arms' processes at once: importing and setting up needs no card."""
    return [Worker(options, arm, dtype, batch_size) for arm in options.arms.split(",")]


def await_prepared(workers: list[Worker]) -> None:
    """Wait until each has set up, so that nothing but the window runs on the machine while one is timed."""
    for worker in workers:
        if worker.prepared is None:
            worker.prepared = worker.hear()


def first_steps(workers: list[Worker]) -> list[Worker]:
    """Each arm's first step, one after the other: what a compiler measures then must not be disturbed."""
    await_prepared(workers)
    for worker in workers:
        worker.first = worker.ask(1)
        worker.ask(WARMUP_STEPS)
        said = worker.error or f"first step {worker.first['seconds']:.1f} s"
        print(f"{worker.arm:16} {said}", flush=True)
    return workers


def measure(options: argparse.Namespace, workers: list[Worker], dtype: str, batch_size: int) -> dict[str, Any]:
    """Windows in turn, forwards and backwards; how long one is comes from a short one before."""
    steps = {}
    for worker in workers:
        trial = worker.ask(WARMUP_STEPS)
        steps[worker.arm] = (
            max(WARMUP_STEPS, math.ceil(options.window_s * WARMUP_STEPS / trial["seconds"])) if trial else 0
        )
    for _ in range(options.repeats):
        for worker in [*workers, *reversed(workers)]:
            window = worker.ask(steps[worker.arm])
            if window:
                worker.windows.append(window)
    for worker in workers:
        rates = " ".join(f"{window['images'] / window['seconds']:.0f}" for window in worker.windows)
        print(f"{dtype} {batch_size:4} {worker.arm:16} {rates or worker.error}", flush=True)
        worker.alone = [worker.ask(1).get("host_s") for _ in range(5)]
        worker.end()
    arms = {
        worker.arm: {
            "prepared": worker.prepared,
            "first_step": worker.first,
            "windows": worker.windows,
            "host_s_of_a_step_alone": worker.alone,
            "error": worker.error,
        }
        for worker in workers
    }
    return {"amp_dtype": dtype, "batch_size": batch_size, "data": options.data, "time": time.time(), "arms": arms}


def machine(options: argparse.Namespace) -> dict[str, Any]:
    """Card, driver and versions of both environments, each from a process of its own."""
    names = ("torch", "cudnn", "torch_xla", "nvidia", "nvidia_xla")
    code = (
        "import json; from resnet_acc.training.probe import probe; report = probe()\n"
        f"print(json.dumps({{name: report[name] for name in {names}}}))"
    )
    found: dict[str, Any] = {"python": platform.python_version(), "cores": os.cpu_count()}
    for name, setup in (("torch", ""), ("torchacc", options.xla_setup)):
        before = f". {shlex.quote(setup)}; " if setup else ""
        path, command = shlex.quote(str(ROOT / "src")), shlex.join([sys.executable, "-c", code])
        shell = f'{before}PYTHONPATH={path}:"$PYTHONPATH" {command}'
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
        found[name] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else done.stderr[-300:]
    return found


# --- the tables ---


def rate(windows: list[dict[str, Any]]) -> float:
    """Images of all windows over their seconds."""
    return sum(window["images"] for window in windows) / sum(window["seconds"] for window in windows)


def interval(windows: list[dict[str, Any]], baseline: list[dict[str, Any]] | None = None) -> tuple[float, float]:
    """95 % interval of a rate, or of its ratio to another's: scipy's bootstrap (BCa) over the windows."""
    import numpy as np
    from scipy.stats import bootstrap

    samples = [np.array([[w["images"], w["seconds"]] for w in group]) for group in (windows, baseline) if group]

    def statistic(*chosen: Any) -> float:
        rates = [samples[number][indices.astype(int)].sum(0) for number, indices in enumerate(chosen)]
        values = [images / seconds for images, seconds in rates]
        return values[0] / (values[1] if len(values) > 1 else 1.0)

    indices = tuple(np.arange(len(sample)) for sample in samples)
    result = bootstrap(indices, statistic, vectorized=False, n_resamples=2000, rng=np.random.default_rng(0))
    return result.confidence_interval.low, result.confidence_interval.high


def with_interval(value: float, bounds: tuple[float, float], form: str) -> str:
    """A value and its interval as text."""
    return f"{value:{form}} [{bounds[0]:{form}}, {bounds[1]:{form}}]"


def report(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = ["# Arms on one GPU, window by window in turn", "", f"`{results['command']}`", ""]
    lines += [f"- {name}: {value}" for name, value in results["machine"].items()] + [""]
    for part in results["configurations"]:
        lines += [f"## {part['amp_dtype']}, batch {part['batch_size']}, {part['data']} data", "", *table(part), ""]
    return "\n".join(lines) + "\n"


def table(part: dict[str, Any]) -> list[str]:
    """One row for each arm, with its ratios to both baselines.

    Host time is that of a step asked of an idle device: in a long window the host also waits for a full queue.
    """
    head = (
        "arm",
        "images/s [95 % CI]",
        "against eager",
        "against kernel",
        "step ms",
        "host ms",
        "start-up s",
        "peak GiB",
    )
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    arms = part["arms"]
    for name, arm in arms.items():
        windows = arm["windows"]
        if not windows:
            rows.append(f"| {name} | {arm['error']} |" + " |" * (len(head) - 2))
            continue
        value, last = rate(windows), windows[-1]
        ratios = []
        for base in ("eager", "kernel"):
            other = arms.get(base, {}).get("windows")
            known = other and base != name
            ratios.append(with_interval(value / rate(other), interval(windows, other), ".2f") if known else "")
        host = statistics.median(arm["host_s_of_a_step_alone"])
        step = sum(window["seconds"] for window in windows) / sum(window["steps"] for window in windows)
        startup = arm["prepared"]["prepared_s"] + arm["first_step"]["seconds"]
        cells = (
            name,
            with_interval(value, interval(windows), ",.0f"),
            *ratios,
            f"{1e3 * step:.2f}",
            f"{1e3 * host:.2f}",
        )
        rows.append("| " + " | ".join((*cells, f"{startup:.1f}", f"{last['peak_memory_gib']:.2f}")) + " |")
    return rows


def read_options() -> argparse.Namespace:
    """Options of the command line, with the article's settings as defaults."""
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the report")
    parser.add_argument("--render", action="store_true", help="only make the tables of --out again")
    parser.add_argument("--arms", default="eager,kernel,torchacc_traced,torchacc", help=f"of {', '.join(ARMS)}")
    parser.add_argument("--batch_sizes", default="128,256,512", help="images per step")
    parser.add_argument("--amp_dtypes", default="float16,bfloat16")
    parser.add_argument("--data", default="synthetic", help="synthetic, mock or a folder")
    parser.add_argument("--repeats", type=int, default=3, help="times A B B A")
    parser.add_argument("--window_s", type=float, default=1.0, help="seconds of a window, about")
    parser.add_argument(
        "--budget_s", type=float, default=0.0, help="begin no further configuration after so many seconds"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--image_size", type=int, default=224, help="pixels")
    parser.add_argument(
        "--xla_setup", default="", help="shell file that the torchacc arms source, if their torch is another"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Whether the arms learn the same: each arm with each seed on the same images, all runs at once, through the launcher.

Nothing is timed here, so the runs may share the card. Writes results.json, README.md (a table of the last losses and
top-1) and loss.png; `--render` makes table and figure again.

    resnet-acc data mock --folder /tmp/imgs --classes 10 --images-per-class 640 --size 64
    python benchmarks/learning.py --out benchmarks/reports/<date>_<card>_learning --data /tmp/imgs
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ARMS = {
    "eager": [],
    "kernel": ["--kernel-opt"],
    "inductor": ["--compiler-opt", "--compiler=inductor"],
    "torchacc": ["--compiler-opt"],
}


def main() -> None:
    options = read_options()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "results.json"
    if not options.render:
        results: dict[str, Any] = {"command": shlex.join([sys.executable, *sys.argv]), "runs": []}
        started = [
            (arm, seed, start(options, arm, seed)) for seed in range(options.seeds) for arm in options.arms.split(",")
        ]
        for arm, seed, (process, output) in started:
            said = process.communicate()[0]
            results["runs"].append({"arm": arm, "seed": seed, **read_run(output, said)})
        path.write_text(json.dumps(results, indent=1) + "\n")
    results = json.loads(path.read_text())
    text = report(results)
    (options.out / "README.md").write_text(text)
    print(text)
    if options.render:
        draw(results, options.out / "loss.png")


def start(options: argparse.Namespace, arm: str, seed: int) -> tuple["subprocess.Popen[str]", Path]:
    """A run of the launcher, in an output folder of its own."""
    output = options.out / "runs" / f"{arm}_{seed}"
    command = [
        *(sys.executable, "-m", "resnet_acc.launch_single_task", "--nproc_per_node=1", *ARMS[arm]),
        *("--amp_level=O1", f"--amp_dtype={options.amp_dtype}", f"--batch_size={options.batch_size}"),
        *(f"--image_size={options.image_size}", f"--model={options.model}", f"--data={options.data}"),
        *(f"--max_steps={options.steps}", "--epochs=1000", "--log_interval=5", "--warmup_steps=5"),
        *(f"--seed={seed}", "--workers=1", f"--device={options.device}", f"--output={output}"),
    ]
    setup = f". {shlex.quote(options.xla_setup)}; " if options.xla_setup and arm == "torchacc" else ""
    shell = f'{setup}PYTHONPATH={shlex.quote(str(ROOT / "src"))}:"$PYTHONPATH" exec {shlex.join(command)}'
    environment = {"PJRT_ALLOCATOR_PREALLOCATE": "false", **os.environ}
    pipe = subprocess.PIPE
    process = subprocess.Popen(["bash", "-c", shell], stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment)
    return process, output


def read_run(output: Path, said: str) -> dict[str, Any]:
    """Losses by step and validation scores of the one run in a folder; its last line where it failed."""
    found = list(output.glob("*/*/*/*/0/metrics.jsonl"))
    records = [json.loads(line) for line in found[0].read_text().splitlines()] if found else []
    if not any(record["event"] == "end" for record in records):
        return {"error": said.strip().splitlines()[-1:], "loss": [], "top1": []}
    return {
        "error": None,
        "dtype": next(record["amp_dtype"] for record in records if record["event"] == "start"),
        "mode": next(record["compile_mode"] for record in records if record["event"] == "start"),
        "loss": [(record["step"], record["loss"]) for record in records if record["event"] == "interval"],
        "top1": [record["acc1"] for record in records if record["event"] == "validation"],
        "val_loss": [record["loss"] for record in records if record["event"] == "validation"],
    }


def report(results: dict[str, Any]) -> str:
    """Last losses and top-1 of each arm over its seeds, as Markdown."""
    lines = ["# Do the arms learn the same?", "", f"`{results['command']}`", ""]
    lines += [
        "| arm | mean training loss of the last 25 steps, by seed | top-1 %, by seed | mean top-1 |",
        "|---" * 4 + "|",
    ]
    for arm in dict.fromkeys(run["arm"] for run in results["runs"]):
        runs = [run for run in results["runs"] if run["arm"] == arm]
        good = [run for run in runs if run["error"] is None]
        last = [statistics.mean(loss for _, loss in run["loss"][-5:]) for run in good]
        top1 = [run["top1"][-1] for run in good]
        spread = f"{statistics.mean(top1):.2f} ± {statistics.stdev(top1):.2f}" if len(top1) > 1 else "n/a"
        cells = (arm, " ".join(f"{value:.3f}" for value in last), " ".join(f"{value:.2f}" for value in top1), spread)
        lines.append("| " + " | ".join(cells) + " |")
        lines += [f"- {arm}, seed {run['seed']}: {run['error']}" for run in runs if run["error"]]
    return "\n".join(lines) + "\n"


def draw(results: dict[str, Any], path: Path) -> None:
    """All curves on one axis: a colour for each arm, a line for each seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    arms = list(dict.fromkeys(run["arm"] for run in results["runs"]))
    for run in results["runs"]:
        if run["loss"]:
            steps, losses = zip(*run["loss"], strict=True)
            label = run["arm"] if run["seed"] == 0 else None
            axes.plot(steps, losses, color=f"C{arms.index(run['arm'])}", lw=1, label=label)
    axes.set(xlabel="step", ylabel="training loss", title="Training loss of each arm and seed, mock ImageNet")
    axes.legend()
    figure.savefig(path, dpi=120)


def read_options() -> argparse.Namespace:
    """Options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the report")
    parser.add_argument("--render", action="store_true", help="only make table and figure of --out again")
    parser.add_argument("--data", default="mock", help="mock or a folder")
    parser.add_argument("--arms", default="eager,kernel,torchacc", help=f"of {', '.join(ARMS)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--amp_dtype", default="float16", choices=("float16", "bfloat16"))
    parser.add_argument("--batch_size", type=int, default=64, help="images per step")
    parser.add_argument("--image_size", type=int, default=64, help="pixels")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--xla_setup", default="", help="shell file that torchacc sources, if its torch is another")
    return parser.parse_args()


if __name__ == "__main__":
    main()

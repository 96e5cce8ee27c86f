"""The last table of notebook 02: every change that was run, and what was measured with it and without it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from resnet_acc.lessons.how_it_works_tables import Result, count, table, unread

if TYPE_CHECKING:
    import pandas as pd


def summary(results: Mapping[str, Result]) -> "pd.DataFrame":
    """One row per change that was run: what was measured with it and without it."""
    rows = []
    for key, describe in _SUMMARIES.items():
        if key in results:
            change, with_it, without = describe(results[key])
            rows.append({"change": change, "with it": with_it, "without it": without})
    for key in ("reduce torchacc", "reduce eager"):
        if key in results and results[key]["with"]:
            kept, drifted = (results[key][name][-1] for name in ("with", "without"))
            with_it, without = (f"weights differ by {run['difference']:.2g}" for run in (kept, drifted))
            steps = f" after {kept['step']} steps"
            rows.append({"change": f"gradient all-reduce ({results[key]['arm']})", "with it": with_it + steps})
            rows[-1]["without it"] = without + steps
    return table(rows)


def _of_group(result: Result) -> tuple[str, str, str]:
    sizes = f"{result['world_size']} ranks, backend {result['backend'] or 'none'}"
    return f"init_process_group ({result['arm']})", sizes, result["without_group"].partition(",")[0]


def _of_replication(result: Result) -> tuple[str, str, str]:
    with_it, without = (", ".join(result[name]["devices"]) or "none" for name in ("with", "without"))
    same = "the same graph" if result["same_graph"] else "another graph"
    return "set_replication", f"devices: {with_it}", f"devices: {without}; {same}"


def _of_loader(result: Result) -> tuple[str, str, str]:
    without, with_it = (f"{1000 * row['step_time_s']:.2f} ms a step" for row in result["rows"])
    return "wrapped loader", with_it, f"{without}, copied in the loop"


def _of_graph(result: Result) -> tuple[str, str, str]:
    sizes = {step["size"] for step in result["steps"]}
    largest = max(sizes)
    one = sum(step["step_graphs"] for step in result["steps"] if step["size"] == largest)
    seconds = sum(step["compile_s"] for step in result["steps"] if step["size"] != largest)
    all_of_them = sum(step["step_graphs"] for step in result["steps"])
    return (
        "one shape of batches",
        f"{one:g} compilation",
        f"{all_of_them:g} compilations for {len(sizes)} sizes, {seconds:.1f} s more",
    )


def _of_boundary(result: Result) -> tuple[str, str, str]:
    first, last = result["rows"][0], result["rows"][-1]
    ops = f"{last['operations']:,} operations for {last['steps_in_graph']} steps, {last['first_compile_s']:.1f} s"
    return (
        "mark_step each step",
        f"{first['operations']:,} operations, {first['first_compile_s']:.1f} s to compile",
        ops,
    )


def _of_read_back(result: Result) -> tuple[str, str, str]:
    last = result["rows"][-1]
    base = unread(result, last)
    with_it, without = (f"{1000 * row['step_time_s']:.2f} ms a step" for row in (base, last))
    return f"no value read in the loop ({result['arm']})", with_it, f"{without} ({last['variant']})"


def _of_optimizer(result: Result) -> tuple[str, str, str]:
    with_it, without = (
        f"{count(row['read_backs_per_step'])} read-backs and {count(row['executions_per_step'])} graphs a step"
        for row in result["rows"]
    )
    return "syncfree optimizer", with_it, without


def _of_autocast(result: Result) -> tuple[str, str, str]:
    with_it, without = (
        f"convolutions in {result[level]['dtype']}, {result[level]['activation_mib']:.2f} MiB of outputs"
        for level in ("O1", "O0")
    )
    return "autocast", with_it, without


def _of_scaling(result: Result) -> tuple[str, str, str]:
    with_it, without = (f"{100 * result[name]['nan_weights']:.0f} % nan weights" for name in ("with", "without"))
    return "loss scaling, one overflow", with_it, without


_SUMMARIES = {
    "group eager": _of_group,
    "group torchacc": _of_group,
    "replication": _of_replication,
    "loader": _of_loader,
    "boundary": _of_boundary,
    "graph": _of_graph,
    "read torchacc": _of_read_back,
    "read eager": _of_read_back,
    "optimizer": _of_optimizer,
    "autocast": _of_autocast,
    "scaling": _of_scaling,
}

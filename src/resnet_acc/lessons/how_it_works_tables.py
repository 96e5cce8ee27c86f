"""The tables of notebook 02, from the results of its scripts."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from resnet_acc.results.summary import number

if TYPE_CHECKING:
    import pandas as pd

Result = Mapping[str, Any]
SHOWN_KINDS = 14
"""Kinds of operations that the table of a graph names; the others are one row."""


def names(result: Result) -> "pd.DataFrame":
    """One row per name that the article imports."""
    return table(
        {
            "the article's name": f"{result['namespace']}.{row['name']}",
            "here": "there" if row["there"] else "gone",
            "used instead": row["instead"],
        }
        for row in result["names"]
    )


def process_group(results: Sequence[Result]) -> "pd.DataFrame":
    """One row per arm and rank."""
    return table(
        {
            "arm": result["arm"],
            "device": result["device"],
            "backend": result["backend"] or "none (one process)",
            "rank": rank["rank"],
            "process": f"{rank['pid']:.0f}",
            "brings": number(rank["local"]),
            "all_reduce gives": number(rank["backend_sum"]),
            "the sum is": number(result["expected_sum"]),
            "mean of this package": number(rank["mean"]),
        }
        for result in results
        for rank in result["ranks"]
    )


def replication(result: Result) -> "pd.DataFrame":
    """Without set_replication and with it."""
    return table(
        {
            "set_replication": name,
            "replicated devices": ", ".join(result[name]["devices"]) or "none",
            "all-reduces in the graph": result[name]["all_reduces"],
            "compilations": f"{result[name]['compilations']:g}",
            "[1.5, 2.5, 3.5] summed, scale 0.5": str(result[name]["result"]),
        }
        for name in ("without", "with")
    )


def loader(result: Result) -> "list[pd.DataFrame]":
    """Step times of both ways to bring batches, and what a loop sees of a loader's error."""
    rates = table(
        {
            "batches": row["loop"],
            "step, ms": number(1000 * row["step_time_s"], 2),
            "graphs a step": count(row["executions_per_step"]),
        }
        for row in result["rows"]
    )
    errors = table(
        {
            "loader": error["loader"],
            "fails at batch": error["broken_at"],
            "batches that arrive": error["batches"],
            "the loop then gets": error["raised"] or "an ordinary end",
        }
        for error in result["errors"]
    )
    return [rates, errors]


def step_graph(result: Result) -> "pd.DataFrame":
    """Operations by kind as traced, and launches by kind after fusion."""
    before, after = result["before"]["kinds"], result["after"]["kinds"]
    kinds = sorted({*before, *after}, key=lambda kind: -max(before.get(kind, 0), after.get(kind, 0)))
    shown = {kind: (before.get(kind, 0), after.get(kind, 0)) for kind in kinds[:SHOWN_KINDS]}
    if rest := kinds[SHOWN_KINDS:]:
        left, right = (sum(side.get(kind, 0) for kind in rest) for side in (before, after))
        shown[f"{len(rest)} other kinds"] = (left, right)
    shown["all"] = (result["before"]["operations"], result["after"]["launches"])
    return table({"operation": kind, "traced": left, "launched": right} for kind, (left, right) in shown.items())


def shapes(result: Result) -> "pd.DataFrame":
    """One row per step with the size of its batch."""
    return table(
        {
            "step": step["step"],
            "images": step["size"],
            "graphs of a step compiled": step["step_graphs"],
            "other small graphs": f"{step['compilations'] - step['step_graphs']:g}",
            "compiling, s": number(step["compile_s"], 2),
            "step, s": number(step["step_time_s"], 3),
        }
        for step in result["steps"]
    )


def boundary(result: Result) -> "pd.DataFrame":
    """One row per number of steps before mark_step."""
    return table(
        {
            "steps before mark_step": row["steps_in_graph"],
            "operations in the graph": row["operations"],
            "convolutions": row["convolutions"],
            "compilations": f"{row['first_compilations']:g}",
            "compiling, s": number(row["first_compile_s"], 2),
            "running it again, s": number(row["second_s"], 3),
        }
        for row in result["rows"]
    )


def read_back(results: Sequence[Result]) -> "pd.DataFrame":
    """One row per way of reading the loss; times against the same arm's step that reads nothing."""
    rows = []
    for result in results:
        for row in result["rows"]:
            base = unread(result, row)
            more = row["step_time_s"] / base["step_time_s"] - 1
            rows.append(
                {
                    "arm": result["arm"],
                    "the loop": row["variant"],
                    "step, ms": number(1000 * row["step_time_s"], 2),
                    "against nothing read": "" if row is base else f"{100 * more:+.0f} %",
                    "graphs a step": count(row["executions_per_step"]),
                    "read-backs a step": count(row["read_backs_per_step"]),
                    "compilations": count(row["compilations"]),
                }
            )
    return table(rows)


def unread(result: Result, row: Result) -> Result:
    """The variant of the same kind of step that reads nothing."""
    kind, _, read = row["variant"].rpartition(", ")
    if read == "nothing read":
        return row
    names = (f"{kind}, nothing read", "nothing read")
    return next(other for other in result["rows"] if other["variant"] in names)


def optimizer(result: Result) -> "pd.DataFrame":
    """The XLA path's optimizer and scaler against PyTorch's own."""
    return table(
        {
            "optimizer and scaler": row["optimizer"],
            "compilations": f"{row['compilations']:g}",
            "compiling, s": number(row["compile_s"], 2),
            "graphs a step": count(row["executions_per_step"]),
            "read-backs a step": count(row["read_backs_per_step"]),
            "step, ms": number(1000 * row["step_time_s"], 2),
        }
        for row in result["rows"]
    )


def autocast(result: Result) -> "pd.DataFrame":
    """One row per kind of layer: the dtype of weight and output without autocast and with it."""
    with_autocast = {row["layer"]: row for row in result["O1"]["layers"]}
    rows = [
        {
            "layer": row["layer"],
            "count": row["count"],
            "weight": with_autocast[row["layer"]]["weight"] or "none",
            "output, O0": row["output"],
            "output, O1": with_autocast[row["layer"]]["output"],
        }
        for row in result["O0"]["layers"]
    ]
    loss = {"output, O0": result["O0"]["loss"], "output, O1": result["O1"]["loss"]}
    return table([*rows, {"layer": "the loss", "count": 1, "weight": "none", **loss}])


def loss_scaling(result: Result) -> "pd.DataFrame":
    """One row per step: the scale, and the weights with loss scaling and without."""
    both = zip(result["with"]["steps"], result["without"]["steps"], strict=True)
    return table(
        {
            "step": scaled["step"],
            "batch": "pixels x 100,000" if scaled["spike"] else "",
            "scale": f"{scaled['scale']:,.0f}",
            "update": "skipped" if scaled["skipped"] else "done",
            "weights changed": "yes" if scaled["weights_changed"] else "no",
            "nan weights": f"{100 * scaled['nan_weights']:.0f} %",
            "nan weights without scaling": f"{100 * unscaled['nan_weights']:.0f} %",
        }
        for scaled, unscaled in both
    )


def all_reduce(results: Sequence[Result]) -> "pd.DataFrame":
    """Gradients of the last entries of the last bias: each rank's own, the sum by hand, and what all-reduce left."""
    rows = []
    for result in results:
        size = result["world_size"]
        entries = {f"rank {row['rank']}, own": row["local"] for row in result["ranks"]}
        entries["sum, by hand"] = result["sum"]
        entries[f"sum / {size}, by hand"] = [value / size for value in result["sum"]]
        entries |= {f"rank {row['rank']}, after all-reduce": row["mean"] for row in result["ranks"]}
        for name, values in entries.items():
            shown = {f"entry {number - len(values)}": f"{value:+.6f}" for number, value in enumerate(values)}
            rows.append({"arm": result["arm"], "gradient": name, **shown})
    return table(rows)


def count(value: float | None) -> str:
    """A count per step, or n/a where the arm counts nothing."""
    return "n/a" if value is None else f"{value:.2f}".rstrip("0").rstrip(".")


def table(rows: Any) -> "pd.DataFrame":
    """Rows given as mappings."""
    import pandas as pd

    return pd.DataFrame(list(rows))

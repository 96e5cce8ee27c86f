"""The panels of notebook 02."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN_KINDS = 12
"""Bars of a panel; what is rarer is one bar."""
FLOOR = 1e-8
"""Where a difference of zero is drawn on a logarithmic axis."""


def draw_kinds(ax: "Axes", kinds: Mapping[str, int], title: str) -> None:
    """How often each kind of operation occurs, the most frequent at the top."""
    ranked = sorted(kinds.items(), key=lambda item: -item[1])
    bars = ranked[:SHOWN_KINDS]
    if rest := ranked[SHOWN_KINDS:]:
        bars.append((f"{len(rest)} other kinds", sum(number for _, number in rest)))
    ax.barh(range(len(bars)), [number for _, number in bars], height=0.7, color="C0")
    for place, (_, number) in enumerate(bars):
        ax.text(number, place, f" {number:,}", va="center", fontsize=8.5)
    ax.set_yticks(range(len(bars)), [kind for kind, _ in bars])
    ax.set_ylim(len(bars) - 0.4, -0.6)
    ax.margins(x=0.15)
    ax.grid(axis="y", visible=False)
    ax.set(title=f"{title}: {sum(kinds.values()):,} operations", xlabel="number in one step")


def draw_steps(ax: "Axes", steps: Sequence[Mapping[str, Any]]) -> None:
    """Seconds of each step on a logarithmic axis; a step that compiled is hatched."""
    for step in steps:
        compiled = step["step_graphs"] > 0
        ax.bar(
            step["step"],
            step["step_time_s"],
            color="C1" if compiled else "C0",
            hatch="///" if compiled else "",
            edgecolor="white",
        )
        ax.annotate(f"{step['size']} images", (step["step"], step["step_time_s"]), ha="center", va="bottom", fontsize=9)
    ax.set_yscale("log")
    ax.margins(y=0.15)
    ax.set_xticks([step["step"] for step in steps])
    ax.set(title="Each new shape compiles (hatched)", xlabel="step", ylabel="s, logarithmic")


def draw_sweep(ax: "Axes", sweep: Sequence[Mapping[str, Any]]) -> None:
    """Share of gradients that float16 loses at each scale: to zero at the left, to inf or nan at the right."""
    exponents = [row["log2_scale"] for row in sweep]
    ax.plot(exponents, [100 * row["zero"] for row in sweep], marker="o", label="zero, though not in float32")
    ax.plot(exponents, [100 * row["nonfinite"] for row in sweep], marker="s", linestyle="--", label="inf or nan")
    ax.set(title="Gradients lost in float16", xlabel="loss scale, power of two", ylabel="% of all gradients")
    ax.set_ylim(-4, 104)
    ax.legend(fontsize=8.5)


def draw_scale(ax: "Axes", steps: Sequence[Mapping[str, Any]]) -> None:
    """The scale of each step, and the step whose update was skipped."""
    numbers = [step["step"] for step in steps]
    ax.step(numbers, [step["scale"] for step in steps], where="mid", marker="o", label="loss scale")
    skipped = [step for step in steps if step["skipped"]]
    if skipped:
        places = [step["step"] for step in skipped]
        ax.plot(places, [step["scale"] for step in skipped], "X", markersize=12, color="C3", label="update skipped")
    ax.set_yscale("log", base=2)
    ax.set_xticks(numbers)
    ax.set(title="The scale after a provoked overflow", xlabel="step", ylabel="loss scale, logarithmic")
    ax.legend(fontsize=8.5)


def draw_drift(ax: "Axes", result: Mapping[str, Any]) -> None:
    """The largest difference between any rank's weights and rank 0's after each step."""
    for name, marker, line in (("with", "o", "-"), ("without", "s", "--")):
        run = result[name]
        values = [max(row["difference"], FLOOR) for row in run]
        ax.plot([row["step"] for row in run], values, marker=marker, linestyle=line, label=f"{name} all-reduce")
    ax.set_yscale("log")
    ax.set_ylim(bottom=FLOOR / 3)
    ax.set_xticks([row["step"] for row in result["with"]])
    ax.set(
        title=f"Do the ranks hold one model? ({result['arm']}, {result['world_size']} ranks)",
        xlabel="step",
        ylabel=f"largest difference of weights (0 drawn at {FLOOR:g})",
    )
    ax.legend(fontsize=8.5)

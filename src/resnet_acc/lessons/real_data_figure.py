"""The panels of notebook 04."""

from typing import TYPE_CHECKING, Any

from resnet_acc.lessons.real_data_words import accuracy_estimate
from resnet_acc.results.measured import Run
from resnet_acc.results.stats import rate_estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_accuracy(ax: "Axes", validations: list[dict[str, Any]], chance: float | None) -> None:
    """Top-1 in percent after each epoch with its confidence interval, and what guessing gets."""
    ax.set(title="Accuracy on val/", xlabel="epoch", ylabel="top-1, % of the validation images")
    if not validations:
        ax.text(0.5, 0.5, "no validation images", transform=ax.transAxes, ha="center", style="italic")
        return
    epochs = [record["epoch"] + 1 for record in validations]
    estimates = [accuracy_estimate(record["acc1"], record["images"]) for record in validations]
    values = [estimate.value or 0.0 for estimate in estimates]
    below = [value - (estimate.low or 0.0) for value, estimate in zip(values, estimates, strict=True)]
    above = [(estimate.high or 0.0) - value for value, estimate in zip(values, estimates, strict=True)]
    ax.errorbar(epochs, values, yerr=[below, above], marker="o", capsize=4, label="95 % confidence interval")
    if chance is not None:
        ax.axhline(chance, color="0.4", linestyle="--", label="always the most frequent class")
    ax.set_xticks(epochs)
    ax.set_ylim(0, 100)
    ax.legend(loc="lower right", fontsize=8.5)


def draw_rates(ax: "Axes", loader: dict[str, Any] | None, synthetic: Run | None, run: Run | None) -> None:
    """images/s: the loader alone for each number of processes, training without it, and both together."""
    bars: list[tuple[str, float, float, float, str]] = []
    for entry in (loader or {"rates": []})["rates"]:
        low, high = min(entry["repeats"]), max(entry["repeats"])
        bars.append((f"loader alone, {entry['workers']}", entry["images_per_s"], low, high, "///"))
    for name, one, hatch in (("training without loader", synthetic, ""), ("training on the folder", run, "...")):
        estimate = rate_estimate([one]) if one is not None else None
        if estimate is not None and estimate.value is not None:
            bars.append((name, estimate.value, estimate.low or estimate.value, estimate.high or estimate.value, hatch))
    for place, (_, value, low, high, hatch) in enumerate(bars):
        ax.barh(place, value, height=0.62, hatch=hatch, edgecolor="white", color="C0" if hatch == "///" else "C1")
        ax.errorbar(value, place, xerr=[[value - low], [high - value]], color="black", capsize=4)
        ax.text(high, place, f"  {value:,.0f}", va="center", fontsize=9)
    ax.set_yticks(range(len(bars)), [bar[0] for bar in bars])
    ax.set_ylim(len(bars) - 0.45, -0.55)
    ax.margins(x=0.18)
    ax.set(title="Who is faster?", xlabel="images/s, all processes (loader: lowest to highest; training: 95 % CI)")
    ax.grid(axis="y", visible=False)

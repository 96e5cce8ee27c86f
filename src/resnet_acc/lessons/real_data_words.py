"""What notebook 04 says of its measurements."""

from typing import Any

from resnet_acc.results.measured import Run
from resnet_acc.results.scaling import waiting_share
from resnet_acc.results.stats import CONFIDENCE, Estimate, ratio_estimate

WAITS = 0.1
"""From this part of a step on, waiting for data is called the bound."""


def bound_words(loader: dict[str, Any] | None, synthetic: Run | None, run: Run | None, device: str) -> str:
    """Which of loader and device bounds training, from the rates that were measured; Markdown."""
    if run is None or run.images_per_s is None:
        return "No rate of training on the folder (0 steps after warm-up): more images, more epochs or a smaller batch."
    share = waiting_share([run])
    alone = synthetic.images_per_s if synthetic is not None else None
    lines = [f"- Training on the folder takes {run.images_per_s:,.0f} images/s."]
    if synthetic is not None and alone is not None:
        lines.append(f"- Without a loader it takes {alone:,.0f} images/s: {_cost_words(run, synthetic)}.")
    waits = share is not None and share > WAITS
    if share is not None:
        lines.append(
            f"- {100 * share:.0f} % of a step is spent waiting for the next batch: "
            + ("**the loader is the bound**." if waits else "**the loader keeps up**.")
        )
    lines += _mend_words(loader, alone, run, waits)
    if device == "cpu":
        lines.append(
            "- On a CPU the loader and training take turns on the same cores, so that each slows the other down: "
            "the loader alone, which had the cores to itself, is faster than beside training. On a GPU they are apart."
        )
    return "\n".join(lines)


def _cost_words(run: Run, synthetic: Run) -> str:
    ratio = ratio_estimate([run], [synthetic])
    if ratio.low is None or ratio.high is None or ratio.value is None or ratio.low <= 1.0 <= ratio.high:
        return "these runs do not show that loading costs anything"
    if ratio.low > 1.0:
        return "it cannot be slower without one, so something disturbed that run; run the cell again"
    between = f"{100 * (1 - ratio.high):.0f} to {100 * (1 - ratio.low):.0f}"
    return f"the folder costs {100 * (1 - ratio.value):.0f} % of the speed (95 % confidence interval {between})"


def _mend_words(loader: dict[str, Any] | None, alone: float | None, run: Run, waits: bool) -> list[str]:
    if loader is None or alone is None:
        return []
    rates = {entry["workers"]: entry["images_per_s"] for entry in loader["rates"]}
    best = max(rates, key=lambda count: rates[count])
    # Without processes of its own the loader works while training waits, however fast it is.
    enough = [count for count in sorted(rates) if count and rates[count] >= alone]
    told = f"- The loader alone gives at most {rates[best]:,.0f} images/s, with {best} processes"
    if not enough:
        return [
            f"{told}, less than training could take: more CPU cores, smaller images on disk, or data that need less "
            "decoding would help, and a faster card would not."
        ]
    now = run.params.get("workers")
    if waits and isinstance(now, int) and now < enough[0]:
        return [
            f"{told}; from {enough[0]} on it gives more than training takes: set `workers = {enough[0]}` (now {now})."
        ]
    return [f"{told}; with {enough[0]} it already gives more than training takes."]


def accuracy_estimate(percent: float, num_images: int) -> Estimate:
    """A percentage of images with its 95 % confidence interval: Wilson 1927, by scipy.stats.binomtest."""
    from scipy.stats import binomtest

    interval = binomtest(round(percent / 100 * num_images), num_images).proportion_ci(CONFIDENCE, method="wilson")
    return Estimate(percent, 100 * float(interval.low), 100 * float(interval.high), "image", (num_images,))


def accuracy_words(validations: list[dict[str, Any]], chance: float | None) -> str:
    """What the last validation says against guessing; Markdown."""
    if not validations:
        return "There are no validation images, so that nothing is known of the accuracy: put some into `val/<class>/`."
    last = validations[-1]
    estimate = accuracy_estimate(last["acc1"], last["images"])
    epochs = last["epoch"] + 1
    words = (
        f"After {epochs} epoch{'s' if epochs > 1 else ''} {estimate.value:.1f} % of {last['images']} validation images "
        f"are named right (95 % confidence interval {estimate.low:.1f} to {estimate.high:.1f})."
    )
    if chance is None or estimate.low is None or estimate.high is None:
        return words
    guess = f"Always naming the most frequent class would get {chance:.1f} %"
    if estimate.low > chance:
        return f"{words} {guess}: **it has learned**."
    return f"{words} {guess}: **these images do not show that it has learned**; train longer, or look at the labels."

"""The verdict in short, for readers who know nothing of confidence intervals; it claims what the intervals show."""

import math
from collections.abc import Sequence

from resnet_acc.config import COMPILERS
from resnet_acc.results.break_even import IMAGENET_IMAGES, base_row, break_even, duration_words
from resnet_acc.results.mfu import why_no_peak
from resnet_acc.results.stats import Estimate, loss_parity
from resnet_acc.results.summary import Row

ARMS_IN_WORDS = {
    "eager": "plain PyTorch (eager)",
    "kernel": "plain PyTorch with three settings changed (kernel)",
    "inductor": "PyTorch's own compiler (inductor)",
    "torchacc": "the XLA compiler (torchacc)",
}


def in_short(members: Sequence[Row]) -> list[str]:
    """Sentences about the arms of one model, setting and process count: which one to take, what it costs, from when on.

    Nothing is called faster or slower whose 95 % confidence interval does not say so.
    """
    eager = next((row for row in members if row.group.arm == "eager" and row.rate.value is not None), None)
    if eager is None:
        return []
    others = [row for row in members if row is not eager and row.rate.value is not None]
    faster = sorted((row for row in others if _shows(row.ratios["eager"], faster=True)), key=_rate, reverse=True)
    slower = [row for row in others if _shows(row.ratios["eager"], faster=False)]
    unclear = [row for row in others if row not in faster and row not in slower]
    lines = [_begin(eager)]
    if faster:
        lines += _fastest(faster[0], eager, members)
        lines += [_also_faster(row) for row in faster[1:]]
    elif others:
        lines.append("These runs show no gain over it by any other way to train: stay with plain PyTorch.")
    lines += [
        f"{_name(row, begin=True)} is slower here, at {row.ratios['eager'].value:.2f} times its speed."
        for row in slower
    ]
    lines += [f"{_name(row, begin=True)}: these runs show no difference from plain PyTorch." for row in unclear]
    return [*lines, _card_use(faster[0] if faster else eager)]


def _rate(row: Row) -> float:
    return row.rate.value or 0.0


def _name(row: Row, begin: bool = False) -> str:
    words = ARMS_IN_WORDS.get(row.group.arm, row.group.arm or row.group.label)
    return words[:1].upper() + words[1:] if begin and row.group.arm in ARMS_IN_WORDS else words


def _shows(ratio: Estimate, faster: bool) -> bool:
    if ratio.low is None or ratio.high is None:
        return False
    return ratio.low > 1.0 if faster else ratio.high < 1.0


def _begin(eager: Row) -> str:
    rate, size = eager.rate.value or math.nan, eager.group.params.get("image_size")
    pixels = f" of {size} x {size} pixels" if isinstance(size, int) else ""
    return (
        f"{_name(eager, begin=True)} trains {rate:,.0f} images{pixels} a second here: one pass over ImageNet's "
        f"{IMAGENET_IMAGES:,} images would take {duration_words(IMAGENET_IMAGES / rate)} at this speed."
    )


def _fastest(best: Row, eager: Row, members: Sequence[Row]) -> list[str]:
    rate = best.rate.value or math.nan
    lines = [
        f"The fastest is {_name(best)}: {rate:,.0f} images a second, {best.ratios['eager'].value:.2f} times as many, "
        f"or {duration_words(IMAGENET_IMAGES / rate)} for that pass."
    ]
    lines.append(_price(best, eager))
    parity = loss_parity(best.group.results[0], eager.group.results[0])
    if not parity.reason:
        same = "It learns the same: its losses follow plain PyTorch's as closely as rounding allows."
        parts = (
            f"Its losses part from plain PyTorch's at step {parity.parts_at} by more than rounding explains at first: "
            "compare the accuracies before you rely on it."
        )
        lines.append(same if parity.parts_at is None else parts)
    kernel = base_row(best, members, "kernel")
    if kernel is not None:
        ratio = best.ratios["kernel"]
        if _shows(ratio, faster=True):
            lines.append(
                f"Against the strong baseline, {_name(kernel)}, which compiles nothing, it is still "
                f"{ratio.value:.2f} times as fast."
            )
        else:
            lines.append(
                f"But {_name(kernel)} compiles nothing and these runs do not show it to be any slower: the simpler "
                "choice."
            )
    return lines


def _price(best: Row, eager: Row) -> str:
    point = break_even(best, eager)
    if point is None:
        return "When its start-up has paid is not known: it is not on record for both."
    if point.extra_s <= 0:
        return "It starts no later than plain PyTorch, so that there is nothing to win back: take it for any training."
    why = " (it has to compile first)" if best.group.arm in COMPILERS else ""
    return (
        f"It starts {duration_words(point.extra_s)} later{why} and has caught up after {point.steps:,.0f} steps, "
        f"{duration_words(point.seconds)} after the start or {point.imagenet_epochs:.2g} passes over ImageNet: take it "
        "for trainings that last longer, and plain PyTorch for shorter ones."
    )


def _also_faster(row: Row) -> str:
    return f"{_name(row, begin=True)} is faster than plain PyTorch as well, {row.ratios['eager'].value:.2f} times."


def _card_use(row: Row) -> str:
    if row.mfu is not None:
        return (
            f"The fastest uses {100 * row.mfu:.0f} % of what the card can calculate at its very best (MFU); the rest "
            "is lost to memory, to launching work, and to waiting."
        )
    params = row.group.params
    device, name = str(params.get("device") or ""), str(params.get("device_name") or "")
    reason = why_no_peak(device, name, row.dtype) or "the records do not hold the arithmetic of an image"
    return f"How much of the hardware's best that is (MFU) cannot be said: {reason}."

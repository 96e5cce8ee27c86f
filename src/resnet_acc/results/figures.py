"""The single panels, each drawn on axes that the caller gives. No arm is told apart by colour alone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from resnet_acc.results.measured import NOT_TIMED, Run
from resnet_acc.results.stats import scaling_efficiency
from resnet_acc.results.summary import BASELINES, Group, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Positions in seaborn's "colorblind" palette, with a hatch and a marker each.
_LOOKS: dict[str, tuple[int, str, str]] = {
    "eager": (0, "", "o"),
    "kernel": (1, "///", "s"),
    "inductor": (2, "...", "^"),
    "torchacc": (4, "xxx", "D"),
}
_OTHER_LOOKS = ((7, "\\\\\\", "v"), (3, "++", "P"), (5, "oo", "X"), (8, "--", "*"))
_LINES = ("-", "--", ":", "-.")
LOG_SCALE_FROM = 8.0
"""A range of step times as wide as this is drawn on a logarithmic axis, or compilation would flatten the rest."""


LARGEST_LOSS = 1e4
"""A cross-entropy beyond this has diverged; drawn to scale it would flatten every other curve."""


def plain(text: str, longest: int = 48) -> str:
    """Text that matplotlib does not take for a formula and can draw (a name may hold "$" or control characters)."""
    if len(text) > longest:
        text = text[: longest - 3] + "..."
    return "".join(c if c.isprintable() else "?" for c in text).replace("$", r"\$")


def look_of(group: Group, groups: Sequence[Group]) -> dict[str, Any]:
    """Colour, hatch and marker by arm, line style by process count."""
    import seaborn as sns

    others = sorted({g.arm or g.label for g in groups} - set(_LOOKS))
    name = group.arm or group.label
    color, hatch, marker = _LOOKS[name] if name in _LOOKS else _OTHER_LOOKS[others.index(name) % len(_OTHER_LOOKS)]
    counts = sorted({g.world_size or 0 for g in groups})
    line = _LINES[counts.index(group.world_size or 0) % len(_LINES)]
    # Arms that learn alike lie on top of each other: the ones below are drawn wider, so that they stay visible.
    above = min(list(_LOOKS).index(name), 3) if name in _LOOKS else 3
    return {
        "color": sns.color_palette("colorblind")[color],
        "hatch": hatch,
        "marker": marker,
        "linestyle": line,
        "linewidth": 3.2 - 0.6 * above,
        "markersize": 9.0 - 1.1 * above,
    }


def draw_throughput(ax: "Axes", rows: Sequence[Row]) -> None:
    """Bars of images/s over all processes with their confidence intervals; ratios to both baselines stand beside."""
    groups = [row.group for row in rows]
    longest = max((row.rate.high or row.rate.value or 0.0 for row in rows), default=0.0)
    longest = min(longest, 4 * max((row.rate.value or 0.0 for row in rows), default=0.0)) or 1.0
    for place, row in enumerate(rows):
        value = row.rate.value
        if value is None:
            ax.text(longest * 0.02, place, NOT_TIMED, va="center", fontsize=9, style="italic")
            continue
        look = look_of(row.group, groups)
        ax.barh(place, value, height=0.62, color=look["color"], hatch=look["hatch"], edgecolor="white", linewidth=0)
        ax.barh(place, value, height=0.62, fill=False, edgecolor="0.25", linewidth=0.8)
        end = value
        if row.rate.low is not None and row.rate.high is not None:
            high = min(row.rate.high, longest)
            ax.errorbar(value, place, xerr=[[value - row.rate.low], [high - value]], color="black", capsize=4, lw=1.3)
            if high < row.rate.high:
                ax.plot([high], [place], ">", color="black", ms=9)  # it goes on beyond the axis
            end = max(end, high)
        ax.text(end + longest * 0.02, place, _bar_label(row), va="center", fontsize=9, linespacing=1.25)
    ax.set_yticks(range(len(rows)), [plain(row.group.label) for row in rows])
    ax.set_ylim(len(rows) - 0.45, -0.55)
    ax.set_xlim(0, longest * 1.55)
    ax.set_xlabel("images/s, all processes (error bar: 95 % confidence interval)")
    ax.xaxis.set_major_formatter("{x:,g}")
    ax.set_title("Training throughput after warm-up")
    ax.grid(axis="y", visible=False)


def _bar_label(row: Row) -> str:
    """images/s, and below it the ratios; a trailing ~ says that the interval of the ratio contains 1."""
    ratios = []
    for name in BASELINES:
        ratio = row.ratios[name]
        if ratio.value is None or row.group.arm == name:
            continue
        contains_one = ratio.low is not None and ratio.high is not None and ratio.low <= 1.0 <= ratio.high
        sure = "" if ratio.has_interval else "?"
        ratios.append(f"{'~' if contains_one else ''}{ratio.value:.2f}× {name}{sure}")
    first = f"{row.rate.value:,.1f}" if (row.rate.value or 0) < 1000 else f"{row.rate.value:,.0f}"
    return first + ("\n" + ", ".join(ratios) if ratios else "")


def draw_step_time(ax: "Axes", groups: Sequence[Group]) -> None:
    """Seconds of a step over the steps, warm-up shaded, windows that compiled ringed."""
    shown = [g for g in groups if g.results]
    seconds: list[float] = []
    rings: list[tuple[float, float]] = []
    warm = 0
    for group in shown:
        look = look_of(group, shown)
        for number, run in enumerate(group.results):
            good = [i for i in run.intervals if i.measured]
            _line(ax, [(i.step, i.step_time_s * 1e3) for i in good], look, group.label if number == 0 else None)
            rings += [(i.step, i.step_time_s * 1e3) for i in run.compiled if i.measured]
            seconds += [i.step_time_s for i in good]
            warm = max(warm, _end_of_warmup(run))
    if rings:
        x, y = zip(*rings, strict=True)
        ax.scatter(x, y, s=110, fc="none", ec="black", zorder=5, label="compiled (not timed)")
    if warm:
        ax.axvspan(0, warm, color="0.5", alpha=0.18, lw=0, zorder=0, label="warm-up (not timed)")
    if seconds and max(seconds) > LOG_SCALE_FROM * min(seconds):
        _logarithmic(ax)
    _finish(ax, "Time of one step", "ms per step", bool(seconds))


def _logarithmic(ax: "Axes") -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if high > 100 * low else (1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())


def _end_of_warmup(run: Run) -> int:
    steps = [i.step for i in run.intervals if i.warmup and i.attempt == run.intervals[0].attempt]
    return max(steps, default=0)


def draw_loss(ax: "Axes", groups: Sequence[Group]) -> None:
    """Loss curves of all arms; a cross at the upper edge marks a record whose loss is nan, inf or off scale."""
    shown = [g for g in groups if g.results]
    drawn = marked = False
    for group in shown:
        look = look_of(group, shown)
        for number, run in enumerate(group.results):
            finite = [(i.step, i.loss) for i in run.intervals if abs(i.loss) <= LARGEST_LOSS]
            bad = [i.step for i in run.intervals if not abs(i.loss) <= LARGEST_LOSS]
            label = group.label if number == 0 else None
            _line(ax, finite, look, f"{label} (no finite loss)" if label and not finite else label)
            if bad:
                across = ax.get_xaxis_transform()
                ax.plot(
                    bad,
                    [0.97] * len(bad),
                    "x",
                    color=look["color"],
                    mew=2,
                    ms=7,
                    transform=across,
                    zorder=6,
                    label=None if marked else "not finite, or off scale",
                )
                marked = True
            drawn = drawn or bool(run.intervals)
    _finish(ax, "Training loss", "cross-entropy, mean of each record", drawn)


def draw_memory(ax: "Axes", rows: Sequence[Row]) -> None:
    """Bars of the peak memory of one process."""
    groups = [row.group for row in rows]
    known = [row.peak_memory_gib for row in rows if row.peak_memory_gib is not None]
    largest = max(known, default=0.0) or 1.0
    for place, row in enumerate(rows):
        look = look_of(row.group, groups)
        if row.peak_memory_gib is None:
            ax.text(largest * 0.02, place, "n/a", va="center", fontsize=9, style="italic")
            continue
        ax.barh(
            place, row.peak_memory_gib, height=0.62, color=look["color"], hatch=look["hatch"], edgecolor="white", lw=0
        )
        ax.barh(place, row.peak_memory_gib, height=0.62, fill=False, edgecolor="0.25", linewidth=0.8)
        ax.text(row.peak_memory_gib + largest * 0.02, place, f"{row.peak_memory_gib:.2f}", va="center", fontsize=9)
    ax.set_yticks(range(len(rows)), [plain(row.group.label) for row in rows])
    ax.set_ylim(len(rows) - 0.45, -0.55)
    ax.set_xlim(0, largest * 1.18)
    ax.set_xlabel("GiB, the largest process")
    ax.set_title("Peak memory")
    ax.grid(axis="y", visible=False)


def scaling_series(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of arms that ran on several process counts, by arm."""
    series: dict[str, list[Row]] = {}
    for row in rows:
        if row.rate.value is not None and row.group.world_size:
            series.setdefault(row.group.arm or row.group.label, []).append(row)
    return {arm: members for arm, members in series.items() if len({m.group.world_size for m in members}) > 1}


def draw_scaling(ax: "Axes", rows: Sequence[Row]) -> None:
    """images/s over process counts with the efficiency at each point; the thin line is perfect scaling."""
    groups = [row.group for row in rows]
    counts: set[int] = set()
    labels: dict[int, list[tuple[float, str]]] = {}
    for arm, members in scaling_series(rows).items():
        rates = {m.group.world_size or 1: m.rate.value or 0.0 for m in members}
        efficiency = scaling_efficiency(rates)
        look = look_of(members[0].group, groups)
        numbers = sorted(rates)
        counts.update(numbers)
        _line(ax, [(n, rates[n]) for n in numbers], {**look, "linestyle": "-"}, arm)
        smallest = numbers[0]
        ax.plot(numbers, [rates[smallest] / smallest * n for n in numbers], ":", color=look["color"], lw=1, alpha=0.8)
        for n in numbers[1:]:
            labels.setdefault(n, []).append((rates[n], f"{100 * efficiency[n]:.0f} %"))
    _finish(ax, "Scaling over processes", "images/s, all processes", bool(counts), "upper left")
    ax.set_xlabel("processes (dotted: perfect scaling; %: efficiency)")
    if counts:
        ax.set_xticks(sorted(counts))
        ax.set_xlim(min(counts) - 0.15, max(counts) * 1.12 + 0.15)
        ax.set_ylim(bottom=0)
        apart = ax.get_ylim()[1] / 22  # the height of a label, so that arms of like rates do not overwrite each other
        for n, texts in labels.items():
            height = -apart
            for rate, text in sorted(texts):
                height = max(rate, height + apart)
                ax.annotate(text, (n, height), (7, 0), textcoords="offset points", fontsize=9, va="center")


def _line(ax: "Axes", points: Sequence[tuple[float, float]], look: dict[str, Any], label: str | None) -> None:
    import seaborn as sns

    name = None if label is None else plain(label)
    if not points:
        if name is not None:
            ax.plot([], [], color=look["color"], marker=look["marker"], linestyle=look["linestyle"], label=name)
        return
    x, y = zip(*points, strict=True)
    sns.lineplot(
        x=list(x),
        y=list(y),
        ax=ax,
        color=look["color"],
        linestyle=look["linestyle"],
        label=name,
        marker=look["marker"],
        markevery=max(1, len(x) // 12),
        markersize=look["markersize"],
        linewidth=look["linewidth"],
        errorbar=None,
        estimator=None,
        legend=False,
        alpha=1.0 if name is not None else 0.45,
    )


def _finish(ax: "Axes", title: str, y_label: str, drawn: bool, place: str = "best") -> None:
    ax.set_title(title)
    ax.set_xlabel("training step")
    ax.set_ylabel(y_label)
    if not drawn:
        ax.text(0.5, 0.5, "no records", transform=ax.transAxes, ha="center", va="center", style="italic")
    elif ax.get_legend_handles_labels()[1]:
        ax.legend(fontsize=8.5, framealpha=0.9, handlelength=4.5, loc=place)  # type: ignore[call-overload]

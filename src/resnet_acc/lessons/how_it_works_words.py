"""What notebook 02 says of its measurements, as Markdown: every number is one that was measured."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from resnet_acc.lessons.how_it_works_tables import count, unread

Result = Mapping[str, Any]
NOTABLE = 0.1
"""From this part of a step on, a difference is called one: smaller ones may be the machine's own."""
LONGEST_LINE = 130
FLOAT16_LIMITS = "float16's smallest number is 6e-8 and its largest 65,504"


def plain(text: str) -> str:
    """A script's or library's own words, without what Markdown or HTML would take for markup."""
    return re.sub(r"([\\`*_\[\]|#])", r"\\\1", text.replace("&", "&amp;").replace("<", "&lt;"))


def names(result: Result) -> str:
    """How many of the article's names are gone."""
    gone = [f"`{row['name']}`" for row in result["names"] if not row["there"]]
    total = len(result["names"])
    version = f" {result['version']}" if result["version"] else ""
    where = f"{result['namespace']}{version}"
    if not gone:
        return f"All {total} names are there in {where}. Being there is not the same as working: see autocast below."
    verb = "is" if len(gone) == 1 else "are"
    return (
        f"{len(gone)} of {total} names {verb} gone from {where}: {', '.join(gone)}. Being there is not the same as "
        "working: see autocast below."
    )


def _code(lines: Sequence[str]) -> str:
    shown = [line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 4] + " ..." for line in lines]
    return "\n".join(["```", *shown, "```"])


def process_group(results: Sequence[Result]) -> str:
    """What there is without a group, and whether the backend's own sum is one."""
    if not results:
        return ""
    lines = [
        f"- Without a process group nobody is anybody: `dist.get_rank()` says {plain(results[0]['without_group'])}"
    ]
    for result in results:
        ranks, size = result["ranks"], result["world_size"]
        if size == 1:
            lines.append(f"- {result['arm']}: one process needs no group. Set `processes = 2` to see one.")
            continue
        sums = {rank["backend_sum"] for rank in ranks}
        right = sums == {result["expected_sum"]}
        verdict = "the sum" if right else f"**not the sum, {result['expected_sum']:g}**"
        found = " and ".join(f"{value:g}" for value in sorted(sums))
        lines.append(
            f"- {result['arm']}, backend `{result['backend']}`, {size} ranks: the backend's own all_reduce gives "
            f"{found}: {verdict}."
        )
        if not right:
            lines.append(_why_no_sum(result))
    return "\n".join(lines)


def _why_no_sum(result: Result) -> str:
    seen = {rank["xla_world_size"] for rank in result["ranks"]}
    told = " and ".join(f"{value:g}" for value in sorted(seen))
    return (
        f"  torch-xla's world size is {told} in each of the {result['world_size']} processes: on a CPU each is "
        "a world of its own, and the call returns the local value without a word. Each rank would train a model of its "
        "own. So this package all-reduces a known number before any training, and on a CPU sends gradients through "
        f"gloo; that mean is {result['ranks'][0]['mean']:g}, as it should be ({result['expected_mean']:g})."
    )


def replication(result: Result) -> str:
    """What the call changes here."""
    if not result["same_graph"]:
        return "The call changes the graph of an all-reduce here: without it another graph is compiled."
    return (
        "The call registers the device; the graph of an all-reduce and its result are the same with it and without, "
        "so here and with this version it costs nothing and changes no result. With the torch-xla of that time one "
        "process could drive several devices, and this list said which of them take part."
    )


def loader(result: Result) -> str:
    """What wrapping gains here, and what becomes of an error."""
    copied, wrapped = (row["step_time_s"] for row in result["rows"])
    gain = copied / wrapped - 1
    verdict = f"{100 * abs(gain):.0f} % {'faster' if gain > 0 else 'slower'} than with copies in the loop"
    if abs(gain) < NOTABLE:
        verdict = "about as fast as with copies in the loop"
    lines = [f"- With the wrapped loader, whose threads copy the next batches during a step, a step is {verdict} here."]
    for error in result["errors"]:
        if error["raised"] is None:
            lines.append(
                f"- A loader that fails at batch {error['broken_at']} looks like one that has ended: "
                f"{error['loader']} gives {error['batches']} batches and no error, and an epoch is cut short unseen. "
                "This package keeps the error and raises it in the loop."
            )
    if result["device"] == "cpu":
        lines.append("- On a CPU host and device are the same cores: the threads take their time from the step.")
    return "\n".join(lines)


def step_graph(result: Result) -> str:
    """Operations before and after fusion, and the convolutions that the model's layers predict."""
    before, after, layers = result["before"], result["after"], result["layers"]
    n = layers["convolutions"]
    forward = before["convolutions"] - before["backward_convolutions"]
    per_launch = before["operations"] / max(1, after["launches"])
    products = sum(after["dtypes"].values())
    lines = [
        f"- Python asked for {before['operations']:,} operations; the compiler launches {after['launches']:,} "
        f"({per_launch:.1f} operations each). {after['fusions']:,} of them are fusions: kernels that compute several "
        "operations on values that stay in registers or caches.",
        f"- {result['model']} has {n} convolutions. Traced are {forward} forward and "
        f"{before['backward_convolutions']} backward: one for the gradient of the input and one for that of the weight "
        f"of each, {n} + 2 x {n} = {3 * n} in all.",
        f"- Compiled there are {products} convolutions and matrix products. The gradient of the images themselves is "
        f"read by nobody, so the compiler drops it: 3 x {n} - 1, and 3 for each of the {layers['linear']} fully "
        f"connected layers, make {3 * n - 1 + 3 * layers['linear']}.",
    ]
    for name, graph in (("as traced", before), ("as launched", after)):
        lines.append(f"- HLO {name}, the lines around the first product:\n\n{_code(graph['excerpt'])}")
    if after["example"]:
        lines.append(
            f"- One fusion of this step, whole: {len(after['example'])} operations, one launch.\n\n"
            f"{_code(after['example'])}"
        )
    return "\n".join(lines)


def shapes(result: Result) -> str:
    """What each new shape cost."""
    steps = result["steps"]
    sizes = list(dict.fromkeys(step["size"] for step in steps))
    total = sum(step["step_graphs"] for step in steps)
    compiled = [step for step in steps if step["step_graphs"]]
    ready = [step["step_time_s"] for step in steps if not step["compilations"]]
    lines = [
        f"- {len(sizes)} sizes of batches ({', '.join(map(str, sizes))} images) in {len(steps)} steps gave {total:g} "
        "compilations of a step. A graph is kept: a size that was seen before compiles nothing."
    ]
    later = compiled[1:]
    if later and ready:
        cost = sum(step["compile_s"] for step in later)
        usual = sorted(ready)[len(ready) // 2]
        lines.append(
            f"- The short batch cost {cost:.1f} s of compiling, as much time as {cost / usual:,.0f} usual steps of "
            f"{1000 * usual:.1f} ms. A loader with drop_last never makes it; this package's loader drops it, and pads "
            "the last batch of a validation."
        )
    return "\n".join(lines)


def boundary(result: Result) -> str:
    """How the graph grows."""
    first, last = result["rows"][0], result["rows"][-1]
    times = last["steps_in_graph"] / first["steps_in_graph"]
    grown = last["operations"] / first["operations"]
    return (
        f"With {times:g} times the steps before `mark_step` the graph holds {grown:.1f} times the operations, and "
        f"compiling takes {last['first_compile_s']:.1f} s instead of {first['first_compile_s']:.1f} s. Nothing is "
        "computed before it: without the call a loop only ever records, until something reads a value, and each number "
        "of steps between two reads is another graph."
    )


def read_back(results: Sequence[Result]) -> str:
    """What reading the loss costs on each arm here."""
    lines = []
    for result in results:
        for row in result["rows"]:
            base = unread(result, row)
            if row is base:
                continue
            more = row["step_time_s"] / base["step_time_s"] - 1
            verdict = f"{100 * abs(more):.0f} % {'slower' if more > 0 else 'faster'}"
            if abs(more) < NOTABLE:
                verdict += ", which is within what this machine varies by"
            graphs = row["executions_per_step"]
            cut = ""
            if graphs is not None and graphs > (base["executions_per_step"] or 0) + 0.5:
                cut = f"; the step became {count(graphs)} graphs"
            lines.append(f"- {result['arm']}, {row['variant']}: {verdict}{cut}.")
    if results and results[0]["device"] == "cpu":
        lines.append(
            "- On a CPU host and device are the same cores, so there is little to wait for. On a GPU the host runs "
            "ahead of the device, and each read makes it wait until the device has caught up."
        )
    return "\n".join(lines)


def optimizer(result: Result) -> str:
    """What the syncfree optimizer saves."""
    own, other = result["rows"]
    return (
        f"PyTorch's scaler decides on the host whether to step, so it reads {count(other['read_backs_per_step'])} "
        f"value a step and cuts it into {count(other['executions_per_step'])} graphs; its optimizer makes its state in "
        f"the first step, which costs {other['compilations']:g} compilations instead of {own['compilations']:g}. With "
        f"the syncfree one the decision is an operation in the graph: {count(own['read_backs_per_step'])} read-backs, "
        f"{count(own['executions_per_step'])} graph a step."
    )


def autocast(result: Result) -> str:
    """Which layers changed, what stayed, and whether the graph says so too."""
    off, on = result["O0"], result["O1"]
    changed = [row["layer"] for row in on["layers"] if row["output"] == on["dtype"]]
    saved = 1 - on["activation_mib"] / off["activation_mib"]
    lines = [
        f"- Convolutions and products give {on['dtype']}; what follows takes the dtype it gets ({', '.join(changed)}). "
        f"Every weight stays in float32, the loss is computed in {on['loss']}.",
        f"- The outputs of all layers take {on['activation_mib']:.2f} MiB instead of {off['activation_mib']:.2f} MiB "
        f"({100 * saved:.0f} % less).",
    ]
    if on["products"]:
        shown = ", ".join(f"{number} in {dtype}" for dtype, number in on["products"].items())
        before = ", ".join(f"{number} in {dtype}" for dtype, number in off["products"].items())
        lines.append(
            f"- In the graph, forward and backward: convolutions and products {shown}; without autocast {before}."
        )
    if result["torch_xla_autocast"]:
        lines.append(
            f"- The article's own `torch_xla.amp.autocast` gives here: {plain(result['torch_xla_autocast'])}. This "
            'package uses `torch.autocast("xla")` and checks the dtype of a product before it trains.'
        )
    return "\n".join(lines)


def loss_scaling(result: Result) -> str:
    """Where gradients are lost, and what the overflow did with scaling and without."""
    sweep, steps = result["sweep"], result["with"]["steps"]
    first = sweep[0]
    good = [row for row in sweep if row["zero"] < 0.01 and row["nonfinite"] == 0]
    lines = [
        f"- The loss was weighted with {result['loss_weight']:g}, which makes all gradients small. "
        f"Unscaled, {100 * first['zero']:.0f} % of the gradients are zero in float16 ({FLOAT16_LIMITS})."
    ]
    if good:
        lines.append(
            f"- From scale 2^{good[0]['log2_scale']} to 2^{good[-1]['log2_scale']} fewer than 1 % are lost; above that "
            "they overflow. The scaler finds its place in that range by itself."
        )
    skipped = [step for step in steps if step["skipped"]]
    for step in skipped:
        after = next(
            (other["scale"] for other in steps if other["step"] == step["step"] + 1), result["with"]["last_scale"]
        )
        lines.append(
            f"- Step {step['step']} overflowed: its update was skipped (weights changed: "
            f"{'yes' if step['weights_changed'] else 'no'}), and the scale went from {step['scale']:,.0f} to "
            f"{after:,.0f}. After {result['growth_interval']} good steps it doubles again (PyTorch's default is 2,000)."
        )
    lines.append(
        f"- Without loss scaling the same batch left {100 * result['without']['nan_weights']:.0f} % of the weights nan "
        "for good."
    )
    return "\n".join(lines)


def all_reduce(results: Sequence[Result]) -> str:
    """Whether the mean is the sum by hand over the ranks, and how far ranks drift without it."""
    lines = []
    for result in results:
        size, error = result["world_size"], result["largest_error"]
        if size == 1:
            lines.append(f"- {result['arm']}: one process has nothing to sum. Set `processes = 2`.")
            continue
        lines.append(
            f"- {result['arm']}: over all gradients, what all-reduce left differs from the sum by hand / {size} by "
            f"{error:.2g} at most."
        )
        if result["with"]:
            kept, lost = result["with"][-1], result["without"][-1]
            lines.append(
                f"  After {kept['step']} steps the ranks' weights differ by {kept['difference']:.2g} with all-reduce "
                f"and by {lost['difference']:.2g} without: {size} models instead of one, each of a part of the images."
            )
    return "\n".join(lines)

"""XLA's text of a graph, read: its instructions by kind, and how many of them one kernel computes after fusion.

The text is that of --xla_dump_hlo_as_text, whose details (the sign before a name, types beside operands) differ
between versions of XLA.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

BOOKKEEPING = frozenset(("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"))
"""Kinds that compute nothing."""

_HEAD = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+)\s*(\(.*\)\s*->.*)?\{\s*(/\*.*\*/)?\s*$")
_ASSIGNMENT = re.compile(r"^\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = ")
_KIND = re.compile(r"\s*(?P<kind>[a-z][\w\-]*)\(")
_CALLED = re.compile(r"\b(?:calls|to_apply|body|condition)=%?(?P<name>[\w.\-]+)")
_TARGET = re.compile(r'custom_call_target="(?P<name>[^"]*)"')
_LABELS = re.compile(r"dim_labels=(?P<left>\w+)_(?P<right>\w+)->")


@dataclass(frozen=True)
class Instruction:
    """One line of a graph, such as `convolution` of type f32[8,64,16,16]."""

    name: str
    kind: str
    type: str
    line: str

    @property
    def called(self) -> str | None:
        """The computation that this one calls, if any."""
        found = _CALLED.search(self.line)
        return found["name"] if found else None

    @property
    def is_convolution(self) -> bool:
        """A convolution, or the library's call that one became."""
        target = _TARGET.search(self.line)
        return self.kind == "convolution" or (target is not None and "conv" in target["name"].lower())

    @property
    def is_product(self) -> bool:
        """A convolution or a matrix product, as such or as a library's call."""
        target = _TARGET.search(self.line)
        called = target is not None and re.search("gemm|matmul|dot", target["name"].lower()) is not None
        return self.is_convolution or self.kind == "dot" or called

    @property
    def is_backward(self) -> bool:
        """A traced convolution of the backward pass: batch and channels are swapped in its left operand for a weight's
        gradient, and a kernel's input channels come after its output channels at the end for an input's.

        Those are the layouts of XLA's conv_grad_size_util and torch-xla's BuildConvBackwardInput and ...Weight.
        """
        labels = _LABELS.search(self.line)
        return labels is not None and (labels["left"].startswith("fb") or labels["right"].endswith("oi"))

    @property
    def dtype(self) -> str:
        """Element type of the (first) result, such as bf16."""
        found = re.match(r"\(?([a-z]+\d*\w*)\[", self.type)
        return found[1] if found else self.type


@dataclass
class Graph:
    """One module: its computations by name, and the name of the one that is run."""

    entry: str = ""
    computations: dict[str, list[Instruction]] = field(default_factory=dict)

    def instructions(self) -> Iterator[Instruction]:
        """Every instruction of every computation."""
        for body in self.computations.values():
            yield from body

    def kinds(self) -> Counter[str]:
        """How often each kind occurs in all computations, without bookkeeping."""
        return Counter(item.kind for item in self.instructions() if item.kind not in BOOKKEEPING)

    def num_convolutions(self) -> int:
        """Convolutions, as such or as a library's call."""
        return sum(item.is_convolution for item in self.instructions())

    def launched(self, name: str | None = None) -> list[Instruction]:
        """What is launched one after another when the module runs: a fusion is one, a call what it calls launches."""
        found: list[Instruction] = []
        for item in self.computations[self.entry if name is None else name]:
            if item.kind in ("call", "async-start") and item.called in self.computations:
                found += self.launched(item.called)
            elif item.kind not in BOOKKEEPING:
                found.append(item)
        return found

    def fused(self, fusion: Instruction) -> list[Instruction]:
        """What one fusion computes, without bookkeeping."""
        body = self.computations.get(fusion.called or "", [])
        return [item for item in body if item.kind not in BOOKKEEPING]


def parse_hlo(text: str) -> Graph:
    """Read a module's text.

    Raises:
        ValueError: there is no ENTRY computation in it.
    """
    graph, body = Graph(), None
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head and not line.startswith("HloModule"):
            body = graph.computations.setdefault(head["name"], [])
            if head["entry"]:
                graph.entry = head["name"]
        elif body is not None and (item := _instruction(line)) is not None:
            body.append(item)
    if not graph.entry:
        raise ValueError(f"no ENTRY computation in this text of {len(text)} characters")
    return graph


def _instruction(line: str) -> Instruction | None:
    start = _ASSIGNMENT.match(line)
    if start is None:
        return None
    end = _end_of_type(line, start.end())
    kind = _KIND.match(line, end)
    return Instruction(start["name"], kind["kind"], line[start.end() : end], line.strip()) if kind else None


def _end_of_type(line: str, begin: int) -> int:
    """Where a type ends: a tuple's at its closing bracket, which may hold others, any other's at a space."""
    depth = 0
    for place in range(begin, len(line)):
        character = line[place]
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == " " and depth == 0:
            return place
    return len(line)


def dumped_graphs(folder: Path, stage: str) -> dict[str, Graph]:
    """Modules that XLA dumped, by their number and name; `stage` is before_optimizations or after_optimizations."""
    found = {}
    for path in sorted(folder.glob(f"module_*{stage}.txt")):
        found[".".join(path.name.split(".")[:3])] = parse_hlo(path.read_text(encoding="utf-8"))
    return found

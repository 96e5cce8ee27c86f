"""A training step that torch-xla traces once and then replays.

torch-xla traces the Python of every step anew, which for ResNet-50 takes the host longer than a fast card needs for the
step itself. Here the function is traced once for each shape of its inputs; the compiled graph is kept by its hash, and
each later step hands its inputs and the state's present buffers to that graph and puts the results in their place.

The calls into torch_xla._XLAC are those of torch-xla's own bridge for torch.compile (torch_xla/_dynamo/dynamo_bridge.py
in 2.9), which does the same for functions without side effects.
"""

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

LEARNING_RATE_MARK = 0.7316482930183411
"""Stands for the learning rate while a step is traced, so that it can be told from the graph's other numbers."""

DONATED_BYTES = 2**20
"""State of at least this size gives its buffer to its successor, so that it exists once.

A smaller one would save next to nothing and cost a copy: XLA computes several small results in one kernel, and then
copies each to the place that was given for it (500 copies a step for ResNet-50)."""

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class _Source:
    """Where a graph's input comes from: an argument, an entry of the state, the learning rate, or a kept number."""

    kind: str
    index: int = -1
    kept: torch.Tensor | None = None


@dataclass(frozen=True)
class _Graph:
    """One compiled step: its key in torch-xla's cache, its inputs, the state that it updates, and its own results."""

    hash: Any
    sources: list[_Source]
    updated: list[int]


class CapturedStep:
    """Replays `function(*inputs)`, which may change `state` in place and gives a tuple of tensors.

    What may differ between steps must be an input, an entry of the state or the learning rate: any other tensor that
    the function reads is refused when it is traced, and so are random numbers, whose seed the graph would freeze. A
    number that Python writes into the graph (weight decay, say) stays what it was, so `frozen` names all of those, and
    a change of one is traced anew, as is a change of an input's shape or dtype.

    After each call the state's tensors hold the new values: evaluation, checkpoints and state_dict need nothing more,
    and what is written into them from outside (load_state_dict) is what the next step reads. What is copied from them
    on the device (clone, deepcopy, copy_) is on their buffer until torch_xla.sync(), so that must come before the next
    step: a buffer that a step was given is gone.

    Args:
        function: the step; the tensors that it gives are new ones.
        state: tensors on one XLA device that function reads or changes; the same objects for good.
        learning_rate: reads the learning rate, called before each step.
        set_learning_rate: writes it; used while tracing alone.
        frozen: whatever else the function's graph depends on, as a hashable value.
        forget: drops what tracing leaves behind (gradients), called after each trace.
        xla: the torch_xla module (or a vendor's of the same interface).
    """

    NEEDS = (
        "_check_tensor_need_materialization",
        "_clear_pending_irs",
        "_get_graph_hash",
        "_get_tensors_xla_device_data_node",
        "_replace_xla_tensor",
        "_run_cached_graph",
        "_set_buffer_donation",
        "_xla_get_enable_alias_with_buffer_donor_config",
        "_xla_get_rng_seed",
        "_xla_get_tensor_id",
        "_xla_set_enable_alias_with_buffer_donor_config",
        "_xla_warm_up_cache",
    )
    """Calls of torch_xla._XLAC that this needs; a vendor's older torch_xla may lack some."""

    def __init__(
        self,
        function: Callable[..., Tensors],
        state: Sequence[torch.Tensor],
        *,
        learning_rate: Callable[[], float] = lambda: 0.0,
        set_learning_rate: Callable[[float], None] = lambda value: None,
        frozen: Callable[[], Hashable] = lambda: None,
        forget: Callable[[], None] = lambda: None,
        xla: Any,
    ) -> None:
        self._function, self._state = function, list(state)
        own_storage(self._state)
        self._learning_rate, self._set_learning_rate = learning_rate, set_learning_rate
        self._frozen, self._forget = frozen, forget
        self._xla, self._calls = xla, xla._XLAC
        self._graphs: dict[Hashable, _Graph] = {}
        self._versions: list[int] = []
        self._rate: tuple[float, torch.Tensor] | None = None

    @property
    def num_graphs(self) -> int:
        """Graphs traced so far: one for each combination of shapes and frozen values."""
        return len(self._graphs)

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        """Run the step on inputs on the device; never waits for it.

        Raises:
            RuntimeError: the step cannot be captured (see the class); the state is as it was.
        """
        self._materialise(inputs)
        key = (tuple((tensor.shape, tensor.dtype) for tensor in inputs), self._frozen())
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graphs[key] = self._trace(inputs)
        results = self._calls._run_cached_graph(graph.hash, [self._value(source, inputs) for source in graph.sources])
        for index, result in zip(graph.updated, results, strict=False):
            self._calls._replace_xla_tensor(self._state[index], result)
        return tuple(results[len(graph.updated) :])

    def _materialise(self, inputs: Tensors) -> None:
        """Give each tensor a buffer of its own where something from outside was written into it.

        A replayed graph takes buffers and overwrites the state's, which a tensor that was copied from shares until
        then.
        """
        versions = [tensor._version for tensor in self._state]
        pending = self._calls._check_tensor_need_materialization([*inputs, *self._state])
        if versions != self._versions or any(pending):
            self._settle()
            for tensor, version, known in itertools.zip_longest(self._state, versions, self._versions):
                if version != known and tensor.nbytes >= DONATED_BYTES:
                    self._calls._replace_xla_tensor(tensor, _alias(tensor))  # which sync gives a buffer of its own
            self._xla.sync()
        self._versions = versions

    # torch-xla's tensors are functional: each has a value and a base, from which its views (a Linear's transposed
    # weight) are taken. A new buffer must reach both, so both have to be one tensor.

    def _settle(self) -> None:
        """Let the base follow the value after operations in place."""
        for tensor in self._state:
            torch._sync(tensor)

    def _check_views(self) -> None:
        identity = self._calls._xla_get_tensor_id
        for tensor in self._state:
            assert identity(tensor) == identity(tensor.detach()), "a view of the state would keep its old values"

    def _value(self, source: _Source, inputs: Tensors) -> torch.Tensor:
        if source.kind == "state":
            return self._state[source.index]
        if source.kind == "input":
            return inputs[source.index]
        if source.kind == "learning rate":
            return self._rate_on_device()
        assert source.kept is not None
        return source.kept

    def _rate_on_device(self) -> torch.Tensor:
        rate = self._learning_rate()
        if self._rate is None or self._rate[0] != rate:
            on_device = torch.tensor(rate, dtype=torch.float32).to(self._state[0].device)
            if any(self._calls._check_tensor_need_materialization([on_device])):
                self._xla.sync()  # torch-xla makes 0 and 1 constants, which a replayed graph cannot take
            self._rate = (rate, on_device)
        return self._rate[1]

    def _trace(self, inputs: Tensors) -> _Graph:
        """Trace and compile the step without running it, and leave the state as it was."""
        calls = self._calls
        places = _places(calls, "state", self._state) | _places(calls, "input", inputs)
        held = [_alias(tensor) for tensor in self._state]
        newest = calls._xla_get_tensor_id(torch.zeros(()).to(self._state[0].device))
        rate, seed = self._learning_rate(), calls._xla_get_rng_seed()
        donors = calls._xla_get_enable_alias_with_buffer_donor_config()
        self._set_learning_rate(LEARNING_RATE_MARK)
        try:
            results = self._function(*inputs)
            changed = calls._check_tensor_need_materialization(self._state)
            updated = [index for index, change in enumerate(changed) if change]
            if calls._xla_get_rng_seed() != seed:
                raise RuntimeError(
                    "the step draws random numbers, which a captured step would repeat; use --no-capture"
                )
            outputs = [self._state[index] for index in updated] + list(results)
            sources = [
                self._source(places, newest, tensor_id, value)
                for tensor_id, value in zip(*calls._get_tensors_xla_device_data_node(outputs), strict=True)
            ]
            marked = self._learning_rate() == LEARNING_RATE_MARK
            if marked and not any(source.kind == "learning rate" for source in sources):
                raise RuntimeError(
                    "the step works the learning rate into its other numbers (as -lr, say), so a captured step would "
                    "keep the first one; use --no-capture"
                )
            calls._xla_set_enable_alias_with_buffer_donor_config(True)
            for index in updated:
                if held[index].nbytes >= DONATED_BYTES:
                    calls._set_buffer_donation(held[index], True)
            graph = _Graph(calls._get_graph_hash(outputs), sources, updated)
            calls._xla_warm_up_cache(outputs, [])
        finally:
            self._forget()
            self._set_learning_rate(rate)
            calls._xla_set_enable_alias_with_buffer_donor_config(donors)
            self._settle()
            for tensor, before in zip(self._state, held, strict=True):
                calls._replace_xla_tensor(tensor, before)
            calls._clear_pending_irs(str(self._state[0].device))
            self._versions = [tensor._version for tensor in self._state]
            self._check_views()
        return graph

    def _source(self, places: dict[int, _Source], newest: int, tensor_id: int, value: torch.Tensor) -> _Source:
        """Where an input of the traced graph comes from; `newest` is the id of the last tensor made before tracing."""
        if tensor_id in places:
            return places[tensor_id]
        # A number that Python wrote into the step has no id (-1), or that of a tensor made for it while tracing.
        if value.dim() or 0 <= tensor_id <= newest:
            raise RuntimeError(
                f"the step reads a tensor of shape {list(value.shape)} that is neither its input nor its state, so a "
                "captured step would never see it change; use --no-capture"
            )
        if value.item() == torch.tensor(LEARNING_RATE_MARK, dtype=value.dtype).item():
            return _Source("learning rate")
        return _Source("kept", kept=value)


def own_storage(tensors: Iterable[torch.Tensor]) -> None:
    """Make each tensor the base of its own storage; nn.Module.to leaves views, whose base would be another tensor."""
    for tensor in tensors:
        tensor.data = tensor.data.clone()


def _places(calls: Any, kind: str, tensors: Iterable[torch.Tensor]) -> dict[int, _Source]:
    return {calls._xla_get_tensor_id(tensor): _Source(kind, index) for index, tensor in enumerate(tensors)}


def _alias(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor on the same buffer (torch-xla copies none), which keeps it while the first one is traced."""
    return tensor.detach().clone()

"""The planned program through torch's Inductor: the same ATen calls, traced once, fused and compiled by torch.

Kernels are called with fake tensors, so that whatever depends on elements, on other processes or on Python's side
cannot get into the trace: it is refused. Sizes that the graph leaves open stay open; what the kernels' Python and
Inductor decided by them is asked for before each run, and another size that decides otherwise is compiled anew.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch.fx import GraphModule

from ge_graph.errors import EngineError
from ge_graph.files import make_private, others_may_write
from ge_graph.ir import Graph, Node
from ge_runtime import errors
from ge_runtime.cpu.known_inputs import KnownInputs
from ge_runtime.cpu.opaque import traced_calls
from ge_runtime.cpu.own_calls import kernel_of
from ge_runtime.cpu.program import EngineProgram
from ge_runtime.cpu.subgraphs import every
from ge_runtime.cpu.torch_compat import Sketch, below_autograd, inductor_folder, no_torch_function
from ge_runtime.cpu.values import of_numbers, torch_dtype

# Random numbers of a user's kernel by ATen's generators. Inductor's cache of graphs is a pickle in a folder.
_OPTIONS: Final = {"fallback_random": True, "fx_graph_cache": False}
_KEPT: Final = 32  # a caller whose strides never come again must not fill the memory

Values = list[Any]  # tensors, and ints for numbers that the caller has as such
Sizes = tuple[tuple[int | None, ...], ...]  # for each tensor; None where a size or stride is symbolic


class _Variant(NamedTuple):
    """What was compiled for inputs of one kind.

    Attributes:
        call: Takes the inputs and the constants.
        constants: Tensors of the graph that the trace reads.
        sizes: Of each tensor among the inputs.
        strides: Likewise.
        numbers: Position and value of each input that is an int; None if the value is symbolic.
        fits: Whether sizes, strides and numbers decide as those did with which it was traced.
        known: The same question for inputs like the last, in one call.
        calls: Kernels that the program calls as a whole.
    """

    call: Callable[..., Sequence[torch.Tensor]]
    constants: list[torch.Tensor]
    sizes: Sizes
    strides: Sizes
    numbers: tuple[tuple[int, int | None], ...]
    fits: Callable[[Values], bool]
    known: KnownInputs
    calls: list[Any]

    def serves(self, inputs: Values, look: bool) -> bool:
        """Whether the inputs are of this kind; without ``look`` only if they are like those of an earlier run."""
        for index, wanted in self.numbers:
            if type(inputs[index]) is not int or wanted not in (None, inputs[index]):
                return False
        tensors = [v for v in inputs if type(v) is not int] if self.numbers else inputs
        if not self.known.fits(tensors):
            for value, sizes, strides in zip(tensors, self.sizes, self.strides):
                if not look or type(value) is int:
                    return False
                if not _like(value.shape, sizes) or not _like(value.stride(), strides):
                    return False
            self.known.learn(tensors)
        return self.fits(inputs)


def _like(numbers: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(numbers) == len(wanted) and all(w is None or n == w for n, w in zip(numbers, wanted))


class InductorProgram:
    """Runs a graph by what Inductor made of it.

    Args:
        graph: The graph.
        order: The nodes that run.
        plain: Its program that overwrites nothing (``Planner.plain``).

    Errors: EngineError GE4026 naming every node whose work is not a calculation on tensors.
    """

    def __init__(self, graph: Graph, order: Sequence[Node], plain: EngineProgram) -> None:
        outside = [n for n in every(order) if _seen_outside(n)]
        if outside:
            raise errors.outside_inductor(outside)
        self._plain = plain
        self._types = [torch_dtype(node.outputs[0].dtype) for node in graph.inputs]
        self._variants: list[_Variant] = []
        self._shapes = [node.outputs[0].known_shape for node in graph.inputs]
        self._references = {i for i, node in enumerate(graph.inputs) if node.op == "RefData"}
        self._lock = threading.Lock()

    @property
    def source(self) -> str:
        """The program that was traced, as Python text."""
        return self._plain.source

    def run(self, inputs: Values) -> list[torch.Tensor]:
        """Run on a list of its own, which is emptied.

        Errors: EngineError GE4005 if the run fails; as ``prepare`` for inputs of a new kind.
        """
        if self._references:
            self._check_written(inputs)
        variant = self.prepare(inputs)
        arguments = [*inputs, *variant.constants]
        written = {inputs[i].untyped_storage().data_ptr() for i in self._references}
        inputs.clear()
        try:
            results = list(_outside_modes(variant.call, arguments))
            for i, result in enumerate(results) if written else ():  # a copy of an input that is handed out as that
                if result.untyped_storage().data_ptr() in written:
                    results[i] = result.clone()
            return results
        except Exception as error:
            raise errors.run_failed(self._plain.graph, error) from error

    def prepare(self, inputs: Values) -> _Variant:
        """What serves these inputs, compiled if need be.

        Errors: EngineError GE4026 naming the node that cannot be traced, or with what Inductor said.
        """
        for variant in self._variants:
            if variant.serves(inputs, look=False):
                return variant
        # code that Inductor makes does not know of numbers that are conjugate or negative by a mark
        inputs[:] = [v.resolve_conj().resolve_neg() if isinstance(v, torch.Tensor) else v for v in inputs]
        with self._lock:
            for variant in self._variants:
                if variant.serves(inputs, look=True):
                    return variant
            with ThreadPoolExecutor(1) as apart:  # a caller's modes of torch belong to its thread
                made = apart.submit(self._compile, inputs).result()
            self._variants[:] = [made, *self._variants[: _KEPT - 1]]  # the newest is asked first
        return made

    def _check_written(self, inputs: Values) -> None:
        """Written inputs share no memory with others: compiled code reads and writes in an order of its own."""
        if any(inputs[i].is_conj() or inputs[i].is_neg() for i in self._references):
            raise errors.unfit_for_inductor(self._plain.graph, "an input that is written has numbers negated by a mark")
        end, end_of_written = 0, 0
        for start, stop, index in sorted((*_extent(v), i) for i, v in enumerate(inputs) if isinstance(v, torch.Tensor)):
            if start < (end if index in self._references else end_of_written):
                what = f"input {index} shares memory with another one, and the graph writes one of them"
                raise errors.unfit_for_inductor(self._plain.graph, what)
            end = max(end, stop)
            if index in self._references:
                end_of_written = max(end_of_written, stop)

    def _compile(self, inputs: Values) -> _Variant:
        """Trace with fake tensors, and have Inductor compile that."""
        sketch = Sketch()
        fakes = [_fake(sketch, i, v, shape) for i, (v, shape) in enumerate(zip(inputs, self._shapes, strict=True))]
        try:
            with torch.no_grad(), traced_calls() as calls:
                made = sketch.trace(self._call, fakes)
        except EngineError as error:
            raise errors.not_traced(error) from error
        except Exception as error:
            raise errors.inductor_failed(self._plain.graph, error) from error
        _check_generators(made, self._plain.graph)
        constants = _as_inputs(made)
        try:
            use_private_folder()
            with torch.no_grad():
                call = sketch.compile(made, [*fakes, *map(sketch.constant, constants)], _OPTIONS)
        except Exception as error:
            raise errors.inductor_failed(self._plain.graph, error) from error
        tensors = [f for f in fakes if isinstance(f, torch.Tensor)]
        sizes = tuple(tuple(map(_known, f.shape)) for f in tensors)
        strides = tuple(tuple(map(_known, f.stride())) for f in tensors)
        numbers = tuple((i, _known(f)) for i, f in enumerate(fakes) if not isinstance(f, torch.Tensor))
        known = KnownInputs(sizes, strides)
        return _Variant(call, constants, sizes, strides, numbers, _guard(sketch.sizes, fakes), known, calls)

    def _call(self, *values: Any) -> list[torch.Tensor]:
        """The program on fake tensors; numbers are tensors that know what they stand for."""
        given = list(values)
        for index, value in enumerate(given):
            if not isinstance(value, torch.Tensor):
                given[index] = of_numbers(value, self._types[index])
        return self._plain.run_inside(*given)


def use_private_folder() -> None:
    """Have Inductor keep its code where nobody else can write, for it loads what it finds there.

    A folder that is missing is made for this user alone. One that others may write is left alone, with a warning, for a
    folder of this process that ends with it.

    Raises:
        OSError: No folder can be made.
    """
    folder = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or inductor_folder())
    make_private(folder)
    below = [entry.path for entry in os.scandir(folder) if entry.is_dir()]
    for path in (str(folder), *below):
        if why := others_may_write(path):
            own = tempfile.mkdtemp(prefix="tair-inductor-")
            atexit.register(shutil.rmtree, own, ignore_errors=True)
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = own
            text = (
                f"torchair: code that Inductor made is not taken from {folder}: {why} ({path}); {own} is used instead"
            )
            warnings.warn(text, UserWarning, stacklevel=2)
            return


def _outside_modes(call: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """As ``EngineProgram.run``, which enters no other function of ours: a call is counted there."""
    with below_autograd(), no_torch_function(), torch.autocast("cpu", enabled=False):
        return call(*arguments)


def _extent(value: torch.Tensor) -> tuple[int, int]:
    """The bytes that a tensor may touch."""
    start = value.data_ptr()
    if not value.numel():
        return start, start
    last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride()))
    return start, start + (last + 1) * value.itemsize


def _seen_outside(node: Node) -> bool:
    """Whether others see what a node does, so that doing it once while tracing is not enough."""
    kernel = kernel_of(node)
    return kernel is not None and (kernel.acts or (not node.outputs and node.op != "Assert"))  # compiled code asserts


def _fake(sketch: Sketch, index: int, value: Any, shape: Sequence[int | str] | None) -> Any:
    """An input as the trace sees it: symbolic are numbers, and the sizes that the graph leaves open."""
    if type(value) is int:
        return sketch.number(index, value)
    if value.dim() == 0:  # torch would take its element for a number that is known while tracing
        return sketch.constant(torch.empty((), dtype=value.dtype))
    declared = [None] * value.dim() if shape is None else shape
    # like the input, but at the start of its memory: compiled code counts from there, wherever an input starts
    like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    return sketch.tensor(index, like, [not isinstance(d, int) or d < 0 for d in declared])


def _known(size: Any) -> int | None:
    """A size or stride; None if it is symbolic after all that was decided."""
    value: int | None = size if isinstance(size, int) else size.node.maybe_as_int()
    return value


def _guard(env: Any, fakes: Sequence[Any]) -> Callable[[Values], bool]:
    """Asks whether inputs decide as the traced ones did."""
    text = env.produce_guards_expression(fakes)
    if not text:
        return lambda inputs: True
    code: Any = compile(text, "<guards of sizes>", "eval")  # torch evaluates it, and would parse it in every run
    return lambda inputs: bool(env.evaluate_guards_expression(code, inputs))


def _check_generators(made: GraphModule, graph: str) -> None:
    """A generator that a kernel makes for one run would go on from run to run."""
    for node in made.graph.nodes:
        if any(isinstance(a, torch.Generator) for a in (*node.args, *node.kwargs.values())):
            raise errors.unfit_for_inductor(graph, f"{node.target} draws from a generator of its own")


def _as_inputs(made: GraphModule) -> list[torch.Tensor]:
    """The constants of a trace, which become its last inputs: Inductor would write small ones into code."""
    last = [n for n in made.graph.nodes if n.op == "placeholder"][-1:]
    found: dict[str, Any] = {}
    values = []
    for node in list(made.graph.nodes):
        if node.op != "get_attr" or not isinstance(getattr(made, node.target, None), torch.Tensor):
            continue
        if node.target not in found:
            values.append(getattr(made, node.target))
            place = made.graph.inserting_after(last[0]) if last else made.graph.inserting_before(None)
            with place:
                last = [made.graph.placeholder(f"constant{len(found)}")]
            found[node.target] = last[0]
        node.replace_all_uses_with(found[node.target])
        made.graph.erase_node(node)
    made.recompile()
    return values

"""Every private name of torch that the embedded engine uses; ``ge_converters.base.torch_compat`` has the compiler's.

Where versions of torch differ, both forms stand here, and ``tools/torch_names.tsv`` has a row for the difference.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

below_autograd: Final = torch._C._AutoDispatchBelowAutograd
"""Context: calls skip the kernels of autograd."""
no_torch_function: Final = torch._C.DisableTorchFunction
"""Context: no mode or subclass sees the calls."""
gelu: Final = torch._C._nn.gelu
silu: Final = torch._C._nn.silu
softmax: Final = torch._softmax
log_softmax: Final = torch._log_softmax
product_of_int8: Final = torch._int_mm
require: Final = torch._assert_async
"""``require(condition, text)`` stops a run whose condition, a bool tensor, is false."""


profiling: Final[Callable[[], bool]] = torch._C._autograd._profiler_enabled
"""Whether ``torch.profiler`` follows this thread; asked in each call, so no function of Python."""


def _fused_rms_norm() -> Callable[..., tuple[Tensor, Tensor]] | None:
    """torch's ``(x, sizes, gamma, epsilon)`` to (y, rstd); None before 2.9, which has none or one of another form."""
    op = getattr(getattr(torch.ops.aten, "_fused_rms_norm", None), "default", None)
    return torch._fused_rms_norm if op is not None and len(op._schema.returns) == 2 else None


fused_rms_norm: Final = _fused_rms_norm()


def runs_on_the_cpu(op: Any) -> bool:
    """Whether an operator has an implementation for CPU tensors, by itself or by its parts."""
    return isinstance(op, torch._ops.OpOverload) and torch._C._dispatch_has_computed_kernel_for_dispatch_key(
        op.name(), "CPU"
    )


def is_fake(value: Any) -> bool:
    """Whether a tensor has sizes and no elements, as while a program is traced."""
    return isinstance(value, FakeTensor)


def tensor_guards() -> Any:
    """torch's guard on tensors, None if this torch has none of that name."""
    return getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "TensorGuards", None)


def drawing_operator(name: str, function: Callable[..., Any]) -> Any:
    """An operator of torch that two equal calls of may not become one."""
    tags = (torch.Tag.nondeterministic_seeded,)
    if "tags" in inspect.signature(torch.library.custom_op).parameters:
        return torch.library.custom_op(name, function, mutates_args=(), tags=tags)
    made: Any = torch.library.custom_op(name, function, mutates_args=())  # before torch 2.8
    made._opoverload._tags = [*made._opoverload.tags, *tags]
    return made


def process_group(name: str) -> Any:
    """The process group of that name.

    Raises:
        RuntimeError, ValueError, KeyError: There is none.
    """
    from torch.distributed import distributed_c10d

    return distributed_c10d._resolve_process_group(name)


def default_store() -> Any:
    """The store that the processes of torch.distributed met in.

    Raises:
        ValueError: It is not initialised.
    """
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()


def collectives_so_far(group: Any) -> int:
    """How many collectives this process has entered in a group, in eager mode or not."""
    return int(group._get_sequence_number_for_group())


def inductor_folder() -> str:
    """Where Inductor keeps its code if nobody names a folder."""
    from torch._inductor.runtime import cache_dir_utils

    return str(cache_dir_utils.default_cache_dir())


class Sketch:
    """A trace of a program on tensors without elements, and what Inductor makes of it."""

    def __init__(self) -> None:
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        self.mode: Any = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        self.sizes: Any = self.mode.shape_env

    def number(self, index: int, value: int) -> Any:
        """An input that is a number, as a symbol."""
        from torch._dynamo.source import LocalSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        source = LocalSource(f"i{index}")
        symbol = self.sizes.create_symbol(value, source, dynamic_dim=DimDynamic.DUCK)
        return self.sizes.create_symintnode(symbol, hint=value, source=source)

    def tensor(self, index: int, value: Tensor, open_sizes: Sequence[bool]) -> Any:
        """An input like ``value``, with symbols for the sizes that are open."""
        from torch._dynamo.source import LocalSource
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

        dims = [DimDynamic.DUCK if is_open else DimDynamic.STATIC for is_open in open_sizes]
        context = StatelessSymbolicContext(dynamic_sizes=dims)
        return self.mode.from_tensor(value, symbolic_context=context, source=LocalSource(f"i{index}"))

    def constant(self, value: Tensor) -> Any:
        """A tensor whose sizes are known."""
        return self.mode.from_tensor(value, static_shapes=True)

    def trace(self, call: Callable[..., Any], inputs: Sequence[Any]) -> torch.fx.GraphModule:
        """The calls of ATen operators that a function makes."""
        from torch._dispatch.python import enable_python_dispatcher
        from torch.fx.experimental.proxy_tensor import make_fx

        with self.mode, enable_python_dispatcher():
            made: torch.fx.GraphModule = make_fx(call, tracing_mode="real", _allow_non_fake_inputs=True)(*inputs)
        return made

    def compile(self, made: torch.fx.GraphModule, inputs: Sequence[Any], options: dict[str, Any]) -> Callable[..., Any]:
        """What Inductor makes of a trace."""
        from torch import _inductor as inductor
        from torch._guards import TracingContext, tracing

        places = _sizes_as_inputs(made, inputs)
        with tracing(TracingContext(self.mode)):
            sizes = [inputs[index].shape[dim] for index, dim in places]
            compiled: Callable[..., Any] = inductor.compile(made, [*inputs, *sizes], options=options)
        if not places:
            return compiled
        return lambda *given: compiled(*given, *[given[index].shape[dim] for index, dim in places])


def _sizes_as_inputs(made: torch.fx.GraphModule, inputs: Sequence[Any]) -> list[tuple[int, int]]:
    """Give a trace its symbols as last inputs, as dynamo does.

    torch turns calculations with floats that come from sizes into some with tensors, such as those of a batch norm, and
    looks for the symbols among the nodes before them (``tensorify_python_scalars``).

    Returns:
        For each the index of a tensor, and the dimension that has this size.
    """
    known = {str(value) for value in inputs if isinstance(value, torch.SymInt)}
    places = []
    last = [n for n in made.graph.nodes if n.op == "placeholder"][-1:]
    for index, value in enumerate(inputs):
        for dim, size in enumerate(value.shape if isinstance(value, Tensor) else ()):
            if isinstance(size, int) or not size.node.expr.is_Symbol or str(size) in known:
                continue
            known.add(str(size))
            places.append((index, dim))
            with made.graph.inserting_after(last[0]):
                last = [made.graph.placeholder(f"size{len(places)}")]
    made.recompile()
    return places

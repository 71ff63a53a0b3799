"""Composite operators of ATen for which a device brings kernels of its own: traced, they are what they are on CPU.

torch replaces a composite operator by others before anybody sees it, unless the tensors' device has a kernel for it.
torch_npu registers some fifty, so the same program gives other graphs on NPU tensors: operators that only the device
knows, gradients that nobody else has, kernels that read the memory of a tensor that has none while it is traced, and
sizes that become fixed because C++ reads them.

Python rules stand in front of those kernels. torch asks them in threads that trace, and there alone, so eager
programs keep their kernels; so does a graph that another compiler traces.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

import torch

_KEY: Final = torch._C.DispatchKey.AutogradPrivateUse1
_COMPOSITE: Final = torch._C.DispatchKey.CompositeImplicitAutograd
_OWN_KERNEL: Final = ("PrivateUse1", "CompositeExplicitAutograd", "CompositeImplicitAutograd")
_table: ContextVar[Mapping[Any, Callable[..., Any]] | None] = ContextVar("_table", default=None)


def device_composites() -> list[Any]:
    """Overloads of ATen that are decomposed on CPU tensors, and have a kernel for the device that torch was given.

    Source: the dispatcher's registrations, so the list is that of the extension which is loaded; empty without one.
    """
    return _found(torch._C._get_privateuse1_backend_name())


@functools.lru_cache(maxsize=2)
def _found(_: str) -> list[Any]:
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    found = []
    for name in torch._C._dispatch_get_registrations_for_dispatch_key("PrivateUse1"):
        if not name.startswith("aten::") or not has(name, "CompositeImplicitAutograd") or has(name, "CPU"):
            continue
        packet, _, overload = name.removeprefix("aten::").partition(".")
        found.append(getattr(getattr(torch.ops.aten, packet), overload or "default"))
    return sorted(found, key=str)


def decomposition_rules() -> dict[Any, Callable[..., Any]]:
    """For a table of decompositions: each of them by what torch composes it of on CPU tensors."""
    composites = device_composites()
    return {**{op: _composed(op) for op in composites}, **_by_device()} if composites else {}


def _composed(op: Any) -> Callable[..., Any]:
    """What ``op.decompose`` calls now: torch.export puts the rule in its place, where it would call itself."""
    kernel = op.py_kernels.get(_COMPOSITE)
    return kernel if callable(kernel) else functools.partial(op._op_dk, _COMPOSITE)


def _by_device() -> dict[Any, Callable[..., Any]]:
    """Composites in which torch itself looks at the device, and takes fused operators on all but CPU tensors."""
    aten = torch.ops.aten
    return {
        aten.scaled_dot_product_attention.default: _attention,
        aten.lstm_cell.default: _lstm_cell,
        aten.gru_cell.default: _gru_cell,
    }


def register() -> None:
    """Put the rules in front of the kernels that are there by now; dynamo asks them before any backend is called."""
    for op, rule in decomposition_rules().items():
        if _KEY not in op.py_kernels:
            op.py_impl(_KEY)(functools.partial(_traced, op, rule))


def _traced(op: Any, rule: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    chosen: Any = rule
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FUNCTIONAL) is not None:
        chosen = (_table.get() or {}).get(op)  # without that mode it is dynamo, which wants types and sizes alone
    return device_kernel(op, *args, **kwargs) if chosen is None else chosen(*args, **kwargs)


def device_kernel(op: Any, /, *args: Any, **kwargs: Any) -> Any:
    """What the device's own kernel of a composite operator makes of a call that is being traced."""
    return op._op_dk(_KEY, *args, **kwargs)


@contextlib.contextmanager
def decomposed(table: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
    """Inside, graphs are traced without the device's composite kernels.

    Args:
        table: Decompositions; what it does not name keeps its kernel.
    """
    register()
    before = _table.set(table)
    try:
        yield
    finally:
        _table.reset(before)


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """What torch makes of it on CPU tensors: the fused operator for what that takes, else products and a softmax.

    torch chooses by the device, and knows no choice for this one.
    """
    if not dropout_p and _fused_on_cpu(query, key, value, attn_mask, enable_gqa):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
            query, key, value, dropout_p, is_causal, attn_mask=_added(attn_mask, query), scale=scale
        )[0]
    return attention_of_products(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def attention_of_products(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
    grouped: bool,
) -> Any:
    """Attention as products and a softmax, whatever the operands; the arguments of ``scaled_dot_product_attention``."""
    return torch.ops.aten._scaled_dot_product_attention_math.default(
        query, key, value, _added(mask, query), dropout, causal, None, scale=scale, enable_gqa=grouped
    )[0]


def _added(mask: torch.Tensor | None, query: torch.Tensor) -> torch.Tensor | None:
    """A mask as what is added to the scores."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.where(mask, 0.0, -torch.inf).to(query.dtype)


def _fused_on_cpu(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, grouped: bool
) -> bool:
    """Whether torch takes its fused attention on CPU tensors of these looks."""
    tensors = (query, key, value)
    if any(t.dim() != 4 or t.dtype is not query.dtype or not t.is_floating_point() for t in tensors):
        return False
    batch, heads, rows, width = query.shape
    columns = key.shape[2]
    if not grouped and not heads == key.shape[1] == value.shape[1]:
        return False
    if not (batch == key.shape[0] == value.shape[0] and width == key.shape[3] == value.shape[3]):
        return False
    if rows == 0 or columns == 0 or any(t.stride(3) != 1 for t in tensors):
        return False
    if mask is None:
        return True
    if mask.requires_grad or mask.dim() not in (2, 4):
        return False
    return all(m in (1, n) for m, n in zip(reversed(mask.shape), (columns, rows, heads, batch)))


def _lstm_cell(
    input: torch.Tensor, hx: Sequence[torch.Tensor], w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of ``torch.nn.LSTMCell``: its documentation's formula, with the four gates side by side."""
    linear = torch.nn.functional.linear
    hidden, state = hx
    gates = linear(hidden, w_hh, b_hh) + linear(input, w_ih, b_ih)
    parts = gates.unsafe_chunk(4, 1)
    taken, kept, made, shown = parts[0].sigmoid(), parts[1].sigmoid(), parts[2].tanh(), parts[3].sigmoid()
    state = kept * state + taken * made
    return shown * state.tanh(), state


def _gru_cell(
    input: torch.Tensor, hx: torch.Tensor, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None
) -> torch.Tensor:
    """One step of ``torch.nn.GRUCell``: its documentation's formula, with the three gates side by side."""
    linear = torch.nn.functional.linear
    of_input = linear(input, w_ih, b_ih).unsafe_chunk(3, 1)
    of_state = linear(hx, w_hh, b_hh).unsafe_chunk(3, 1)
    reset = (of_state[0] + of_input[0]).sigmoid()
    update = (of_state[1] + of_input[1]).sigmoid()
    new = (of_input[2] + of_state[2] * reset).tanh()
    return (hx - new) * update + new


@functools.lru_cache(maxsize=1024)
def computed_by_host(op: torch._ops.OpOverload) -> bool:
    """Whether torch computes an operator on the host, since the device's library brings no kernel.

    Nothing is known of that where no such library is loaded.
    """
    if not hasattr(torch, torch._C._get_privateuse1_backend_name()):
        return False
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    name = op.name()
    if not has(name, "CPU") or any(has(name, key) for key in _OWN_KERNEL):
        return False
    if not has(name, "CompositeExplicitAutogradNonFunctional"):
        return True
    # it calls the overload that writes its result, whose kernel counts
    packet = getattr(getattr(torch.ops, op.namespace), op._schema.name.split("::")[1].rstrip("_"), op.overloadpacket)
    return not any(has(getattr(packet, o).name(), "PrivateUse1") for o in packet.overloads() if o.endswith("out"))

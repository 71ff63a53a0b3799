"""Which calls a converter takes follows from the schema of the GE operator behind it; all others are a formula."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ge_converters.decompose.formulas import beside_native
from ge_converters.decompose.table import decomposition_table
from ge_converters.registry import REGISTRY, Registry, Takes, register_fx_node_ge_converter
from ge_converters.registry.takes import alike, gradient_of_pair, one_type, pair, sizes_are_numbers, weighted_pair
from ge_graph import ops as ge
from ge_graph import schema
from tair_testing import warm

aten = torch.ops.aten
LISTED = {torch.float64: "DT_DOUBLE", torch.float32: "DT_FLOAT", torch.float16: "DT_FLOAT16", torch.int64: "DT_INT64"}


@pytest.mark.parametrize("op", ["GLU", "Renorm", "Trace", "HardShrink", "LayerNormV4", "Cross", "Im2col", "MseLoss"])
def test_types_are_those_that_the_schema_lists(op: str) -> None:
    listed = {d.name for d in schema.require(op).inputs[0].domain}
    for dtype, name in LISTED.items():
        assert Takes(op)(torch.ones(2, dtype=dtype), 1) == (name in listed)


def test_a_half_type_goes_through_float32_and_an_integer_does_not() -> None:
    assert "DT_BF16" not in {d.name for d in schema.require("GLU").inputs[0].domain}
    assert Takes("GLU")(torch.ones(2, dtype=torch.bfloat16))
    assert not Takes("GLU")(torch.ones(2, dtype=torch.int8))


def test_the_type_is_what_torch_promotes_all_tensors_to() -> None:
    assert Takes("MseLoss")(torch.ones(2), torch.ones(2, dtype=torch.float16))
    assert not Takes("MseLoss")(torch.ones(2), target=torch.ones(2, dtype=torch.float64))
    assert Takes("MseLoss")(1, 2)  # no tensor, nothing to ask


def test_conditions() -> None:
    a, b, half = torch.ones(2, 3), torch.ones(3), torch.ones(2, 3, dtype=torch.float16)
    assert alike(a, None, a)
    assert not alike(a, b)
    assert not alike(a, half)
    assert one_type(a, b, 3)
    assert not one_type(a, half)
    assert pair(a, a, 1)
    assert not pair(a, b, 1)
    assert not weighted_pair(a, a, b)
    assert gradient_of_pair(torch.ones(()), a, a, 1)
    assert not gradient_of_pair(half, a, a, 1)
    assert sizes_are_numbers(a, [2, 3])
    assert not sizes_are_numbers(a, [torch.ones(())])


def whole(call: Any, *args: Any) -> list[str]:
    """The ops that are left of a call after the table."""
    from torch.fx.experimental.proxy_tensor import make_fx

    graph = make_fx(call, decomposition_table=decomposition_table(), tracing_mode="fake")(*args).graph
    return [str(n.target) for n in graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize(
    ("op", "args"),
    [(aten.glu.default, (2, 6)), (aten.renorm.default, (4, 5)), (aten.trace.default, (3, 3))],
)
def test_what_ge_lists_stays_one_operator(op: Any, args: tuple[int, ...]) -> None:
    rest = {aten.renorm.default: (2, 0, 1.0)}.get(op, ())
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        assert whole(lambda x: op(x, *rest), torch.ones(args, dtype=dtype)) == [str(op)]


def test_what_ge_does_not_list_is_decomposed() -> None:
    assert whole(aten.hardshrink.default, torch.ones(3)) == ["aten.hardshrink.default"]
    assert "aten.hardshrink.default" not in whole(aten.hardshrink.default, torch.ones(3, dtype=torch.float64))
    assert "aten.gelu_backward.default" not in whole(
        aten.gelu_backward.default, *2 * [torch.ones(3, dtype=torch.float64)]
    )


def test_a_converter_that_loads_while_torch_traces_leaves_nothing_in_the_graph() -> None:
    """In a new process the first question about a call imports the converters of its op."""
    program = (
        "import sys, torch; from torch.fx.experimental.proxy_tensor import make_fx\n"
        "from ge_converters.decompose.table import decomposition_table as table\n"
        "glu, x = torch.ops.aten.glu.default, torch.ones(2, 4, dtype=torch.float64)\n"
        "kinds = table()\n"
        "assert 'ge_converters.ops.one_operator' not in sys.modules\n"
        "graph = make_fx(lambda x: glu(x), decomposition_table=kinds, tracing_mode='fake')(x).graph\n"
        "print([str(n.target) for n in graph.nodes if n.op == 'call_function'])"
    )
    done = warm.run("-c", program)
    assert done.stdout.strip() == "['aten.glu.default']", done.stderr


def test_the_index_promises_what_registrations_say() -> None:
    promised = REGISTRY.partly()
    REGISTRY.load()
    assert promised == REGISTRY.partly() == {e.name for e in REGISTRY.entries() if e.takes is not None}
    assert {"aten.glu.default", "aten.huber_loss.default", "aten._fused_rms_norm.default"} <= promised


def test_each_formula_serves_an_op_that_is_taken_in_part() -> None:
    assert beside_native.FORMULAS.keys() <= REGISTRY.partly()


def test_a_users_converter_may_take_some_calls_only() -> None:
    registry = Registry()

    @registry.register(aten.softplus.default, takes=lambda self, *rest: self.dim() == 1)
    def mine(self: Any, beta: Any = 1, threshold: Any = 20, *, meta_outputs: Any) -> Any:
        return ge.Relu(self)

    decompose = beside_native.decompositions(registry)[aten.softplus.default]
    assert decompose(torch.ones(3)) is NotImplemented
    torch.testing.assert_close(decompose(torch.ones(2, 3)), torch.nn.functional.softplus(torch.ones(2, 3)))


def test_a_users_converter_that_takes_all_is_asked_for_all() -> None:
    @register_fx_node_ge_converter(aten.hardshrink.default)
    def mine(self: Any, lambd: Any = 0.5, *, meta_outputs: Any) -> Any:
        return ge.Relu(self)

    try:
        assert whole(aten.hardshrink.default, torch.ones(3, dtype=torch.float64)) == ["aten.hardshrink.default"]
    finally:
        REGISTRY.unregister(aten.hardshrink.default)

"""Support as data, and the two rules that keep it honest."""

import operator
from typing import NoReturn

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from ge_converters.base.errors import Refusal
from ge_converters.decompose import formulas, memory_order
from ge_converters.decompose.formulas import beside_native
from ge_converters.decompose.table import NEVER, decomposition_table
from ge_converters.registry import REGISTRY, Registry
from ge_converters.report import coverage

aten = torch.ops.aten
CORE = coverage.core_overloads()


def test_the_core_set_is_torch_s():
    assert aten.add.Tensor in CORE
    assert all(torch.Tag.core in op.tags for op in CORE)
    assert len(CORE) > 180


@pytest.mark.parametrize("op", CORE, ids=str)
def test_every_core_overload_is_served(op):
    row = coverage.row_of(op)
    assert row.state in ("row", "function", "walk", "decomposed", "composite", "functional", "refused"), row.reason


# Ops that no CPU kernel can judge: eager has none. A form that is declared for one of them is an error below.
NO_EAGER = {
    "aten._fused_rms_norm_backward.default",
    "aten._scaled_dot_product_fused_attention_overrideable.default",
}


@pytest.mark.parametrize("entry", list(REGISTRY.entries()), ids=lambda e: e.name)
def test_every_built_in_converter_has_a_source_and_declared_forms(entry):
    if entry.layer != "built-in" or entry.name.split(".")[0] not in ("aten", "prims"):
        return
    assert entry.source, entry.where
    if entry.refuses:
        assert not entry.supports
        assert len(entry.refuses) > 40
    else:
        assert bool(entry.supports) != (entry.name in NO_EAGER), entry.where


def test_an_op_without_eager_kernel_has_none():
    for name in NO_EAGER:
        packet = name.split(".")[1]
        arguments = getattr(aten, packet).default._schema.arguments
        assert arguments
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{packet}", "CPU")


def test_what_converters_take_is_not_decomposed():
    table = decomposition_table()
    ordered = {op for op in memory_order.ordered({}) if REGISTRY.find(op) is not None}
    beside = {*formulas.beside_converters(), *formulas.quantized.beside_converters()}
    beside |= beside_native.decompositions(REGISTRY).keys()
    assert {op for op in table if REGISTRY.find(op) is not None} == ordered | beside
    assert not [op for op in table if str(op) in NEVER]


@pytest.mark.parametrize("op", sorted(memory_order.ordered({}), key=str), ids=str)
def test_an_order_of_memory_leaves_the_op_whole(op):
    """On row-major operands there is nothing but the op, on others it stands between moves of elements."""
    entry, formulas_beside = REGISTRY.find(op), {*formulas.beside_converters(), *beside_native.decompositions(REGISTRY)}
    if entry is None:
        return  # decomposed in any case
    moves = {op, aten.permute.default, aten.clone.default, operator.getitem}
    form = next(s for s in entry.supports if all(t.dtype != torch.int64 or len(t.shape) < 2 for t in s.stand_ins()))
    args, kwargs = form.make()
    wide = [a.expand(2, 3, *a.shape).contiguous() if isinstance(a, torch.Tensor) and a.dim() else a for a in args]
    for turned in (False, True):
        given = [a.transpose(0, 1) if turned and isinstance(a, torch.Tensor) and a.dim() else a for a in wide]
        try:
            op(*given, **kwargs)
        except (RuntimeError, IndexError):  # an operand whose rank is fixed
            given = args
        traced = make_fx(lambda *a: op(*a, **kwargs), decomposition_table())(*given).graph
        traced.eliminate_dead_code()
        found = {n.target for n in traced.nodes if n.op == "call_function"}
        assert found <= moves or op in formulas_beside
        assert turned or found <= {op, operator.getitem} or op in formulas_beside


def pooled(x):
    return torch.nn.functional.max_pool2d(x, 2), torch.nn.functional.avg_pool2d(x, 2)


def test_what_a_formula_beside_a_converter_leaves_stays_whole():
    pools = {aten.max_pool2d_with_indices.default, aten.avg_pool2d.default}
    for x, whole in ((torch.ones(1, 1, 4, 4), True), (torch.ones(1, 1, 4, 4, dtype=torch.int64), False)):
        traced = make_fx(pooled, decomposition_table())(x)
        assert bool(pools & {n.target for n in traced.graph.nodes}) is whole


def test_the_user_s_decompositions_win():
    def mine(x):
        return x

    assert decomposition_table({aten.add.Tensor: mine})[aten.add.Tensor] is mine


def test_the_table_follows_later_registrations():
    op = min((o for o in decomposition_table() if not o._schema.is_mutable), key=str)

    def convert(*args, **kwargs): ...

    REGISTRY.register(op)(convert)
    try:
        assert op not in decomposition_table()
    finally:
        REGISTRY.unregister(op)
    assert op in decomposition_table()


@pytest.mark.parametrize(
    ("op", "functional"),
    [
        (aten.atan2.out, aten.atan2.default),
        (aten.add_.Tensor, aten.add.Tensor),
        (aten.add.Scalar_out, aten.add.Scalar),
        (aten.resize_.default, aten.resize.default if hasattr(aten.resize, "default") else None),
        (aten.add.Tensor, None),
    ],
)
def test_the_functional_form(op, functional):
    assert coverage.functional_form(op) == functional


def test_the_document_lists_every_core_overload():
    text = coverage.markdown([coverage.row_of(op) for op in CORE])
    assert all(f"| {op} |" in text for op in CORE)


def test_a_converter_that_never_returns_is_a_refusal():
    registry = Registry()

    @registry.register(aten.cos.default)
    def cos(self, *, meta_outputs) -> NoReturn:
        raise Refusal("GE has no such thing")

    row = coverage.row_of(aten.cos.default, registry)
    assert (row.state, row.reason) == ("refused", "GE has no such thing")


def test_check_notices_an_old_file(tmp_path):
    path = tmp_path / "coverage.md"
    assert coverage.main(["--output", str(path), "--check"]) == 1
    assert coverage.main(["--output", str(path)]) == 0
    assert coverage.main(["--output", str(path), "--check"]) == 0

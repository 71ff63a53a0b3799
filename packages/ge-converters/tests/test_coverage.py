"""Support as data, and the two rules that keep it honest."""

import pytest
import torch

from ge_converters import coverage
from ge_converters.decomps import NEVER, decomposition_table
from ge_converters.registry import REGISTRY

aten = torch.ops.aten
CORE = coverage.core_overloads()


def test_the_core_set_is_torch_s():
    assert aten.add.Tensor in CORE
    assert all(torch.Tag.core in op.tags for op in CORE)
    assert len(CORE) > 180


@pytest.mark.parametrize("op", CORE, ids=str)
def test_every_core_overload_is_served(op):
    row = coverage.row_of(op)
    assert row.state != "absent", row.reason


@pytest.mark.parametrize("entry", list(REGISTRY.entries()), ids=lambda e: e.name)
def test_every_built_in_converter_has_a_source_and_declared_forms(entry):
    if entry.layer != "built-in" or entry.name.split(".")[0] not in ("aten", "prims"):
        return
    assert entry.source, entry.where
    assert entry.supports, entry.where


def test_what_converters_take_is_not_decomposed():
    table = decomposition_table()
    assert not [op for op in table if REGISTRY.find(op) is not None]
    assert not [op for op in table if str(op) in NEVER]


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


def test_check_notices_an_old_file(tmp_path):
    path = tmp_path / "coverage.md"
    assert coverage.main(["--output", str(path), "--check"]) == 1
    assert coverage.main(["--output", str(path)]) == 0
    assert coverage.main(["--output", str(path), "--check"]) == 0

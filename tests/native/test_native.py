"""Every operator of torch is one GE operator, or `compositions.tsv` says why not: a part of `make native`."""

import dataclasses

import pytest

from labs import native, native_peer, native_reasons, native_samples, opinfo
from labs.native_reasons import NativeReason, NativeRow

ENTRIES = native_samples.entries()[3::23]
TABLE = native.read_table()
REASONS = native_reasons.read()
PEERS = native_peer.read()
CONVERTED = 354  # entries of which the bundled torchair hands GE a graph


@pytest.mark.parametrize("op", ENTRIES, ids=[opinfo.full_name(op) for op in ENTRIES])
def test_one_operator_or_a_row(op):
    opinfo._prepare()
    assert native.problems([native.count(op)], TABLE) == []


@pytest.mark.parametrize("name", TABLE)
def test_reasons_hold_and_account_for_every_operator(name):
    assert native_reasons.problems(name, TABLE[name], REASONS) == []


def test_tables_name_only_what_exists():
    entries = {opinfo.full_name(op) for op in native_samples.entries()}
    assert set(TABLE) <= entries
    assert {name for name, _, _ in native_peer.rows()} == entries
    assert {key for row in TABLE.values() for key in row.reasons} == set(REASONS)
    assert [name for name, row in TABLE.items() if len(row.emitted) < 2] == []
    assert [key for key, reason in REASONS.items() if len(reason.text) < 20] == []


# -- against the bundled torchair --------------------------------------------------------------------------------------


def test_no_more_operators_than_the_bundled_one_without_a_reason():
    assert len(PEERS) == CONVERTED
    assert native.against(TABLE, PEERS, REASONS) == []


def test_an_entry_above_the_bundled_one_is_found():
    peers = {"renorm": ("Renorm",)}
    row = NativeRow(1, ("renorm.default",), ("Square", "ReduceSum", "Sqrt"), ("apart",))
    assert len(native.against({"renorm": row}, peers, REASONS)) == 1
    assert native.against({"renorm": dataclasses.replace(row, reasons=("floor_quotient",))}, peers, REASONS) == []
    many = dataclasses.replace(row, emitted=("Mul",) * (native.MOST + 1), reasons=("floor_quotient",))
    assert native.against({"renorm": many}, peers, REASONS) == ["801 operators in all, at most 800 are wanted"]


# -- what is wrong is found ------------------------------------------------------------------------------------------


def test_a_composition_without_a_row_is_an_error():
    made = native.Count("renorm", ("renorm.default",), ("Square", "ReduceSum", "Sqrt"))
    assert native.problems([made], {}) == ["renorm: 3 operators and no row: Square ReduceSum Sqrt"]
    row = NativeRow(1, made.atens, made.emitted, ("apart",))
    assert native.problems([made], {"renorm": row}) == []
    assert native.problems([made], {"renorm": dataclasses.replace(row, emitted=("Square", "Sqrt"))}) != []
    assert native.problems([made], {"renorm": dataclasses.replace(row, atens=("mul.Tensor",))}) != []
    assert native.updated([made], {})["renorm"].reasons == ()


_ROW = NativeRow(1, ("renorm.default",), ("Square", "ReduceSum", "Sqrt"), ("reason",))
# A reason of each kind that does not hold, and what is said of it.
FALSE = [
    ("none", "", "GE has Renorm"),
    ("none", "AccumulateNV2", "GE has AccumulateNV2"),
    ("port", "MatMulV2.bias", "MatMulV2 has bias"),
    ("port", "NoSuchOperator.bias", "GE has no NoSuchOperator"),
    ("type", "LogicalAnd.x1:DT_BOOL", "LogicalAnd.x1 takes DT_BOOL"),
    ("type", "LogicalAnd.x9:DT_BOOL", "LogicalAnd has no x9"),
    ("kernel", "Sinc@ascend950", "ascend950 has a kernel for Sinc"),
    ("numbers", 'Add {"x1": [1.0], "x2": [2.0]} {} add', "Add equals torch.add"),
    ("refused", 'Add {"x1": [1.0], "x2": [2.0]} {}', "Add takes"),
    ("inferred", 'Add {"x1": [1.0], "x2": [2.0]} {} y DT_FLOAT', "Add.y is DT_FLOAT"),
    ("parts", "", "one ATen operator, renorm.default"),
    ("results", "", "one result"),
    ("updates", "Add", "Add writes into no input"),
    ("updates", "ViewCopy", "none of ViewCopy is emitted"),
    ("asserts", "", "no Assert"),
]


@pytest.mark.parametrize(("kind", "facts", "said"), FALSE, ids=[f"{k} {i}" for i, (k, _, _) in enumerate(FALSE)])
def test_a_reason_that_does_not_hold_is_an_error(kind, facts, said):
    table = {"reason": NativeReason(kind, facts, frozenset("*"), "a sentence for people")}
    found = native_reasons.problems("renorm", _ROW, table)
    assert len(found) >= 1
    assert found[0].startswith(f"renorm: reason: {said}")


def test_every_kind_is_tried():
    assert {kind for kind, _, _ in FALSE} == set(native_reasons.KINDS)
    assert {reason.kind for reason in REASONS.values()} == set(native_reasons.KINDS)


def test_an_operator_that_no_reason_accounts_for_is_an_error():
    table = {"reason": NativeReason("port", "MatMulV2.alpha", frozenset(["Sqrt"]), "a sentence for people")}
    assert native_reasons.problems("renorm", _ROW, table) == ["renorm: 2 operators, 1 accounted for: Square ReduceSum"]
    assert native_reasons.problems("renorm", dataclasses.replace(_ROW, reasons=()), table) == ["renorm: no reason"]
    assert native_reasons.problems("renorm", _ROW, {}) == ["renorm: no reason reason"]


def test_names_are_packed_without_loss():
    names = ("Mul", "Mul", "Add", "Mul")
    assert native_reasons.packed(names) == "Mul*3 Add"
    assert sorted(native_reasons.unpacked("Mul*3 Add")) == sorted(names)


def test_candidates_come_from_schema_and_kernel():
    assert native.candidates("renorm", ("Square",)) == ["Renorm"]
    assert native.candidates("renorm", ("Renorm",)) == []

"""Every operator of torch is one GE operator, or `compositions.tsv` says why not: a part of `make native`."""

import pytest

from tools import native, opinfo

ENTRIES = native.entries()[3::23]
TABLE = native.read_table()


@pytest.mark.parametrize("op", ENTRIES, ids=[opinfo.full_name(op) for op in ENTRIES])
def test_one_operator_or_a_reason(op):
    opinfo._prepare()
    assert native.problems([native.count(op)], TABLE) == []


def test_table_names_only_what_exists_and_gives_each_a_reason():
    assert set(TABLE) <= {opinfo.full_name(op) for op in native.entries()}
    assert [name for name, row in TABLE.items() if row.reason in ("", "?") or row.operators < 2] == []


def test_a_composition_without_a_reason_is_an_error():
    made = native.Count("renorm", ("aten.renorm.default",), ("Square", "ReduceSum", "Sqrt"))
    assert native.problems([made], {}) == ["renorm: 3 operators and no row: Square ReduceSum Sqrt"]
    assert native.problems([made], {"renorm": native.NativeRow(3, True, "?")}) != []
    assert native.problems([made], {"renorm": native.NativeRow(2, True, "numbers differ")}) != []
    assert native.problems([made], {"renorm": native.NativeRow(4, True, "numbers differ")}) != []
    assert native.problems([made], {"renorm": native.NativeRow(3, True, "numbers differ")}) == []


def test_candidates_come_from_schema_and_kernel():
    assert native.candidates("renorm", ("Square",)) == ["Renorm"]
    assert native.candidates("renorm", ("Renorm",)) == []

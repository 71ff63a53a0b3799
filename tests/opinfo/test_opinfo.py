"""A representative part of `make opinfo`: every seventy-fifth check, against the same strict table."""

import pytest
import torch

from labs import opinfo

CHECKS = [*opinfo.all_checks()[5::75], *opinfo.all_checks(databases=tuple(opinfo.DATABASES)[1:])[7::75]]
HIGHER_ORDER = opinfo.all_checks(dtypes=("f32",), databases=("hop_db",))
EXPECTED = opinfo.read_expected()


@pytest.fixture(autouse=True)
def _data_dependent_shapes():
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield


@pytest.mark.night(rows=3)
@pytest.mark.parametrize(("op", "dtype"), CHECKS, ids=[f"{opinfo.full_name(o)}-{d}" for o, d in CHECKS])
def test_equals_eager_or_is_a_listed_gap(op, dtype):
    outcome = opinfo.check(op, dtype)
    assert opinfo.verdict(outcome, EXPECTED) == ""


@pytest.mark.slow
@pytest.mark.parametrize(("op", "dtype"), HIGHER_ORDER, ids=[opinfo.full_name(o) for o, _ in HIGHER_ORDER])
def test_every_higher_order_operator_equals_eager_or_is_a_listed_gap(op, dtype):
    outcome = opinfo.check(op, dtype)
    assert opinfo.verdict(outcome, EXPECTED) == ""


def test_table_names_only_what_exists():
    known = {(opinfo.full_name(op), short) for op, short in opinfo.all_checks(databases=tuple(opinfo.DATABASES))}
    assert set(EXPECTED) <= known


BEYOND = [(op, d) for op, d in opinfo.all_checks() if (opinfo.full_name(op), d) in opinfo.read_expected(opinfo.MORE)]
BEYOND = [(op, d) for op, d in BEYOND if (opinfo.full_name(op), d) not in EXPECTED]


@pytest.mark.night(rows=1)
@pytest.mark.parametrize(("op", "dtype"), BEYOND, ids=[f"{opinfo.full_name(o)}-{d}" for o, d in BEYOND])
def test_what_only_more_samples_show_still_fails_for_the_listed_reason(op, dtype):
    reason = opinfo.read_expected(opinfo.MORE)[opinfo.full_name(op), dtype]
    assert opinfo.check(op, dtype, opinfo.MORE).reason == reason


def test_a_name_belongs_to_one_database():
    names = [opinfo.full_name(op) for database in opinfo.DATABASES for op in opinfo.entries(database)]
    assert len(names) == len(set(names))

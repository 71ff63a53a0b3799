"""The page of what passes with ``aot_eager`` and not with our backend."""

import pytest

from labs import opinfo, suites
from labs.suites import Gap, kind_of


@pytest.fixture(scope="module")
def gaps():
    return [*suites.operator_gaps(), *suites.module_gaps()]


def test_it_fits_on_a_page_and_has_every_suite(gaps):
    lines = suites.page(gaps).splitlines()
    assert len(lines) <= 66
    heads = [line.split(":")[0] for line in lines if not line.startswith(" ")]
    assert heads == [*opinfo.DATABASES, "module_db", "optim_db"]


def test_every_row_is_counted_once(gaps):
    page = suites.page(gaps)
    counted = [int(line.split()[0]) for line in page.splitlines() if line.startswith("  ")]
    ours = [g for g in gaps if not g.reason.startswith("backend aot_eager fails too")]
    assert sum(counted) == len(ours)
    assert all(g.reason for g in gaps)
    rows = suites.page(gaps, rows=True)
    assert all(f"{g.entry} {g.form}: {g.reason}" in rows for g in ours)


@pytest.mark.parametrize(
    ("reasons", "kind"),
    [
        (
            (
                "[GE2001] aten.a.default: refused: GE operator Add takes float32 and float16, got DT_DOUBLE; cast it",
                "[GE2001] aten.b.default: refused: GE operator Mish does not take DT_DOUBLE and no type that it takes",
            ),
            "a GE operator does not take DT_DOUBLE, and no type that it takes holds every value of it",
        ),
        (
            (
                "[GE2001] n.a.default: no converter, no decomposition; no GE op A to derive one from",
                "[GE2001] n.b.default: no converter, no decomposition; near: aten.a.default",
            ),
            "no converter, no decomposition",
        ),
        (("rounding: a; b", "rounding: a; b"), "rounding: a; b"),
    ],
)
def test_rows_of_one_kind_share_a_line(reasons, kind):
    assert {kind_of(r) for r in reasons} == {kind}


def test_gaps_of_aot_eager_are_no_lines():
    page = suites.page([Gap("op_db", "x", "f32", "backend aot_eager fails too: Unsupported")])
    assert "op_db" in page
    assert "Unsupported" not in page
    assert ", 0 pass with aot_eager and not with us, 1 with neither" in page

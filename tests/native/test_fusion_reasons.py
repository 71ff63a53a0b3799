"""Fused operators that the passes leave out: `fusion_reasons.tsv` says why, in the kinds of `labs.native_reasons`."""

from pathlib import Path

import pytest

from labs import native_reasons
from labs.native_reasons import NativeRow

ROWS = [
    line.split("\t")
    for line in Path(__file__).with_name("fusion_reasons.tsv").read_text().splitlines()
    if line[0] != "#"
]
NOTHING = NativeRow(1, (), (), ())


@pytest.mark.parametrize(("operator", "kind", "facts", "text"), ROWS, ids=[row[0] for row in ROWS])
def test_the_reason_holds(operator, kind, facts, text):
    assert native_reasons.KINDS[kind]("", NOTHING, facts) == []
    assert len(text) > 20


def test_a_reason_that_does_not_hold_is_found():
    assert native_reasons.KINDS["port"]("", NOTHING, "SwiGlu.x") == ["SwiGlu has x"]
    assert native_reasons.KINDS["none"]("", NOTHING, "RmsNormGrad") == ["GE has RmsNormGrad"]

"""Every operator that torch_npu names is served or refused with its reason, and the table of them is strict."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from ge_converters.ops.npu import refused
from tools.docs import torch_npu

ROOT = Path(__file__).resolve().parent.parent
TABLE = torch_npu.rows()


def test_every_name_has_an_answer() -> None:
    assert not [row.name for row in TABLE if not row.state]
    assert len({row.operator for row in TABLE}) >= 403
    assert sorted(row.name for row in TABLE) == [row.name for row in TABLE]


def test_a_refusal_says_what_to_do() -> None:
    assert all(len(row.note) > 40 for row in TABLE if row.state == "refused")


def test_no_refusal_of_what_nobody_names() -> None:
    assert not set(refused.REFUSED) - {row.name for row in TABLE}


def test_how_many_are_served() -> None:
    assert torch_npu.served(TABLE) >= 233


def test_what_torch_makes_of_a_name_is_served() -> None:
    states = {row.name: row.state for row in TABLE}
    through = [(row.name, row.note.strip("`")) for row in TABLE if row.state == "functional"]
    assert through
    assert all(states[twin] in ("converter", "formula") for _, twin in through)


def test_the_wheel_has_these_names() -> None:
    wheels = sorted((ROOT / "wheelhouse").glob("torch_npu-2.13.0-*.whl"))
    if not wheels:
        pytest.skip("the wheel of torch_npu is not here")
    with zipfile.ZipFile(wheels[-1]) as archive:
        texts = [archive.read(n) for n in archive.namelist() if n.endswith((".so", ".py"))]
    assert not [row.name for row in TABLE if not any(row.operator.encode() in text for text in texts)]

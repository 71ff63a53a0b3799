"""What ``python -m labs.aclnn`` counts."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from labs import aclnn


def test_names_of_a_wheel_that_are_served_and_that_are_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("x/lib.so", b"\0aclnnAbs\0aclnnAbsGetWorkspaceSize\0aclnnNobodyHasThis\0_aclnnSin\0")
        archive.writestr("x/text.py", b"aclnnCos")
    assert aclnn.main([str(wheel), "--missing"]) == 0
    assert capsys.readouterr().out == "1 of 2 functions\naclnnNobodyHasThis\n"
    assert aclnn.main([]) == 2

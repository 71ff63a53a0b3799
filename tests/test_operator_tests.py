"""The table of which test proves an operator: what is wrong with it is found."""

import pytest

from tools import operator_tests


def test_rows_that_lead_nowhere_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = operator_tests.rows()
    case = found["Abs"]
    assert case.startswith(operator_tests.CONFORMANCE)
    changed = {k: v for k, v in found.items() if k != "Add" and not v.startswith(operator_tests.FORM)}
    changed |= {
        "Abs": f"{case} gone",
        "Celu": "tests/test_checks.py::test_gone",
        "Cos": "tests/gone.py::test_x",
        "Gone": case,
    }
    monkeypatch.setattr(operator_tests, "rows", lambda: changed)
    bad = operator_tests.problems()
    assert any(text.startswith("Add: no row") for text in bad)
    for name in ("Abs", "Celu", "Cos"):
        assert any(text.startswith(f"{name}: ") and text.endswith("does not exist") for text in bad)
    assert any(text.startswith("Gone: a row, but no such operator") for text in bad)
    forms = sum(v.startswith(operator_tests.FORM) for v in found.values())
    assert len(bad) == 5 + forms

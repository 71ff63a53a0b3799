"""What any engine must do, as data: operator cases with results from the definitions, and rules of the contract.

    from ge_runtime.conformance import run_conformance
    report = run_conformance(engine)
    print(report)

The expected values come from numpy and from the text of the operators' definitions, never from an engine.
"""

from ge_runtime.conformance.case import Case
from ge_runtime.conformance.suite import SuiteReport, cases, run_conformance

__all__ = ["Case", "SuiteReport", "cases", "run_conformance"]

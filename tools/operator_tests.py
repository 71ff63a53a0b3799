"""Which test proves an operator of the embedded engine, and which proves a module of converters.

python -m tools.operator_tests            runs the engine's tests and the converters' forms, writes the table; minutes
python -m tools.operator_tests --check    fail if a row is missing, or names what does not exist; run nothing
python -m tools.operator_tests NAME ...   show the rows of operators or modules

``tools/operator_tests.tsv`` has a row for each: a row of the conformance suite (``conformance: Op[name]``), a test
(``file::function``), or a form of a converter (``form: op[index]``) where no test of the engine runs the operator. An
operator counts as run where the planner walks a graph with it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
ROWS: Final = ROOT / "tools" / "operator_tests.tsv"
KERNELS: Final = ROOT / "packages" / "ge-runtime-native" / "src" / "ge_runtime" / "cpu" / "kernels" / "index.tsv"
ENGINE_TESTS: Final = "packages/ge-runtime-native/tests"
ENGINE_FILES: Final = (
    *sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / ENGINE_TESTS).glob("test_kernels_*.py")),
    *(
        f"{ENGINE_TESTS}/test_{name}.py"
        for name in ("subgraphs", "groups", "printing", "known_inputs", "written_inputs")
    ),
)
CONVERTER_TESTS: Final = tuple(
    f"packages/ge-converters/tests/test_{name}.py" for name in ("npu_ops", "foreach", "attention_and_norms", "random")
)
CONVERTERS: Final = ROOT / "packages" / "ge-converters"
MODULES: Final = CONVERTERS / "src" / "ge_converters" / "ops"
FORMS_TEST: Final = "packages/ge-converters/tests/test_declared_forms.py::test_the_first_form_equals_eager"
CONFORMANCE, FORM = "conformance: ", "form: "

# Modules without a declared form: eager does not run their operators here, or they need several processes.
_NPU: Final = "packages/ge-converters/tests/test_npu_ops.py"
_OTHERS: Final = {
    "collectives.py": "packages/npu-backend/tests/test_collectives.py::test_two_ranks",
    "npu/boxes.py": f"{_NPU}::test_as_the_formula",
    "npu/composed.py": f"{_NPU}::test_as_the_formula",
    "npu/grouped.py": f"{_NPU}::test_as_the_formula",
    "npu/limits.py": f"{_NPU}::test_what_ge_refuses_of_constant_numbers",
    "npu/mapping.py": f"{_NPU}::test_as_the_formula",
    "npu/packed.py": f"{_NPU}::test_as_the_formula",
    "npu/refused.py": f"{_NPU}::test_a_refused_operator_says_why",
    "npu/rows.py": f"{_NPU}::test_as_the_formula",
    "npu/serving.py": f"{_NPU}::test_as_the_formula",
    "npu/written.py": f"{_NPU}::test_as_the_formula",
    "quantized.py": "packages/ge-converters/tests/test_quantized_formulas.py::test_same_bits_as_the_operator",
    "refused.py": "tests/opinfo/test_opinfo.py::test_equals_eager_or_is_a_listed_gap",
    "vision.py": "tests/test_torchvision.py::test_roi_align",
}


# Operators whose tests plan no graph in this process, or lie in a file that is not run here.
_ENGINE: Final = f"{ENGINE_TESTS}/test_engine.py"
_ELSEWHERE: Final = {
    op: address
    for ops, address in {
        "HcomAllGather HcomAllGatherV HcomAllReduce HcomAllToAll HcomAllToAllV HcomBroadcast HcomReceive HcomReduce "
        "HcomReduceScatter HcomReduceScatterV HcomSend AllGatherMatmul MatmulAllReduce MatmulReduceScatter": _OTHERS[
            "collectives.py"
        ],
        "StatelessRandomNormalV2 StatelessRandomUniformV2": f"{_ENGINE}::test_random_is_a_function_of_key_and_counter",
        "StatelessDropOutGenMask": f"{_ENGINE}::test_dropout_mask_keeps_the_given_share",
    }.items()
    for op in ops.split()
}
PARTS: Final = ("engine", "converters", "forms")


def operators() -> list[str]:
    """GE operators that have a kernel, by the index of the kernels."""
    lines = (line.split("\t") for line in KERNELS.read_text(encoding="utf-8").splitlines())
    return sorted(op for parts in lines if len(parts) == 3 for op in parts[2].split())


def modules() -> list[str]:
    """Modules of converters, as paths below the package."""
    return sorted(p.relative_to(MODULES).as_posix() for p in MODULES.rglob("*.py") if p.name != "__init__.py")


def rows() -> dict[str, str]:
    """Operator or module to its address."""
    lines = ROWS.read_text(encoding="utf-8").splitlines()[1:] if ROWS.exists() else []
    return {name: address for name, address in (line.split("\t") for line in lines)}


def write(found: dict[str, str]) -> None:
    text = "".join(f"{name}\t{address}\n" for name, address in sorted(found.items()))
    ROWS.write_text(f"name\taddress\n{text}", encoding="utf-8")


# -- what exists ------------------------------------------------------------------------------------------------------


def _conformance() -> dict[str, str]:
    """Operator to the name of its first case."""
    from ge_runtime.conformance import cases

    return {case.op: str(case) for case in reversed(list(cases()))}


def _has_function(address: str) -> bool:
    name, _, function = address.partition("::")
    path = ROOT / name
    return (
        path.is_file()
        and re.search(rf"^def {re.escape(function)}\(", path.read_text(encoding="utf-8"), re.M) is not None
    )


def _declared() -> dict[str, str]:
    """Name of a form to the module of its converter, as a path below the package."""
    from ge_converters.report import smoke

    named = {}
    for case in smoke.cases():
        module = case.entry.fn.__module__.removeprefix("ge_converters.ops.")
        named[case.name] = module.replace(".", "/") + ".py"
    return named


def problems() -> list[str]:
    """What is wrong with the table."""
    found, known = rows(), {*operators(), *modules()}
    bad = [f"{name}: no row; run python -m tools.operator_tests" for name in sorted(known - set(found))]
    bad += [f"{name}: a row, but no such operator or module" for name in sorted(set(found) - known)]
    cases = {str(case) for case in _all_cases()}
    forms = _declared() if any(a.startswith(FORM) for a in found.values()) else {}
    for name, address in found.items():
        if address.startswith(CONFORMANCE):
            exists = address.removeprefix(CONFORMANCE) in cases
        elif address.startswith(FORM):
            exists = address.removeprefix(FORM) in forms
        else:
            exists = _has_function(address)
        if not exists:
            bad.append(f"{name}: {address} does not exist")
    return bad


def _all_cases() -> Iterator[Any]:
    from ge_runtime.conformance import cases

    return cases()


# -- what runs --------------------------------------------------------------------------------------------------------


@contextmanager
def _walked(tell: Callable[[str], None]) -> Iterator[None]:
    """Tell every operator of the graphs that are planned meanwhile."""
    from ge_runtime.cpu.planner import Planner

    walk = Planner.walk

    def telling(self: Planner) -> Planner:
        done = walk(self)
        for node in self.order:
            tell(node.op)
        return done

    Planner.walk = telling  # type: ignore[method-assign]
    try:
        yield
    finally:
        Planner.walk = walk  # type: ignore[method-assign]


class _Recorder:
    """Plugin of pytest: the first passed test that runs an operator, those of the kernels' own files before others."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.first: dict[str, str] = {}

    def pytest_runtest_setup(self) -> None:
        self.seen.clear()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" or not report.passed:
            return
        test = report.nodeid.partition("[")[0]
        for op in self.seen:
            if "test_kernels_" in test and "test_kernels_" not in self.first.get(op, ""):
                self.first[op] = test
            self.first.setdefault(op, test)


def _run_tests(paths: Iterable[str]) -> dict[str, str]:
    """Operator to a test of these files that runs it."""
    import pytest

    recorder = _Recorder()
    options = ["-q", "-n", "0", "-m", "not slow", "-p", "no:cacheprovider"]
    with _walked(recorder.seen.add):
        pytest.main([*paths, *options], plugins=[recorder])
    return recorder.first


def _run_forms(missing: set[str]) -> dict[str, str]:
    """Operator to a form that runs it and equals eager; of converters whose module names one of the operators."""
    from ge_converters.report import smoke

    engine, found = smoke.find_engine("cpu"), dict[str, str]()
    texts = {m: set(re.findall(r"\w+", (MODULES / m).read_text(encoding="utf-8"))) for m in modules()}
    places = _declared()
    for case in sorted(smoke.cases(), key=lambda case: case.index):
        if case.index and not (missing - set(found)) & texts[places[case.name]]:
            continue
        seen: set[str] = set()
        with _walked(seen.add):
            outcome = smoke.run(case, engine)
        if outcome.status == "ok":
            for op in seen & missing:
                found.setdefault(op, f"{FORM}{case.name}")
    return found


def record(parts: Iterable[str] = PARTS) -> None:
    """Write the rows anew, with what is found by the given parts; of the others the rows stay as they are."""
    known, kept, places = operators(), rows(), _declared()
    found = _ELSEWHERE | {op: f"{CONFORMANCE}{name}" for op, name in _conformance().items()}
    for part, paths in (("engine", ENGINE_FILES), ("converters", CONVERTER_TESTS)):
        if part in parts:
            tests = _run_tests(paths)
            found |= {op: tests[op] for op in known if op in tests and op not in found}
        else:
            folder = paths[0].rpartition("/")[0]
            found |= {op: a for op, a in kept.items() if op not in found and a.startswith(folder)}
        write(_ordered(known, {**kept, **found}, places))
    if "forms" in parts:
        found |= _run_forms(set(known) - set(found))
    else:
        found |= {op: a for op, a in kept.items() if op not in found}
    write(_ordered(known, found, places))


def _ordered(known: list[str], found: dict[str, str], places: dict[str, str]) -> dict[str, str]:
    """The rows of the operators that there are, and of the modules."""
    of_modules = {m: FORMS_TEST if m in places.values() else _OTHERS[m] for m in modules()}
    return {op: found[op] for op in known if op in found} | of_modules


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="show these rows; run nothing")
    parser.add_argument("--part", choices=PARTS, action="append", help="run this part alone")
    parser.add_argument("--check", action="store_true", help="fail if the table is out of date; run nothing")
    options = parser.parse_args()
    if options.names:
        found = rows()
        print("\n".join(f"{name}\t{found.get(name, 'no row')}" for name in options.names))
        return
    if not options.check:
        record(options.part or PARTS)
    bad = problems()
    sys.exit("\n".join(bad) if bad else 0)


if __name__ == "__main__":
    main()

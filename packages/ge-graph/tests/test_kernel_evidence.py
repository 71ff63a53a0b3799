"""Public statements about kernels: their form, how they are weighed, and how often they are wrong."""

from __future__ import annotations

import pytest

from ge_graph import DataType, Graph, building, kernels
from ge_graph import ops as ge
from ge_graph.dtypes import BY_SHORT
from ge_graph.kernels import evidence
from ge_graph.kernels.data import published
from ge_graph.kernels.form import AI_CORE
from ge_graph.kernels.grades import grade

D = DataType
F32, F16, BF16, I64 = (D.DT_FLOAT,), (D.DT_FLOAT16,), (D.DT_BF16,), (D.DT_INT64,)


def test_every_line_can_be_read_and_says_who_says_so():
    said = evidence.published()
    statements = [s for op in said.ops() for s in said.of(op)]
    assert len(statements) > 2700
    assert all(s.kind in evidence.KINDS and s.unit in ("", "aicore", "aicpu") for s in statements)
    assert all(s.sources and all(len(x) > 5 and not x.startswith("@") for x in s.sources) for s in statements)


def test_other_versions_are_refused():
    with pytest.raises(ValueError, match="another version"):
        evidence.Evidence("ge-kernel-evidence\t2\tlater\n")


@pytest.mark.parametrize(
    ("op", "soc", "types", "strength", "unit"),
    [
        ("Mul", "ascend910b", {"x1": F32, "x2": F32, "y": F32}, "measured", "aicore"),
        ("MatMulV2", "ascend910_93", {"x1": F32, "x2": F32, "y": F32}, "same core", "aicore"),
        ("GatherV2", "ascend910b", {"x": F32, "indices": I64, "axis": I64, "y": F32}, "launched", "aicore"),
        ("GatherElements", "ascend910b", {"x": I64, "index": I64, "y": I64}, "documented", "aicore"),
        ("StridedSliceV2", "ascend910b", {"x": I64, "begin": I64, "y": I64}, "types open", "aicore"),
        ("Cumsum", "ascend910_93", {"x": I64, "axis": I64, "y": I64}, "launched", "aicpu"),
        ("Sort", "ascend910_93", {"x": I64, "y1": I64, "y2": I64}, "launched", "aicpu"),
        ("Histogram", "ascend910b", {"x": F32, "y": F32}, "launched", "aicpu"),
        ("GatherV2", "ascend310p", {"x": F32, "indices": I64, "axis": I64, "y": F32}, "documented", "aicore"),
        ("MatMulV2", "ascend310p", {"x1": F16, "x2": F16, "y": F16}, "documented", "aicore"),
        ("MatMulV2", "ascend310p", {"x1": F32, "x2": F32, "y": F32}, "types open", "aicore"),  # cast to float16 before
        ("LessEqual", "ascend310p", {"x1": I64, "x2": I64, "y": (D.DT_BOOL,)}, "launched", "aicore"),
        ("Mul", "ascend310p", {"x1": BF16, "x2": BF16, "y": BF16}, "used by others", ""),  # the chip has no bfloat16
    ],
)
def test_grades(op, soc, types, strength, unit):
    found = grade(evidence.published().of(op), soc, types)
    assert (found.strength, found.unit) == (strength, unit)
    assert found.sources


def test_ascend310p_has_no_bfloat16_in_any_statement():
    said = evidence.published()
    here = [s for op in said.ops() for s in evidence.on(said.of(op), "ascend310p")]
    assert len(here) > 40
    named = {d for s in here for port in s.ports for d in s.types(port) or ()}
    assert D.DT_BF16 not in named
    assert not any(s.kind == "measured" for s in here)


def test_nobody_says_anything():
    assert grade(evidence.published().of("Nonsense"), "ascend910b", {"x": F32}) is None


def test_others_using_it_is_a_hint_only():
    said = evidence.Evidence("ge-kernel-evidence\t1\tme\nAbs\t*\tused\t\t\t\t\tsomebody\n")
    found = kernels.Oracle(published(), "ascend310p", (), said).verdict("Abs", {"x": F32, "y": F32})
    assert (found.state, found.strength, found.proven) == ("unknown", "used by others", False)


def test_a_run_without_a_bias_says_nothing_of_its_type():
    bf16 = (D.DT_BF16,)
    said = evidence.published().of("MatMulV2")
    plain = {"x1": bf16, "x2": bf16, "y": bf16}
    by_a_run = ("measured", "same core")
    assert grade(said, "ascend910b", plain).strength in by_a_run
    assert not grade(said, "ascend910b", plain).casts
    assert grade(said, "ascend910b", plain | {"bias": bf16}).casts  # runs with a bias were float32
    assert grade(said, "ascend910b", {p: F32 for p in ("x1", "x2", "bias", "y")}).strength in by_a_run


def test_a_row_is_no_cross_product():
    """A cast from int32 and one to bool do not make one from int32 to bool."""
    said = evidence.Evidence(
        "ge-kernel-evidence\t1\tme\nCast\tascend910b\tmeasured\taicore\tx y\ti32,f32;f16,b8\t\tprofile\n"
    )
    assert grade(said.of("Cast"), "ascend910b", {"x": (D.DT_INT32,), "y": F32}).strength == "measured"
    assert grade(said.of("Cast"), "ascend910b", {"x": (D.DT_INT32,), "y": (D.DT_BOOL,)}).strength == "types open"


def _claims(kinds):
    """Statements about chips whose open kernels are known: (operator, port, type) claimed, and whether it is wrong."""
    for op in evidence.published().ops():
        core = [
            k for k in published().kernels(op, "ascend910b") if k.unit == AI_CORE and not k.experimental and k.combos
        ]
        for said in evidence.on_same_core(evidence.published().of(op), "ascend910b") if core else ():
            for port in said.ports if said.kind in kinds and said.unit != "aicpu" else ():
                known = {t for k in core for at, name in enumerate(k.ports) if name == port for t in k.types(at)}
                for dtype in (said.types(port) or ()) if known else ():
                    half = dtype in (D.DT_FLOAT16, D.DT_BF16) and D.DT_FLOAT in known
                    yield dtype not in known and not half


@pytest.mark.parametrize(("kind", "at_most"), [("measured", 0.0), ("launched", 0.05), ("page", 0.05)])
def test_a_kind_of_statement_is_as_often_wrong_as_its_word_says(kind, at_most):
    wrong = list(_claims({kind}))
    assert len(wrong) > 60
    assert sum(wrong) <= at_most * len(wrong)


def _picked(*shapes, mask, dtype=D.DT_INT64):
    graph = Graph("g")
    x = graph.add("Data", (None,), {}, [(D.DT_FLOAT, (4, 5, 6))])
    places = tuple(graph.add("Data", (None,), {}, [(dtype, s)]).outputs[0] for s in shapes)
    from ge_graph import attrs

    return graph.add(
        "IndexByTensor", (x.outputs[0], places), {"indices_mask": attrs.ListInt(mask)}, [(D.DT_FLOAT, (3,))]
    )


@pytest.mark.parametrize(
    ("node", "state", "why"),
    [
        (_picked((3,), mask=[1]), "aicore", ""),
        (_picked((3,), (3,), mask=[1, 1]), "aicore", ""),
        (_picked((3, 1), (3,), mask=[1, 1]), "aicpu", "different shapes"),
        (_picked((3,), (3,), mask=[1, 0, 1]), "aicpu", "side by side"),
        (_picked(("s0",), mask=[1]), "aicpu", "not static"),
        (_picked((3,), mask=[1], dtype=D.DT_BOOL), "aicpu", "bool"),
    ],
)
def test_what_beside_types_decides_about_indexing(node, state, why):
    found = kernels.oracle("ascend910_93").of(node)
    assert found.state == state
    assert why in found.reason


def _sum_of(axes_known: bool) -> Graph:
    graph = Graph()
    with building(graph):
        axes = ge.Const([0]) if axes_known else ge.Data(index=1, dtype=D.DT_INT64, shape=(1,))
        graph.outputs = [ge.ReduceSum(ge.Data(index=0, dtype=D.DT_FLOAT, shape=(3, 4)), axes)]
    return graph


@pytest.mark.parametrize(
    ("axes_known", "said"), [(True, "are constants, so GE makes it ReduceSumD"), (False, "GE would make it ReduceSumD")]
)
def test_constants_choose_the_kernel(axes_known, said):
    (finding,) = kernels.oracle("ascend910b").check(_sum_of(axes_known))
    assert said in finding.verdict.reason


@pytest.mark.parametrize(
    ("op", "port", "dtypes", "soc", "state"),
    [
        ("MatMulV2", "bias", ("bf16", "bf16", "bf16"), "ascend910b", "open"),
        ("MatMulV2", "bias", ("bf16", "bf16", "f32"), "ascend910b", "aicore"),
        ("MatMulV2", "bias", ("bf16", "bf16", "bf16"), "ascend950", "aicore"),
        ("MaxPoolWithArgmaxV1", "x", ("f16",), "ascend910_93", "open"),
        ("MaxPoolWithArgmaxV1", "x", ("f32",), "ascend910_93", "aicore"),
    ],
)
def test_types_that_no_list_names_are_open(op, port, dtypes, soc, state):
    graph = Graph()
    operands = [graph.add("Data", (), {}, [(BY_SHORT[d], (4, 4))]).outputs[0] for d in dtypes]
    results = [(BY_SHORT[dtypes[0]], (4, 4)), *([(D.DT_INT32, (4, 4))] if op == "MaxPoolWithArgmaxV1" else [])]
    node = graph.add(op, [*operands, *([None] if op == "MatMulV2" else [])], {}, results)
    found = kernels.oracle(soc).of(node)
    assert found.state == state
    if state == "open":
        assert found.advice == f"cast {port} to DT_FLOAT"
        assert not found.proven

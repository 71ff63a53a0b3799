"""Schemas: facts of known operators, amendments, lookup, registration."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
import threading
from contextlib import ExitStack

import pytest

from ge_graph import ArchiveError, DataType, Graph, GraphError, building, schema, serde, txt
from ge_graph import ops as ge
from ge_graph.attrs import Kind
from ge_graph.verify import verify

D = DataType


@pytest.fixture
def scratch():
    """Undo what a test registers."""
    rows, parsed = dict(schema._user_rows), {release: dict(known) for release, known in schema._parsed.items()}
    yield
    for name in set(schema._user_rows) - set(rows):
        del schema._user_rows[name]
        for known in schema._parsed.values():
            known.pop(name, None)
        for listener in schema._listeners:
            if name in schema.builtin_names():
                listener(name)
    schema._user_rows.update(rows)
    schema._parsed.clear()
    schema._parsed.update(parsed)


def test_counts_of_the_data():
    lines = pkgutil.get_data("ge_graph", "data/ops.jsonl").splitlines()
    rows = [json.loads(line) for line in lines]
    assert len(rows) == 1776
    assert [r["op"] for r in rows] == sorted(r["op"] for r in rows)
    assert sum(len(r["in"]) for r in rows) == 5015
    assert sum(len(r["out"]) for r in rows) == 2442
    assert sum(len(r.get("attr", ())) for r in rows) == 3526
    assert sum(len(a) == 2 for r in rows for a in r.get("attr", ())) == 919
    assert sum("sub" in r for r in rows) == 11
    assert sum("var" in r for r in rows) == 27
    assert all(r["source"] in ("torchair", "graphengine") for r in rows)


def test_every_operator_parses_and_every_amendment_says_why():
    for name in schema.names():
        assert schema.get(name).name == name
    for line in pkgutil.get_data("ge_graph", "data/amendments.jsonl").splitlines():
        row = json.loads(line)
        assert row["source"], row["op"]
        assert set(row) <= {"op", "in", "out", "attr", "var", "sub", "allow", "append", "same", "source"}
        for op in row["op"].split():
            assert schema.get(op) is not None, op


def test_amendments_name_ports_that_exist():
    for line in pkgutil.get_data("ge_graph", "data/amendments.jsonl").splitlines():
        row = json.loads(line)
        for op in row["op"].split():
            known = {p.name for p in (*schema.get(op).inputs, *schema.get(op).outputs)}
            for ports in row.get("same", ()):
                assert set(ports.split()) <= known, (op, ports)
            for ports in row.get("allow", {}):
                assert set(ports.split()) & known, (op, ports)


def test_matmul_reads_as_the_header_says():
    op = schema.get("MatMulV2")
    assert [(p.name, p.kind) for p in op.inputs] == [
        ("x1", "required"),
        ("x2", "required"),
        ("bias", "optional"),
        ("offset_w", "optional"),
    ]
    assert [(a.name, a.kind, a.default.value) for a in op.attrs] == [
        ("transpose_x1", Kind.BOOL, False),
        ("transpose_x2", Kind.BOOL, False),
        ("offset_x", Kind.INT, 0),
    ]
    assert op.output("y").domain == {D.DT_FLOAT, D.DT_FLOAT16, D.DT_INT32, D.DT_BF16}
    assert op.source.startswith("torchair")


def test_defaults_of_every_kind():
    assert schema.get("Shape").attr("dtype").default.value == 3
    assert schema.get("Shape").attr("dtype").symbol == "DT_INT32"
    assert schema.get("ArgMaxV2").attr("dtype").default.value is D.DT_INT64
    assert schema.get("Conv2D").attr("dilations").default.value == (1, 1, 1, 1)
    assert schema.get("Conv2D").attr("strides").required
    assert schema.get("MoeGatingTopKSoftmaxV2").attr("renorm").default is None
    assert not schema.get("MoeGatingTopKSoftmaxV2").attr("renorm").required


def test_type_variables():
    mul = schema.get("Mul")
    assert (mul.input("x1").typevar, mul.input("x2").typevar, mul.output("y").typevar) == ("T1", "T2", "T3")
    assert mul.promotions == {"T3": ("T1", "T2")}
    add = schema.get("Add")
    assert add.input("x1").typevar == add.input("x2").typevar == add.output("y").typevar != ""


@pytest.mark.parametrize(
    ("op", "port", "dtype"),
    [
        ("Const", "y", D.DT_BF16),
        ("TensorMove", "x", D.DT_BF16),
        ("Transpose", "x", D.DT_BOOL),
        ("SelectV2", "then", D.DT_BOOL),
        ("Maximum", "x1", D.DT_BF16),
        ("Floor", "x", D.DT_BF16),
        ("Add", "x1", D.DT_BOOL),
        ("Data", "y", D.DT_FLOAT8_E4M3FN),
    ],
)
def test_amended_element_types(op, port, dtype):
    found = schema.get(op).input(port) or schema.get(op).output(port)
    assert dtype in found.domain


def test_operators_without_a_header_have_a_signature():
    for op in ("NetOutput", "ReduceStdV2", "ForeachErf", "MoeDistributeDispatchV2", "DynamicMxQuant"):
        assert schema.get(op) is not None
    assert [p.name for p in schema.get("ReduceStdV2").outputs] == ["std", "mean"]


def test_did_you_mean():
    assert schema.suggest("MatMullV2")[0] == "MatMulV2"
    assert schema.suggest("matmulv2") == ["MatMulV2"]
    with pytest.raises(GraphError, match=r"GE3019.*\n.*MatMulV2"):
        schema.require("MatMullV2")


def test_register_makes_an_operator_known(scratch):
    assert schema.get("ScaleByTwo") is None
    schema.register_schema({"op": "ScaleByTwo", "in": ["x f32,f16"], "out": ["y f32,f16"], "attr": [["n", "Int", 2]]})
    assert "ScaleByTwo" in schema.names()
    graph = Graph()
    with building(graph):
        y = ge.ScaleByTwo(ge.Data(index=0, dtype=D.DT_FLOAT16, shape=(2,)))
    assert y.dtype is D.DT_FLOAT16
    assert y.node.attr("n") == 2


def test_registering_the_same_shape_unites_element_types(scratch):
    before = schema.get("Add").input("x1").domain
    assert D.DT_UINT64 not in before
    schema.register_schema({"op": "Add", "in": ["x1 u64", "x2 u64"], "out": ["y u64"]})
    after = schema.get("Add")
    assert after.input("x1").domain == before | {D.DT_UINT64}
    assert after.input("x1").typevar == after.input("x2").typevar


def test_registering_another_shape_is_refused(scratch):
    row = {"op": "Add", "in": ["x1 f32", "x2 f32", "x3 f32"], "out": ["y f32"]}
    with pytest.raises(GraphError, match="GE3012.*inputs"):
        schema.register_schema(row)
    assert len(schema.get("Add").inputs) == 2
    schema.register_schema(row, replace=True)
    assert len(schema.get("Add").inputs) == 3


def test_bytes_follow_a_schema_that_is_registered_anew(scratch):
    def described(first: str) -> bytes:
        schema.register_schema({"op": "Add", "in": [f"{first} f32", "x2 f32"], "out": ["y f32"]}, replace=True)
        graph = Graph("g")
        with building(graph):
            x = ge.Data(index=0, dtype=D.DT_FLOAT, shape=(2,))
            graph.outputs = [ge.Add(x, x)]
        return serde.to_bytes(graph)

    before, after = described("x1"), described("left")
    assert b"left" not in before
    assert b"left" in after
    assert b"x1" not in after


@pytest.mark.parametrize(
    "row",
    [
        {"op": "X", "in": ["x"], "out": []},
        {"op": "X", "in": ["x f33"], "out": []},
        {"op": "X", "out": []},
        {"op": "X", "in": [], "out": [], "attr": [["a", "Integer"]]},
        {"in": [], "out": []},
    ],
)
def test_malformed_rows_are_refused(row):
    with pytest.raises(GraphError, match="GE3011"):
        schema.register_schema(row)


def test_import_reads_no_data_and_never_torch():
    code = (
        "import sys, ge_graph, ge_graph.ops, ge_graph.verify, ge_graph.custom, ge_graph.codegen.reg_op\n"
        "from ge_graph import schema\n"
        "assert schema._lines.cache_info().currsize == 0, 'data read at import'\n"
        "assert 'torch' not in sys.modules\n"
        "ge_graph.ops.Add\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# -- releases of CANN --------------------------------------------------------------------------------------------------


@pytest.fixture
def release():
    with ExitStack() as held:
        yield lambda version: held.enter_context(schema.use_cann(version))


def revisions():
    return [json.loads(line) for line in pkgutil.get_data("ge_graph", "data/revisions.jsonl").splitlines()]


def test_every_revision_says_since_when_and_from_where():
    for row in revisions():
        assert schema._release(row["since"]) >= (9, 1), row["op"]
        assert row["source"]
        assert set(row) <= {"op", "in", "out", "attr", "var", "sub", "append", "rename", "since", "source"}
        assert schema.get(row["op"]) is not None


def test_every_operator_parses_in_an_older_release_too(release):
    newest = set(schema.names())
    release("8.3")
    older = set(schema.names())
    assert older < newest
    for name in older:
        assert schema.get(name).name == name
    for name in newest - older:
        assert schema.get(name) is None


def test_a_release_that_the_data_does_not_hold_is_refused(release):
    assert max(schema._release(row["since"]) for row in revisions()) <= schema.NEWEST_CANN
    for version in ("8.1.0", "7.0.RC1", "9.2.0", "10.0"):
        with pytest.raises(GraphError, match=rf"GE3071.*CANN {version} are not known, those of 8.2 to 9.1 are"):
            release(version)
    for version in ("8.2.RC1", "9.1.0"):
        release(version)


@pytest.mark.parametrize("version", ["8.5.0", "9.0.0", "8.2.RC1"])
def test_what_a_release_lacks(release, version):
    assert [p.name for p in schema.get("MoeInitRoutingV2").outputs][2] == "expert_tokens_count_or_cumsum"
    assert schema.get("Sort").attr("y2_dtype").kind is Kind.TYPE
    assert schema.get("Real").attr("Tout").kind is Kind.INT
    assert not schema.get("Pack").attr("N").required
    assert schema.get("AdaLayerNorm") is not None
    release(version)
    assert [p.name for p in schema.get("MoeInitRoutingV2").outputs][2] == "expanded_expert_idx"
    assert schema.get("Sort").attr("y2_dtype").kind is Kind.INT
    assert schema.get("Real").attr("Tout").kind is Kind.TYPE
    assert schema.get("Pack").attr("N").required
    assert schema.get("AdaLayerNorm") is None
    release("9.1")
    assert schema.get("AdaLayerNorm") is not None


def test_a_call_may_use_the_names_of_any_release(release):
    def attribute() -> str:
        graph = Graph()
        with building(graph):
            x = ge.Data(index=0, dtype=D.DT_FLOAT16, shape=(2, 4))
            y = ge.MoeGatingTopKSoftmaxV2(x, k=1, output_softmax=True)
            z = ge.MoeGatingTopKSoftmaxV2(x, k=1, output_softmax_result_flag=True)
        names = [{a for a in t[0].node.attrs if a.startswith("output")} for t in (y, z)]
        assert names[0] == names[1]
        return names[0].pop()

    assert attribute() == "output_softmax_result_flag"
    release("8.5")
    assert attribute() == "output_softmax"


def test_an_operator_of_a_later_release_is_refused_by_name(release):
    def call() -> None:
        with building(Graph()):
            x = ge.Data(index=0, dtype=D.DT_FLOAT16, shape=(2, 4))
            ge.AdaLayerNorm(x, x, x, epsilon=1e-5)

    call()
    release("9.0")
    with pytest.raises(GraphError, match="CANN 9.0 has no operator 'AdaLayerNorm'; it is there since 9.1"):
        call()
    release(None)
    call()


def of_a_later_release() -> Graph:
    with building(Graph()) as graph:
        x = ge.Data(index=0, dtype=D.DT_FLOAT16, shape=(2, 4))
        graph.outputs = [ge.AdaLayerNorm(x, x, x, epsilon=1e-5)]
    return graph


def test_two_threads_build_for_two_releases_at_once():
    together, found = threading.Barrier(2), {}

    def build(version):
        with schema.use_cann(version):
            together.wait(10)
            for _ in range(20):
                try:
                    of_a_later_release()
                    found.setdefault(version, set()).add("built")
                except GraphError as error:
                    found.setdefault(version, set()).add(error.code)
                names = {p.name for p in schema.get("GroupNormSilu").outputs}
                found[version].add("rstd" if "rstd" in names else "variance")
            together.wait(10)  # the release of each holds until both are done

    threads = [threading.Thread(target=build, args=(v,)) for v in ("8.5.0", "9.1.0")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"8.5.0": {"GE3019", "variance"}, "9.1.0": {"built", "rstd"}}
    assert schema.release() is None


def test_a_graph_is_verified_by_its_own_release_wherever_that_happens():
    def outcome(graph):
        try:
            verify(graph)
        except GraphError as error:
            return str(error)
        return "legal"

    with schema.use_cann("8.5.0"):
        old = Graph()
    with building(old):
        x = ge.Data(index=0, dtype=D.DT_FLOAT16, shape=(2, 4))
        with pytest.raises(GraphError, match="CANN 8.5 has no operator 'AdaLayerNorm'"):
            ge.AdaLayerNorm(x, x, x, epsilon=1e-5)
    twin = of_a_later_release()
    made = next(n for n in twin.nodes if n.op == "AdaLayerNorm")
    new = old.add(made.op, [x] * 3, dict(made.attrs), [(D.DT_FLOAT16, (2, 4))] * len(made.outputs))
    old.outputs = new.outputs[:1]
    told = {}
    with schema.use_cann("9.1.0"):
        thread = threading.Thread(target=lambda: told.update(old=outcome(old), twin=outcome(twin)))
        thread.start()
        thread.join()
        told["here"] = outcome(old)
    with schema.use_cann("8.5.0"):
        told["twin here"] = outcome(twin)
    assert "GE has no operator 'AdaLayerNorm'" in told["old"]
    assert told == {"old": told["old"], "here": told["old"], "twin": "legal", "twin here": "legal"}
    read = serde.from_bytes(serde.to_bytes(old))
    assert (read.release, read.attrs, outcome(read)) == ((8, 5), {}, told["old"])
    assert serde.from_bytes(serde.to_bytes(twin)).release is None


@pytest.mark.parametrize("said", ["8", "8.5.0", "9" * 5000, "\\331\\250.\\331\\245", ""])
def test_a_file_that_names_no_release_is_refused(said):
    with schema.use_cann("8.5"):
        text = txt.to_txt(Graph())
    assert txt.from_txt(text).release == (8, 5)
    with pytest.raises(ArchiveError, match="GE5008.*_graph_cann is no release of CANN"):
        txt.from_txt(text.replace('"8.5"', f'"{said}"'))
    with pytest.raises(ArchiveError, match="GE5008.*the operators of CANN 9.7 are not known"):
        txt.from_txt(text.replace('"8.5"', '"9.7"'))


def test_attributes_of_later_releases_are_sent_only_if_given():
    for row in revisions():
        if "in" not in row and row["op"] not in ("Real", "Pack"):
            for entry in row.get("attr", ()):
                assert entry[2] is None, row["op"]


@pytest.mark.parametrize("text", ["", "latest", "8", "x.y"])
def test_versions_without_numbers_are_refused(release, text):
    with pytest.raises(GraphError, match="GE3071"):
        release(text)

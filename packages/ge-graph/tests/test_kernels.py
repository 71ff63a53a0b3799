"""Kernel facts: their form, installations, and verdicts by GE's rules."""

from __future__ import annotations

import json

import pytest

from ge_graph import DataType, Graph, GraphError, Provenance, building, kernels, schema
from ge_graph import ops as ge
from ge_graph.kernels import data, form, installation

D = DataType
CHIP = "ascend910b"


def ai_core(*types: tuple[str, str], formats: str = "", kinds: str = "required", **more) -> dict:
    """An operator of one input and one output as the lists of AI Core hold it."""
    columns = list(zip(*types))
    layout = formats or ",".join(["ND"] * len(types))
    ports = {
        f"{side}0": {"name": name, "paramType": kinds, "dtype": ",".join(column), "format": layout}
        for side, name, column in zip(("input", "output"), ("x", "y"), columns)
    }
    return {**ports, "dynamicShapeSupport": {"flag": "true"}, "opFile": {"value": "null"}, **more}


def ai_cpu(types: str) -> dict:
    return {
        "opInfo": {"engine": "DNN_VM_AICPU", "kernelSo": "libaicpu_kernels.so"},
        "input0": {"name": "x", "type": types},
        "output0": {"name": "y", "type": types},
    }


@pytest.fixture
def cann(tmp_path, monkeypatch):
    """An installation with a few operators; writing ``lists[chip]`` and calling gives its folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(installation.VARIABLE, raising=False)
    root = tmp_path / "cann"

    def write(core: dict, cpu: dict | None = None, chip: str = CHIP, vendor: str = "") -> str:
        base = root / "opp" / (f"vendors/{vendor}" if vendor else "built-in") / "op_impl"
        folder = base / "ai_core" / "tbe" / "config" / chip
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"aic-{chip}-ops-info.json").write_text(json.dumps(core))
        if cpu is not None:
            other = base / "aicpu" / "aicpu_kernel" / "config"
            other.mkdir(parents=True, exist_ok=True)
            (other / "aicpu_kernel.json").write_text(json.dumps(cpu))
        (root / "opp" / "version.info").write_text("Version=8.5.0\n")
        return str(root)

    return write


HALF = {"Relu": ai_core(("float16", "float16"), ("float", "float")), "Exp": ai_core(("float", "float"))}


def state(oracle, op, *types):
    return oracle.verdict(op, dict(zip(("x", "y"), ((t,) for t in types)))).state


@pytest.mark.slow
def test_the_published_facts_are_whole():
    facts = data.published()
    assert len(facts) == 1377
    for op in facts._lines:
        for soc in facts.socs():
            for kernel in facts.kernels(op, soc):
                assert form.from_line(form.to_line(kernel)) == kernel
                assert len(kernel.ports) == len(kernel.kinds) >= kernel.inputs


def test_facts_as_text_and_back():
    facts = data.published()
    again = form.read(facts.text().encode(), "here")
    assert again.text() == facts.text()
    assert again.complete == {"ascend950"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "does not start"),
        ("ge-kernel-facts\t2\torigin\t\n", "version '2'"),
        ("ge-kernel-facts\t1\n", "not whole"),
        ("\x00\xff", "does not start"),
    ],
)
def test_files_of_another_form_or_version_are_refused_by_name(tmp_path, text, says):
    file = tmp_path / "facts.tsv"
    file.write_text(text)
    with pytest.raises(GraphError, match="GE3067") as caught:
        kernels.facts(file)
    assert says in str(caught.value)
    assert "facts.tsv" in str(caught.value)


def test_a_damaged_line_is_refused_when_it_is_asked_for():
    facts = form.read(b"ge-kernel-facts\t1\tme\t\nRelu\tascend910b\tnpu\t1\tx y\tf32\t\t\ts\n", "facts")
    with pytest.raises(GraphError, match="GE3067.*no unit 'npu'"):
        facts.kernels("Relu", CHIP)


def test_limits_name_operators_and_ports_that_exist():
    for limit in data.limits():
        row = schema.get(limit.op)
        assert row is not None, limit.op
        names = {p.name for p in (*row.inputs, *row.outputs)}
        assert {p for p, _ in limit.when} <= names | {"*"}, limit
        assert limit.unit in ("none", "aicpu")
        assert limit.instead


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("ascend910b", "ascend910b"),
        ("Ascend910B2", "ascend910b"),
        ("ascend910b4_1", "ascend910b"),
        ("Ascend910_9392", "ascend910_93"),
        ("A3", "ascend910_93"),
        ("Ascend310P3", "ascend310p"),
        ("ascend910proa", "ascend910"),
        ("ascend950", "ascend950"),
    ],
)
def test_names_of_chips(name, family):
    assert data.chip(name, data.published().socs()) == family


@pytest.mark.parametrize("name", ["", "gpu", "ascend", "ascend95", "ascend910b/../x"])
def test_unknown_chips_get_the_list(name):
    with pytest.raises(GraphError, match="GE3068") as caught:
        kernels.oracle(name)
    assert "ascend910_93, ascend910b, ascend950" in str(caught.value)


def test_rules_of_ai_core(cann):
    oracle = kernels.oracle(CHIP, cann(HALF))
    assert state(oracle, "Relu", D.DT_FLOAT16, D.DT_FLOAT16) == "aicore"
    for half in (D.DT_FLOAT16, D.DT_BF16):
        found = oracle.verdict("Exp", {"x": (half,), "y": (half,)})
        assert (found.state, found.casts) == ("aicore", True)
    assert state(oracle, "Exp", D.DT_DOUBLE, D.DT_DOUBLE) == "none"
    assert state(oracle, "Exp", D.DT_INT64, D.DT_INT64) == "none"
    assert state(oracle, "Sinh", D.DT_FLOAT, D.DT_FLOAT) == "unknown"


def test_every_port_counts_by_itself(cann):
    oracle = kernels.oracle(CHIP, cann({"Mix": ai_core(("float16", "int32"), ("float", "int64"))}))
    exact = oracle.verdict("Mix", {"x": (D.DT_FLOAT,), "y": (D.DT_INT64,)})
    crossed = oracle.verdict("Mix", {"x": (D.DT_FLOAT,), "y": (D.DT_INT32,)})
    assert (exact.state, exact.casts, crossed.state, crossed.casts) == ("aicore", False, "aicore", True)


def test_ai_cpu_takes_exact_types_only(cann):
    oracle = kernels.oracle(CHIP, cann(HALF, {"Exp": ai_cpu("DT_DOUBLE"), "Log": ai_cpu("DT_FLOAT,DT_DOUBLE")}))
    assert state(oracle, "Exp", D.DT_DOUBLE, D.DT_DOUBLE) == "aicpu"
    assert state(oracle, "Exp", D.DT_FLOAT, D.DT_FLOAT) == "aicore"
    assert state(oracle, "Log", D.DT_FLOAT, D.DT_FLOAT) == "aicpu"
    assert state(oracle, "Log", D.DT_FLOAT16, D.DT_FLOAT16) == "none"
    assert oracle.verdict("Exp", {"x": (D.DT_DOUBLE,)}).advice.startswith("cast x to DT_FLOAT")


def test_types_that_a_function_chooses_are_unknown(cann):
    oracle = kernels.oracle(CHIP, cann({"Any": ai_core(("float", "float"), dynamicFormat={"flag": "true"})}))
    assert state(oracle, "Any", D.DT_FLOAT, D.DT_FLOAT) == "unknown"


def test_custom_operators_of_an_installation_are_read(cann):
    cann(HALF)
    root = cann({"Mine": ai_core(("float", "float"))}, vendor="customize")
    oracle = kernels.oracle(CHIP, root)
    assert state(oracle, "Mine", D.DT_FLOAT, D.DT_FLOAT) == "aicore"
    assert state(oracle, "Reshape", D.DT_FLOAT) == "device"  # no list of an installation holds these
    assert "CANN 8.5.0" in oracle.facts.origin


def test_an_installation_is_read_once_and_again_when_it_changes(cann, monkeypatch):
    root = cann(HALF)
    kernels.facts(root)
    monkeypatch.setattr(installation, "_kernels", lambda *_: pytest.fail("read again"))
    assert state(kernels.oracle(CHIP, root), "Exp", D.DT_FLOAT) == "aicore"
    monkeypatch.undo()
    cann({"Log": ai_core(("float", "float"), ("float16", "float16"))})
    assert state(kernels.oracle(CHIP, root), "Exp", D.DT_FLOAT) == "unknown"


def test_a_damaged_cache_is_made_anew_and_one_that_cannot_be_written_costs_time_only(cann, tmp_path, monkeypatch):
    root = cann(HALF)
    text = kernels.facts(root).text()
    (kept,) = (tmp_path / "cache" / "torchair").glob("kernels-*.tsv")
    kept.write_text("rubbish")
    assert kernels.facts(root).text() == text
    assert kept.read_text() != "rubbish"
    assert not list(kept.parent.glob(".kernels-*"))
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert kernels.facts(root).text() == text


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"Relu": 3}', '{"Relu": {"input0": {}}}', '{"../x": {}}', '{"Relu": {"input0": {"name": "a\\tb"}}}'],
)
def test_damaged_lists_are_refused_by_name(cann, content):
    root = cann(HALF)
    (file,) = installation._below(installation.find(root), installation._AI_CORE)
    file.write_text(content)
    with pytest.raises(GraphError, match="GE3067") as caught:
        kernels.facts(root)
    assert file.name in str(caught.value)


def test_folders_without_lists_are_refused(tmp_path):
    with pytest.raises(GraphError, match="GE3067"):
        kernels.facts(tmp_path)
    (tmp_path / "opp" / "built-in").mkdir(parents=True)
    with pytest.raises(GraphError, match="GE3067.*no lists"):
        kernels.facts(tmp_path)


def test_the_variable_of_cann_is_honoured(cann, monkeypatch):
    root = cann(HALF)
    monkeypatch.setenv(installation.VARIABLE, root)
    assert "CANN 8.5.0" in kernels.facts().origin
    monkeypatch.setenv(installation.VARIABLE, "/nowhere")
    assert kernels.facts() is data.published()


@pytest.mark.parametrize(
    ("op", "types", "soc", "answer"),
    [
        ("Sort", {"x": D.DT_INT64}, "ascend910b", "yes"),
        ("MatMulV2", {"x1": D.DT_INT32}, "ascend910b", "no"),
        ("AdaptiveAvgPool2d", {"x": D.DT_FLOAT}, "ascend910b", "no"),
        ("Nonsense", {}, "ascend950", "unknown"),
        ("Add", {"x1": D.DT_FLOAT, "x2": D.DT_FLOAT}, "ascend950", "yes"),
        ("Relu", {"x": D.DT_DOUBLE}, "ascend950", "no"),
        ("MatMulV2", {"x1": D.DT_FLOAT}, "ascend910b", "yes"),
        ("Add", {"x1": D.DT_FLOAT, "x2": D.DT_FLOAT}, "ascend910b", "yes"),
        ("MatMulV2", {"x1": D.DT_BF16}, "ascend950", "yes"),
        ("MatMulV2", {"x1": D.DT_DOUBLE}, "ascend950", "no"),
    ],
)
def test_lookup_for_converters(op, types, soc, answer):
    assert kernels.has(op, types, soc) == answer


def test_unknown_is_never_supported():
    """A chip with few facts says unknown, not AI CPU, where an AI Core kernel may exist."""
    facts = data.published()
    found = kernels.Oracle(facts, "ascend910b").verdict("Add", {"x1": (D.DT_FLOAT,), "x2": (D.DT_FLOAT,)})
    assert (found.state, found.slow, found.proven) == ("unknown", True, False)


def graph() -> Graph:
    made = Graph("g")
    with building(made):
        x = ge.Data(index=0, dtype=D.DT_DOUBLE, shape=(4,))
        made.provenance = Provenance(source="model.py:7 in forward", code="y = relu(x)")
        y = ge.Relu(x)
        parts = ge.SplitV(y, [2, 2], 0, num_split=2)
        made.outputs = [ge.ConcatV2(parts, 0)]
    return made


def test_findings_name_the_users_line():
    found = {f.op: f for f in kernels.oracle("ascend950").check(graph())}
    assert set(found) == {"Relu", "SplitV", "ConcatV2"}
    assert found["Relu"].verdict.state == "none"
    assert (found["Relu"].source, found["Relu"].code) == ("model.py:7 in forward", "y = relu(x)")
    assert found["Relu"].types == "x f64, y f64"


def test_graphs_of_other_tools_are_checked_too():
    made = graph()
    node = made.nodes[1]
    node.op = "SomebodysOperator"
    assert [f.verdict.state for f in kernels.oracle("ascend950").check(made)][0] == "unknown"
    node.op, node.inputs = "Relu", []
    list(kernels.oracle("ascend950").check(made))


def test_inner_graphs_are_checked():
    inner = Graph("inner")
    with building(inner):
        inner.outputs = [ge.Relu(ge.Data(index=0, dtype=D.DT_DOUBLE, shape=()))]
    outer = Graph("outer")
    with building(outer):
        x = ge.Data(index=0, dtype=D.DT_DOUBLE, shape=())
        outer.outputs = list(ge.If(ge.Less(x, x), [x], then_branch=inner, else_branch=inner))
    found = [f for f in kernels.oracle("ascend950").check(outer) if f.op == "Relu"]
    assert [f.node for f in found] == ["If/then_branch/Relu", "If/else_branch/Relu"]


def test_more_dimensions_than_kernels_take():
    made = graph()
    made.nodes[1].outputs[0].record_shape((1,) * 9)
    text = b"ge-kernel-facts\t1\tme\tascend950\nRelu\tascend950\taicore\t1\tx y\tf64\t\t\ts\n"
    found = kernels.Oracle(form.read(text, "me"), "ascend950")
    assert "9 dimensions" in next(f.verdict.reason for f in found.check(made) if f.op == "Relu")

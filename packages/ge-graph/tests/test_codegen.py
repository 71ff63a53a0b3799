"""Wrappers from REG_OP headers: reading, errors, the files written, and that they work."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ge_graph import DataType, Graph, GraphError, building, schema
from ge_graph.attrs import Kind
from ge_graph.codegen.__main__ import main
from ge_graph.codegen.reg_op import clean_comment, parse_header, read_headers
from ge_graph.dtypes import BY_SHORT

D = DataType

ADD = """\
#include "graph/operator_reg.h"

namespace ge {
 REG_OP(Add)
    .INPUT(x1, TensorType({DT_FLOAT, DT_INT32, DT_INT64, DT_FLOAT16, DT_BF16, DT_INT16,
                           DT_INT8, DT_UINT8, DT_DOUBLE, DT_COMPLEX128,
                           DT_COMPLEX64, DT_STRING}))
    .INPUT(x2, TensorType({DT_FLOAT, DT_INT32, DT_INT64, DT_FLOAT16, DT_BF16, DT_INT16,
                           DT_INT8, DT_UINT8, DT_DOUBLE, DT_COMPLEX128,
                           DT_COMPLEX64, DT_STRING}))
    .OUTPUT(y, TensorType({DT_FLOAT, DT_INT32, DT_INT64, DT_FLOAT16, DT_BF16, DT_INT16,
                           DT_INT8, DT_UINT8, DT_DOUBLE, DT_COMPLEX128,
                           DT_COMPLEX64, DT_STRING}))
    .OP_END_FACTORY_REG(Add)
}
"""

RICH = r"""
#pragma once
#ifndef RICH_H
#define RICH_H
#define MY_TYPES TensorType({DT_FLOAT, DT_FLOAT16, \
                             DT_BF16})
namespace ge {
#if 0
REG_OP(CgDead) .INPUT(x, nonsense!) .OP_END_FACTORY_REG(CgDead)
#endif
class Foo { int x; };  // REG_OP(NotMe)
/* REG_OP(NotMeEither) */
/**
* @brief Scales "x" by a factor. \n
*
* @par Inputs:
* @li x: A tensor.
*/
REG_OP(CgScale)
    .INPUT(x, MY_TYPES)
    .OPTIONAL_INPUT(mask, TensorType({DT_BOOL})) // a comment
    .DYNAMIC_INPUT(parts, TensorType::ALL())
    .OUTPUT(y, MY_TYPES)
    .DYNAMIC_OUTPUT(pieces, "T")
    .ATTR(alpha, Float, -1.5e-3f)
    .ATTR(beta, Int, 0x10)
    .ATTR(big, Int, INT64_MAX)
    .ATTR(mode, String, "a" "b;c")
    .ATTR(flag, Bool, true)
    .ATTR(dtype, Type, DT_FLOAT)
    .ATTR(sizes, ListInt, {1, -2, 3})
    .ATTR(rates, ListFloat, {0.0f, 1})
    .ATTR(flags, ListBool, {true, false})
    .ATTR(names, ListString, {"x", "y"})
    .ATTR(types, ListType, {DT_FLOAT, DT_INT8})
    .ATTR(pairs, ListListInt, {{1, 2}, {3}})
    .ATTR(none, ListInt, {})
    .ATTR(value, Tensor, Tensor())
    .ATTR(out, Int, DT_INT32)
    .ATTR(maybe, Bool)
    .REQUIRED_ATTR(axis, Int)
    .DATATYPE(T, TensorType({BasicType(), DT_BOOL}))
    .OP_END_FACTORY_REG(CgScale);

REG_OP(CgIf).INPUT(cond, TensorType::ALL()).DYNAMIC_INPUT(input, TensorType::ALL())
    .DYNAMIC_OUTPUT(output, TensorType::ALL()).GRAPH(then_b).DYNAMIC_GRAPH(branches).OP_END_FACTORY_REG(CgIf)
}
#endif
"""

BAD = """\
REG_OP(CgBad)
    .INPUT(x, TensorType({DT_FLOTA}))
    .INPT(z, TensorType({DT_FLOAT}))
    .ATTR(n, Int, 1.5)
    .ATTR(m, Integer, 1)
    .OUTPUT(y TensorType({DT_FLOAT}))
    .ATTR(k, ListInt, {1 2})
    .ATTR(s, String, 'x')
    .ATTR(b, Bool, 1)
    .REQUIRED_ATTR(r, Int, 3)
    .OP_END_FACTORY_REG(CgWorse)
REG_OP(CgNoEnd)
    .INPUT(x, TensorType({DT_FLOAT}))

class Next {};
.OUTPUT(x, TensorType({DT_FLOAT}))
"""


@pytest.fixture(autouse=True)
def restore():
    """Undo what imported modules register."""
    rows = dict(schema._user_rows)
    yield
    for name in set(schema._user_rows) ^ set(rows):
        schema._user_rows.pop(name, None)
        for known in schema._parsed.values():
            known.pop(name, None)
        if name in schema.builtin_names():
            for listener in schema._listeners:
                listener(name)


def load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def header(folder: Path, text: str, name: str = "custom_reg_op.h") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def rows(text: str) -> dict[str, schema.Row]:
    operators, problems = parse_header(text, Path("test.h"))
    assert not problems
    return {o.row["op"]: o.row for o in operators}


# -- the header of the documentation -----------------------------------------------------------------------------------


def test_add_becomes_a_module_that_works(tmp_path):
    assert main([str(header(tmp_path, ADD)), "-o", str(tmp_path / "my_ops.py")]) == 0
    module = load(tmp_path / "my_ops.py")
    assert module.__all__ == ["Add"]
    assert "DT_COMPLEX128" in module.Add.__doc__
    graph = Graph()
    with building(graph):
        x = module.Add(1.5, 2.5, node_name="sum")
        assert (x.node.op, x.node.name, x.dtype) == ("Add", "sum", D.DT_FLOAT)
        with pytest.raises(GraphError, match="GE3018"):
            module.Add(x, graph.add("Data", (None,), {}, [(D.DT_RESOURCE, None)]).outputs[0])
    row = json.loads((tmp_path / "my_ops.jsonl").read_text())
    assert row["op"] == "Add"
    assert row["in"][0] == "x1 f32,i32,i64,f16,bf16,i16,i8,u8,f64,c128,c64,str"
    assert "def Add(x1: TensorLike, x2: TensorLike, *, dependencies" in (tmp_path / "my_ops.pyi").read_text()


def test_command_line_runs_as_a_module(tmp_path):
    target = tmp_path / "ops.py"
    command = [sys.executable, "-m", "ge_graph.codegen", str(header(tmp_path, ADD)), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "1 operator:" in done.stdout
    check = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import ops; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True, timeout=120)


# -- reading -----------------------------------------------------------------------------------------------------------


def test_everything_a_registration_can_say():
    found = rows(RICH)
    assert sorted(found) == ["CgIf", "CgScale"]
    scale = found["CgScale"]
    assert scale["in"] == ["x f32,f16,bf16", "mask? b8", "parts* ALL"] or scale["in"][0] == "x FLOAT"
    assert scale["out"][1] == "pieces* T"
    assert scale["attr"] == [
        ["alpha", "Float", -0.0015],
        ["beta", "Int", 16],
        ["big", "Int", 2**63 - 1],
        ["mode", "String", "ab;c"],
        ["flag", "Bool", True],
        ["dtype", "Type", "DT_FLOAT"],
        ["sizes", "ListInt", [1, -2, 3]],
        ["rates", "ListFloat", [0.0, 1.0]],
        ["flags", "ListBool", [True, False]],
        ["names", "ListString", ["x", "y"]],
        ["types", "ListType", ["DT_FLOAT", "DT_INT8"]],
        ["pairs", "ListListInt", [[1, 2], [3]]],
        ["none", "ListInt", []],
        ["value", "Tensor", None],
        ["out", "Int", 3, "DT_INT32"],
        ["maybe", "Bool", None],
        ["axis", "Int"],
    ]
    assert found["CgIf"]["sub"] == ["then_b", "branches*"]
    op = schema.parse(scale)
    assert D.DT_BOOL in op.typevars["T"]
    assert op.attr("axis").required


def test_documentation_comes_from_the_comment(tmp_path):
    read = read_headers([header(tmp_path, RICH)])
    doc = next(o.doc for o in read.operators if o.row["op"] == "CgScale")
    assert doc.startswith('Scales "x" by a factor.')
    assert "- x: A tensor." in doc
    assert clean_comment("/** @brief A. \\n\n* @par B:\n*/") == "A.\nB:"


def test_rich_module_works(tmp_path):
    assert main([str(header(tmp_path, RICH)), "-o", str(tmp_path / "rich_ops.py")]) == 0
    module = load(tmp_path / "rich_ops.py")
    graph = Graph()
    with building(graph):
        x = module.CgScale(1.0, parts=[2.0], axis=1, size_of_pieces=0)
        node = x[0].node
        assert node.attr("sizes") == (1, -2, 3)
        assert node.attr("dtype") is D.DT_FLOAT
        assert "maybe" not in node.attrs
        with pytest.raises(TypeError):
            module.CgScale(1.0)
        inner = Graph("inner")
        with building(inner):
            inner.outputs = [module.CgScale(1.0, axis=0, size_of_pieces=0)[0]]
        assert [t.dtype for t in module.CgIf(True, then_b=inner, branches=[inner])] == [D.DT_FLOAT]


@pytest.mark.parametrize(
    ("types", "shorts"),
    [
        ("TensorType::ALL()", "ALL"),
        ("ge::TensorType::IndexNumberType()", "IndexNumberType"),
        ("TensorType({BasicType()})", "BasicType"),
        ("TensorType({TensorType::BasicType(), DT_BF16})", "BasicType"),
        ("TensorType(DT_FLOAT16, DT_FLOAT)", "f16,f32"),
        ("TensorType{DT_FLOAT16}", "f16"),
        ("TensorType{(DT_BF16, DT_FLOAT)}", "bf16,f32"),
        ("TensorType({DT_FLOAT32, DT_BFLOAT16})", "f32,bf16"),
        ("TensorType({FloatingDataType, DT_BF16})", "f32,f16,f64,bf16"),
        ("TesnorType({DT_INT64})", "i64"),
        ("TensorType({DT_FLOAT, DT_DOUBLE)", "f32,f64"),
        ("TensorType(DT_INT8})", "i8"),
        ("DT_INT32", "i32"),
        ("ListTensorType({DT_INT32})", "i32"),
    ],
)
def test_type_expressions_as_headers_write_them(types, shorts):
    found = rows(
        f"REG_OP(CgT)\n  .INPUT(x, {types})\n  .OUTPUT(y, TensorType({{DT_BOOL}}))\n  .OP_END_FACTORY_REG(CgT)"
    )
    assert found["CgT"]["in"] == [f"x {shorts}"]
    assert found["CgT"]["out"] == ["y b8"]


def test_promotion():
    text = 'REG_OP(CgP).INPUT(a, "T1").INPUT(b, "T2").OUTPUT(y, "T3").DATATYPE(T1, TensorType({DT_FLOAT}))'
    text += '.DATATYPE(T2, TensorType({DT_INT8, DT_INT32})).DATATYPE(T3, Promote({"T1", "T2"})).OP_END_FACTORY_REG(CgP)'
    assert schema.parse(rows(text)["CgP"]).promotions == {"T3": ("T1", "T2")}


# -- errors ------------------------------------------------------------------------------------------------------------


def test_all_errors_of_a_file_with_their_lines(tmp_path):
    target = tmp_path / "bad.py"
    with pytest.raises(GraphError) as caught:
        read_headers([header(tmp_path, BAD, "bad.h")])
    text = str(caught.value)
    assert caught.value.code == "GE3040"
    for line, says in {
        2: "'DT_FLOTA' is not an element type",
        3: "did you mean .INPUT?",
        4: "'1.5', expected a whole number",
        5: "attribute 'm' is Integer, expected one of Int, Float",
        6: "expected .OUTPUT(name, TensorType({DT_FLOAT",
        7: "got '2', expected a comma or }",
        8: "expected a string",
        9: "expected true or false",
        10: "expected no default",
        11: "expected .OP_END_FACTORY_REG(CgBad)",
        15: "got 'class', expected .OP_END_FACTORY_REG(CgNoEnd)",
        16: ".OUTPUT outside a registration",
    }.items():
        assert any(f"bad.h:{line}: " in row and says in row for row in text.splitlines()), (line, says, text)
    assert main([str(tmp_path / "bad.h"), "-o", str(target)]) == 1
    assert not target.exists()
    assert not list(tmp_path.glob("*.jsonl"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('REG_OP(CgU).ATTR(s, String, "x)\n.OP_END_FACTORY_REG(CgU)', "unfinished string"),
        ("/* never closed REG_OP(CgU)", "unfinished comment"),
        ("REG_OP(CgU", "closing parenthesis"),
        ("REG_OP()", "expected REG_OP(Name)"),
        ("REG_OP(CgU).INPUT(x, TensorType({}))\n.OP_END()", "no element types"),
        ("REG_OP(CgU).INPUT(x, T9)\n.OP_END()", "malformed"),
        ("REG_OP(CgU).INPUT(x, DT_INT8).INPUT(x, DT_INT8).OP_END()", "given twice"),
        ("REG_OP(CgU).ATTR(a, ListInt, {1, 2).OP_END()", "expected"),
        ("REG_OP(CgU).ATTR(a, Int, ).OP_END()", "no default"),
        ("REG_OP(CgU).ATTR(a, Int, 1 + 2).OP_END()", "end of the default"),
    ],
)
def test_damaged_headers(text, says):
    _, problems = parse_header(text, Path("x.h"))
    assert problems
    assert any(says in p for p in problems), problems


def test_missing_and_empty_paths(tmp_path):
    with pytest.raises(GraphError, match="GE3041.*no file or directory"):
        read_headers([tmp_path / "missing.h"])
    with pytest.raises(GraphError, match="GE3041.*holds no REG_OP"):
        read_headers([header(tmp_path, "int x;")])
    with pytest.raises(GraphError, match="GE3041.*directory"):
        read_headers([tmp_path])


def test_contradicting_a_known_operator(tmp_path):
    text = "REG_OP(Relu).INPUT(x, TensorType::ALL()).INPUT(z, TensorType::ALL()).OUTPUT(y, TensorType::ALL()).OP_END()"
    path, target = header(tmp_path, text), tmp_path / "relu_ops.py"
    assert main([str(path), "-o", str(target)]) == 1
    assert not target.exists()
    assert main([str(path), "-o", str(target), "--replace"]) == 0
    module = load(target)
    with building(Graph()):
        assert len(module.Relu(1.0, 2.0).node.inputs) == 2


def test_unwritable_targets(tmp_path, capsys):
    path = header(tmp_path, ADD)
    for target in (tmp_path / "no" / "such" / "folder.py", tmp_path / "my-ops.py", tmp_path / "ops.txt"):
        assert main([str(path), "-o", str(target)]) == 1
        assert "GE3042" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["custom_reg_op.h"]


# -- trees -------------------------------------------------------------------------------------------------------------


def test_a_whole_tree(tmp_path, capsys):
    header(tmp_path, ADD, "inc/a.h")
    header(tmp_path, ADD, "inc/copy_of_a.h")
    header(tmp_path, RICH, "inc/deep/rich.h")
    header(tmp_path, "int unrelated();", "inc/other.h")
    header(tmp_path, "REG_OP(CgIf).INPUT(cond, TensorType::ALL()).OP_END()", "inc/z.h")
    assert main([str(tmp_path / "inc"), "-o", str(tmp_path / "all_ops.py")]) == 0
    out = capsys.readouterr()
    assert "3 operators" in out.out
    assert "CgIf is registered twice; kept" in out.err
    assert "z.h:1" in out.err
    assert load(tmp_path / "all_ops.py").__all__ == ["Add", "CgIf", "CgScale"]


def test_output_is_the_same_every_time(tmp_path):
    path = header(tmp_path, RICH)
    written = []
    for name in ("one", "two"):
        main([str(path), "-o", str(tmp_path / f"{name}.py")])
        written.append([(tmp_path / f"{name}{s}").read_bytes() for s in (".py", ".pyi", ".jsonl")])
    assert written[0] == written[1]


# -- round trips -------------------------------------------------------------------------------------------------------


def types_text(row: schema.Row, text: str) -> str:
    if text in row.get("var", {}):
        return f'"{text}"'
    if text in schema.dtype_sets():
        return f"TensorType::{text}()"
    return "TensorType({" + ", ".join(BY_SHORT[s].name for s in text.split(",")) + "})"


def value_text(kind: str, value: object) -> str:
    if kind == "Tensor":
        return "Tensor()"
    if kind.startswith("List"):
        return "{" + ", ".join(value_text(kind[4:], v) for v in value) + "}"
    if kind == "String":
        return json.dumps(value)
    return str(value).lower() if kind == "Bool" else str(value)


def cpp(row: schema.Row) -> str:
    """A row as the header that it came from."""
    calls = [f"REG_OP({row['op']})"]
    names = {
        "in": {"": "INPUT", "?": "OPTIONAL_INPUT", "*": "DYNAMIC_INPUT"},
        "out": {"": "OUTPUT", "*": "DYNAMIC_OUTPUT"},
    }
    for side, methods in names.items():
        for port in row[side]:
            name, text = port.split(" ")
            mark = name[-1] if name[-1] in "?*" else ""
            calls.append(f".{methods[mark]}({name.rstrip('?*')}, {types_text(row, text)})")
    for entry in row.get("attr", ()):
        head = f"{entry[0]}, {entry[1]}"
        if len(entry) == 2:
            calls.append(f".REQUIRED_ATTR({head})")
        elif entry[2] is None and entry[1] != "Tensor":
            calls.append(f".ATTR({head})")
        else:
            calls.append(f".ATTR({head}, {entry[3] if len(entry) > 3 else value_text(entry[1], entry[2])})")
    for slot in row.get("sub", ()):
        calls.append(f".{'DYNAMIC_GRAPH' if slot.endswith('*') else 'GRAPH'}({slot.rstrip('*')})")
    for name, text in row.get("var", {}).items():
        members = ", ".join(f'"{v}"' for v in text[1:].split(","))
        calls.append(f".DATATYPE({name}, {f'Promote({{{members}}})' if text[0] == '^' else types_text({}, text)})")
    return "\n    ".join([*calls, f".OP_END_FACTORY_REG({row['op']})"])


@pytest.mark.slow
def test_every_known_operator_survives_being_a_header():
    known = {name: schema._builtin_row(name) for name in schema._lines()}
    operators, problems = parse_header(
        "namespace ge {\n" + "\n\n".join(map(cpp, known.values())) + "\n}", Path("all.h")
    )
    assert not problems
    assert len(operators) == len(known)
    for operator in operators:
        read, wanted = schema.parse(operator.row), schema.parse(known[operator.row["op"]])
        assert (read.inputs, read.outputs, read.attrs) == (wanted.inputs, wanted.outputs, wanted.attrs), read.name
        assert (read.subgraphs, read.typevars, read.promotions) == (
            wanted.subgraphs,
            wanted.typevars,
            wanted.promotions,
        )


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text(alphabet='REG_OP(Ab).INPUTAx,{}"1/*\n #if0define', max_size=120))
def test_any_text_is_read_or_refused(text):
    parse_header(text, Path("x.h"))  # no crash, no endless loop


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, len(RICH)), st.integers(1, 40))
def test_cut_out_pieces_never_crash(start, length):
    parse_header(RICH[:start] + RICH[start + length :], Path("x.h"))


@given(st.sampled_from(list(Kind)))
def test_every_attribute_kind_can_be_required(kind):
    assert rows(f"REG_OP(CgK).REQUIRED_ATTR(a, {kind.value}).OP_END()")["CgK"]["attr"] == [["a", kind.value]]


def test_registrations_made_by_macros():
    text = (
        "#define TYPES(a) TensorType({a, DT_INT32})\n"
        "#define UNARY(name, types) REG_OP(name##V2) \\\n"
        "  .INPUT(x, types).OUTPUT(y, types).ATTR(mode, String, #name).OP_END_FACTORY_REG(name##V2)\n"
        "UNARY(Foo, TYPES(DT_FLOAT))\n"
        "UNARY(Bar, TensorType({DT_FLOAT, DT_INT8}))\n"
    )
    operators, problems = parse_header(text, Path("x.h"))
    assert not problems
    assert [(o.row["op"], o.row["in"], o.row["attr"], o.line) for o in operators] == [
        ("FooV2", ["x f32,i32"], [["mode", "String", "Foo"]], 4),
        ("BarV2", ["x f32,i8"], [["mode", "String", "Bar"]], 5),
    ]


def test_error_inside_a_macro_has_the_line_of_its_use():
    text = "#define UNARY(n) REG_OP(n).INPT(x, TensorType::ALL()).OP_END_FACTORY_REG(n)\n\nUNARY(Foo)\n"
    _, problems = parse_header(text, Path("x.h"))
    assert len(problems) == 1
    assert "x.h:3: REG_OP(Foo): .INPT is not a call" in str(problems[0])


def test_macros_that_use_themselves_end():
    text = "#define LOOP(n) LOOP(n)\n#define REG_OP(x) class x\nLOOP(1)\n" + ADD
    operators, problems = parse_header(text, Path("x.h"))
    assert not problems
    assert [o.row["op"] for o in operators] == ["Add"]


def test_limits_of_c_types_as_defaults():
    text = (
        "REG_OP(Foo).OUTPUT(y, TensorType::ALL()).ATTR(a, Int, INT_MAX).ATTR(b, Float, -FLT_MAX)\n"
        ".ATTR(c, Float, FLT_EPSILON).OP_END_FACTORY_REG(Foo)"
    )
    operators, problems = parse_header(text, Path("x.h"))
    assert not problems
    limits = [["a", "Int", 2**31 - 1], ["b", "Float", -3.4028234663852886e38], ["c", "Float", 1.1920928955078125e-07]]
    assert operators[0].row["attr"] == limits
    _, problems = parse_header(text.replace("INT_MAX", "kMany"), Path("x.h"))
    assert "got 'kMany', expected a whole number" in str(problems[0])


def test_port_named_like_an_option_of_every_call(tmp_path):
    header = tmp_path / "x.h"
    header.write_text(
        "REG_OP(Waits).INPUT(dependencies, TensorType::ALL()).OUTPUT(y, TensorType::ALL()).OP_END_FACTORY_REG(Waits)"
    )
    assert main([str(header), "-o", str(tmp_path / "made_waits.py")]) == 0
    module = load(tmp_path / "made_waits.py")
    with building(Graph("g")):
        first = module.Waits(1.0)
        assert module.Waits(dependencies_=first, dependencies=[first]).node.inputs[0] is first


HOSTILE = [
    '"""',
    "'''",
    "\\",
    '\\"""',
    "\\N{BOOM}",
    "\r",
    "\x0c",
    "\u2028import os",
    "\x00",
    "\u202e",
    "\x1b[2J",
    "{x}",
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_texts_of_a_header_are_only_texts(text: str, tmp_path: Path) -> None:
    """In the comment, in a default, in the file's name: the module compiles, and has nothing but what it always has."""
    import ast

    from ge_graph.codegen.emit import module_text

    def shape(comment: str, name: str) -> list[str]:
        header = (
            f"/** {comment} */\nREG_OP(CgHostile).INPUT(x, TensorType({{DT_FLOAT}})).OP_END_FACTORY_REG(CgHostile)\n"
        )
        operators, problems = parse_header(header, tmp_path / name)
        assert not problems
        tree = ast.parse(module_text(operators))
        return [type(n).__name__ for n in ast.walk(tree)]

    assert shape(text, "a.h") == shape("text", "a.h")
    assert shape("text", f"a{text}b.h") == shape("text", "a.h")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('.ATTR(a, String, "\\x")', "string"),
        ('.ATTR(a, String, "\\N{NO}")', "string"),
        (".ATTR(a, Type, ::)", "type"),
        (f".ATTR(a, Float, 0x{'f' * 400})", "number"),
        (".INPUT(x²y, TensorType({DT_FLOAT}))", "expected"),
    ],
)
def test_odd_values_are_problems_with_a_line(line: str, what: str) -> None:
    operators, problems = parse_header(f"REG_OP(CgOdd)\n{line}\n.OP_END_FACTORY_REG(CgOdd)", Path("h.h"))
    assert not operators
    assert "h.h:2" in problems[0]
    assert what in problems[0]


@pytest.mark.parametrize("name", ["class", "None", "lambda"])
def test_words_of_python_are_no_operators(name: str) -> None:
    operators, problems = parse_header(f"REG_OP({name}).OP_END_FACTORY_REG({name})", Path("h.h"))
    assert not operators
    assert "is not a name" in problems[0]


def test_infinite_defaults_are_python() -> None:
    import ast

    from ge_graph.codegen.emit import module_text

    operators, _ = parse_header("REG_OP(CgInf).ATTR(a, Float, 1e999).OP_END_FACTORY_REG(CgInf)", Path("h.h"))
    assert 'float("inf")' in module_text(operators)
    ast.parse(module_text(operators))


@pytest.mark.slow
def test_macros_that_double_end() -> None:
    lines = ["#define A0 x x x x x x x x x x"] + [f"#define A{i} {' '.join([f'A{i - 1}'] * 10)}" for i in range(1, 15)]
    operators, problems = parse_header("\n".join([*lines, "A14"]), Path("h.h"))
    assert not operators
    assert "expand to more than" in problems[0]

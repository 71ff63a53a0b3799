"""Functions made at run time: what may become part of one, what people read."""

from __future__ import annotations

import ast

import pytest

from ge_graph import program as build
from ge_graph.errors import GraphError

HOSTILE = (
    "n\n    pass\nimport os; os._exit(7)\ndef call(*a):\n    #",
    '\'"""',
    "'''",
    "end\\",
    "a\rimport os",
    "a\x0cb",
    "a\u2028b",
    "a\x00b",
    "</script>",
    "=cmd",
    "../x",
    "x" * 10_000,
    "a\u202eb",
    "a\ud800b",
    "del",
    "__import__",
    "",
    "a b",
    "é1",
    "x.y",
    "x;y",
)


def _sum(names: build.Names, comment: str = "") -> build.Program:
    add = build.name(names.bind(lambda a, b: a + b, "add"))
    line = build.assign("t1", build.call(add, [build.name("i0"), build.constant(3)]))
    return build.Program("program", ["i0"], [(line, comment), (build.give(build.name("t1")), "")], names)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_comment_and_a_shown_name_are_only_shown(text: str) -> None:
    names = build.Names()
    names.bind(object(), text)
    made = _sum(names, text)
    assert made.function(4) == 7
    (function,) = ast.parse(made.source).body
    assert isinstance(function, ast.FunctionDef)
    assert len(function.body) == 2


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("place", ["variable", "read", "member", "keyword", "kind", "parameter", "bound"])
def test_no_text_becomes_a_name(text: str, place: str) -> None:
    value = build.name(text if place == "read" else "i0")
    if place == "member":
        value = build.attribute(value, text)
    if place == "keyword":
        value = build.call(value, [], {text: build.constant(1)})
    line = build.assign(text if place == "variable" else "t1", value)
    names = build.Names({text: 1}) if place == "bound" else build.Names()
    with pytest.raises(GraphError) as caught:
        build.Program(
            text if place == "kind" else "program", [text if place == "parameter" else "i0"], [(line, "")], names
        )
    assert caught.value.code == "GE3053"


@pytest.mark.parametrize("value", ["text", b"bytes", 1.5, 2**64, -(2**64), ..., (1, 2), 1j])
def test_only_integers_are_constants(value: object) -> None:
    with pytest.raises(GraphError, match="GE3053"):
        build.Program("program", [], [(build.give(build.constant(value)), "")], build.Names())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "import os",
        "x = lambda: 0",
        "x = [i for i in i0]",
        "x = i0 + 1",
        "x = f'{i0}'",
        "x = open",
        "global x",
        "x = i0.__class__",
        "x = i0._private",
        "def f(): pass",
        "x = (y := i0)",
        "x = *i0,",
        "with i0: pass",
        "raise i0",
        "x = i0(*i0)",
        "x = i0(**i0)",
        "try:\n    x = i0\nfinally:\n    x = i0.__dict__",
    ],
)
def test_only_listed_constructs_are_compiled(text: str) -> None:
    with pytest.raises(GraphError, match="GE3053"):
        build.Program("program", ["i0"], [(s, "") for s in ast.parse(text).body], build.Names())


def test_builtins_are_unknown_unless_bound() -> None:
    with pytest.raises(GraphError, match="GE3053"):
        build.Program("program", [], [(build.give(build.name("print")), "")], build.Names())


def test_what_people_read_has_unique_names() -> None:
    names = build.Names()
    names.reserve(["taken"])
    shown = [names.shown[names.bind(object(), text)] for text in ("add", "add", "add_2", "t1", "taken", "'x'", "'x'")]
    assert shown == ["add", "add_2", "add_2_2", "t1_", "taken_2", "'x'", "'x'"]
    same = object()
    assert names.bind(same, "one") == names.bind(same, "two")


def test_failures_are_found_by_line() -> None:
    names = build.Names()
    fail = build.name(names.bind(lambda: 1 / 0, "fail"))
    lines = [build.assign("t1", build.constant(1)), build.do(build.call(fail, [])), build.give(build.name("t1"))]
    made = build.Program("program", [], [(s, "") for s in lines], names)
    with pytest.raises(ZeroDivisionError) as caught:
        made.function()
    frame = caught.value.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != made.file:
        frame = frame.tb_next
    assert frame is not None
    assert frame.tb_lineno == 2

"""Every row of the table of operator functions names what exists and passes as many arguments as it takes."""

from __future__ import annotations

import ast
import json
import re

import pytest
import torch

from ge_converters.registry import REGISTRY
from ge_emulator import aclnn, aclnn_forms, atb_forms, callers, trampolines
from ge_emulator.aclnn_binding import TENSORS, bind
from ge_emulator.build import sources
from ge_emulator.refusal import CannRefusal
from ge_graph import schema
from ge_graph.dtypes import DataType
from ge_graph.errors import EngineError
from ge_runtime.cpu import registry

ROWS = aclnn.table()
# Tensors that a function takes and the engine's operator does not: a call that gives one is refused.
UNREAD = {
    "activationInputOptional",
    "activationQuantOffsetOptional",
    "activationQuantScaleOptional",
    "antiquantOffsetOptional",
    "antiquantScaleOptional",
    "betaOptional",
    "bias",
    "biasOptional",
    "constExpertAlpha1Optional",
    "constExpertAlpha2Optional",
    "constExpertVOptional",
    "elasticInfoOptional",
    "keyInRope",
    "keyRope",
    "offset",
    "oriXOptional",
    "prefixOptional",
    "queryRope",
    "x1Offset",
    "yOffset",
    "yScale",
    "x2Offset",
    "x1OffsetOptional",
}
CONVERTED = {name.split(".")[1] for name, _ in REGISTRY.awaited() if name.startswith("npu.")}


def test_at_least_the_functions_that_common_models_use():
    assert len(ROWS) >= 811


@pytest.mark.parametrize("name", sorted(ROWS))
def test_row(name):
    row = ROWS[name]
    names = [a.name for a in row.arguments]
    assert len(set(names)) == len(names)
    assert any(a.written for a in row.arguments)
    used = [*(row.operands or ()), *row.keywords.values()]
    for node in used:
        assert not isinstance(node, ast.Name) or node.id in names, f"{ast.unparse(node)} is not an argument"
    if row.form == "py":
        assert callable(aclnn.python_form(row.target.partition(".")[0]))
        if "." in row.target:
            assert callable(aclnn_forms.foreach_of(row.target.partition(".")[2]))
    elif row.form == "atb":
        assert callable(getattr(atb_forms, row.target))
    elif row.form == "ge":
        found = schema.require(row.target)
        assert registry.find(row.target) is not None
        assert len(row.operands or ()) <= len(found.inputs)
        assert all(found.attr(k) or found.input(k) or found.output(k) for k in row.keywords)
        operands = (ast.Constant(...),) if row.operands is None else row.operands
        bound = bind(found, row.arguments, operands, row.keywords)
        unfed = [p.name for p, a in zip(found.inputs, bound.inputs) if p.kind == "required" and a is None]
        ungiven = [a.name for a in found.attrs if a.required and a.name not in bound.attrs]
        assert not unfed + ungiven, f"{unfed + ungiven} of {row.target} have no argument"
        assert any(bound.outputs) or any(a.written for a in row.arguments if a.name in bound.inputs)
        assert {
            a.name for a in row.arguments if not a.written and a.kind in TENSORS and a.name in bound.unused
        } <= UNREAD
    elif row.form == "npu":
        assert row.target in CONVERTED
    else:
        target, _, overload = row.target.partition(".")
        op = getattr(getattr(torch.ops.aten, target), overload or "default")
        formal = op._schema.arguments
        positional = [a for a in formal if not a.kwarg_only]
        if row.operands is None:
            passed = [a for a in row.arguments if a.name != "cubeMathType" and (not a.written or a is row.arguments[0])]
        else:
            passed = list(row.operands)
        assert len(passed) <= len(positional), f"{len(passed)} arguments, {op._schema}"
        needed = [a.name for a in positional[len(passed) :] if not a.has_default_value()]
        assert not set(needed) - set(row.keywords), f"{needed} of {op._schema} are not passed"
        assert set(row.keywords) <= {a.name for a in formal}
        written = sum(a.written for a in row.arguments)
        assert len(op._schema.returns) >= written or str(op._schema.returns[0].type) == "List[Tensor]"


def test_trampolines_are_pairs_and_some_have_a_third():
    text = trampolines.generate(sources() / "aclnn.tsv")
    assert text.count("EMU_API int") == sum(2 + (row.word == "most") for row in ROWS.values() if row.form != "atb")


def test_a_second_planning_function_has_the_parameters_of_the_first():
    text = trampolines.function("aclnnX", "a:t n:i64 >b:t", "ge:X most")
    first, second = (
        re.search(rf"int aclnnX{name}\(([^)]*)\)", text).group(1) for name in ("GetWorkspaceSize", trampolines.MOST)
    )
    assert first == second
    assert trampolines.MOST not in trampolines.function("aclnnX", "a:t >b:t", "ge:X sizes")
    most = {row.function for row in ROWS.values() if row.word == "most"}
    assert aclnn.served() - ROWS.keys() == {name + trampolines.MOST for name in most}


def test_makers_of_operations():
    text = trampolines.generate(sources() / "atb.tsv")
    made = [row.function for row in ROWS.values() if row.form == "atb"]
    assert text.count("int CreateOperation(") == sum(name.startswith("atb") for name in made) == 8
    assert text.count("EMU_API int") == 2 * sum(name.startswith("Atb") for name in made)
    assert """emu::atb_make("atbRope", &parameters, {{'i', 0}, {'i', 4}}, made)""" in text
    with pytest.raises(ValueError, match="is not a name of an operation"):
        trampolines.operation('X"); system("', "")


def test_a_name_that_is_no_name_is_refused():
    with pytest.raises(ValueError, match="is not a function name"):
        trampolines.function('aclnnX"); system("', ">out:t", "aten:abs")


def test_an_argument_that_a_row_does_not_pass_is_refused():
    row = ROWS["aclnnFlashAttentionScore"]
    size = ["t", int(DataType.DT_FLOAT16), 4]
    filled = {"t": size, "ia": None, "d": 1.0, "i64": 1, "str": "BNSD"}
    values = {a.name: filled[a.kind] for a in row.arguments}
    values |= {n: None for n in values if n.endswith("Optional")} | {"sparseMode": 0}

    def call(**changed):
        return aclnn._Call(json.dumps({"function": row.function, "args": [*(values | changed).values()]}).encode())

    assert call().row is row
    with pytest.raises(CannRefusal, match="aclnnFlashAttentionScore: the emulator computes without prefixOptional"):
        call(prefixOptional=[3])


def test_the_line_of_a_call_is_the_users_and_not_the_packages():
    """``callers.line`` passes torch's frames by; this test's own is the first that is not one of theirs."""
    found = []

    class Asks(torch.nn.Module):
        def forward(self):
            found.append(eval("line()", {"__name__": "torch._inner", "line": callers.line}))

    Asks()()
    assert found[0].startswith(f"{__file__}:")
    assert " in forward, found.append(" in found[0]


def test_an_error_of_an_operator_has_code_operands_and_next_step():
    plain = callers.failed_operator("aclnnX", [torch.ones(2, 3), 4], IndexError("out of range"))
    assert str(plain).startswith("[GE4005] aclnnX failed on (f32[2, 3], 4): IndexError: out of range\nNext: ")
    ours = callers.failed_operator("aclnnX", [], EngineError("GE4009", "GatherV2: negative", next="turn it"))
    assert str(ours) == "[GE4009] aclnnX: GatherV2: negative\nNext: turn it"
